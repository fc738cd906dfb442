"""Precision of float32: right programs pass though the tolerance refuses them, wrong ones do not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import raptor
from tests.tiny_models import make_model, node, random
from validator.__main__ import main
from validator.judge import judge_program
from validator.judge.comparison import compare_tensor, compute_error_scale, tally_errors
from validator.judge.validation_report import ValidationReport, to_json
from validator.model.float64 import NoFloat64Error
from validator.validate import validate

W = random(6, 5)
FAINT = np.array([1e4, 1e4, 1e4, 1e4, 0.1], np.float32)
"""Factors that make one output of a product a hundred thousand times smaller than the others."""


def detector(weights: Any = W, bias: float = -15) -> onnx.ModelProto:
    """Ends with a sigmoid of numbers around `bias`; float32's in onnxruntime is no better than 1e-7."""
    constants = {"w": weights, "b": np.full(5, bias, np.float32)}
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Sigmoid", "a", name="last")]
    return make_model(nodes, {"x": (1, 6)}, {"y": 2}, constants)


def product(weights: Any) -> onnx.ModelProto:
    return make_model([node("MatMul", "x w")], {"x": (1, 6)}, {"y": 2}, {"w": weights})


def verdict(
    folder: Path, right: onnx.ModelProto, computed: onnx.ModelProto | None = None, **options: Any
) -> ValidationReport:
    """Validates a program that computes `computed`, for the model `right`."""
    out = raptor.compile(computed or right, cores=4).save(folder / "out")
    (out / "model.onnx").write_bytes(right.SerializeToString())
    return validate(out, check_hashes=False, **options)


def changed(at: tuple[int, int], factor: float, weights: Any = W) -> Any:
    copy = weights.copy()
    copy[at] *= np.float32(factor)
    return copy


def test_a_sigmoid_of_small_numbers_passes_and_says_why(tmp_path: Path) -> None:
    report = verdict(tmp_path, detector())
    (y,) = report.outputs
    assert y.max_relative > report.tolerance
    assert report.passed
    assert y.passed
    assert y.rounding is not None
    assert abs(y.rounding.got - y.rounding.exact) < 1e-6 * y.rounding.exact
    assert report.reason is not None
    assert report.reason.startswith("y [0,")
    assert "is right by float64, which gives " in report.reason


def test_one_line_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = raptor.compile(detector(), cores=4).save(tmp_path / "out")
    assert main([str(out), "--json", str(tmp_path / "r.json")]) == 0
    _, why, last = capsys.readouterr().out.splitlines()
    assert "is right by float64" in why
    assert last.startswith("PASS  ")
    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["version"], written["reason"]) == (7, why)
    assert written["outputs"][0]["rounding"]["passed"] is True


def test_the_python_api_says_why() -> None:
    report = raptor.compile(detector(), cores=4).validate(layers=True)
    assert report.passed
    assert report.reason is not None
    assert report.first_deviation is None
    assert [layer.node for layer in report.layers if layer.comparison.rounding] == ["last"]


@pytest.mark.parametrize(
    "weights",
    [W[:, [1, 0, 2, 3, 4]], changed((2, 3), 1.001), changed((0, 4), 1.001), W[[1, 0, 2, 3, 4, 5]]],
    ids=["outputs swapped", "a weight", "another weight", "inputs swapped"],
)
def test_the_same_model_computed_wrong_fails_and_says_why(tmp_path: Path, weights: Any) -> None:
    report = verdict(tmp_path, detector(), detector(weights))
    assert report.verdict == "mismatch"
    assert report.reason is not None
    assert "rounding to float32 moves it by " in report.reason


def test_another_bias_fails(tmp_path: Path) -> None:
    assert verdict(tmp_path, detector(), detector(bias=-15.001)).verdict == "mismatch"


