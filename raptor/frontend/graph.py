"""The Graph: a model as typed operators on static shapes.

ONNX has hundreds of operators; a crossbar machine needs six. The importers in `raptor.frontend.operators` express the
former in the latter, so that every level below knows only these:

`Filter`   products with constant matrices, one per kernel position (convolution, fully connected layers)
`Pool`     running maximum or sum over a window
`Map`      element-wise vector function of tensors and constants
`Concat`   channels of several tensors side by side
`Softmax`  normalised exponential over the channels (extended instruction)
`Rename`   the same elements in the same order under another shape (no instruction)

Every tensor has an `Image`: its elements in C order, seen as pixels with channels (`raptor.layout`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import networkx as nx
import numpy as np
import numpy.typing as npt

from raptor.errors import VerifyError
from raptor.layout import Image
from raptor.window import Window

Floats = npt.NDArray[np.float32]
MapFunction = Literal["add", "sub", "mul", "max", "relu", "tanh", "sigmoid"]
ARITY: Mapping[MapFunction, int] = {"add": 2, "sub": 2, "mul": 2, "max": 2, "relu": 1, "tanh": 1, "sigmoid": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """y[o, m] = sum over taps t and channels k of x[window(o, t), k] * weights[t, k, m].

    weights: [taps, input channels, output channels]. `relu`: negative sums become 0; set by `spatial.fold_relu` only.
    """

    weights: Floats
    window: Window
    relu: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """Maximum or sum over the taps of a window that lie inside the image, channel by channel."""

    function: Literal["max", "sum"]
    window: Window


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant operand: [rows or 1, width or 1, channels or 1], broadcast against the image of the result."""

    pixels: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """An element-wise function. `operands`: position in the node's inputs, or a constant."""

    function: MapFunction
    operands: tuple[int | Constant, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Channels of the inputs side by side, in order."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """exp(x) / sum(exp(x)) over the channels of each pixel."""


@dataclass(frozen=True, slots=True)
class Rename:
    """The input's elements in the same C order and at the same pixels, under another name and ONNX shape."""


Operator = Filter | Pool | Map | Concat | Softmax | Rename


@dataclass(frozen=True, slots=True)
class Tensor:
    """`shape` is the ONNX shape; `image` has as many elements in the same C order."""

    name: str
    shape: tuple[int, ...]
    image: Image
    in_model: bool = True
    """Whether a tensor of this name exists in the ONNX model, so that it can be compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator. `name` is the ONNX node it came from (several nodes may share it), `output` is unique."""

    name: str
    op_type: str
    operator: Operator
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in topological order; `tensors` holds every tensor by name."""

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def dag(self) -> "nx.DiGraph[str]":
        """Tensors as vertices; an edge from each input of a node to its output, which carries the node."""
        dag: nx.DiGraph[str] = nx.DiGraph()
        dag.add_nodes_from(self.tensors)
        for node in self.nodes:
            dag.add_node(node.output, node=node)
            dag.add_edges_from((i, node.output) for i in node.inputs)
        return dag

    def verify(self) -> None:
        """Raises `VerifyError` unless every node follows its operands, and shapes agree with operators."""
        known = set(self.inputs)
        for node in self.nodes:
            missing = [i for i in node.inputs if i not in known]
            if missing:
                raise VerifyError(f"graph: {node.name}: {missing[0]} is used before it is defined")
            if node.output in known:
                raise VerifyError(f"graph: {node.name}: {node.output} is defined twice")
            fault = _operator_fault(node.operator, [self.tensors[i] for i in node.inputs], self.tensors[node.output])
            if fault:
                raise VerifyError(f"graph: {node.name} ({node.op_type}): {fault}")
            known.add(node.output)
        for name in self.outputs:
            if name not in known:
                raise VerifyError(f"graph: output {name} is never defined")

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def _operator_fault(operator: Operator, inputs: list[Tensor], output: Tensor) -> str | None:
    image = output.image
    sources = [i.image for i in inputs]
    match operator:
        case Filter(weights=weights, window=window):
            taps, ins, outs = weights.shape
            found = (taps, ins, outs, sources[0].pixels, image.pixels)
            wanted = (window.tap_count, sources[0].channels, image.channels, _in_pixels(window), window.out_pixels)
        case Pool(_, window):
            found = (sources[0].channels, sources[0].pixels, image.pixels)
            wanted = (image.channels, _in_pixels(window), window.out_pixels)
        case Map(function, operands):
            return _map_fault(function, operands, sources, image)
        case Concat():
            found = (sum(s.channels for s in sources), {(s.rows, s.width) for s in sources})
            wanted = (image.channels, {(image.rows, image.width)})
        case Softmax():
            found, wanted = sources[0], image
        case Rename():
            if sources[0].has_layout_of(image):
                return None if image.elements == int(np.prod(output.shape)) else f"{output.shape} does not fill {image}"
            found, wanted = sources[0], image
    return None if found == wanted else f"shapes disagree: {found} and {wanted}"


def _map_fault(
    function: MapFunction, operands: tuple[int | Constant, ...], sources: list[Image], image: Image
) -> str | None:
    if len(operands) != ARITY[function]:
        return f"{function} takes {ARITY[function]} operands, not {len(operands)}"
    for operand in operands:
        if isinstance(operand, Constant):
            full = (image.rows, image.width, image.channels)
            if any(n not in (1, size) for n, size in zip(operand.pixels.shape, full, strict=True)):
                return f"constant {operand.pixels.shape} does not broadcast to {full}"
        elif sources[operand] != image:
            return f"operand {sources[operand]} differs from result {image}"
    return None


def _in_pixels(window: Window) -> int:
    return window.batch * int(np.prod(window.in_dims))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name} {{"
    for name in graph.inputs:
        yield f"  %{name} = input {_dims(graph.tensors[name])}"
    for node in graph.nodes:
        operands = ", ".join(f"%{i}" for i in node.inputs)
        result = _dims(graph.tensors[node.output])
        yield f"  %{node.output} = {_operator_text(node.operator)} {operands} : {result}  # {node.name}"
    yield f"  return {', '.join(f'%{o}' for o in graph.outputs)}"
    yield "}"


def _dims(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _operator_text(operator: Operator) -> str:
    match operator:
        case Filter(weights, window, relu):
            return f"filter {'x'.join(map(str, weights.shape))} {window_text(window)}{' relu' if relu else ''}"
        case Pool(function, window):
            return f"pool.{function} {window_text(window)}"
        case Map(function, operands):
            constants = [o for o in operands if isinstance(o, Constant)]
            shown = "".join(f" const {'x'.join(map(str, c.pixels.shape))}" for c in constants)
            return f"map.{function}{shown}"
        case _:
            return type(operator).__name__.lower()


def window_text(window: Window) -> str:
    """A window in short: `kernel=3x3 stride=2x2 pad=1x1`, defaults left out."""
    parts = [f"kernel={'x'.join(map(str, window.kernel))}"]
    for name, values, default in (
        ("stride", window.strides, 1),
        ("pad", window.pads, 0),
        ("dilation", window.dilations, 1),
    ):
        if any(v != default for v in values):
            parts.append(f"{name}={'x'.join(map(str, values))}")
    return " ".join(parts)
