"""Programs with integers: directories that are refused, and why; what is loaded; inputs, outputs, probes, messages."""

# ruff: noqa: E501 one case a line

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from raptor.common.errors import UserError
from tests.validator.builder import FLOAT32, Builder, address, coded, op, place, stream
from tests.validator.load.test_output_directory import Edit, edit, npy, put, refused
from validator.errors import ProgramError
from validator.execution.run import run_program
from validator.load.output_directory import load_output

W = np.arange(12).reshape(4, 3) - 6
SETBW = op("setbw", ibiw=8, obiw=32)
SCALED = coded(8, "float32", scale=[0.5], zero_point=[-3])
MODES: list[tuple[Any, Any]] = [(e, s) for e in ("python", "numba") for s in ("block", "round-robin")]


def good(**changes: Any) -> Builder:
    """Builds a program: y (int32) = x (uint8, stored as int8) @ W."""
    rows = (SETBW, address(1, 0), address(2, 8), address(28, 0), address(29, 0), op("ld", rd=1, rs1=28, size=4))
    out = (address(29, 16), op("st", rd=28, rs1=2, size=12))
    values: dict[str, Any] = {
        "cores": [stream(*rows, op("mvmul", rd=2, rs1=1, mbiw=8, group=0), *out)],
        "matrices": {0: [W.astype(np.int8)]},
        "inputs": [place("x", [4], 0, coding=coded(8, "uint8", offset=128))],
        "outputs": [place("y", [3], 16, coding=coded(32, "int32"))],
        "constants": np.arange(3, dtype=np.uint8),
        "constants_at": 8,
        "numbers": "int",
    }
    return Builder(**(values | changes))


@pytest.mark.parametrize("npz", [True, False])
@pytest.mark.parametrize("largest", [127, 128, -128, -129, 2**15 - 1])
def test_weights_are_kept_compact(tmp_path: Path, npz: bool, largest: int) -> None:
    matrix = W.copy()
    matrix[1, 1] = largest
    core = stream(SETBW, address(1, 0), address(2, 8), op("mvmul", rd=2, rs1=1, mbiw=16, group=0))
    program = load_output(good(cores=[core], matrices={0: [matrix.astype(np.int16)]}, npz=npz, bits=16).write(tmp_path))
    assert program.weights.values.dtype == (np.int8 if -128 <= largest <= 127 else np.int16)
    np.testing.assert_array_equal(program.weights.matrix(0, 0), matrix)
    assert program.constants.dtype == np.uint8


@pytest.mark.parametrize("mode", MODES)
def test_a_product_from_model_to_model(tmp_path: Path, mode: tuple[Any, Any]) -> None:
    engine, schedule = mode
    x = np.array([0, 255, 128, 3], np.uint8)
    result = run_program(load_output(good().write(tmp_path)), {"x": x}, engine=engine, schedule=schedule)
    assert result.outputs["y"].dtype == np.int32
    np.testing.assert_array_equal(result.outputs["y"], (x.astype(int) - 128) @ W)
    assert result.output_elements["y"].dtype == np.int64


def change_input(**entries: Any) -> Edit:
    return edit("memory.json", lambda m: m["inputs"][0]["coding"].update(entries))


def change_coding(coding: Any) -> Edit:
    def change(memory: Any) -> None:
        memory["inputs"][0]["coding"] = coding

    return edit("memory.json", change)


def weights(array: np.ndarray) -> Edit:
    def apply(builder: Builder) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **{"0": array})  # pyright: ignore[reportArgumentType]
        del builder.files[W0]
        builder.files["weights/core_0_weights.npz"] = buffer.getvalue()

    return apply


