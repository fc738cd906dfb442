"""Graph IR: a model as a DAG of typed operators on tensors of static shape.

ONNX has hundreds of operators; a crossbar machine needs a dozen. The importers in `raptor.frontend.operators` express
the former in the latter, so that every level below knows only these:

`Filter`   products with constant matrices, one per kernel position (convolution, fully connected layers)
`Dot`      products of two computed matrices, as dot products of the vector unit
`Stencil`  weighted sum over a window, channel by channel (depthwise convolution, interpolation)
`Pool`     maximum or sum over a window
`Map`      element-wise vector function of tensors and constants
`Concat`   channels of several tensors side by side
`Move`     rearranged elements of other tensors (transpose, slice, pad, gather, tile)
`Take`     rows of a constant table, selected by computed indices (embedding lookup)
`Softmax`  normalised exponential over the channels (extended instruction)
`Rename`   the same pixels under another ONNX shape (no instruction)
`ConstantTensor`

Three more exist for integers only:

`Requantise`  weighted sum of integers, rounded to an integer of fewer bits (`raptor.graph.requantise.definition`)
`Bound`       integers clamped to a range, in another width
`Lookup`      table entry for each integer

A tensor holds floats or integers (`Tensor.element`; `raptor.graph.element_types` says which types an operator accepts).
Its `Image` arranges its elements, in C order, as pixels with channels (`raptor.target.tensor_layout`)."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.element_types import Signature, find_type_fault
from raptor.graph.requantise.definition import Requantise
from raptor.graph.residency import NOTHING_RESIDENT, Residency
from raptor.graph.window import Window, WindowTable
from raptor.target.chip_elements import MODELLED_FLOAT, ElementCoding, ElementType
from raptor.target.tensor_layout import Image

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[Any]
"""Values of a constant: float32 for a float tensor, int16 or int32 for an integer tensor."""
Indices = npt.NDArray[np.int64]
MapFunction = Literal[
    "add", "sub", "mul", "max", "relu", "tanh", "sigmoid", "div", "exp", "log", "sqrt", "erf", "float", "round", "mask"
]
"""Names of element-wise functions. mask(x, m): x where m > 0, else -infinity."""
EXTENDED_FUNCTIONS: frozenset[MapFunction] = frozenset({"div", "exp", "log", "sqrt", "erf", "float", "round", "mask"})
"""Functions that the published instruction set cannot compute (docs/reference/programs.md)."""

_BINARY: frozenset[MapFunction] = frozenset({"add", "sub", "mul", "max", "div", "mask"})


def arity(function: MapFunction) -> int:
    """Returns the number of operands of an element-wise function."""
    return 2 if function in _BINARY else 1


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """y[o, m] = sum over taps t and channels k of x[window(o, t), k] * weights[t, k, m].

    weights: [taps, input channels / groups, output channels]; with `groups`, output channel m reads only the input
    channels of its group. `key`: filters of equal key share their crossbars (the steps of a recurrent layer); empty
    for a filter of its own. `relu`: negative sums become 0; set by `raptor.transforms.fold_relu` only. `weight_bits`:
    bits of a weight that is an integer; 0 for floats, which have the width of the target's weights.
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

    def input_range(self, cols: tuple[int, int]) -> tuple[int, int]:
        """Returns the range of input channels (first, end) that the output channels `cols` (first, end) read."""
        ins, outs = self.weights.shape[1], self.weights.shape[2] // self.groups
        return cols[0] // outs * ins, (-(-cols[1] // outs)) * ins

    def output_range(self, rows: tuple[int, int]) -> tuple[int, int]:
        """Returns the range of output channels (first, end) that read the input channels `rows` (first, end)."""
        ins, outs = self.weights.shape[1], self.weights.shape[2] // self.groups
        return rows[0] // ins * outs, (-(-rows[1] // ins)) * outs

    def matrix(self, tap: int, rows: tuple[int, int], cols: tuple[int, int]) -> Numbers:
        """Returns the weights [rows, cols] of one kernel position; 0 between channels of different groups."""
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
    window: Window | WindowTable


@dataclass(frozen=True, slots=True)
class Pool:
    """Maximum or sum over the taps of a window that lie inside the image, for each channel."""

    function: Literal["max", "sum"]
    window: Window


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant operand of a `Map`: [rows or 1, width or 1, channels or 1], broadcast to the image of the result."""

    pixels: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """An element-wise function. `operands`: positions in the node's inputs, or constants.

    An input has the image of the result, or is one pixel with the same channels, which is broadcast to every pixel.
    """

    function: MapFunction
    operands: tuple[int | Constant, ...]


@dataclass(frozen=True, slots=True)
class ChannelSum:
    """y[p, c] = factor * sum over the channels k of x[p, k], the same value in every channel c.

    Made by `raptor.transforms.tokens.lay_out_tokens` only.
    """

    factor: float


@dataclass(frozen=True, slots=True)
class Concat:
    """Concatenates the channels of the inputs, in order, for each pixel."""

    @staticmethod
    def sources(images: Sequence[Image]) -> Indices:
        """Returns `Move.sources` of the equivalent `Move`. `images`: the images of the inputs."""
        firsts = np.cumsum([0, *(image.elements for image in images)])
        numbers = (
            np.arange(i.elements).reshape(i.pixels, i.channels) + f for i, f in zip(images, firsts, strict=False)
        )
        return np.concatenate(list(numbers), axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """y[o, c] = element `sources[o, c]` of the inputs; 0 where the index is -1.

    sources: [output pixels, output channels]. Elements of an image are numbered pixel by pixel; the numbers of the
    second input continue after the last element of the first.
    """

    sources: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """y[p, c] = table[x[p], c]: the row of a constant table that index x[p] selects (embedding lookup).

    table: [rows, channels]. Element p of the indices x, counted pixel by pixel, belongs to output pixel p. An index
    must be an integer from 0 to rows - 1; any other value is a run-time error.
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
    """y[p, c] = x[p, c]: an alias with another ONNX shape or another channel axis; no element moves."""


