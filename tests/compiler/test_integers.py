"""Integers end to end: a float network is quantised, compiled, executed and compared with the definition."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, load_from_string

import models
import raptor
from raptor.tools.cli import app
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node, random
from validator.judge.validation_report import ValidationReport
from validator.validate import validate

SCHEMES: dict[str, dict[str, Any]] = {
    "s8s8": {"scheme": "s8s8"},
    "s8s8 by channel": {"scheme": "s8s8", "per_channel": True},
    "u8s8": {"scheme": "u8s8"},
    "pow2": {"scheme": "pow2"},
    "weights of 4 bits": {"weights": 4},
    "activations of 16 bits": {"activations": 16},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet18": {"image_size": 32, "width": 0.25},
    "resnet50": {"image_size": 32, "width": 0.25},
    "mobilenet_v2": {"image_size": 32, "width": 0.5},
    "efficientnet_b0": {"image_size": 32, "width": 0.5},
    "squeezenet": {"image_size": 64, "width": 0.5},
    "vgg16": {"image_size": 32, "width": 0.25},
    "bert_tiny": {"tokens": 16},
    "vit_tiny": {"image_size": 32, "depth": 2, "dim": 96},
}
TRANSFORMERS = ("bert_tiny", "vit_tiny")
FLOAT_OPERATORS = {"Softmax", "LayerNormalization"}
"""Operators that quantised models compute in floats."""
WITHOUT_TABLES = {"Sigmoid", "Erf", "Tanh"}
"""Functions that are tables of 256 codes; for codes of 16 bits they are computed in floats, too."""


@cache
def network(name: str) -> ModelProto:
    return models.build(name, seed=0, **NETWORKS.get(name, {}))


def quantised(name: str, scheme: str) -> ModelProto:
    return load_from_string(raptor.quantize(network(name), samples=2, **SCHEMES[scheme]).onnx_bytes)


def judged(model: ModelProto, folder: Path, **options: Any) -> ValidationReport:
    """Compiles a model, executes its streams, and requires that every integer is the definition's."""
    raptor.compile(model, **options).save(folder, stream_format="pim", weight_format="npz")
    report = validate(folder, samples=2)
    found = report.integers
    assert report.verdict == "pass", report.first_deviation
    assert found is not None
    assert found.compared > 0
    assert found.differing == 0
    assert found.explained == found.departing
    return report


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_lenet5(scheme: str, mapping: str, tmp_path: Path) -> None:
    found = judged(quantised("lenet5", scheme), tmp_path / "out", cores=40, mapping=mapping).integers
    assert found is not None
    assert not found.float_sections
    assert found.departing == 0 or scheme != "pow2"


def test_lenet5_in_published_instructions(tmp_path: Path) -> None:
    judged(quantised("lenet5", "s8s8"), tmp_path / "out", cores=40, base_isa=True)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, scheme: str, tmp_path: Path) -> None:
    model = quantised(name, scheme)
    if name in TRANSFORMERS and scheme == "activations of 16 bits":
        with pytest.raises(raptor.RaptorError, match=r"scores \(MatMul\): its sums reach .* more than 32 bits hold"):
            raptor.compile(model, cores=64)
        return
    found = judged(model, tmp_path / "out", cores=64).integers
    assert found is not None
    floats = FLOAT_OPERATORS | (WITHOUT_TABLES if scheme == "activations of 16 bits" else set())
    operators = {node.op_type for node in network(name).graph.node}
    assert bool(found.float_sections) == bool(operators & floats)
    assert found.departing == 0 or scheme != "pow2"


FORMS = {
    "QDQ": [
        "QInt8 QInt8",
        "QUInt8 QInt8",
        "QUInt8 QUInt8",
        "QInt16 QInt8",
        "QUInt16 QUInt8",
        "QInt8 QInt4",
        "QUInt8 QUInt4",
    ],
    "QOperator": ["QInt8 QInt8", "QUInt8 QInt8", "QUInt8 QUInt8"],
}


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return random(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:])))


