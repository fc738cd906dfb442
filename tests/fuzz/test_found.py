"""Defects that the campaign has found, each with the smallest case that shows it."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, numpy_helper
from onnx.external_data_helper import set_external_data
from pydantic import BaseModel, ValidationError

import raptor
from docgen.json_schemas import FILE_CLASSES
from raptor.common.errors import RaptorError, UnsupportedError, UserError
from raptor.common.jit.decorators import kernel
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.compiler.analysis.inspection import inspect
from raptor.spatial.mesh_placement import find_placement
from raptor.target import arch as architectures
from raptor.target import encoding, isa
from raptor.target.arch.pimsim_schema import ArchFile
from raptor.tools.cli import app
from tests.fuzz import memory
from tests.fuzz.campaign import Draw
from tests.fuzz.graphs import GRAPHS
from tests.fuzz.mutations import seal
from tests.pipeline import THESIS_CHIP, by_line, conv_model, passes
from tests.pipeline import check as compiled_and_right
from tests.tiny_models import Array, make_model, node, random
from validator.checks import check
from validator.simulate.builtin import simulate
from validator.simulate.cycle.simulated_chip import read_simulated_chip
from validator.validate import validate


def refusal(model: ModelProto) -> str:
    """Compiles a model that must be refused, and returns the message."""
    with pytest.raises(RaptorError) as caught:
        raptor.compile(model, **THESIS_CHIP)
    assert isinstance(caught.value, UserError), "not our fault"
    return str(caught.value)


# Models


def test_a_convolution_of_more_channels_than_its_weights_have():
    model = make_model([node("Conv", "x w")], {"x": (1, 5, 6, 6)}, ["y"], {"w": random(3, 4, 3, 3)})
    assert "C: 5 kernel channels: 4" in refusal(model)


def test_updates_of_another_shape_than_their_indices():
    constants: dict[str, Array] = {"i": np.zeros((2, 6), np.int64), "u": random(2, 3)}
    model = make_model([node("ScatterElements", "x i u", axis=0)], {"x": (4, 6)}, {"y": 2}, constants)
    assert "onnxruntime cannot run the model" in refusal(model)


def test_a_bias_of_four_dimensions():
    model = make_model(
        [node("Conv", "x w b")], {"x": (1, 3, 4, 4)}, ["y"], {"w": random(1, 3, 3, 3), "b": random(1, 1, 1, 1)}
    )
    assert "its bias has the shape (1, 1, 1, 1), must be (1,)" in refusal(model)


@pytest.mark.parametrize("shape", [(1, 2**40), (2,) * 40, (2**14, 2**15)])
def test_an_input_of_too_many_elements(shape: tuple[int, ...]):
    model = make_model([node("Relu", "x")], {"x": shape}, {"y": len(shape)})
    assert "the most that can be compiled is 268435456" in refusal(model)


def test_a_constant_of_too_many_elements():
    """The model asks for a quarter of a terabyte with twenty bytes."""
    nodes = [node("Tile", "b n", "t"), node("ReduceSum", "t", "s", keepdims=0), node("Add", "x s")]
    constants: dict[str, Array] = {"b": random(1), "n": np.array([2**36], np.int64)}
    assert "tensor 't' has 68719476736 elements" in refusal(make_model(nodes, {"x": (4,)}, {"y": 1}, constants))


def test_inspect_of_weights_of_four_dimensions():
    """onnxruntime does not run a product with these weights."""
    constants = {"b": random(3, 4), "w": random(1, 9, 9, 1)}
    model = make_model([node("Gemm", "x w")], {"x": (2, 9)}, {"y": 2}, constants)
    with pytest.raises(UserError, match="Input 1 expected to have rank 2 but has rank 4"):
        inspect(model)


def test_inspect_of_a_constant_without_a_value():
    model = make_model([node("Constant", "", "k"), node("Add", "x k")], {"x": (2, 9)}, {"y": 2})
    with pytest.raises(UserError, match=r"^onnxruntime refuses the model: "):
        inspect(model)


def test_weights_whose_product_is_beyond_float32():
    nodes = [node("Conv", "x w b", "c"), node("Mul", "c s", "y")]
    huge = np.full((3,), 3e38, np.float32)
    constants = {"w": random(3, 3, 1, 1), "b": huge, "s": np.full((1, 3, 1, 1), 3e38, np.float32)}
    assert "beyond the range of float32" in refusal(make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"], constants))


def test_a_name_that_is_not_utf_8(tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(conv_model((1, 3, 4, 4), 3).SerializeToString().replace(b"conv", b"con\xff"))
    with pytest.raises(UserError, match="a name in it is not UTF-8"):
        raptor.compile(path, **THESIS_CHIP)


def test_a_flag_beyond_32_bits():
    model = make_model([node("Gemm", "x w", transA=2**40)], {"x": (1, 9)}, {"y": 2}, {"w": random(9, 5)})
    assert "transA is 1099511627776, must be 0 or 1" in refusal(model)


def test_nodes_that_nothing_needs(monkeypatch: pytest.MonkeyPatch):
    """onnxruntime needs time with the square of their number to drop them, 10 s for 20 000. So it does not get them."""
    given: list[int] = []

    class Spy(ort.InferenceSession):
        def __init__(self, path: str, *args: Any, **kwargs: Any) -> None:
            given.append(len(onnx.load(path, load_external_data=False).graph.node))
            super().__init__(path, *args, **kwargs)

    unused = [node("Neg", "x", f"u{k}", name=f"u{k}") for k in range(100)]
    model = make_model([*unused, node("Relu", "x", name="used")], {"x": (4,)}, {"y": 1})
    monkeypatch.setattr(ort, "InferenceSession", Spy)
    assert raptor.compile(model).report.layers[0].node == "used"
    assert set(given) == {1}


def test_an_input_of_an_unknown_type():
    model = conv_model((1, 3, 4, 4), 3)
    model.graph.input[0].type.tensor_type.elem_type = 99
    assert refusal(model)


def test_names_neither_fill_nor_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = make_model([node("NonZero", "x", name="\x1b[2J" + "n" * 100_000)], {"x": (4,)}, {"y": 1})
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SystemExit) as stopped:
        app.main(["compile", str(path), "-q", "-o", str(tmp_path / "out")])
    message = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "\x1b" not in message
    assert r"\x1b[2J" in message
    assert len(message) < 5000


# Compiler


def test_a_wide_softmax_in_a_product_of_several_tiles():
    """Its channels were gathered anew, under the same name, for every tile of the result."""
    nodes = [node("MatMul", "x w", "s", name="scores"), node("Softmax", "s", "p"), node("MatMul", "p x", "y")]
    model = make_model(nodes, {"x": (5, 6)}, {"y": 2}, {"w": random(6, 5)})
    compiled_and_right(model, xbar=4, xbars_per_core=4)


def test_a_wide_softmax_squared():
    nodes = [node("MatMul", "x w", "s", name="scores"), node("Softmax", "s", "p"), node("Mul", "p p", "y")]
    model = make_model(nodes, {"x": (5, 6)}, {"y": 2}, {"w": random(6, 5)})
    compiled_and_right(model, xbar=4, xbars_per_core=4)


@pytest.mark.parametrize("op_type", ["LpPool", "GlobalLpPool"])
@pytest.mark.parametrize("p", [0, -2, 65, 2**40])
def test_a_norm_of_an_odd_power(op_type: str, p: int):
    """The computation of a root of 0 did not end."""
    attributes = {"kernel_shape": [2, 2]} if op_type == "LpPool" else {}
    model = make_model([node(op_type, "x", p=p, **attributes)], {"x": (1, 2, 4, 4)}, ["y"])
    with pytest.raises(UnsupportedError, match=f"p is {p}, supported are 1 to 64"):
        raptor.compile(model)


def test_a_chip_of_too_many_cores():
    """The paths between all pairs of cores would take 20 GB, and the network table 50 GB."""
    with pytest.raises(UserError, match="the chip has 50700 cores; at most 10000 can be compiled for"):
        raptor.compile(conv_model((1, 3, 4, 4), 3), cores=50_700)


def test_places_of_many_cores_need_no_table_of_all_pairs():
    chip = architectures.load(cores=10_000)
    tracemalloc.start()
    places = find_placement(np.array([[0, 9_999, 5]]), chip)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sorted(places.tolist()) == list(range(10_000))
    assert peak_bytes < 10_000**2


def test_a_global_memory_of_two_names(tmp_path: Path):
    """Output for a chip with two names could not be simulated. Now the chip is refused; one other name is allowed."""
    chip = json.loads((Path(raptor.__file__).parent / "target" / "presets" / "bench.json").read_text())
    chip["chip_config"]["global_memory_switch_id"] = -9
    path = tmp_path / "arch.json"
    path.write_text(json.dumps(chip))
    with pytest.raises(UserError, match="global_memory_switch_id -9 in chip_config, -10 in core_config"):
        raptor.compile(conv_model((1, 3, 4, 4), 3), arch=path)
    chip["chip_config"]["core_config"]["global_memory_switch_id"] = -9
    path.write_text(json.dumps(chip))
    out = raptor.compile(conv_model((1, 3, 4, 4), 3), arch=path).save(tmp_path / "out")
    assert not check(out)
    assert simulate(out, out / "arch.json").latency_ns > 0


@pytest.mark.parametrize("shape", [(1, 1, 2, 9000), (1, 1, 9000, 2)])
def test_an_image_of_many_lines_or_columns_streams(shape: tuple[int, ...]):
    """Took minutes, because the mapping looked at every column of a million; then it was computed on one core."""
    model = conv_model(shape, 1, (2, 1))
    assert by_line(passes(model, mapping="rows").decision)
    compiled_and_right(model, cores=2)


def test_a_tensor_twice_in_one_by_pixels():
    """The tiles of the tensor were cut twice, under the same names."""
    nodes = [node("Mul", "x x", "m"), node("Concat", "m m", "c", axis=1), node("Relu", "c", "y")]
    model = make_model(nodes, {"x": (1, 4, 3, 2)}, ["y"])
    compiled_and_right(model, xbar=4, xbars_per_core=1, mapping="pixelwise")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layer: layer["cores"].__setitem__(-1, 0), "core 0 holds 6 crossbars, it has 5"),
        (lambda layer: layer["matrices"][1]["rows"].__setitem__(0, 2**31 - 1), r"layer y: matrices\[1\]"),
        (lambda layer: layer["matrices"][1]["rows"].__setitem__(0, -1), r"layer y: matrices\[1\]"),
    ],
)
def test_a_mapping_that_no_pass_can_follow(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str):
    """The message asked to report a bug."""
    file, model = tmp_path / "mapping.json", conv_model((1, 8, 4, 4), 4, (3, 3), pads=(1, 1, 1, 1))
    raptor.compile(model, mapping="raptor", emit_mapping=file, **THESIS_CHIP)
    stored = json.loads(file.read_text())
    (layer,) = stored["decision"]["layers"].values()
    change(layer)
    file.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=message):
        raptor.compile(model, mapping=file, **THESIS_CHIP)


def test_a_mapping_is_kept_when_it_works(tmp_path: Path):
    """The copy was written before a pass refused the mapping."""
    file, copy, model = tmp_path / "mapping.json", tmp_path / "copy.json", conv_model((1, 8, 4, 4), 4, (3, 3))
    raptor.compile(model, mapping="raptor", emit_mapping=file, **THESIS_CHIP)
    raptor.compile(model, mapping=file, emit_mapping=copy, **THESIS_CHIP)
    assert copy.read_bytes() == file.read_bytes()
    stored = json.loads(file.read_text())
    stored["decision"]["layers"]["y"]["matrices"][1]["rows"][0] = -1
    file.write_text(json.dumps(stored))
    copy.unlink()
    with pytest.raises(UserError, match=r"layer y: matrices\[1\]"):
        raptor.compile(model, mapping=file, emit_mapping=copy, **THESIS_CHIP)
    assert not copy.exists()


def test_lines_brought_for_two_operations_on_one_core(tmp_path: Path):
    """The lines were sent twice, into the same tile. The graph is the random one; no smaller one showed the defect."""
    GRAPHS.case(Draw("graphs", 1000682), tmp_path)  # raises BrokenError if it is not right


# Programs


def test_check_of_a_group_count_beyond_32_bits(tmp_path: Path):
    out = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP, mapping="raptor").save(tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    config["array_group_map"]["core0"][0] = 2**32 + 1
    (out / "config.json").write_text(json.dumps(config))
    assert "group-map" in {finding.rule for finding in check(out)}


def with_mistakes(schema: dict[str, Any], of: dict[str, Any]) -> Iterator[Any]:
    """Yields values in which one array or object of the JSON schema `of` holds a thousand mistakes."""
    schema = next((s for s in schema.get("anyOf", ()) if s != {"type": "null"}), schema)
    schema = of["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for choice in schema.get("oneOf", ()):  # told apart by their kind
        kind = of["$defs"][choice["$ref"].rpartition("/")[2]]["properties"]["kind"]["const"]
        yield from (value | {"kind": kind} for value in with_mistakes(choice, of))
    if "items" in schema:
        yield from ([mistake] * 1000 for mistake in ({}, [], ""))
        yield from ([value] for value in with_mistakes(schema["items"], of))
    if schema.get("type") == "object":
        yield from ({f"{k}": mistake for k in range(1000)} for mistake in ({}, [], ""))
        inside = schema.get("properties") or {"0": schema["additionalProperties"]}
        for name, field in inside.items():
            yield from ({name: value} for value in with_mistakes({} if field is True else field, of))


@pytest.mark.parametrize("schema", [s for s in FILE_CLASSES.values() if s is not ArchFile])
def test_mistakes_by_the_thousand(schema: type[BaseModel]):
    """Each mistake took a kilobyte before the first was reported: 2.6 GB for a memory.json of 29 MB."""
    described = schema.model_json_schema()
    spoilt = list(with_mistakes(described, described))
    assert len(spoilt) > 3
    for value in spoilt:
        with pytest.raises(ValidationError) as caught:
            schema.model_validate_json(json.dumps(value))
        assert caught.value.error_count() < 40, f"{value}"[:200]


@pytest.mark.parametrize("read", [architectures.load, read_simulated_chip])
def test_an_architecture_of_a_million_fields(tmp_path: Path, read: Callable[[Path], object]):
    """All mistakes of this file are reported, so it must be smaller than other files may be."""
    path = tmp_path / "arch.json"
    fields = {f"{k}": 0 for k in range(1000)}
    path.write_text(json.dumps(fields | {"chip_config": {"core_cnt": 0}}))
    with pytest.raises(UserError) as caught:
        read(path)
    assert len(str(caught.value).splitlines()) < 60
    path.write_text(json.dumps({f"{k}": 0 for k in range(1_000_000)}))
    with pytest.raises(UserError, match="more than the 1048576"):
        read(path)


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("layers", [False, True])
def test_outputs_that_memory_json_leaves_out(tmp_path: Path, kept: int, layers: bool):
    """Outputs that are not listed were not compared: a program without outputs passed."""
    model = make_model([node("Relu", "x", "y"), node("Neg", "y", "z")], {"x": (1, 3, 4, 4)}, ["y", "z"])
    out = raptor.compile(model, cores=2).save(tmp_path / "out")
    memory = json.loads((out / "memory.json").read_text())
    del memory["outputs"][kept:]
    (out / "memory.json").write_text(json.dumps(memory))
    seal(out)
    with pytest.raises(UserError, match=r"output '[yz]' is not in memory\.json"):
        validate(out, layers=layers)


def test_an_output_that_is_never_a_number(tmp_path: Path):
    """Local memory starts as NaN, so a program that computes nothing would pass."""
    model = make_model([node("Exp", "x", "e"), node("Neg", "e", "n"), node("Sqrt", "n")], {"x": (1, 3, 4, 4)}, ["y"])
    out = raptor.compile(model, cores=2).save(tmp_path / "out")
    with pytest.raises(UserError, match="output 'y': onnxruntime computes no finite number for it from 1 input, so"):
        validate(out, samples=1)


@pytest.mark.parametrize("option", [{"tolerance": float("inf")}, {"tolerance": -1}, {"samples": 0}, {"seed": -1}])
def test_options_that_prove_nothing(tmp_path: Path, option: dict[str, Any]):
    with pytest.raises(UserError, match=f"{next(iter(option))}=.*: expected a "):
        validate(tmp_path, **option)


@pytest.mark.parametrize("content", [b"", b"\x10\x63"])
def test_an_input_without_a_type(tmp_path: Path, content: bytes):
    path = tmp_path / "x.pb"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"inputs=.*x\.pb': cannot be read: not an ONNX tensor"):
        validate(raptor.compile(conv_model((1, 3, 4, 4), 3)).save(tmp_path / "out"), inputs=[str(path)])


def test_an_input_whose_header_does_not_end(tmp_path: Path):
    """numpy reads headers with Python's tokenizer, whose error is not a ValueError."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 4, 4\n"
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    out = raptor.compile(conv_model((1, 3, 4, 4), 3)).save(tmp_path / "out")
    with pytest.raises(UserError, match=r"inputs=.*x\.npy': cannot be read"):
        validate(out, inputs=[str(path)])


