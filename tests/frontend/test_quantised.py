"""Models that onnxruntime's quantiser writes, in integers, against onnxruntime."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from raptor.graph.ir import Filter, Requantise
from tests.frontend.integers import compare, quantise
from tests.frontend.support import make_model, node, random


def small_cnn() -> ModelProto:
    constants = {"w1": (6, 1, 5, 5), "b1": (6,), "w2": (8, 6, 3, 3), "b2": (8,), "w3": (12, 8 * 36), "b3": (12,)}
    weights = {n: random(*s, seed=i) / np.float32(np.sqrt(np.prod(s[1:]))) for i, (n, s) in enumerate(constants.items())}
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[2, 2, 2, 2], name="conv1"),
        node("Relu", "c1", "r1", name="relu1"),
        node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2], name="pool1"),
        node("Conv", "p1 w2 b2", "c2", pads=[1, 1, 1, 1], name="conv2"),
        node("Relu", "c2", "r2", name="relu2"),
        node("Flatten", "r2", "f", name="flatten"),
        node("Gemm", "f w3 b3", "y", transB=1, name="dense"),
    ]
    return make_model(nodes, {"x": (1, 1, 12, 12)}, {"y": 2}, weights, opset=21, ir_version=10)


@pytest.mark.parametrize("form", ["QDQ"])
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_small_cnn(form: str, activations: str, per_channel: bool, tmp_path: Path):
    model = quantise(small_cnn(), tmp_path, form=form, activations=activations, per_channel=per_channel)
    graph = compare(model).graph
    assert graph.numbers == "int"
    operators = [n.operator for n in graph.nodes]
    assert sum(isinstance(o, Filter) for o in operators) == sum(isinstance(o, Requantise) for o in operators) == 3
    assert {o.weight_bits for o in operators if isinstance(o, Filter)} == {8}
