"""Whole validations: a Gemm compiled by hand on two cores."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import raptor
from raptor.common.errors import UserError
from tests.tiny_models import make_model, node
from tests.validator.builder import Builder, address, op, place, seal, stream
from validator.__main__ import main
from validator.judge.comparison import compare_tensor, tally_errors
from validator.validate import validate

RNG = np.random.default_rng(1)
W = RNG.standard_normal((6, 5)).astype(np.float32)
B = RNG.standard_normal(5).astype(np.float32)


def model(dtype: int = TensorProto.FLOAT, batch: Any = 1) -> onnx.ModelProto:
    """y = relu(x W + B); the tensor between is g."""
    kind = np.float32 if dtype == TensorProto.FLOAT else np.float16
    nodes = [helper.make_node("Gemm", ["x", "W", "B"], ["g"], "gemm"), helper.make_node("Relu", ["g"], ["y"], "relu")]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", dtype, [batch, 6])],
        [helper.make_tensor_value_info("y", dtype, [batch, 5])],
        [numpy_helper.from_array(W.astype(kind), "W"), numpy_helper.from_array(B.astype(kind), "B")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SETBW = op("setbw", ibiw=8, obiw=8)
FIRST = stream(
    *(SETBW, address(1, 0), address(3, 10), address(4, 0), address(5, 0)),
    op("ld", rd=1, rs1=4, size=6),
    op("mvmul", rd=3, rs1=1, mbiw=8, group=0),
    op("send", rd=3, rs1=3, core=1, size=5),
)


def second(add: str = "vvadd") -> np.ndarray:
    return stream(
        *(SETBW, address(1, 0), address(3, 20), address(6, 10), address(4, 0), address(5, 20)),
        op("ld", rd=1, rs1=4, size=5),
        op("recv", rd=6, core=0, size=5),
        op(add, rd=6, rs1=6, rs2=1, len=5),
        op("vrelu", rd=3, rs1=6, len=5),
        *(address(5, 40), op("st", rd=4, rs1=3, size=5)),
    )


PROBE: dict[str, Any] = {
    "tensor": "g",
    "node": "gemm",
    "image_shape": [1, 5],
    "channel_axis": 1,
    "tiles": [{"channels": [0, 5], "rows": [0, 1], "core": 1, "pc": 9, "address": 10}],
}


def gemm(**changes: Any) -> Builder:
    values: dict[str, Any] = {
        "cores": [FIRST, second()],
        "matrices": {0: [W]},
        "inputs": [place("x", [1, 6], 0, axis=1)],
        "outputs": [place("y", [1, 5], 40, axis=1)],
        "constants": B,
        "constants_at": 20,
        "model": model(),
        "probes": [PROBE],
    }
    return Builder(**(values | changes))


@pytest.mark.parametrize("engine", ["auto", "numba", "python"])
@pytest.mark.parametrize("schedule", ["block", "round-robin"])
def test_a_right_program_passes(tmp_path: Path, engine: Any, schedule: Any) -> None:
    report = validate(gemm().write(tmp_path), layers=True, engine=engine, schedule=schedule)
    assert report.verdict == "pass"
    assert report.instructions == len(FIRST) + len(second())
    (output,) = report.outputs
    assert (output.name, output.shape) == ("y", (1, 5))
    assert output.max_relative < 1e-6
    assert [(layer.node, layer.comparison.passed) for layer in report.layers] == [("gemm", True)]


def test_tiles_of_channels_are_put_together(tmp_path: Path) -> None:
    tiles = [{"channels": [c, c + 2], "rows": [0, 1], "address": 2 * (2 - c // 2)} for c in (0, 2, 4)]
    moved: list[tuple[int, ...]] = []
    for c in (0, 2, 4):
        moved += [address(5, 4 - c), address(1, c), op("ld", rd=1, rs1=4, size=2)]
    first = stream(*(SETBW, address(3, 10), address(4, 0)), *moved, address(1, 0), *FIRST[6:].tolist())
    builder = gemm(cores=[first, second()], inputs=[place("x", [1, 6], 0, axis=1, tiles=tiles)])
    assert validate(builder.write(tmp_path)).verdict == "pass"


def test_a_wrong_program_fails_and_names_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = gemm(cores=[FIRST, second("vvsub")]).write(tmp_path / "out")
    assert main([str(out), "--layers", "--json", str(tmp_path / "r.json")]) == 1
    printed = capsys.readouterr().out
    assert "first node that deviates: gemm" in printed
    assert printed.splitlines()[-1].startswith("FAIL  hand: 20 instructions on 2 cores")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["version"], report["verdict"], report["first_deviation"]) == (7, "mismatch", "gemm")
    assert report["outputs"][0]["max_relative"] > 1e-4


def test_exit_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = gemm().write(tmp_path)
    assert main([str(out), "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("PASS  hand: 20 instructions on 2 cores, 100 inputs in ")


def test_samples_are_the_seeds_that_follow(tmp_path: Path) -> None:
    """The worst of them is reported, beside the largest value wanted of any."""
    out = gemm(matrices={0: [W + np.float32(1e-6)]}).write(tmp_path)
    apart = [validate(out, seed=seed, samples=1).outputs[0] for seed in (5, 6, 7)]
    together = validate(out, seed=5, samples=3)
    assert together.samples == 3
    (found,), worst = together.outputs, max(apart, key=lambda c: c.max_absolute)
    assert (found.worst, found.got, found.want) == (worst.worst, worst.got, worst.want)
    assert 0 < found.max_relative <= worst.max_relative


def test_an_output_of_nearly_zero_is_no_mismatch(tmp_path: Path) -> None:
    """A sum of many numbers, of which some input gives nearly nothing: rounding is not more than elsewhere."""
    model = make_model([node("ReduceSum", "x", keepdims=1)], {"x": (1, 7, 9, 9)}, ["y"])
    out = raptor.compile(model).save(tmp_path / "out")
    report = validate(out, samples=100, tolerance=1e-6)
    assert report.passed
    wanted = [abs(validate(out, seed=seed, samples=1).outputs[0].want) for seed in range(100)]
    assert min(wanted) < max(wanted) / 100


def test_a_given_input_is_one_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 6), np.float32))
    assert main([str(gemm().write(tmp_path / "out")), "--quiet", "--input", str(tmp_path / "x.npy")]) == 0
    assert ", 1 input in " in capsys.readouterr().out


def test_the_tolerance_counts(tmp_path: Path) -> None:
    out = gemm(matrices={0: [W + np.float32(1e-3)]}).write(tmp_path)
    assert validate(out).verdict == "mismatch"
    assert validate(out, tolerance=0.1).verdict == "pass"


def test_undefined_memory_fails(tmp_path: Path) -> None:
    core = stream(SETBW, address(1, 0), address(4, 0), address(5, 40), op("st", rd=4, rs1=1, size=5))
    report = validate(gemm(cores=[core, stream()], probes=None).write(tmp_path))
    assert report.verdict == "mismatch"
    assert np.isnan(report.outputs[0].got)


def test_deadlock_is_exit_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = gemm(cores=[FIRST, second()[:7]], probes=None).write(tmp_path / "out")
    assert main([str(out), "--json", str(tmp_path / "r.json")]) == 3
    assert "waits for a recv of core 1, which has finished" in capsys.readouterr().err
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "deadlock"
    assert "core 0 at 7 (send" in report["message"]


def test_bad_input_is_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--json", str(tmp_path / "r.json")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "bad input"
    assert main([]) == 2
    assert main([str(tmp_path), "--engine", "fpga"]) == 2
    out = gemm().write(tmp_path / "out")
    assert main([str(out), "--json", str(tmp_path / "none" / "r.json")]) == 2


def test_half_precision_and_symbolic_shapes(tmp_path: Path) -> None:
    half = gemm(model=model(TensorProto.FLOAT16, "N"), matrices={0: [W.astype(np.float16).astype(np.float32)]})
    assert validate(half.write(tmp_path), tolerance=5e-3, layers=True).verdict == "pass"


def test_inputs_from_files(tmp_path: Path) -> None:
    out = gemm().write(tmp_path / "out")
    x = RNG.standard_normal((1, 6)).astype(np.float32)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "named.npz", x=x, other=x[:, :2])
    np.savez(tmp_path / "single.npz", whatever=x)
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(x, "input_0").SerializeToString())
    expected = np.maximum(x @ W + B, 0)
    for name in ("a.npy", "single.npz", "x.pb"):
        for given in (f"{tmp_path / name}", f"x={tmp_path / name}"):
            report = validate(out, inputs=[given])
            assert report.verdict == "pass"
            assert report.outputs[0].want == pytest.approx(expected[report.outputs[0].worst], rel=1e-5)
    assert validate(out, seed=3, samples=1).outputs != validate(out, seed=4, samples=1).outputs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none.npy", "No such file"),
        ("x.txt", "expected a .npy, .npz or .pb file"),
        ("z=shape.npy", "no input 'z'; the inputs: x"),
        ("shape.npy", "'x' was compiled for [1, 6], got [6]"),
        ("text.npy", "holds <U2, expected numbers"),
        ("object.npy", "Object arrays cannot be loaded"),
        ("broken.npy", "inputs="),
        ("broken.npz", "inputs="),
        ("broken.pb", "not an ONNX tensor"),
        ("two.npz", "is no input of the model; its inputs: x"),
    ],
)
def test_inputs_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.zeros((1, 6), np.float32)
    np.save("shape.npy", x[0])
    np.save("text.npy", np.full((1, 6), "ab"))
    np.save("object.npy", np.array([None]), allow_pickle=True)
    np.savez("two.npz", a=x, b=x)
    for suffix in ("npy", "npz", "pb"):
        Path(f"broken.{suffix}").write_bytes(b"\xff\xff broken")
    with pytest.raises(UserError) as caught:
        validate(gemm().write(tmp_path / "out"), inputs=[given])
    assert message in str(caught.value)


def test_twice_given(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 6), np.float32))
    with pytest.raises(UserError, match="'x' is given twice"):
        validate(gemm().write(tmp_path / "out"), inputs=[str(tmp_path / "x.npy")] * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model.onnx is not in the list of files"),
        ({"inputs": [place("z", [1, 6], 0, axis=1)]}, "has no input 'z'"),
        ({"outputs": [place("z", [1, 5], 40, axis=1)]}, "has no output 'z'"),
        ({"inputs": []}, "input 'x' is not in memory.json"),
        ({"inputs": [place("x", [1, 7], 0, axis=1)]}, "onnxruntime: "),
        ({"outputs": [place("y", [1, 4], 40, axis=1)]}, "'y' has shape [1, 5], memory.json says [1, 4]"),
    ],
)
def test_a_model_that_is_another(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        validate(gemm(**changes).write(tmp_path))
    assert message in str(caught.value)


def test_a_model_that_is_none(tmp_path: Path) -> None:
    builder = gemm().make()
    builder.files["model.onnx"] = b"hello"
    out = builder.write(tmp_path)
    for layers in (False, True):
        with pytest.raises(UserError, match=r"model\.onnx"):
            validate(out, layers=layers)


def test_layers_need_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no layers\.json"):
        validate(gemm(probes=None).write(tmp_path), layers=True)


def test_layers_of_another_size(tmp_path: Path) -> None:
    other = PROBE | {"image_shape": [1, 4], "tiles": [PROBE["tiles"][0] | {"channels": [0, 4]}]}
    with pytest.raises(UserError, match=r"tensor 'g' has 5 elements, layers\.json says 4"):
        validate(gemm(probes=[other]).write(tmp_path), layers=True)


def test_layers_that_the_model_lost_are_left_out(tmp_path: Path) -> None:
    gone = PROBE | {"tensor": "gone"}
    report = validate(gemm(probes=[gone, PROBE]).write(tmp_path), layers=True)
    assert [layer.comparison.name for layer in report.layers] == ["g"]


def test_as_a_module(tmp_path: Path) -> None:
    out = gemm().write(tmp_path)
    seal(out, dict.fromkeys(json.loads((out / "manifest.json").read_text())["files"], b""))
    done = subprocess.run([sys.executable, "-m", "validator", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("output  ok  y  1x5  abs ")


def test_help_needs_no_compiler() -> None:
    code = "import sys, validator.cli; sys.exit('numba' in sys.modules or 'onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("got", "want", "absolute", "relative", "worst", "passed"),
    [
        ([1, 2], [1, 2], 0, 0, (0,), True),
        ([1, 2.5], [1, -4], 6.5, 1.625, (1,), False),
        ([0, 1e-5], [0, 0], 1e-5, 1e-5, (1,), True),
        ([0, 1e-3], [0, 0], 1e-3, 1e-3, (1,), False),
        ([1, NAN], [1, 2], INF, INF, (1,), False),
        ([1, 2], [1, NAN], INF, INF, (1,), False),
        ([1, NAN], [1, NAN], 0, 0, (0,), True),
        ([INF, 2], [INF, 2], 0, 0, (0,), True),
        ([INF, 2], [-INF, 2], INF, INF, (0,), False),
        ([1, 2], [INF, 2], INF, INF, (0,), False),
    ],
)
def test_compare(
    got: list[float], want: list[float], absolute: float, relative: float, worst: Any, passed: bool
) -> None:
    c = compare_tensor("t", tally_errors(np.array(got, np.float32), np.array(want, np.float32)), 1e-4)
    assert (c.max_absolute, c.max_relative) == (pytest.approx(absolute, rel=1e-6), pytest.approx(relative, rel=1e-6))
    assert (c.worst, c.passed) == (worst, passed)


def test_a_scalar_can_be_compared() -> None:
    c = compare_tensor("t", tally_errors(np.array([2], np.float32), np.array(2, np.float32)), 0)
    assert (c.shape, c.worst, c.passed) == ((), (), True)