def test_an_input_in_another_file(tmp_path: Path):
    tensor = numpy_helper.from_array(random(1, 3, 4, 4), "x")
    np.save(tmp_path / "other", random(1, 3, 4, 4))
    set_external_data(tensor, "other.npy")
    tensor.ClearField("raw_data")
    path = tmp_path / "x.pb"
    path.write_bytes(tensor.SerializeToString())
    with pytest.raises(UserError, match="its numbers are in another file"):
        validate(raptor.compile(conv_model((1, 3, 4, 4), 3)).save(tmp_path / "out"), inputs=[str(path)])


def test_a_link_that_leads_to_itself(tmp_path: Path):
    out = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP).save(tmp_path / "out")
    (out / "report.json").unlink()
    (out / "report.json").symlink_to(out / "report.json")
    with pytest.raises(UserError, match=r"report\.json"):
        validate(out)


def test_check_of_encrypted_weights(tmp_path: Path):
    out = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP, mapping="raptor").save(
        tmp_path / "out", weight_format="npz"
    )
    path = out / "weights/core_0_weights.npz"
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.find(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    assert isinstance(check(out), tuple)


def test_a_network_table_without_end(tmp_path: Path):
    out = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP).save(tmp_path / "out")
    arch = json.loads((out / "arch.json").read_text())
    arch["chip_config"]["network_config"]["net_config_file_path"] = "/dev/zero"
    (out / "arch.json").write_text(json.dumps(arch))
    assert "not a regular file" in " ".join(f.message for f in check(out))
    with pytest.raises(UserError, match="not a regular file"):
        simulate(out, str(out / "arch.json"))