def small_networks() -> dict[str, ModelProto]:
    newest: dict[str, Any] = {"opset": 21, "ir_version": 10}
    image = {"x": (1, 4, 6, 6)}
    depthwise = [
        node("Conv", "x w b", "c", group=4, pads=[1, 1, 1, 1], name="depthwise"),
        node("Clip", "c low high", "k", name="clip"),
        node("Conv", "k v", "y", name="pointwise"),
    ]
    constants = {"w": weights(4, 1, 3, 3), "b": weights(4, seed=1), "v": weights(6, 4, 1, 1)}
    constants |= {"low": np.float32(0), "high": np.float32(6)}
    dense = [node("MatMul", "x w", "m", name="product"), node("Add", "m b", "y", name="bias")]
    squeeze = [
        node("Conv", "x w", "c", name="conv"),
        node("HardSwish", "c", "h", name="swish"),
        node("GlobalAveragePool", "h", "g", name="mean"),
        node("Conv", "g v", "e", name="excite"),
        node("HardSigmoid", "e", "s", name="gate"),
        node("Mul", "h s", "y", name="gated"),
    ]
    return {
        "depthwise": make_model(depthwise, image, {"y": 4}, constants, **newest),
        "dense": make_model(dense, {"x": (3, 8)}, {"y": 2}, {"w": weights(8, 5), "b": weights(5)}, **newest),
        "gated": make_model(squeeze, image, {"y": 4}, {"w": weights(5, 4, 3, 3), "v": weights(5, 5, 1, 1)}, **newest),
    }


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("form", "types"), [(form, types) for form, found in FORMS.items() for types in found])
@pytest.mark.parametrize("name", small_networks())
def test_forms_and_types_of_onnxruntimes_quantiser(
    name: str, form: str, types: str, per_channel: bool, tmp_path: Path
) -> None:
    activation, weight = types.split()
    model = small_networks()[name]
    model = quantise(model, tmp_path, form=form, activations=activation, weights=weight, per_channel=per_channel)
    if name == "gated" and "16" in activation:
        with pytest.raises(raptor.RaptorError, match=r"gated \(Mul\): its sums reach .* more than 32 bits hold"):
            raptor.compile(model, xbar=32, cores=4)
        return
    judged(model, tmp_path / "out", xbar=32, cores=4)


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main(list(words))
    return int(ended.value.code or 0)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("models", "lenet5", "--quiet") == 0
    assert call("quantize", "lenet5.onnx", "-o", "int8.onnx", "--samples", "2", "--quiet") == 0
    assert call("compile", "int8.onnx", "--cores", "40", "--weights", "npz", "--quiet") == 0
    capsys.readouterr()
    assert call("validate", "out", "--samples", "1", "--json", "found.json") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("PASS  int8: ")
    assert "bit for bit equal to the definition (10 integers)" in line
    found = json.loads(Path("found.json").read_bytes())
    assert found["verdict"] == "pass"
    assert (found["integers"]["compared"], found["integers"]["differing"]) == (10, 0)
    assert json.loads(Path("out/manifest.json").read_bytes())["numbers"] == "int"


def test_a_changed_weight_is_a_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    raptor.compile(quantised("lenet5", "s8s8"), cores=40).save(folder, stream_format="pim", weight_format="npz")
    for path in (folder / "weights").glob("*.npz"):
        with np.load(path) as groups:
            changed = {name: np.asarray(values + (values < 0), values.dtype) for name, values in groups.items()}
        np.savez(path, **changed)
    assert call("validate", str(folder), "--samples", "1") == 2
    assert "changed since it was compiled" in capsys.readouterr().err
    assert call("validate", str(folder), "--samples", "1", "--no-hash", "--json", str(tmp_path / "found.json")) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("FAIL  ")
    assert "differs from the definition in" in line
    found = json.loads((tmp_path / "found.json").read_bytes())
    assert found["verdict"] == "mismatch"
    assert found["integers"]["differing"] > 0