def test_a_wrong_small_value_beside_large_ones_is_found(tmp_path: Path) -> None:
    """The error is ten times smaller than the tolerance relative to the largest value."""
    right = product(W * FAINT)
    assert verdict(tmp_path / "right", right).passed
    report = verdict(tmp_path / "wrong", right, product(changed((1, 4), 1.1, W * FAINT)))
    (y,) = report.outputs
    assert abs(y.got - y.want) < 1e-5 * 1e4
    assert report.verdict == "mismatch"
    assert y.worst == (0, 4)


def test_a_wrong_small_channel_of_one_image_is_found() -> None:
    want = np.concatenate([random(1, 3, 4, 4), 1e-3 * random(1, 1, 4, 4)], axis=1)
    got = want.copy()
    got[0, 3, 1, 2] *= np.float32(1.01)
    c = compare_tensor("t", tally_errors(got, want), 1e-4)
    assert (c.worst, c.passed) == ((0, 3, 1, 2), False)
    got[0, 3, 1, 2] = want[0, 3, 1, 2]
    assert compare_tensor("t", tally_errors(got, want), 1e-4).passed


@pytest.mark.parametrize(
    ("shape", "inputs", "expected"),
    [
        ((2, 3), 1, [[6, 6, 6], [6, 6, 6]]),
        ((2, 3), 6, [[3, 3, 3], [6, 6, 6]]),
        ((2, 3), 8, [[3, 3, 3], [4, 5, 6]]),
        ((2, 3), 16, [[1, 2, 3], [4, 5, 6]]),
        ((), 1, 1),
        ((1, 5000), 16, [[5000 / 1024] * 4 + [*range(5, 5001)]]),
    ],
)
def test_what_errors_are_measured_against(shape: tuple[int, ...], inputs: int, expected: Any) -> None:
    """Rows of 3 and columns of 2 values count when there are 16 of them over all inputs."""
    largest = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    assert np.broadcast_to(compute_error_scale(largest, inputs), shape).tolist() == expected


def cancelling(scale: float) -> onnx.ModelProto:
    """The normalisation of equal numbers is 0 but for rounding, here times `scale`."""
    nodes = [node("Concat", "x x x", "c", axis=2), node("InstanceNormalization", "c s b", "y")]
    constants = {"s": np.array([scale, 1], np.float32), "b": np.zeros(2, np.float32)}
    return make_model(nodes, {"x": (1, 2, 1)}, {"y": 3}, constants)


def test_a_weight_of_1e15_that_cancels_passes(tmp_path: Path) -> None:
    """No digit of onnxruntime's own result counts."""
    assert verdict(tmp_path, cancelling(1e15)).passed


def ranks(sign: float = 1.0) -> onnx.ModelProto:
    """Orders the two bins of frames of two samples: the mean place over all frames.

    Imaginary parts are 0, but for the rounding of sin(pi). It has another sign in float32 than in float64.
    """
    constants = {"step": np.array(1), "window": np.full(2, 0.7, np.float32), "length": np.array(2), "k": np.array([2])}
    nodes = [
        node("STFT", "x step window length", "f"),
        node("Mul", "f sign", "s"),
        node("TopK", "s k", "v p", axis=2, largest=0),
        node("Cast", "p", "c", to=1),
        node("ReduceMean", "c", axes=[1]),
    ]
    signs = {"sign": np.array([sign, 1], np.float32)}
    return make_model(nodes, {"x": (1, 9, 1)}, {"y": 4}, constants | signs, opset=17)


def test_the_order_of_what_is_0_but_for_rounding(tmp_path: Path) -> None:
    """Found by random graphs, seed 942740."""
    assert verdict(tmp_path / "right", ranks()).passed
    report = verdict(tmp_path / "wrong", ranks(), ranks(-1))
    assert report.verdict == "mismatch"
    assert report.outputs[0].rounding is not None
    assert report.outputs[0].rounding.at[3] == 0  # the real part