def nested(tmp_path: Path) -> Path:
    path = tmp_path / "nested.json"
    path.write_text('{"a":' * 100_000)
    return path


def with_chip(tmp_path: Path, changes: dict[str, float]) -> tuple[Path, float]:
    """Compiles a program and changes its architecture file. Returns its path and the latency before, ns."""
    out = raptor.compile(conv_model((1, 3, 8, 8), 4, (3, 3), relu=True), **THESIS_CHIP).save(tmp_path / "out")
    before = simulate(out, out / "arch.json").latency_ns
    raw = json.loads((out / "arch.json").read_text())
    for place, value in changes.items():
        *path, field = place.split(".")
        reduce(dict[str, Any].__getitem__, path, raw["chip_config"])[field] = value
    (out / "arch.json").write_text(json.dumps(raw))
    return out, before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"core_config.period": 1e-30}, "greater than or equal to 0.001"),
        ({"core_config.period": 1e30}, "less than or equal to 1000000000"),
        ({"core_config.matrix_config.xbar_latency": 1e30}, "less than or equal to 1000000000"),
        ({"core_config.matrix_config.period": 1e-30}, "greater than or equal to 0.001"),
        (
            {
                "core_config.local_memory_config.period": 1e9,
                "core_config.local_memory_config.read_latency_cycle": 2**31 - 1,
            },
            r"could take \S+ days on this chip",
        ),
    ],
)
def test_a_chip_so_slow_that_time_ends(tmp_path: Path, changes: dict[str, float], message: str):
    """Times beyond 64 bits of picoseconds gave internal errors, and wrong times."""
    out, _ = with_chip(tmp_path, changes)
    with pytest.raises(UserError, match=message):
        simulate(out, out / "arch.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("core_config.period", 1e9),
        ("core_config.vector_latency_cycle", 2**31 - 1),
        ("core_config.matrix_config.period", 1e9),
        ("core_config.matrix_config.adc_latency_cycle", 2**31 - 1),
        ("core_config.matrix_config.cell_precision", 2**31 - 1),
        ("core_config.local_memory_config.period", 1e9),
        ("core_config.local_memory_config.read_latency_cycle", 2**31 - 1),
        ("global_memory_config.period", 1e9),
        ("global_memory_config.write_latency_cycle", 2**31 - 1),
    ],
)
def test_a_slow_chip_takes_longer(tmp_path: Path, place: str, value: float):
    """These are the largest values that are allowed."""
    out, before = with_chip(tmp_path, {place: value})
    assert before < simulate(out, out / "arch.json").latency_ns < 1e16


