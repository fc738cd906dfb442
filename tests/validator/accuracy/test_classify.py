"""Classes of models of one score, and labels that are no class (public reports, B4)."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import raptor
from raptor.common.errors import UserError
from tests.tiny_models import Array, golden, make_model, node, random
from validator.accuracy.measure import measure_accuracy

COUNT = 24
WEIGHTS = {"w": random(6, 1, seed=3), "b": np.array([0.25], np.float32)}


def scored(*last: object, output: str = "y") -> ModelProto:
    """x [1, 6] -> a layer with one number -> the nodes."""
    nodes = [node("Gemm", "x w b", "a" if last else output, name="layer"), *last]
    return make_model(nodes, {"x": [1, 6]}, {output: 2}, WEIGHTS)  # pyright: ignore[reportArgumentType]


def data(folder: Path, labels: Array) -> Path:
    np.savez(folder / "data.npz", x=samples(), y=labels)
    return folder / "data.npz"


def samples() -> Array:
    return random(COUNT, 1, 6, seed=9)


def logits() -> Array:
    return (samples()[:, 0].astype(np.float64) @ WEIGHTS["w"] + WEIGHTS["b"])[:, 0]


MODELS = {
    "logit": (scored(), logits() > 0),
    "probability": (scored(node("Sigmoid", "a", "y")), logits() > 0),
    "shaped": (scored(node("Sigmoid", "a", "p"), node("Reshape", "p s", "y")), logits() > 0),
    "between -1 and 1": (scored(node("Tanh", "a", "y")), logits() > 0),
    "all in 0..1": (scored(node("Sigmoid", "a", "p"), node("Identity", "p", "y")), logits() > 0),
}
MODELS["shaped"][0].graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1]), "s"))


@pytest.mark.parametrize("name", MODELS)
def test_one_score_has_a_threshold(name: str, tmp_path: Path):
    """Half of the labels are turned around, so that neither class alone would do."""
    model, classes = MODELS[name]
    assert 0 < classes.mean() < 1
    labels = classes.astype(np.int64)
    labels[:6] ^= 1
    out = raptor.compile(model, xbar=16, cores=4).save(tmp_path / "out")
    report = measure_accuracy(out, data(tmp_path, labels))
    assert report.top1 == (COUNT - 6) / COUNT
    assert report.agreement == 1
    assert report.top5 is None
    assert report.reference is not None
    assert report.reference.top1 == report.top1


def test_one_score_in_codes(tmp_path: Path):
    """The threshold of a quantised score is in its codes: a model of integers that ends in a QuantizeLinear."""
    np.savez(tmp_path / "samples.npz", x=samples())
    raptor.quantize(scored(node("Sigmoid", "a", "y")), data=tmp_path / "samples.npz").save(tmp_path / "int8.onnx")
    model = onnx.load(tmp_path / "int8.onnx")
    last = model.graph.node[-1]
    assert last.op_type == "DequantizeLinear"
    codes = last.input[0]
    model.graph.node.remove(last)
    model.graph.output[0].name = codes
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    found = np.array([golden(model, {"x": x})[codes].item() for x in samples()])
    scale = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == last.input[1])
    classes = found * float(scale) > 0.5
    out = raptor.compile(model, xbar=16, cores=4).save(tmp_path / "out")
    report = measure_accuracy(out, data(tmp_path, classes.astype(np.int64)))
    assert report.top1 == 1
    assert 0 < classes.mean() < 1


@pytest.mark.parametrize("last", ["Relu", "Exp", "Abs"])
def test_one_score_that_tells_no_class(last: str, tmp_path: Path):
    out = raptor.compile(scored(node(last, "a", "y")), xbar=16, cores=4).save(tmp_path / "out")
    with pytest.raises(UserError, match=rf"output 'y' is one score, made by {last}: it tells no class"):
        measure_accuracy(out, data(tmp_path, np.zeros(COUNT, np.int64)))


def test_wrong_converters_do_not_agree(tmp_path: Path):
    """With converters of 1 bit the one score is far off; before, any score was of class 0."""
    np.savez(tmp_path / "samples.npz", x=samples())
    raptor.quantize(scored(node("Sigmoid", "a", "y")), data=tmp_path / "samples.npz").save(tmp_path / "int8.onnx")
    out = raptor.compile(tmp_path / "int8.onnx", xbar=16, cores=4, cell_bits=2).save(tmp_path / "out")
    file = data(tmp_path, (logits() > 0).astype(np.int64))
    report = measure_accuracy(out, file, crossbar="sliced", settings={"adc_bits": "1", "adc_range": "unit"})
    assert report.agreement is not None
    assert report.agreement < 1


@pytest.mark.parametrize(
    ("labels", "told"), [((9, 13), "24 of 24 labels .* 9 to 12"), ((0, 6), "8 of 24 labels .* 0 to 5")]
)
def test_labels_that_are_no_class(labels: tuple[int, int], told: str, tmp_path: Path):
    model = make_model([node("MatMul", "x w", "y")], {"x": [1, 6]}, {"y": 2}, {"w": random(6, 4)})
    out = raptor.compile(model, xbar=16, cores=4).save(tmp_path / "out")
    given = np.resize(np.arange(*labels), COUNT)
    with pytest.raises(UserError, match=rf"{told}, the model has 4 classes, 0 to 3"):
        measure_accuracy(out, data(tmp_path, given))
    one = raptor.compile(scored(), xbar=16, cores=4).save(tmp_path / "one")
    with pytest.raises(UserError, match="the model has 2 classes, 0 to 1"):
        measure_accuracy(one, data(tmp_path, np.resize([0, 1, 2], COUNT)))
