"""The nine topologies in the onnx package, with weights for which a wrong mapping changes the outputs.

In the package all weights are one constant, and outputs hardly depend on the input. Here weights are He-normal and
seeded, biases small, and each BatchNormalization has the statistics of one seeded image.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from models.node_evaluation import FloatArray, IntArray

    Values = dict[str, FloatArray | IntArray]

LIGHT_MODELS = (
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
_MEAN, _VARIANCE = 3, 4
_SPREAD = {("BatchNormalization", 1): (1.0, 0.1), ("BatchNormalization", 2): (0.0, 0.1), ("Mul", 1): (1.0, 0.1)}
"""Mean and deviation of a weight by its operator and input index; other weights are biases."""
_BIAS = (0.0, 0.05)


def build_light(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """Builds the named topology of `LIGHT_MODELS`: opset 9, 1x3x224x224, without a final Softmax."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    from models.node_evaluation import IR_VERSION

    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    model = onnx.ModelProto.FromString(path.read_bytes())
    graph = model.graph
    _drop_softmax(graph)
    weights = {tensor.name for tensor in graph.initializer}
    (image,) = (value for value in graph.input if value.name not in weights)
    values = _constants(graph)
    _draw(graph, values, np.random.default_rng(seed))
    _calibrate(graph, values, image.name, np.random.default_rng([seed, 1]))
    image = onnx.ValueInfoProto.FromString(image.SerializeToString())
    del graph.input[:], graph.initializer[:], graph.value_info[:]
    graph.input.append(image)
    graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in values.items())
    model.ir_version = IR_VERSION
    return model


def _drop_softmax(graph: onnx.GraphProto) -> None:
    last = graph.node[-1]
    if last.op_type == "Softmax":
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
        graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
        graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1000
        del graph.node[-1]


def _constants(graph: onnx.GraphProto) -> Values:
    """Returns the constants by name, and removes the nodes that make some of them."""
    import numpy as np
    from onnx import numpy_helper

    values: Values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    makers = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    for node in makers:
        values[node.output[0]] = np.zeros([int(n) for n in values.pop(node.input[0])], np.float32)
        graph.node.remove(node)
    return values


def _draw(graph: onnx.GraphProto, values: Values, rng: np.random.Generator) -> None:
    """Replaces the weights by seeded ones, in the order of the nodes that read them."""
    import numpy as np

    source = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Unsqueeze", "Reshape")}
    for node in graph.node:
        for position, name in enumerate(node.input):
            weight = values.get(source.get(name, name))
            if weight is None or weight.dtype != np.float32 or node.op_type in ("Unsqueeze", "Reshape"):
                continue
            mean, std = _SPREAD.get((node.op_type, position), _BIAS)
            if node.op_type in ("Conv", "Gemm") and position == 1:
                mean, std = 0.0, math.sqrt(2 / _fan_in(node, weight.shape))
            drawn = mean + std * rng.standard_normal(weight.shape, dtype=np.float32)
            values[source.get(name, name)] = drawn.astype(np.float32)


def _fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return shape[0] if node.op_type == "Gemm" and not transposed else math.prod(shape[1:])


def _calibrate(graph: onnx.GraphProto, values: Values, image: str, rng: np.random.Generator) -> None:
    """Runs the nodes on one image, and sets the statistics of each BatchNormalization before it runs."""
    import numpy as np

    from models.node_evaluation import run_node

    known = values | {image: rng.standard_normal((1, 3, 224, 224), dtype=np.float32)}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            x = known[node.input[0]]
            statistics = {_MEAN: x.mean(axis=(0, 2, 3)), _VARIANCE: x.var(axis=(0, 2, 3))}
            for position, array in statistics.items():
                known[node.input[position]] = values[node.input[position]] = array.astype(np.float32)
        known[node.output[0]] = run_node(node, [known[name] for name in node.input if name], opset=_OPSET)