@pytest.mark.parametrize("value", [-5, "nan", 1e300, "inf"])
def test_a_network_that_takes_less_than_no_time_or_for_ever(tmp_path: Path, value: object):
    out = raptor.compile(conv_model((1, 8, 4, 4), 4, (3, 3)), **THESIS_CHIP, mapping="raptor").save(tmp_path / "out")
    table = json.loads((out / "network.json").read_text())
    for row in table["latency"].values():
        row.update(dict.fromkeys(row, value))
    (out / "network.json").write_text(json.dumps(table))
    with pytest.raises(UserError, match=r"expected a number from 0|could take .* days"):
        simulate(out, out / "arch.json")


def test_a_nested_architecture(tmp_path: Path):
    with pytest.raises(UserError, match="not a JSON file"):
        raptor.compile(conv_model((1, 3, 4, 4), 3), arch=nested(tmp_path))


def test_check_for_a_nested_architecture(tmp_path: Path):
    out = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP).save(tmp_path / "out")
    with pytest.raises(UserError, match="not a JSON file"):
        check(out, nested(tmp_path))


@pytest.mark.parametrize("forgotten", range(1, 8))
def test_a_maximum_that_forgets_an_operand(tmp_path: Path, forgotten: int):
    """The maximum is one number of nine operands: eight of nine inputs hide the defect."""
    model = make_model([node("MaxPool", "x", kernel_shape=[3, 3])], {"x": (1, 1, 3, 3)}, ["y"])
    out = raptor.compile(model, mapping="raptor", **THESIS_CHIP).save(tmp_path / "out", stream_format="pim")
    path = out / "core_0.pim"
    records = encoding.decode_pim(path.read_bytes())
    maxima = np.flatnonzero(records["opcode"] == isa.OPCODE["vvmax"])
    path.write_bytes(encoding.encode_pim(np.delete(records, maxima[forgotten])))
    seal(out)
    assert validate(out).verdict == "mismatch"


