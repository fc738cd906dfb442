"""The nine topologies that come with the onnx package, with weights that a wrong mapping would show in.

Their own weights are one constant, and their outputs hardly depend on the input. Here weights are He-normal and seeded,
biases small, and the statistics of each BatchNormalization are those of one seeded image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.evaluate import IR_VERSION, run

if TYPE_CHECKING:
    import onnx

    from models.evaluate import FloatArray

LIGHT = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
_OPSET = 9
_RESHAPES = ("Unsqueeze", "Reshape")


def build_light(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """Build the named topology of `LIGHT`: opset 9, 1x3x224x224. A final Softmax is left out: it hides differences."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx")
    graph = model.graph
    _drop_softmax(graph)
    values = _weights(graph, np.random.default_rng(seed))
    _calibrate(graph, dict(values), np.random.default_rng([seed, 1]))
    return _with_weights(model, values, numpy_helper.from_array)
