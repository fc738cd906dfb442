"""Tests that each model compiles, and that its streams compute the results of onnxruntime, except for rounding."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
from models.onnx_light import LIGHT_MODELS, build_light
from tests.models.rounding import tolerance
from tests.models.test_models import small_options
from tests.pipeline import compile_to_fit
from tests.tiny_models import golden
from validator.execution.run import run_program
from validator.load.output_directory import load_output

_ALWAYS_SMALL = ("mlp", "lenet5", "mlp3", "wavenet_cell", "lstm", "bert_tiny", "ds_cnn", "resnet8", "fc_autoencoder")
FULL_SIZE = [name for name in models.MODELS if name not in _ALWAYS_SMALL]


def check(model: onnx.ModelProto, limit: float) -> None:
    """`limit` is the tolerance stated for the model; rounding must explain it."""
    (value,) = model.graph.input
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    inputs = {value.name: np.random.default_rng(7).standard_normal(shape, dtype=np.float32)}
    rounding = tolerance(model, inputs)
    program = compile_to_fit(model)
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        got = run_program(load_output(out), inputs).outputs
    for name, y in golden(model, inputs).items():
        error = float(np.abs(got[name] - y).max() / np.abs(y).max())
        assert error <= min(limit, rounding), f"{name}: off by {error:.1e}, rounding explains {rounding:.1e}"


# Relative to the largest output. Deep networks whose BatchNormalization was calibrated on maps of few pixels amplify
# rounding most; the small versions here have such maps.
TOLERANCE = dict.fromkeys(models.MODELS, 1e-5) | {
    "vgg16": 2e-5,
    "vgg19": 2e-5,
    "resnet50": 1e-4,
    "inception_v3": 2e-4,
    "mobilenet_v2": 5e-5,
    "shufflenet_v2": 5e-5,
    "efficientnet_b0": 5e-5,
    "densenet121": 2e-5,
    "googlenet": 3e-5,
}


LIGHT_TOLERANCE = dict.fromkeys(LIGHT_MODELS, 1e-5) | {"resnet50": 5e-5}


SLOW = ("densenet121", "inception_v3", "googlenet", "resnet34", "resnet50", "vgg19", "alexnet")
"""Models that take long, and those of which a sibling is tried."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in models.MODELS])
def test_small_model(name: str) -> None:
    check(models.build(name, seed=0, **small_options(name)), TOLERANCE[name])


@pytest.mark.parametrize("name", _ALWAYS_SMALL)
def test_model_of_published_size(name: str) -> None:
    check(models.build(name, seed=0), TOLERANCE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_model(name: str) -> None:
    check(models.build(name, seed=0), TOLERANCE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_topology_of_the_onnx_package(name: str) -> None:
    check(build_light(name), LIGHT_TOLERANCE[name])
