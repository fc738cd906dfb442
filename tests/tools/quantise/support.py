"""Models and runs for the tests of quantisation."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

import models
from tests.tiny_models import make_model, node, random
from validator.model.ort_session import create_session

LEVELS = ort.GraphOptimizationLevel


def small_cnn() -> ModelProto:
    """Convolution, batch normalisation, depthwise convolution, sum, pools, mean over the image, dense layer."""
    nodes = [
        node("Conv", "x w1 b1", "c1", name="conv1", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c1 g h m v", "n1"),
        node("Relu", "n1", "r1"),
        node("Conv", "r1 w2 b2", "c2", name="conv2", pads=[1, 1, 1, 1], group=8),
        node("Add", "c2 r1", "s"),
        node("Clip", "s zero six", "a"),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("ReduceMean", "p", "q", axes=[2, 3], keepdims=0),
        node("Gemm", "q w3 b3", "y", transB=1, alpha=0.5, beta=2.0),
    ]
    weights = {
        "w1": random(8, 3, 3, 3, seed=1),
        "b1": random(8, seed=2),
        "g": np.abs(random(8, seed=3)) + 1,
        "h": random(8, seed=4),
        "m": random(8, seed=5),
        "v": np.abs(random(8, seed=6)) + 1,
        "w2": random(8, 1, 3, 3, seed=7),
        "b2": random(8, seed=8),
        "zero": np.float32(0),
        "six": np.float32(6),
        "w3": random(5, 8, seed=9),
        "b3": random(1, 5, seed=10),
    }
    return make_model(nodes, {"x": ("N", 3, 8, 8)}, {"y": 2}, weights)


def transformer() -> ModelProto:
    return models.build("bert_tiny", tokens=8, depth=1, dim=16)


BUILDERS = {"small_cnn": small_cnn, "lenet5": lambda: models.build("lenet5"), "transformer": transformer}
SCHEMES: dict[str, dict[str, Any]] = {
    "s8s8": {},
    "s8s8 per channel": {"per_channel": True},
    "u8s8": {"scheme": "u8s8"},
    "u8s8 per channel": {"scheme": "u8s8", "per_channel": True},
    "pow2": {"scheme": "pow2"},
    "pow2 per channel": {"scheme": "pow2", "per_channel": True},
    "4 bits": {"weights": 4},
    "4 bits per channel": {"weights": 4, "per_channel": True},
    "4 bits pow2 per channel": {"weights": 4, "scheme": "pow2", "per_channel": True},
    "16 bits": {"activations": 16},
    "16 bits unsigned": {"activations": 16, "scheme": "u8s8"},
    "16 bits pow2": {"activations": 16, "scheme": "pow2"},
    "4 and 16 bits": {"weights": 4, "activations": 16},
}


def run(model: bytes | ModelProto, feeds: dict[str, Any], level: Any = LEVELS.ORT_DISABLE_ALL) -> list[Any]:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    if level == LEVELS.ORT_DISABLE_ALL:
        return create_session(content, Path("run")).run(None, feeds)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.add_session_config_entry("session.x64quantprecision", "1")  # no saturated sums, on machines without VNNI
    return ort.InferenceSession(content, options, ["CPUExecutionProvider"]).run(None, feeds)


def feeds_of(model: bytes, seed: int) -> dict[str, Any]:
    """Standard normal inputs of a model whose shapes are fixed."""
    rng = np.random.default_rng(seed)
    inputs = onnx.load_from_string(model).graph.input
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inputs}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def constants(model: ModelProto) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
