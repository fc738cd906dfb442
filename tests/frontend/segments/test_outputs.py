"""Outputs that are no tensors come from the host, the products before them from the chip (public reports, B3)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

import raptor
from raptor.tools.cli import app
from tests.segmented_models import compiled, cut_of
from tests.tiny_models import Array, node, random
from validator.hosted.border_values import flatten_value
from validator.hosted.compare_values import compare_value
from validator.model.ort_session import create_session

WEIGHTS = {"w1": random(8, 6, seed=1), "w2": random(6, 3, seed=2)}
PRODUCTS = (node("MatMul", "x w1", "a", name="first"), node("Relu", "a", "b"), node("MatMul", "b w2", "c", name="last"))
FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [])


def classifier(**labels: Any) -> ModelProto:
    """Two products, and what exporters of scikit-learn put behind them: a label, and a map of scores for each row."""
    key = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    nodes = [
        *PRODUCTS,
        node("Softmax", "c", "p", name="scores"),
        node("ArgMax", "c", "label", name="label", axis=1, keepdims=0),
        helper.make_node("ZipMap", ["p"], ["probs"], "zip", domain="ai.onnx.ml", **labels),
    ]
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, FLOATS))
    label = helper.make_tensor_value_info("label", TensorProto.INT64, [2])
    return model(nodes, [label, helper.make_value_info("probs", maps)])


def model(nodes: list[Any], outputs: list[ValueInfoProto]) -> ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]
    graph = helper.make_graph(
        nodes, "made", inputs, outputs, [numpy_helper.from_array(w, n) for n, w in WEIGHTS.items()]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def ending(op_type: str, inputs: str, kind: onnx.TypeProto) -> ModelProto:
    return model([*PRODUCTS, node(op_type, inputs, "s", name="end")], [helper.make_value_info("s", kind)])


def run(*arguments: object) -> int:
    """Runs a command; returns its exit status."""
    with pytest.raises(SystemExit) as ended:
        app.main([str(a) for a in arguments])
    return int(ended.value.code or 0)


MODELS: dict[str, Callable[[], ModelProto]] = {
    "maps of numbers": lambda: classifier(classlabels_int64s=[4, 2, 7]),
    "maps of names": lambda: classifier(classlabels_strings=["cat", "dog", "eel"]),
    "sequence": lambda: ending("SequenceConstruct", "b c", helper.make_sequence_type_proto(FLOATS)),
    "pieces": lambda: ending("SplitToSequence", "c", helper.make_sequence_type_proto(FLOATS)),
    "optional": lambda: ending(
        "Optional", "c", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3]))
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_products_stay_on_the_chip(name: str, tmp_path: Path):
    made, x = MODELS[name](), random(2, 8, seed=7)
    found = cut_of(made)
    assert found.chip_share == 1
    assert {"first", "last"} <= {n for s in found.on_chip for n in s.nodes}
    program = compiled(made, tmp_path / "out")
    verdict = program.validate(samples=3)
    assert verdict.passed, verdict
    onnx.save(made, tmp_path / "made.onnx")
    np.save(tmp_path / "x.npy", x)
    file = tmp_path / "found.npz"
    assert run("run", tmp_path / "out", "--input", tmp_path / "x.npy", "-o", file, "-q") == 0
    opened = create_session(str(tmp_path / "made.onnx"), Path("golden"))
    names = [o.name for o in opened.get_outputs()]
    wanted = {
        k: a for n, v in zip(names, opened.run(names, {"x": x}), strict=True) for k, a in flatten_value(n, v).items()
    }
    with np.load(file) as arrays:
        assert set(arrays.files) == set(wanted)
        for key, array in wanted.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(arrays[key], array, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(arrays[key], array)


def test_types_are_those_of_onnxruntime(tmp_path: Path):
    made = classifier(classlabels_int64s=[4, 2, 7])
    onnx.save(made, tmp_path / "made.onnx")
    known = {o.name: o.type for o in create_session(str(tmp_path / "made.onnx"), Path("golden")).get_outputs()}
    assert {o.name: o.type for o in cut_of(made).outputs} == known


def test_one_tensor_per_npy(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A file that cannot hold the output is refused before the run, and none is left."""
    compiled(MODELS["sequence"](), tmp_path / "out")
    np.save(tmp_path / "x.npy", random(2, 8))
    assert run("run", tmp_path / "out", "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npy") == 2
    assert "expected a .npz file" in capsys.readouterr().err
    assert not [*tmp_path.glob("*y.npy")]


ROWS: list[dict[int, float]] = [{4: 0.25, 2: 0.5, 7: 0.25}, {4: 0.125, 2: 0.25, 7: 0.625}]


def test_maps_are_compared_by_key():
    swapped = [{4: 0.5, 2: 0.25, 7: 0.25}, ROWS[1]]
    assert compare_value("probs", ROWS, [dict(row) for row in ROWS], 1e-4).passed
    assert not compare_value("probs", swapped, ROWS, 1e-4).passed
    assert not compare_value("probs", [{4: 0.25, 2: 0.5, 8: 0.25}, ROWS[1]], ROWS, 1e-4).passed
    assert not compare_value("probs", ROWS[:1], ROWS, 1e-4).passed
    near = [{key: value * (1 + 1e-6) for key, value in row.items()} for row in ROWS]
    assert compare_value("probs", near, ROWS, 1e-4).passed


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([], {}),
        (None, {}),
        ([np.ones(2), np.zeros(3)], {"s/0": np.ones(2), "s/1": np.zeros(3)}),
        ({"a": 1.5}, {"s": np.array([1.5]), "s/keys": np.array(["a"])}),
        ([{1: 0.5}, {2: 0.5}], {"s/0": [0.5], "s/0/keys": [1], "s/1": [0.5], "s/1/keys": [2]}),
    ],
)
def test_parts_of_values(value: Any, wanted: dict[str, Array]):
    found = flatten_value("s", value)
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[key], array)


def test_an_output_of_any_name(tmp_path: Path):
    """numpy's own argument is no name of an array."""
    made = model(
        [*PRODUCTS[:2], node("MatMul", "b w2", "file", name="last")], [helper.make_empty_tensor_value_info("file")]
    )
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("file", TensorProto.FLOAT, [2, 3]))
    raptor.compile(made, xbar=32, cores=8).save(tmp_path / "out")
    assert run("run", tmp_path / "out", "-o", tmp_path / "y.npz", "-q") == 0
    with np.load(tmp_path / "y.npz") as arrays:
        assert arrays["file"].shape == (2, 3)
