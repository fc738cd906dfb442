"""Selects channels of tensors between layers: some are dropped, or all get another order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Filter,
    Graph,
    Map,
    Move,
    Node,
    Operator,
    Requantise,
    Stencil,
    Tensor,
)
from raptor.graph.rearrangement import through_move
from raptor.graph.requantise.definition import RequantiseTerm
from raptor.transforms.channels.channel_sets import channels_of_move, find_channel_sets, is_by_channel
from raptor.transforms.channels.constant_channels import find_zero_channels

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SelectedChannels:
    """A graph with some channels of another, `before`. `chosen`: by tensor, the old channel of each new one.

    Tensors that are not in `chosen` have all channels in the old order.
    """

    graph: Graph
    before: Graph
    chosen: Mapping[str, Indices]

    def __str__(self) -> str:
        return str(self.graph)


def select_channels(graph: Graph, chosen: Mapping[str, Indices]) -> SelectedChannels:
    """Returns the graph with the channels `chosen` of each tensor, which all tensors of a channel set share."""
    if not chosen:
        return SelectedChannels(graph, graph, chosen)
    tensors = {name: _select(tensor, chosen.get(name)) for name, tensor in graph.tensors.items()}
    nodes = tuple(replace(node, operator=_with_channels(graph, node, chosen)) for node in graph.nodes)
    return SelectedChannels(replace(graph, tensors=tensors, nodes=nodes), graph, chosen)


def _select(tensor: Tensor, index: Indices | None) -> Tensor:
    if index is None:
        return tensor
    image, axis = tensor.image, tensor.image.channel_axis
    image = replace(image, shape=(*image.shape[:axis], len(index), *image.shape[axis + 1 :]))
    coding = tensor.coding if tensor.coding is None or tensor.coding.axis is None else None
    return replace(tensor, shape=image.shape, image=image, in_model=False, coding=coding)


def _with_channels(graph: Graph, node: Node, chosen: Mapping[str, Indices]) -> Operator:
    """Returns the operator of a node for the channels `chosen`."""
    made = chosen.get(node.output)
    match node.operator:
        case Filter() as layer if is_by_channel(layer):
            return layer if made is None else replace(layer, weights=layer.weights[:, :, made], groups=len(made))
        case Filter() as layer:
            read, weights = chosen.get(node.inputs[0]), layer.weights
            weights = weights if read is None else weights[:, read]
            weights = weights if made is None else weights[:, :, made]
            return layer if weights is layer.weights else replace(layer, weights=np.ascontiguousarray(weights))
        case Move():
            return _moved(graph, node, chosen)
        case _ if made is None:
            return node.operator
        case Stencil() as stencil:
            return replace(stencil, weights=_taken(stencil.weights, made))
        case ConstantTensor(pixels):
            return ConstantTensor(_taken(pixels, made))
        case Map() as function:
            operands = (Constant(_taken(o.pixels, made)) if isinstance(o, Constant) else o for o in function.operands)
            return replace(function, operands=tuple(operands))
        case Requantise() as rounding:
            return replace(rounding, terms=tuple(_taken_term(term, made) for term in rounding.terms))
        case other:
            return other


def _taken(values: "npt.NDArray[np.generic]", index: Indices) -> "npt.NDArray[np.generic]":
    """Returns values [..., channels or 1] for the channels `index`."""
    return values if values.shape[-1] == 1 else np.ascontiguousarray(values[..., index])


def _taken_term(term: RequantiseTerm, index: Indices) -> RequantiseTerm:
    return replace(term, multiplier=_taken(term.multiplier, index), offset=_taken(term.offset, index))


def _moved(graph: Graph, node: Node, chosen: Mapping[str, Indices]) -> Operator:
    """Returns a move that reads elements from where they are now; elements of dropped channels are 0."""
    operator = node.operator
    assert isinstance(operator, Move)
    if chosen.keys().isdisjoint((*node.inputs, node.output)):
        return operator
    new, first = [np.zeros(0, np.int64)], 0
    for name in node.inputs:
        image, index = graph.tensors[name].image, chosen.get(name)
        index = np.arange(image.channels) if index is None else index
        place = np.full((image.pixels, image.channels), -1)
        place[:, index] = first + np.arange(image.pixels * len(index)).reshape(image.pixels, -1)
        new.append(place.reshape(-1))
        first += image.pixels * len(index)
    sources = through_move(np.concatenate(new), operator.sources)
    made = chosen.get(node.output)
    return Move(sources if made is None else np.ascontiguousarray(sources[:, made]))


def verify_channels(found: SelectedChannels) -> None:
    """Checks that only channels are missing that no result depends on, and that the others are what they were.

    Raises `VerifyError` with the ONNX node.
    """
    found.graph.verify()
    if not found.chosen:
        return
    sets, zero = find_channel_sets(found.before), find_zero_channels(found.before)
    for name, index in found.chosen.items():
        same = [n for n in found.before.tensors if sets.find(n) == sets.find(name)]
        if sets.find(name) in sets.fixed or len(np.unique(index)) < len(index):
            raise VerifyError(f"graph: the channels of {name} may not be selected, or not twice")
        if any(not np.array_equal(found.chosen.get(n, ()), index) for n in same):
            raise VerifyError(f"graph: tensors with the channels of {name} have others")
    for old, new in zip(found.before.nodes, found.graph.nodes, strict=True):
        fault = _fault(found, old, new, zero)
        if fault:
            raise VerifyError(f"graph: {old.name} ({old.op_type}): {fault}")


def _fault(found: SelectedChannels, old: Node, new: Node, zero: Mapping[str, "npt.NDArray[np.bool_]"]) -> str | None:
    """Returns how the weights or sources of a selected node differ from the selection of the old ones; else None."""
    before, chosen = found.before, found.chosen
    made = chosen.get(old.output, np.arange(before.tensors[old.output].image.channels))
    if isinstance(old.operator, Move):
        return _fault_of_move(found, old, new, made, zero)
    if not isinstance(old.operator, Filter) or is_by_channel(old.operator) or old.operator.groups > 1:
        return None
    assert isinstance(new.operator, Filter)
    read = chosen.get(old.inputs[0], np.arange(old.operator.in_channels))
    weights = old.operator.weights
    if not np.array_equal(new.operator.weights, weights[:, read][:, :, made], equal_nan=True):
        return "its weights are not the selected ones"
    gone = np.setdiff1d(np.flatnonzero(~zero[old.inputs[0]]), read)
    lost = np.flatnonzero(weights[:, gone][:, :, made].any(axis=(0, 2)))
    return f"input channel {gone[lost[0]]} is missing, but is not 0" if len(lost) else None


def _fault_of_move(
    found: SelectedChannels, old: Node, new: Node, made: Indices, zero: Mapping[str, "npt.NDArray[np.bool_]"]
) -> str | None:
    """Checks a move element by element: each element is the one that it was, or a 0."""
    assert isinstance(new.operator, Move)
    operands, channels = channels_of_move(old, found.before)
    now, now_channels = channels_of_move(new, found.graph)
    operands, channels = operands[:, made], channels[:, made]
    for k, name in enumerate(new.inputs):
        index = found.chosen.get(name, np.arange(found.before.tensors[name].image.channels))
        here = now == k
        if (operands[here] != k).any() or (index[now_channels[here]] != channels[here]).any():
            return f"{name} is moved to another place"
        gone = (operands == k) & (now < 0)
        if not zero[name][channels[gone]].all():
            return f"channels of {name} are missing that are not 0"
    return None