def test_the_noise_of_one_channel_excuses_no_other(tmp_path: Path) -> None:
    right = cancelling(1e4)
    assert verdict(tmp_path / "right", right).passed
    shifted = onnx.ModelProto.FromString(right.SerializeToString())
    bias = next(t for t in shifted.graph.initializer if t.name == "b")
    bias.CopyFrom(numpy_helper.from_array(np.array([0, 0.01], np.float32), "b"))
    report = verdict(tmp_path / "wrong", right, shifted)
    assert report.verdict == "mismatch"
    assert report.outputs[0].rounding is not None
    assert report.outputs[0].rounding.at[1] == 1


def roots() -> onnx.ModelProto:
    """NaN for about half of the numbers."""
    constants = {"b": np.full((1, 6), -15, np.float32), "one": np.full((1, 6), 2, np.float32)}
    nodes = [
        node("Sqrt", "x", "r"),
        node("Add", "r b", "a", name="bias"),
        node("Sigmoid", "a"),
        node("Mul", "x one", "z"),
    ]
    return make_model(nodes, {"x": (1, 6)}, {"y": 2, "z": 2}, constants)


def test_not_a_number_is_as_it_should_be(tmp_path: Path) -> None:
    report = verdict(tmp_path, roots())
    assert report.passed
    assert report.reason is not None
    assert [c.rounding is None for c in report.outputs] == [False, True]


def test_a_number_instead_of_not_a_number_fails(tmp_path: Path) -> None:
    wrong = roots()
    wrong.graph.node[0].op_type = "Relu"  # as long as before
    report = verdict(tmp_path, roots(), wrong)
    assert [c.passed for c in report.outputs] == [False, True]
    assert report.outputs[0].rounding is not None
    assert json.loads(to_json(report))["outputs"][0]["rounding"]["exact"] is None


def test_of_several_outputs_the_wrong_one_is_named(tmp_path: Path) -> None:
    def model(factor: float) -> onnx.ModelProto:
        both = detector()
        both.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["z"], "other"))
        both.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 5]))
        both.graph.initializer.append(numpy_helper.from_array(changed((0, 0), factor), "v"))
        return both

    assert verdict(tmp_path / "right", model(1), layers=True).passed
    report = verdict(tmp_path / "wrong", model(1), model(1.01), layers=True)
    assert [c.passed for c in report.outputs] == [True, False]
    assert report.first_deviation == "other"
    assert report.reason is not None
    assert report.reason.startswith("z [0,0]: ")


def test_without_float64_the_tolerance_decides_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NoFloat64Error("no kernel")

    monkeypatch.setattr(judge_program, "load_float64", refuse)
    report = verdict(tmp_path, detector())
    assert report.verdict == "mismatch"
    assert report.reason == "by the tolerance alone, because float64 cannot be asked: no kernel"
    assert verdict(tmp_path / "other", product(W)).reason is None


def test_a_tolerance_of_0_knows_no_rounding(tmp_path: Path) -> None:
    report = verdict(tmp_path, detector(), tolerance=0)
    assert report.verdict == "mismatch"
    assert report.reason is None


def test_a_large_tolerance_needs_no_float64(tmp_path: Path) -> None:
    report = verdict(tmp_path, detector(), detector(changed((2, 3), 1.001)), tolerance=1)
    assert report.passed
    assert report.seconds["float64"] == 0


def test_half_precision_is_judged_by_float64(tmp_path: Path) -> None:
    """onnxruntime rounds to float16, the program does not."""
    kind = onnx.TensorProto.FLOAT16
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "m")],
        "half",
        [helper.make_tensor_value_info("x", kind, [1, 6])],
        [helper.make_tensor_value_info("y", kind, [1, 5])],
        [numpy_helper.from_array(W.astype(np.float16), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = verdict(tmp_path, model)
    assert report.outputs[0].max_relative > report.tolerance
    assert report.passed


def test_equal_runs_give_equal_reports(tmp_path: Path) -> None:
    one, two = (verdict(tmp_path / name, cancelling(1e15), samples=3) for name in "ab")
    assert (one.outputs, one.reason) == (two.outputs, two.reason)
