"""Evaluates a Graph in numpy: the oracle of this level's tests. Short rather than fast."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from raptor.graph.ir import (
    Concat,
    Constant,
    ConstantTensor,
    Dot,
    Filter,
    Floats,
    Graph,
    Map,
    MapFunction,
    Move,
    Operator,
    Pool,
    Rename,
    Softmax,
    Stencil,
)
from raptor.target.layout import Image


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
    "div": np.divide,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "erf": np.vectorize(math.erf, otypes=[np.float32]),
}


def evaluate(graph: Graph, inputs: Mapping[str, Floats]) -> dict[str, Floats]:
    """Returns every tensor of the graph by name, in its ONNX shape."""
    values = {name: np.asarray(inputs[name], np.float32) for name in graph.inputs}
    for node in graph.nodes:
        operands = [graph.tensors[i].image.to_pixels(values[i]) for i in node.inputs]
        output = graph.tensors[node.output]
        pixels = _apply(node.operator, operands, output.image)
        values[node.output] = output.image.from_pixels(pixels).reshape(output.shape)
    return values


def _apply(operator: Operator, operands: list[Floats], image: Image) -> Floats:
    """Applies one operator. Operands and result are [rows, width, channels]."""
    full = (image.rows, image.width, image.channels)
    match operator:
        case Filter() | Pool() | Stencil():
            result = _window(operator, operands[0], image)
        case Dot():
            result = _dot(operator, *operands)
        case Map(function, maps):
            chosen = (m.pixels if isinstance(m, Constant) else operands[m] for m in maps)
            result = np.broadcast_to(MAP_FUNCTIONS[function](*chosen), full)
        case Concat():
            result = np.concatenate(operands, axis=-1)
        case Move(sources):
            # The last element, index -1, is the zero.
            result = np.concatenate([*(o.ravel() for o in operands), np.zeros(1, np.float32)])[sources]
        case Softmax():
            raised = np.exp(operands[0] - operands[0].max(axis=-1, keepdims=True))
            result = raised / raised.sum(axis=-1, keepdims=True)
        case Rename():
            result = operands[0]
        case ConstantTensor(pixels):
            result = pixels
    return result.reshape(full)


def _dot(operator: Dot, left: Floats, right: Floats) -> Floats:
    rows = left.reshape(operator.batch, operator.rows, -1)
    cols = right.reshape(operator.batch, operator.cols, -1)
    return rows @ cols.swapaxes(1, 2)


def _window(operator: Filter | Pool | Stencil, pixels: Floats, image: Image) -> Floats:
    """Applies an operator with a window, tap by tap. Returns [output pixels, channels]."""
    is_max = isinstance(operator, Pool) and operator.function == "max"
    start = np.float32(-np.inf if is_max else 0)
    channels = pixels.shape[-1]
    # One pixel more at the end: padding reads it with index -1.
    padded = np.vstack([pixels.reshape(-1, channels), np.full((1, channels), start)])
    result = np.full((operator.window.out_pixels, image.channels), start)
    for tap, sources in enumerate(operator.window.input_pixels().T):
        read = padded[sources]
        match operator:
            case Filter():
                result += read @ operator.matrix(tap, (0, channels), (0, image.channels))
            case Stencil(weights):
                result += read * weights[:, tap]
            case _:
                result = np.maximum(result, read) if is_max else result + read
    return result
