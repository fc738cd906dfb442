"""Reference evaluator of a Graph in numpy, against which the tests compare lower levels. Short rather than fast.

Integers are int64 and exact; a result that its element type does not hold is an error.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Concat,
    Constant,
    ConstantTensor,
    Dot,
    Filter,
    Floats,
    Graph,
    Lookup,
    Map,
    MapFunction,
    Move,
    Numbers,
    Operator,
    Pool,
    Rename,
    Softmax,
    Stencil,
    Take,
    Tensor,
)
from raptor.graph.requantise.definition import Requantise
from raptor.graph.requantise.definition import evaluate_requantise as requantised
from raptor.target.tensor_layout import Image

Values = npt.NDArray[Any]


def _relu(x: Values) -> Values:
    return np.maximum(x, x.dtype.type(0))


def _sigmoid(x: Floats) -> Floats:
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))


def _mask(x: Floats, where: Floats) -> Floats:
    return np.where(where > 0, x, np.float32(-np.inf))


MAP_FUNCTIONS: dict[MapFunction, Callable[..., Any]] = {
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
    "float": np.float32,
    "round": np.rint,
    "mask": _mask,
}


NO_OVERRIDES: Mapping[str, npt.ArrayLike] = MappingProxyType({})


def evaluate_graph(
    graph: Graph, inputs: Mapping[str, npt.ArrayLike], instead: Mapping[str, npt.ArrayLike] = NO_OVERRIDES
) -> dict[str, Values]:
    """Returns every tensor of the graph by name, in its ONNX shape; integer tensors as stored integers.

    inputs: floats, or the stored integers of integer inputs. instead: values that readers of these tensors get in place
    of the computed ones, so that errors do not accumulate from layer to layer.
    """
    results = {name: np.asarray(inputs[name], _dtype(graph.tensors[name])) for name in graph.inputs}
    seen = results | {name: np.asarray(v, _dtype(graph.tensors[name])) for name, v in instead.items()}
    for node in graph.nodes:
        operands = [graph.tensors[i].image.to_pixels(seen[i]) for i in node.inputs]
        output = graph.tensors[node.output]
        pixels = _typed(_apply(node.operator, operands, output.image), output)
        results[node.output] = output.image.from_pixels(pixels).reshape(output.shape)
        seen.setdefault(node.output, results[node.output])
    return results


def _dtype(tensor: Tensor) -> type[np.float32] | type[np.int64]:
    return np.int64 if tensor.element.kind == "int" else np.float32


def _typed(pixels: Values, output: Tensor) -> Values:
    """Casts a result to the tensor's type: rounded floats saturate; integers out of range raise `VerifyError`."""
    if output.element.kind == "float":
        return pixels
    low, high = output.element.low, output.element.high
    if pixels.dtype.kind == "f":
        return np.clip(pixels, low, high).astype(np.int64)
    if pixels.min() < low or pixels.max() > high:
        raise VerifyError(f"graph: {output.name} reaches {pixels.min()} to {pixels.max()}, beyond {output.element}")
    return pixels


def _apply(operator: Operator, operands: list[Values], image: Image) -> Values:
    """Applies one operator to operands [rows, width, channels]; returns the same form."""
    full = (image.rows, image.width, image.channels)
    if isinstance(operator, Bound | Lookup | Requantise):
        return _apply_to_integers(operator, operands).reshape(full)
    match operator:
        case Filter() | Pool() | Stencil():
            result = _window(operator, operands[0], image)
        case Dot():
            result = _dot(operator, *operands)
        case Map(function, maps):
            chosen = (_constant(m.pixels) if isinstance(m, Constant) else operands[m] for m in maps)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # as the chip, which has infinities
                result = np.broadcast_to(MAP_FUNCTIONS[function](*chosen), full)
        case Concat():
            result = np.concatenate(operands, axis=-1)
        case Move() | Take():
            result = _picked(operator, operands)
        case Softmax() | ChannelSum():
            result = _over_channels(operator, operands[0], full)
        case Rename():
            result = operands[0]
        case ConstantTensor(pixels):
            result = _constant(pixels)
    return result.reshape(full)


def _over_channels(operator: Softmax | ChannelSum, x: Values, full: tuple[int, int, int]) -> Values:
    if isinstance(operator, ChannelSum):
        total = x.sum(axis=-1, keepdims=True) * np.float32(operator.factor)
        return np.broadcast_to(total.reshape(*full[:2], 1), full)
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def _apply_to_integers(operator: Bound | Lookup | Requantise, operands: list[Values]) -> Values:
    match operator:
        case Bound(None, None):
            return operands[0]
        case Bound(low, high):
            return np.clip(operands[0], low, high)
        case Lookup(table):
            return table.astype(np.int64)[operands[0] + len(table) // 2]
        case Requantise():
            return requantised(operator, operands)


def _picked(operator: Move | Take, operands: list[Values]) -> Values:
    if isinstance(operator, Move):
        # Index -1 reads the zero appended at the end.
        return np.concatenate([*(o.ravel() for o in operands), np.zeros(1, operands[0].dtype)])[operator.sources]
    table, ids = operator.table, operands[0].reshape(-1)
    if (ids != np.floor(ids)).any() or ids.min() < 0 or ids.max() >= len(table):
        raise VerifyError(f"graph: ids from {ids.min()} to {ids.max()} are not all rows of a table of {len(table)}")
    return _constant(table)[ids.astype(np.int64)]


def _constant(pixels: Numbers) -> Values:
    return pixels if pixels.dtype.kind == "f" else pixels.astype(np.int64)


def _dot(operator: Dot, left: Values, right: Values) -> Values:
    rows = left.reshape(operator.batch, operator.rows, -1)
    cols = right.reshape(operator.batch, operator.cols, -1)
    return rows @ cols.swapaxes(1, 2)


def _window(operator: Filter | Pool | Stencil, pixels: Values, image: Image) -> Values:
    """Applies an operator with a window, tap by tap; returns [output pixels, channels]."""
    is_max = isinstance(operator, Pool) and operator.function == "max"
    smallest = -np.inf if pixels.dtype.kind == "f" else np.iinfo(np.int64).min
    start = pixels.dtype.type(smallest if is_max else 0)
    channels = pixels.shape[-1]
    # Index -1, for padding, reads the pixel appended at the end.
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
    return _relu(result) if isinstance(operator, Filter) and operator.relu else result