# Faults


def test_an_interrupt_between_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The old output is already moved away, the new one is not yet in place: the old one comes back."""
    program = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP)
    out = program.save(tmp_path / "out")
    manifest = (out / "manifest.json").read_bytes()
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if target == out:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.save(out, force=True)
    assert (out / "manifest.json").read_bytes() == manifest
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_interrupt_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("raptor.tools.cli.model_zoo.show_models", interrupt)
    with pytest.raises(SystemExit) as stopped:
        app.main(["models"])
    assert stopped.value.code == 130
    assert "raptor: error: interrupted" in capsys.readouterr().err


def test_an_interrupt_that_compiled_code_does_not_see(monkeypatch: pytest.MonkeyPatch):
    def show(*_: object, **__: object) -> None:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr("raptor.tools.cli.model_zoo.show_models", show)
    with pytest.raises(SystemExit) as stopped:
        app.main(["models"])
    assert stopped.value.code == 130


def test_an_interrupt_that_a_library_drops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Dropping:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def show(*_: object, **__: object) -> None:
        dropping = Dropping()
        del dropping
        time.sleep(5)

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr("raptor.tools.cli.model_zoo.show_models", show)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a process that a shell runs with &
    try:
        with pytest.raises(SystemExit) as stopped:
            app.main(["models"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "raptor: error: interrupted\n"


def test_an_interrupt_while_the_old_output_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP)
    out = program.save(tmp_path / "out")
    remove, calls = shutil.rmtree, []

    def interrupted_once(folder: Path, **options: bool) -> None:
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        program.save(out, force=True)
    assert (out / "manifest.json").is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_that_appears_while_the_new_output_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A thread was still writing after Ctrl-C had ended its pool."""
    program = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP)
    remove, calls = shutil.rmtree, []

    def late_file(folder: Path, **options: bool) -> None:
        calls.append(folder)
        remove(folder, **options)
        if len(calls) < 3:
            folder.mkdir()
            (folder / "late.json").touch()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", late_file)
    monkeypatch.setattr("raptor.output.writer._write_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        program.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "No space left on device"), (errno.ENOMEM, "out of memory; try")]
)
def test_no_room_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, message: str
):
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("raptor.frontend.canonical.canonicalise._move_weights", full)
    path = tmp_path / "model.onnx"
    path.write_bytes(conv_model((1, 3, 4, 4), 3).SerializeToString())
    with pytest.raises(SystemExit) as stopped:
        app.main(["compile", str(path), "-q", "-o", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("mib", [40, 150, 200, 415, 1000])
def test_a_limit_below_what_libraries_need(mib: int):
    """Libraries abort, exit, interrupt themselves or, with some limits, wait for ever."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({mib} << 20, {mib} << 20)); "
    code = f"{limit} from raptor.tools.cli import app; app.main(['check', 'nowhere'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"raptor: error: out of memory: ulimit -v is {mib * 1024} KiB, RAPTOR and its libraries need 1048576\n",
    )


def test_no_memory_for_a_thread(monkeypatch: pytest.MonkeyPatch):
    """The thread ends without a message, and the caller would wait for it for ever."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", full)
    with CheckedThreadPool(1) as pool, pytest.raises(UserError, match="no room for a thread"):
        pool.submit(print)


def test_no_more_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refused)
    with pytest.raises(UserError, match="see ulimit -v and ulimit -u"):
        raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP).save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_onnxruntime_reports_to_nobody(tmp_path: Path):
    """onnxruntime would write an identifier of the computer below the home directory, and send it."""
    model = tmp_path / "model.onnx"
    model.write_bytes(conv_model((1, 3, 4, 4), 3).SerializeToString())
    home = tmp_path / "home"
    home.mkdir()
    code = f"import raptor; assert raptor.compile({str(model)!r}, xbar=4).validate().passed"
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"} | {"HOME": str(home)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, timeout=900, check=True)
    assert not list(home.iterdir())


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch):
    """numba first makes a compiled loop usable, then stores it; an error then must not be seen."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("numba.core.caching.FunctionCache.save_overload", full)
    doubled = kernel(lambda x: x + x)
    assert [doubled(3), doubled(0.5)] == [6, 1.0]


def test_a_constant_that_stays_is_there_for_older_samples(tmp_path: Path):
    """A pass reads the constant for an older sample first, but no step of a pass writes it any more."""
    case, stored = memory.made(177, 5), tmp_path / "mapping.json"
    memory.compiled(case, stored)
    out = memory.with_stages(case, stored, 7852.0, 0, "slices").save(tmp_path / "out")
    assert validate(out, samples=6, seed=177).passed