@dataclass(frozen=True, slots=True)
class Bound:
    """y = min(max(x, low), high) of integers, in the element type of the result; None omits a bound.

    With `low` alone, set to the smallest value of the input's type, it widens integers.
    """

    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """y = table[x - low], where `low` is the smallest value of x's type, of at most 8 bits. table: [2 ** bits of x]."""

    table: npt.NDArray[np.int32]


def needs_extended_isa(operator: "Operator") -> bool:
    """Checks whether a float operator needs extended instructions, which the published instruction set lacks."""
    return isinstance(operator, Softmax) or (isinstance(operator, Map) and operator.function in EXTENDED_FUNCTIONS)


Elementwise = Map | Requantise | Bound | Lookup
"""Operators whose result has the same pixels and channels as their operands."""
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
    """A tensor of the model. `shape` is the ONNX shape; `image` arranges the same elements, in C order, as pixels.

    in_model: True if the ONNX model has a tensor of this name, so that the two can be compared. `coding`: how the
    integers represent the values of that ONNX tensor (scale, zero point, type); None for plain float32.
    """

    name: str
    shape: tuple[int, ...]
    image: Image
    in_model: bool = True
    element: ElementType = MODELLED_FLOAT
    coding: ElementCoding | None = None


def unused_name(stem: str, taken: Container[str]) -> str:
    """Returns a name for a new tensor that is not taken: the stem, or the stem and a number."""
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}.{count}"
    return name


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator. `name`: the ONNX node it was made from, not unique. `output`: its result tensor, unique."""

    name: str
    op_type: str
    operator: Operator
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model: nodes in topological order; `tensors` maps names to all tensors.

    float_nodes: names of the ONNX nodes that an integer model computes in floats. residency: what stays on the chip
    between two samples.
    """

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    float_nodes: tuple[str, ...] = ()
    residency: Residency = NOTHING_RESIDENT

    @property
    def arithmetic(self) -> Literal["float", "int", "mixed"]:
        """The arithmetic of the program: "float", "int", or "mixed" for integers with float sections."""
        kinds = {tensor.element.kind for tensor in self.tensors.values()}
        if "int" not in kinds:
            return "float"
        return "mixed" if "float" in kinds else "int"

    def readers(self) -> dict[str, list[Node]]:
        """Returns the nodes that read each tensor, in order; tensors without readers have no entry."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def verify(self) -> None:
        """Raises `VerifyError` for a use before definition, a double definition, or wrong shapes and element types."""
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
        # The number of pixels and channels stays; a reshape may change the dimensions of the image or its channel axis.
        found = (sources[0].pixels, sources[0].channels, output.image.elements)
        wanted = (output.image.pixels, output.image.channels, int(np.prod(output.shape)))
    if isinstance(operator, Map):
        return _map_fault(operator, sources, output.image)
    if isinstance(operator, Filter) and operator.relu and (operator.window.tap_count > 1 or operator.groups > 1):
        return "a ReLU in a layer with several products for an output"
    return None if found == wanted else f"shapes disagree: {found} and {wanted}"


def _type_fault(operator: Operator, inputs: list[Tensor], output: Tensor) -> str | None:
    return find_type_fault(_signature(operator), [i.element for i in inputs], output.element)


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


def _in_pixels(window: Window | WindowTable) -> int:
    return window.in_pixels


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {graph.name} {{"
    yield from (f"  {line}" for line in format_lines(graph).values())
    yield f"  return {', '.join(f'%{o}' for o in graph.outputs)}"
    yield "}"


def format_lines(graph: Graph) -> dict[str, str]:
    """Returns the text of each tensor, one line, keyed by its name: an input, or the node that computes it."""
    found = {name: f"%{name} = input {_dims(graph.tensors[name])}" for name in graph.inputs}
    for node in graph.nodes:
        operands, result = ", ".join(f"%{i}" for i in node.inputs), _dims(graph.tensors[node.output])
        found[node.output] = f"%{node.output} = {_operator_text(node.operator)} {operands} : {result}  # {node.name}"
    return found


def _dims(tensor: Tensor) -> str:
    shape = ("x".join(map(str, tensor.shape)) or "scalar") + " turned" * tensor.image.turned
    return shape if tensor.element == MODELLED_FLOAT else f"{shape} {tensor.element}"


def _operator_text(operator: Operator) -> str:
    match operator:
        case Filter(weights, window, relu=relu):
            return f"filter {'x'.join(map(str, weights.shape))} {format_window(window)}{' relu' if relu else ''}"
        case Stencil(weights, window):
            return f"stencil {'x'.join(map(str, weights.shape))} {format_window(window)}"
        case Dot(batch, rows, cols):
            return f"dot {batch}x{rows}x{cols}"
        case Pool(function, window):
            return f"pool.{function} {format_window(window)}"
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


def format_window(window: Window | WindowTable) -> str:
    """Returns a window as text, `kernel=3x3 stride=2x2 pad=1x1`; default values are left out."""
    if isinstance(window, WindowTable):
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
