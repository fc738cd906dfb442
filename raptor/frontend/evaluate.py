"""What a Graph means, in numpy: the oracle of this level's tests. Short rather than fast."""

from collections.abc import Callable, Mapping

import numpy as np

from raptor.frontend.graph import (
    Concat,
    Constant,
    Filter,
    Floats,
    Graph,
    Map,
    MapFunction,
    Operator,
    Pool,
    Rename,
    Softmax,
)
from raptor.layout import Image


def _relu(x: Floats) -> Floats:
    return np.maximum(x, np.float32(0))


def _sigmoid(x: Floats) -> Floats:
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))


MAP_FUNCTIONS: dict[MapFunction, Callable[..., Floats]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "relu": _relu,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}


def evaluate(graph: Graph, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
    """Every tensor of the graph by name, in its ONNX shape."""
    values = {name: np.asarray(inputs[name], np.float32) for name in graph.inputs}
    for node in graph.nodes:
        operands = [graph.tensors[i].image.to_pixels(values[i]) for i in node.inputs]
        output = graph.tensors[node.output]
        pixels = _apply(node.operator, operands, output.image)
        values[node.output] = output.image.from_pixels(pixels).reshape(output.shape)
    return values


def _apply(operator: Operator, operands: list[Floats], image: Image) -> Floats:
    """Operands and result are [rows, width, channels]."""
    full = (image.rows, image.width, image.channels)
    match operator:
        case Filter() | Pool():
            return _window(operator, operands[0], image).reshape(full)
        case Map(function, maps):
            chosen = (m.pixels if isinstance(m, Constant) else operands[m] for m in maps)
            return np.broadcast_to(MAP_FUNCTIONS[function](*chosen), full)
        case Concat():
            return np.concatenate(operands, axis=-1)
        case Softmax():
            raised = np.exp(operands[0] - operands[0].max(axis=-1, keepdims=True))
            return raised / raised.sum(axis=-1, keepdims=True)
        case Rename():
            return operands[0]


def _window(operator: Filter | Pool, pixels: Floats, image: Image) -> Floats:
    """[output pixels, channels], tap by tap."""
    is_max = isinstance(operator, Pool) and operator.function == "max"
    start = np.float32(-np.inf if is_max else 0)
    channels = pixels.shape[-1]
    # One more pixel, the last: padding reads it with index -1.
    padded = np.vstack([pixels.reshape(-1, channels), np.full((1, channels), start)])
    result = np.full((operator.window.out_pixels, image.channels), start)
    for tap, sources in enumerate(operator.window.input_pixels().T):
        read = padded[sources]
        if isinstance(operator, Filter):
            result += read @ operator.weights[tap]
        else:
            result = np.maximum(result, read) if is_max else result + read
    return result
