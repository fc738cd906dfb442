"""The Graph: a model as typed operators on static shapes.

ONNX has hundreds of operators; a crossbar machine needs a dozen. The importers in `raptor.frontend.operators` express
the former in the latter, so that every level below knows only these:

`Filter`   products with constant matrices, one per kernel position (convolution, fully connected layers)
`Dot`      products of two computed matrices, as dot products of the vector unit
`Stencil`  weighted sum over a window, channel by channel (depthwise convolution, interpolation)
`Pool`     running maximum or sum over a window
`Map`      element-wise vector function of tensors and constants
`Concat`   channels of several tensors side by side
`Move`     elements of other tensors in another order (transpose, slice, pad, gather, tile)
`Take`     rows of a constant table, chosen by computed numbers (embedding)
`Softmax`  normalised exponential over the channels (extended instruction)
`Rename`   the same pixels under another shape (no instruction)
`ConstantTensor`

Three more exist for integers only:

`Requantise`  weighted sum of integers, rounded to an integer of fewer bits (`raptor.graph.requantise`)
`Bound`       integers between two bounds, in another width
`Lookup`      one entry of a table for each integer

A tensor holds floats or integers (`Tensor.element`; which types go together: `raptor.graph.types`). It has an `Image`:
its elements in C order, seen as pixels with channels (`raptor.target.layout`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.requantise import Requantise
from raptor.graph.types import Signature, type_fault
from raptor.graph.window import Table, Window
from raptor.target.element import MODELLED, Coding, ElementType
from raptor.target.layout import Image

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[Any]
"""Constants: float32, or int16 or int32 for an integer tensor."""
Indices = npt.NDArray[np.int64]
MapFunction = Literal[
    "add", "sub", "mul", "max", "relu", "tanh", "sigmoid", "div", "exp", "log", "sqrt", "erf", "float", "round", "mask"
]
"""Names of element-wise functions. mask: the first operand where the second one is above 0, else -infinity."""
EXTENDED: frozenset[MapFunction] = frozenset({"div", "exp", "log", "sqrt", "erf", "float", "round", "mask"})
"""Functions that the published instruction set cannot compute (docs/developers/design.md, 5)."""

_BINARY: frozenset[MapFunction] = frozenset({"add", "sub", "mul", "max", "div", "mask"})


def arity(function: MapFunction) -> int:
    """Returns the number of operands of a function."""
    return 2 if function in _BINARY else 1


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """y[o, m] = sum over taps t and channels k of x[window(o, t), k] * weights[t, k, m].

    weights: [taps, input channels / groups, output channels]; with `groups`, output channel m reads only the input
    channels of its group. `key`: filters of equal key share their crossbars (the steps of a recurrent layer); empty
    for a filter of its own. `relu`: negative sums become 0; set by `raptor.mapping.fold_relu` only. `weight_bits`: bits
    of a weight that is an integer; 0 for floats, whose width is that of the target.
    """

    weights: Numbers
    window: Window
    groups: int = 1
    key: str = ""
    relu: bool = False
    weight_bits: int = 0

    @property
    def in_channels(self) -> int:
        """Number of input channels of all groups."""
        return self.weights.shape[1] * self.groups

    def needed(self, cols: tuple[int, int]) -> tuple[int, int]:
        """Returns the range of input channels that the output channels `cols` read."""
        ins, outs = self.weights.shape[1], self.weights.shape[2] // self.groups
        return cols[0] // outs * ins, (-(-cols[1] // outs)) * ins

    def reading(self, rows: tuple[int, int]) -> tuple[int, int]:
        """Returns the range of output channels that read the input channels `rows`."""
        ins, outs = self.weights.shape[1], self.weights.shape[2] // self.groups
        return rows[0] // ins * outs, (-(-rows[1] // ins)) * outs

    def matrix(self, tap: int, rows: tuple[int, int], cols: tuple[int, int]) -> Numbers:
        """Returns [rows, cols] of the matrix at one kernel position; zero where the channels' groups differ."""
        if self.groups == 1:
            return self.weights[tap, slice(*rows), slice(*cols)]
        ins, outs = self.weights.shape[1], self.weights.shape[2] // self.groups
        row, col = np.arange(*rows)[:, None], np.arange(*cols)[None, :]
        inside = row // ins == col // outs
        return np.asarray(np.where(inside, self.weights[tap, row % ins, col], 0), self.weights.dtype)