W0 = "weights/core_0_weights.json"
CHANGES: dict[str, tuple[Edit, str]] = {
    "no coding": (change_coding(None), "input 'x': no coding, in a program with integers"),
    "unknown type": (change_input(dtype="int65"), "dtype"),
    "held as floats": (change_input(dtype="int64"), "integers of 8 bits for int64, which are held as floats"),
    "bits": (change_input(bits=33), "bits"),
    "no bits": (change_input(bits=0), "integers of 0 bits"),
    "bounds": (change_input(low=0, high=900), "low 0 and high 900 are no range of uint8"),
    "half a bound": (change_input(low=0), "low and high belong together"),
    "float": (change_coding(FLOAT32), "floats, in a program whose numbers are int"),
    "offset": (change_input(offset=100), "uint8 with offset 100 is -100 to 155, elements of 8 bits are not"),
    "narrow": (change_input(dtype="int16", offset=40000), "int16 with offset 40000 is -72768 to -7233, elements"),
    "float without scale": (change_input(dtype="float32", offset=0), "need a scale"),
    "zero point alone": (change_input(zero_point=[1]), "only with a scale"),
    "axis alone": (change_input(axis=0), "only with a scale"),
    "scale of integers": (change_input(scale=[1.0]), "a scale is for floats"),
    "scale of 0": (change_coding(SCALED | {"scale": [0.0]}), "greater than 0"),
    "scale of nearly 0": (change_coding(SCALED | {"scale": [1e-60]}), "a scale is 0 or infinite as a float32"),
    "scale beyond float32": (change_coding(SCALED | {"scale": [1e39]}), "a scale is 0 or infinite as a float32"),
    "negative scale": (change_coding(SCALED | {"scale": [-1.0]}), "greater than 0"),
    "two scales": (change_coding(SCALED | {"scale": [1.0, 2.0]}), "scale has 2 entries, expected 1"),
    "no zero point": (change_coding(SCALED | {"zero_point": []}), "zero_point has 0 entries, expected 1"),
    "large zero point": (change_coding(SCALED | {"zero_point": [128]}), "zero_point is outside -128..127"),
    "axis": (change_coding(SCALED | {"axis": 1}), "axis 1 of a tensor of 1 dimensions"),
    "scales of an axis": (change_coding(SCALED | {"axis": 0}), "scale has 1 entries, expected 4"),
    "zero points of an axis": (
        change_coding(SCALED | {"axis": 0, "scale": [1.0] * 4}),
        "zero_point has 1 entries, expected 4",
    ),
    "scale is text": (change_coding(SCALED | {"scale": ["1"]}), "scale"),
    "scale is NaN": (put("memory.json", '{"inputs": [{"coding": {"scale": [NaN]}}]}'), "memory.json"),
    "wide elements": (
        edit("memory.json", lambda m: m["outputs"][0]["coding"].update(bits=32) or m["outputs"][0]["tiles"][0].update(address=250)),
        "leave the global memory of 256 bytes",
    ),
    "element_bytes": (edit("memory.json", lambda m: m.update(element_bytes=2)), "counts bytes: expected 1"),
    "constants are floats": (put("weights/constants.npy", npy(np.zeros(3, np.float32))), "expected |u1 (uint8)"),
    "constants are signed": (put("weights/constants.npy", npy(np.zeros(3, np.int8))), "expected |u1 (uint8)"),
    "fewer constants": (put("weights/constants.npy", npy(np.zeros(2, np.uint8))), "expected shape (3,), found (2,)"),
    "weights are floats": (weights(W.astype(np.float32)), "expected |i1 (int8) or <i2 (int16) in C order, found <f4"),
    "weights are wide": (weights(W.astype(np.int32)), "expected |i1 (int8) or <i2 (int16) in C order, found <i4"),
    "weights are swapped": (weights(W.astype(">i2")), "found >i2"),
    "weights in columns": (weights(np.asfortranarray(W.astype(np.int8))), "found |i1 in Fortran order"),
    "weights are objects": (weights(np.array([[None]], object)), "group 0: "),
    "weights not whole": (put(W0, '{"0": [[1.5]]}'), "expected an object of matrices"),
    "weights beyond int16": (put(W0, '{"0": [[32768]]}'), "holds a weight outside -32768..32767"),
    "weights beyond int64": (put(W0, '{"0": [[99999999999999999999]]}'), "weights/core_0_weights.json"),
    "ragged weights": (put(W0, '{"0": [[1, 2], [3]]}'), "expected rows of one length"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_changes_are_refused(tmp_path: Path, case: str) -> None:
    change, message = CHANGES[case]
    builder = good().make()
    change(builder)
    refused(builder.write(tmp_path), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "int", "bits": 8}, "integers, in a program of floats"),
        ({"bits": 32}, "floats have 0 bits here, and neither offset nor scale"),
        ({"offset": 1}, "floats have 0 bits here, and neither offset nor scale"),
        ({"dtype": "uint8", "low": -1, "high": 5}, "low -1 and high 5 are no range of uint8"),
        ({"dtype": "float16", "low": 0, "high": 5}, "low and high are for integers"),
    ],
)
def test_codings_in_a_program_of_floats(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    from tests.validator.load.test_output_directory import good as floats

    coding = {"kind": "float", "bits": 0, "dtype": "int64", **changes}
    refused(floats(inputs=[place("x", [4], 0, coding=coding)]).write(tmp_path), message)


def probe(**changes: Any) -> dict[str, Any]:
    tile = {"channels": [0, 3], "rows": [0, 1], "core": 0, "pc": 7, "address": 8}
    entry = {"tensor": "t", "node": "n", "image_shape": [3], "channel_axis": 0, "tiles": [tile]}
    return entry | {"coding": coded(32, "int32")} | changes


def test_probes_have_codings(tmp_path: Path) -> None:
    program = load_output(good(probes=[probe()]).write(tmp_path / "good"))
    result = run_program(program, {"x": np.full(4, 129, np.uint8)}, probes=True)
    np.testing.assert_array_equal(result.probe_elements["t"], W.sum(axis=0))
    refused(good(probes=[probe(coding=None)]).write(tmp_path / "none"), "tensor 't': no coding")
    tile = probe()["tiles"][0]
    far = probe(tiles=[tile | {"address": 248}])
    refused(good(probes=[far]).write(tmp_path / "far"), "12 bytes at 248 leave the local memory of core 0")


def test_a_probe_of_bytes_that_are_not_there_yet(tmp_path: Path) -> None:
    tile = probe()["tiles"][0]
    program = load_output(good(probes=[probe(tiles=[tile | {"pc": 6}])]).write(tmp_path))
    with pytest.raises(UserError, match="tensor 't': the program has not written 12 of its bytes, the first at 0"):
        run_program(program, {"x": np.zeros(4, np.uint8)}, probes=True)


def test_an_output_that_is_not_written(tmp_path: Path) -> None:
    rows = good().cores[0][:-1]
    program = load_output(good(cores=[rows]).write(tmp_path))
    with pytest.raises(UserError, match="output 'y': the program has not written 12 of its bytes, the first at 16"):
        run_program(program, {"x": np.zeros(4, np.uint8)})


ROWS = (address(1, 0), address(2, 32), address(3, 64), address(9, 1))
STREAMS: dict[str, tuple[tuple[tuple[int, ...], ...], str]] = {
    "no width": ((*ROWS, op("vvadd", rd=3, rs1=1, rs2=2, len=4)), "no setbw before it"),
    "late width": ((*ROWS, op("vvadd", rd=3, rs1=1, rs2=2, len=4), SETBW), "no setbw before it"),
    "scalar load": ((address(28, 0), address(29, 0), op("sld", rd=1, rs1=28)), "no smuli uses its result"),
    "table": ((*ROWS, op("setbw", ibiw=9, obiw=8), op("vlut", rd=3, rs1=1, rs2=2, len=4)), "inputs of at most 8 bits"),
    "weights": ((*ROWS, SETBW, op("mvmul", rd=2, rs1=1, mbiw=3, group=0)), "weights of more than mbiw bits"),
    **{
        name: ((*ROWS, SETBW, op(name, rd=3, rs1=1, **more, len=4)), "it has no meaning for integers; use setfp")
        for name, more in {
            **{key: {} for key in ("vtanh", "vsigm", "vsoftmax", "vexp", "vlog", "vsqrt", "verf", "vfloat", "vround")},
            "vavg": {"rs2": 9},
            "vvdiv": {"rs2": 2},
            "vvmask": {"rs2": 2},
        }.items()
    },
}
MIXED: dict[str, tuple[tuple[tuple[int, ...], ...], str]] = {
    "setfp": ((op("setfp", ibiw=32, obiw=32),), ""),
    "shift": ((*ROWS, op("setfp", ibiw=32, obiw=32), op("vvsll", rd=3, rs1=1, rs2=2, len=4)), "no meaning for floats"),
    "product": ((*ROWS, op("setfp", ibiw=8, obiw=32), op("mvmul", rd=2, rs1=1, mbiw=8, group=0)), "no meaning for floats"),
    "narrow": ((*ROWS, op("setfp", ibiw=32, obiw=16), op("vvadd", rd=3, rs1=1, rs2=2, len=4)), "ibiw and obiw are not both 32"),
    "to": ((*ROWS, op("setfp", ibiw=32, obiw=8), op("vfloat", rd=3, rs1=1, len=4)), "its result is a float32"),
    "from": ((*ROWS, op("setfp", ibiw=8, obiw=32), op("vround", rd=3, rs1=1, len=4)), "its operand is a float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAMS)
def test_streams_are_refused(tmp_path: Path, case: str) -> None:
    rows, message = STREAMS[case]
    refused(good(cores=[stream(*rows)]).write(tmp_path), message, ProgramError)


@pytest.mark.parametrize("case", MIXED)
def test_streams_with_floats_are_refused(tmp_path: Path, case: str) -> None:
    rows, message = MIXED[case]
    folder = good(cores=[stream(*rows)]).write(tmp_path / "int")
    with pytest.raises(ProgramError):
        load_output(folder)
    mixed = good(cores=[stream(*rows)], numbers="mixed").write(tmp_path / "mixed")
    if message:
        refused(mixed, message, ProgramError)
    else:
        load_output(mixed)


# Values of the model and elements on the chip


def copying(coding: dict[str, Any], shape: list[int], size: int, **more: Any) -> Builder:
    """Builds a program that copies its input to its output."""
    rows = (address(1, 0), address(28, 0), address(29, 0), op("ld", rd=1, rs1=28, size=size))
    out = (address(29, 512), op("st", rd=28, rs1=1, size=size))
    ends = {"inputs": [place("x", shape, 0, coding=coding)], "outputs": [place("y", shape, 512, coding=coding)]}
    return Builder([stream(*rows, *out)], size_bytes=1024, local_bytes=512, numbers="mixed", **(ends | more))


def copied(folder: Path, coding: dict[str, Any], x: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    program = load_output(copying(coding, list(x.shape), size).write(folder))
    result = run_program(program, {"x": x})
    return result.outputs["y"], result.output_elements["y"]


INTEGERS: dict[str, Callable[[], tuple[dict[str, Any], np.ndarray, list[int]]]] = {
    "int8": lambda: (coded(8), np.array([-128, 0, 127], np.int8), [-128, 0, 127]),
    "uint8": lambda: (coded(8, "uint8", offset=128), np.array([0, 128, 255], np.uint8), [-128, 0, 127]),
    "uint16": lambda: (coded(16, "uint16", offset=2**15), np.array([0, 2**15, 2**16 - 1], np.uint16), [-(2**15), 0, 2**15 - 1]),
    "int32": lambda: (coded(32, "int32"), np.array([-(2**31), 7, 2**31 - 1], np.int32), [-(2**31), 7, 2**31 - 1]),
    "int4": lambda: (coded(4, "int4"), np.array([-8, 0, 7], ml_dtypes.int4), [-8, 0, 7]),
    "int4 in int8": lambda: (coded(4, "int4"), np.array([-8, 0, 7], np.int8), [-8, 0, 7]),
    "uint4": lambda: (coded(4, "uint4", offset=8), np.array([0, 8, 15], ml_dtypes.uint4), [-8, 0, 7]),
    "uint2": lambda: (coded(2, "uint2", offset=2), np.array([0, 1, 3], np.uint8), [-2, -1, 1]),
    "int8 in 24 bits": lambda: (coded(24), np.array([-128, 0, 127], np.int8), [-128, 0, 127]),
    "whole floats": lambda: (coded(16, "int16"), np.array([-5.0, 0, 7]), [-5, 0, 7]),
}  # fmt: skip


@pytest.mark.parametrize("case", INTEGERS)
def test_integers_keep_their_values(tmp_path: Path, case: str) -> None:
    coding, x, elements = INTEGERS[case]()
    y, stored = copied(tmp_path, coding, x, 3 * -(-coding["bits"] // 8))
    np.testing.assert_array_equal(stored, elements)
    np.testing.assert_array_equal(y.astype(np.int64), x.astype(np.int64))
    assert str(y.dtype) == coding["dtype"]


WRONG: dict[str, tuple[dict[str, Any], np.ndarray, str]] = {
    "range": (coded(8, "uint8", offset=128), np.array([0, 256, 1]), "a value outside 0..255, the range of uint8"),
    "negative": (coded(4, "uint4", offset=8), np.array([0, -1, 1]), "a value outside 0..15, the range of uint4"),
    "huge": (coded(8), np.array([0, 2**64 - 5, 1], np.uint64), "not whole"),
    "parts": (coded(8), np.array([0, 0.5, 1]), "holds numbers that are not whole"),
    "nothing": (coded(8), np.array([0, np.nan, 1]), "holds numbers that are not whole"),
    "bits": (coded(8, "int32"), np.array([0, 128, 1]), "elements of 8 bits do not hold"),
    "NaN": (SCALED, np.array([0, np.nan, 1]), "holds NaN, which cannot be quantised"),
}


@pytest.mark.parametrize("case", WRONG)
def test_values_without_an_element(tmp_path: Path, case: str) -> None:
    coding, x, message = WRONG[case]
    with pytest.raises(UserError, match=message):
        copied(tmp_path, coding, x, 3)


def test_the_host_quantises_as_the_standard_says(tmp_path: Path) -> None:
    """x / 0.5 - 3: ties to even before the zero point is added, then saturation."""
    x = np.array([0.25, 0.75, -0.25, 1e30, -np.inf, 1], np.float32)
    y, stored = copied(tmp_path, SCALED, x, 6)
    np.testing.assert_array_equal(stored, [-3, -1, -3, 127, -128, -1])
    np.testing.assert_array_equal(y, ((stored + 3) * np.float32(0.5)).astype(np.float32))
    assert y.dtype == np.float32


def test_the_host_divides_in_float32(tmp_path: Path) -> None:
    """Against numpy's own float32, on scales that are no power of two."""
    rng = np.random.default_rng(0)
    x, scale = rng.standard_normal((16, 8)).astype(np.float32), rng.random(8).astype(np.float32) / 50
    zero = rng.integers(-128, 127, 8)
    coding = coded(8, "float32", scale=[float(s) for s in scale], zero_point=[int(z) for z in zero], axis=1)
    y, stored = copied(tmp_path, coding, x, 128)
    np.testing.assert_array_equal(stored, np.clip(np.rint(x / scale) + zero, -128, 127))
    np.testing.assert_array_equal(y, (stored - zero).astype(np.float32) * scale)


def test_floats_are_kept_to_the_bit(tmp_path: Path) -> None:
    x = np.array([1e-40, -0.0, np.nan, np.inf], np.float32)
    y, stored = copied(tmp_path, FLOAT32, x, 16)
    assert y.tobytes() == x.tobytes() == stored.tobytes()


def test_an_element_beyond_its_type_is_named(tmp_path: Path) -> None:
    """An int16 of the chip stands for the int8 y of the model."""
    coding = {"inputs": [place("x", [3], 0, coding=coded(16, "int16"))]}
    outputs = [place("y", [3], 512, coding=coded(16, "int8"))]
    program = load_output(copying(coded(16), [3], 6, **coding, outputs=outputs).write(tmp_path))
    with pytest.raises(UserError, match="output 'y': an element stands for a value outside int8"):
        run_program(program, {"x": np.array([1, 128, 3])})


def test_an_element_beyond_its_bits_is_named(tmp_path: Path) -> None:
    outputs = [place("y", [3], 512, coding=coded(12, "int16"))]
    program = load_output(copying(coded(16, "int16"), [3], 6, outputs=outputs).write(tmp_path))
    with pytest.raises(UserError, match="output 'y': an element does not fit its 12 bits"):
        run_program(program, {"x": np.array([1, 2048, 3])})


@pytest.mark.parametrize("mode", MODES)
def test_a_message_carries_what_was_never_written(tmp_path: Path, mode: tuple[Any, Any]) -> None:
    """Core 0 sends four bytes of which it has three; core 1 adds them."""
    engine, schedule = mode
    first = (address(1, 0), op("lldi", rd=1, imm=200, len=3), op("send", rd=1, rs1=1, core=1, size=4))
    second = (address(1, 8), address(2, 16), op("recv", rd=1, core=0, size=4), op("setbw", ibiw=8, obiw=8))
    for length, message in ((3, ""), (4, "element 3, 1 bytes at 11, was never written")):
        add = op("vvmax", rd=2, rs1=1, rs2=1, len=length)
        rest = (address(28, 0), address(29, 32), op("st", rd=28, rs1=2, size=3))
        outputs = [place("y", [3], 32, coding=coded(8))]
        cores = [stream(*first), stream(*second, add, *rest)]
        program = load_output(Builder(cores, outputs=outputs, numbers="int").write(tmp_path / str(length)))
        if message:
            with pytest.raises(ProgramError, match=f"core 1, instruction 4 .*{message}"):
                run_program(program, {}, engine=engine, schedule=schedule)
        else:
            got = run_program(program, {}, engine=engine, schedule=schedule)
            np.testing.assert_array_equal(got.outputs["y"], [200 - 256] * 3)


def test_the_machine_counts_what_it_allocates(tmp_path: Path) -> None:
    folder = good().write(tmp_path)
    load_output(folder, memory_limit_bytes=6 * 256 + 2 * 256)
    with pytest.raises(UserError, match="more than the limit"):
        load_output(folder, memory_limit_bytes=6 * 256 + 2 * 256 - 1)


def test_the_coding_is_in_the_schema(tmp_path: Path) -> None:
    builder = good().make()
    memory = json.loads(builder.files["memory.json"])
    memory["inputs"][0]["coding"]["surprise"] = 1
    builder.files["memory.json"] = json.dumps(memory).encode()
    refused(builder.write(tmp_path), "surprise")
