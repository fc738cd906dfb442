"""Channels that are 0 for all inputs: results of weights of 0, and what element-wise operators make of them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Elementwise,
    Filter,
    Graph,
    Map,
    Move,
    Node,
    Pool,
    Rename,
    Requantise,
    Stencil,
    Tensor,
)
from raptor.target.tensor_layout import Image
from raptor.transforms.channels.channel_sets import channels_of_move, is_by_channel

Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]


def find_zero_channels(graph: Graph) -> Mapping[str, Bools]:
    """Returns, for each tensor, which of its channels are 0 in each pixel, whatever the inputs are."""
    constant = {name: np.full(graph.tensors[name].image.channels, np.nan) for name in graph.inputs}
    for node in graph.nodes:
        constant[node.output] = _values(graph, node, constant)
    return {name: values == 0 for name, values in constant.items()}


def _values(graph: Graph, node: Node, known: Mapping[str, Values]) -> Values:
    """Returns the value of each channel of a result that has the same value everywhere, else NaN."""
    operator, channels = node.operator, graph.tensors[node.output].image.channels
    unknown = np.full(channels, np.nan)
    given = [known[name] for name in node.inputs]
    match operator:
        case Filter():
            zero = ~operator.weights.any(axis=(0, 1))
            return np.where(zero | (given[0] == 0) if is_by_channel(operator) else zero, 0.0, np.nan)
        case Pool() if operator.function == "max" or not np.nan_to_num(given[0]).any():
            return given[0]
        case Stencil():
            return np.where(given[0] == 0, 0.0, np.nan)
        case ConstantTensor(pixels):
            first = pixels.reshape(-1, pixels.shape[-1])
            return np.broadcast_to(np.where((first == first[0]).all(axis=0), first[0], np.nan), channels)
        case Rename() if len(given[0]) == channels:
            return given[0]
        case Move():
            operand, channel = channels_of_move(node, graph)
            zero = operand < 0
            for k, values in enumerate(given):
                zero |= (operand == k) & (values == 0)[np.maximum(channel, 0) % len(values)]
            return np.where(zero.all(axis=0), 0.0, np.nan)
        case _ if isinstance(operator, Elementwise) and _acts_alike(operator):
            return _evaluated(graph, node, given)
        case _:
            return unknown


def _acts_alike(operator: Elementwise) -> bool:
    """True if an element-wise operator does the same in each pixel."""
    if isinstance(operator, Map):
        return all(o.pixels.shape[:2] == (1, 1) for o in operator.operands if isinstance(o, Constant))
    if isinstance(operator, Requantise):
        return all(a.shape[:2] == (1, 1) for t in operator.terms for a in (t.multiplier, t.offset))
    return True


def _evaluated(graph: Graph, node: Node, given: list[Values]) -> Values:
    """Returns the values of an element-wise operator whose operands have the values `given`, for one pixel."""
    constant = ~np.isnan(np.sum(given, axis=0))
    if not constant.any():
        return np.full(len(constant), np.nan)
    one = {name: _one_pixel(graph.tensors[name]) for name in (*node.inputs, node.output)}
    operator = node.operator
    if isinstance(operator, Requantise):
        operator = replace(operator, row_class=np.zeros(1, np.int64), recipe=None)
    single = Graph("pixel", one, (replace(node, operator=operator),), tuple(dict.fromkeys(node.inputs)), (node.output,))
    inputs = {name: _within(one[name], values) for name, values in zip(node.inputs, given, strict=True)}
    found = evaluate_graph(single, inputs)[node.output].reshape(-1)
    return np.where(constant, found, np.nan)


def _one_pixel(tensor: Tensor) -> Tensor:
    shape = (1, 1, tensor.image.channels)
    return replace(tensor, shape=shape, image=Image(shape, 2), coding=None)


def _within(tensor: Tensor, values: Values) -> "npt.NDArray[np.float64]":
    """Returns values for one pixel; channels without a constant get 0, or the nearest value that the type has."""
    low = max(0, tensor.element.low) if tensor.element.kind == "int" else 0
    return np.where(np.isnan(values), low, values).reshape(1, 1, -1)