@dataclass(frozen=True, slots=True)
class Dot:
    """y[b, m, n] = sum over k of x[b, m, k] * z[b, n, k]: rows and columns are pixels, k are channels."""

    batch: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True, eq=False)
class Stencil:
    """y[o, c] = sum over taps t of x[window(o, t), c] * weights[o, t, c].

    weights: [output pixels or 1, taps, channels or 1].
    """

    weights: Numbers
    window: Window | Table


@dataclass(frozen=True, slots=True)
class Pool:
    """Maximum or sum over the taps of a window that lie inside the image, channel by channel."""

    function: Literal["max", "sum"]
    window: Window


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant operand: [rows or 1, width or 1, channels or 1], broadcast against the image of the result."""

    pixels: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """An element-wise function. `operands`: positions in the node's inputs, or constants.

    An input has the image of the result, or is one pixel with as many channels, which is used for every pixel.
    """

    function: MapFunction
    operands: tuple[int | Constant, ...]


@dataclass(frozen=True, slots=True)
class ChannelSum:
    """y[p, c] = factor * sum over the channels k of x[p, k]: all channels c of the result are equal.

    Made by `raptor.mapping.token_layout` only.
    """

    factor: float


@dataclass(frozen=True, slots=True)
class Concat:
    """Channels of the inputs side by side, in order."""

    @staticmethod
    def sources(images: Sequence[Image]) -> Indices:
        """Returns the `sources` of the `Move` that does the same; `images`: those of the inputs."""
        firsts = np.cumsum([0, *(image.elements for image in images)])
        numbers = (
            np.arange(i.elements).reshape(i.pixels, i.channels) + f for i, f in zip(images, firsts, strict=False)
        )
        return np.concatenate(list(numbers), axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """y[o, c] = element `sources[o, c]` of the inputs, 0 where it is -1.

    sources: [output pixels, output channels]. The elements of an image are numbered pixel by pixel, those of the second
    input follow those of the first.
    """

    sources: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """y[p, c] = table[x[p], c]: for each pixel of the result the row of a constant table that the ids x choose.

    table: [rows, channels]. Element p of the ids, counted pixel by pixel, is for pixel p. It is a whole number from 0
    to rows - 1; another one stops the program.
    """

    table: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class ConstantTensor:
    """A constant tensor: [rows, width, channels]."""

    pixels: Numbers


@dataclass(frozen=True, slots=True)
class Softmax:
    """exp(x) / sum(exp(x)) over the channels of each pixel."""


@dataclass(frozen=True, slots=True)
class Rename:
    """y[p, c] = x[p, c]: the input under another name and ONNX shape, maybe with the channels on another axis."""


@dataclass(frozen=True, slots=True)
class Bound:
    """y = min(max(x, low), high) of integers, in the type of the result; a bound that is None is left out.

    With `low` alone, the smallest number of the input's type, it makes integers wider.
    """

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """y = table[x - smallest x]: a function of one integer of at most 8 bits. table: [2 ** bits of the input]."""

    table: npt.NDArray[np.int32]


def needs_extension(operator: "Operator") -> bool:
    """Tells whether the published instruction set cannot compute an operator of floats."""
    return isinstance(operator, Softmax) or (isinstance(operator, Map) and operator.function in EXTENDED)


Elementwise = Map | Requantise | Bound | Lookup
"""Operators whose result has the pixels and channels of their operands."""
Operator = (
    Filter
    | Dot
    | Stencil
    | Pool
    | Map
    | ChannelSum
    | Concat
    | Move
    | Take
    | Softmax
    | Rename
    | ConstantTensor
    | Requantise
    | Bound
    | Lookup
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model. `shape` is the ONNX shape; `image` has as many elements in the same C order.

    in_model: True if the ONNX model has a tensor of this name, so that the two can be compared. `coding`: how integers
    stand for the values of that tensor.
    """

    name: str
    shape: tuple[int, ...]
    image: Image
    in_model: bool = True
    element: ElementType = MODELLED
    coding: Coding | None = None


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
    """A model: nodes in topological order; `tensors` holds every tensor by name.

    float_nodes: in a model of integers, the ONNX nodes that are computed in floats.
    """

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    float_nodes: tuple[str, ...] = ()

    @property
    def numbers(self) -> Literal["float", "int", "mixed"]:
        """The kind of program: of floats, of integers, or of integers with sections of floats."""
        kinds = {tensor.element.kind for tensor in self.tensors.values()}
        if "int" not in kinds:
            return "float"
        return "mixed" if "float" in kinds else "int"

    def readers(self) -> dict[str, list[Node]]:
        """Returns the nodes that read each tensor, in order; a tensor that nobody reads is left out."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def verify(self) -> None:
        """Raises `VerifyError` unless every node follows its operands, and shapes and types agree with operators."""
        known = set(self.inputs)
        for node in self.nodes:
            missing = [i for i in node.inputs if i not in known]
            if missing:
                raise VerifyError(f"graph: {node.name}: {missing[0]} is used before it is defined")
            if node.output in known:
                raise VerifyError(f"graph: {node.name}: {node.output} is defined twice")
            inputs, output = [self.tensors[i] for i in node.inputs], self.tensors[node.output]
            fault = _operator_fault(node.operator, inputs, output) or _type_fault(node.operator, inputs, output)
            if fault:
                raise VerifyError(f"graph: {node.name} ({node.op_type}): {fault}")
            known.add(node.output)
        for name in self.outputs:
            if name not in known:
                raise VerifyError(f"graph: output {name} is never defined")

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def _operator_fault(operator: Operator, inputs: list[Tensor], output: Tensor) -> str | None:
    sources = [i.image for i in inputs]
    found, wanted = _found_and_wanted(operator, sources, output.image)
    if isinstance(operator, Rename):
        # Another image of the same pixels shows the channels that a reshape uncovers, or has them on another axis.
        found = (sources[0].pixels, sources[0].channels, output.image.elements)
        wanted = (output.image.pixels, output.image.channels, int(np.prod(output.shape)))
    if isinstance(operator, Map):
        return _map_fault(operator, sources, output.image)
    return None if found == wanted else f"shapes disagree: {found} and {wanted}"


def _type_fault(operator: Operator, inputs: list[Tensor], output: Tensor) -> str | None:
    return type_fault(_signature(operator), [i.element for i in inputs], output.element)


def _signature(operator: Operator) -> Signature:
    return operator.function if isinstance(operator, Map) else type(operator).__name__


def _found_and_wanted(operator: Operator, sources: list[Image], image: Image) -> tuple[object, object]:
    match operator:
        case Filter(weights, window):
            taps, _, outs = weights.shape
            found = (taps, operator.in_channels, outs, sources[0].pixels, image.pixels)
            return found, (window.tap_count, sources[0].channels, image.channels, _in_pixels(window), window.out_pixels)
        case Stencil(weights, window):
            taps = (sources[0].channels, sources[0].pixels, image.pixels, weights.shape[1])
            return taps, (image.channels, _in_pixels(window), window.out_pixels, window.tap_count)
        case Pool(_, window):
            found = (sources[0].channels, sources[0].pixels, image.pixels)
            return found, (image.channels, _in_pixels(window), window.out_pixels)
        case Dot(batch, rows, cols):
            found = (sources[0].pixels, sources[1].pixels, sources[0].channels, image.pixels, image.channels)
            return found, (batch * rows, batch * cols, sources[1].channels, batch * rows, cols)
        case Concat():
            found = (sum(s.channels for s in sources), {(s.rows, s.width) for s in sources})
            return found, (image.channels, {(image.rows, image.width)})
        case Move() | Take():
            return _picked(operator, sources), (image.pixels, image.channels, True)
        case ConstantTensor(pixels):
            return pixels.shape, (image.rows, image.width, image.channels)
        case ChannelSum() | Softmax() | Bound() | Lookup():
            sums = isinstance(operator, ChannelSum)
            return (sources[0].pixels, image.pixels) if sums else (sources[0], image)
        case Requantise(terms):
            return [image] * len(terms), sources
        case _:
            return None, None


def _picked(operator: Move | Take, sources: list[Image]) -> tuple[int, int, bool]:
    """Returns the pixels and channels of the result, and whether all that is picked is there."""
    if isinstance(operator, Take):
        return sources[0].elements, operator.table.shape[-1], operator.table.ndim == 2
    low, high = int(operator.sources.min()), int(operator.sources.max())
    pixels, channels = operator.sources.shape
    return pixels, channels, low >= -1 and high < sum(s.elements for s in sources)


def _map_fault(operator: Map, sources: list[Image], image: Image) -> str | None:
    wanted = arity(operator.function)
    if len(operator.operands) != wanted:
        return f"{operator.function} takes {wanted} operands, not {len(operator.operands)}"
    for operand in operator.operands:
        if isinstance(operand, Constant):
            full = (image.rows, image.width, image.channels)
            if any(n not in (1, size) for n, size in zip(operand.pixels.shape, full, strict=True)):
                return f"constant {operand.pixels.shape} does not broadcast to {full}"
        elif sources[operand] != image and (sources[operand].pixels, sources[operand].channels) != (1, image.channels):
            return f"operand {sources[operand]} differs from result {image}"
    return None


def _in_pixels(window: Window | Table) -> int:
    return window.in_pixels


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name} {{"
    yield from (f"  {line}" for line in lines_of(graph).values())
    yield f"  return {', '.join(f'%{o}' for o in graph.outputs)}"
    yield "}"


def lines_of(graph: Graph) -> dict[str, str]:
    """Returns a line of text for each tensor: an input, or the node that computes it."""
    found = {name: f"%{name} = input {_dims(graph.tensors[name])}" for name in graph.inputs}
    for node in graph.nodes:
        operands, result = ", ".join(f"%{i}" for i in node.inputs), _dims(graph.tensors[node.output])
        found[node.output] = f"%{node.output} = {_operator_text(node.operator)} {operands} : {result}  # {node.name}"
    return found


def _dims(tensor: Tensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return shape if tensor.element == MODELLED else f"{shape} {tensor.element}"


def _operator_text(operator: Operator) -> str:
    match operator:
        case Filter(weights, window, relu=relu):
            return f"filter {'x'.join(map(str, weights.shape))} {window_text(window)}{' relu' if relu else ''}"
        case Stencil(weights, window):
            return f"stencil {'x'.join(map(str, weights.shape))} {window_text(window)}"
        case Dot(batch, rows, cols):
            return f"dot {batch}x{rows}x{cols}"
        case Pool(function, window):
            return f"pool.{function} {window_text(window)}"
        case Map(function, operands):
            constants = [o for o in operands if isinstance(o, Constant)]
            shown = "".join(f" const {'x'.join(map(str, c.pixels.shape))}" for c in constants)
            return f"map.{function}{shown}"
        case Take(table):
            return f"take {'x'.join(map(str, table.shape))}"
        case Bound(low, high):
            return f"bound {low}..{high}"
        case Requantise():
            return f"requantise {operator.low}..{operator.high}"
        case _:
            return type(operator).__name__.lower()


def window_text(window: Window | Table) -> str:
    """Writes a window in short: `kernel=3x3 stride=2x2 pad=1x1`, without defaults."""
    if isinstance(window, Table):
        return f"table={window.out_pixels}x{window.tap_count}"
    parts = [f"kernel={'x'.join(map(str, window.kernel))}"]
    for name, values, default in (
        ("stride", window.strides, 1),
        ("pad", window.pads, 0),
        ("dilation", window.dilations, 1),
    ):
        if any(v != default for v in values):
            parts.append(f"{name}={'x'.join(map(str, values))}")
    return " ".join(parts)
