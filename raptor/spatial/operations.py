"""Operations that SpatialIR and PimIR share, generic over their values: tiles in SpatialIR, buffers in PimIR.

An operation declares its `operands`, `results` and `scratch` values, and `map_operands` rebuilds it on other values.
Lowering, renaming, printing and verification need nothing else. Values have shapes, so operations store no derived
sizes.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.graph.ir import MapFunction, format_window
from raptor.graph.window import Window, WindowTable
from raptor.spatial.operation_fields import OperationFields
from raptor.spatial.tiles import ConstantTile, ShapedValue
from raptor.target.chip_elements import MODELLED_FLOAT

V = TypeVar("V", bound=ShapedValue)
W = TypeVar("W", bound=ShapedValue)


class Operation(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """Base class of operations: reads `operands`, writes `results`.

    The annotation of a field says what it holds: `V`, `V | None`, `tuple[V, ...]`, or `tuple[tuple[int, V], ...]` for
    values, each with a number. Fields of other types are parameters.
    """

    _fields: ClassVar[OperationFields]
    _operands: ClassVar[Callable[[Any], tuple[Any, ...]]]

    def __init_subclass__(cls) -> None:
        """Derives operands and parameters from the fields of a class."""
        cls._fields = OperationFields.from_class(cls, V)
        cls._operands = staticmethod(cls._fields.operands_getter())

    @property
    def operands(self) -> tuple[V, ...]:
        return self._operands(self)

    @property
    def results(self) -> tuple[V, ...]:
        return ()

    @property
    def scratch(self) -> tuple[V, ...]:
        """Temporary values that the operation overwrites while it runs, named after the result."""
        return ()

    @property
    def reads(self) -> tuple[V, ...]:
        """Operands that other operations compute. Classes that may have constant operands omit these."""
        return self.operands

    @property
    def touches(self) -> tuple[V, ...]:
        """All values that the operation reads or writes."""
        return (*self.operands, *self.results, *self.scratch)

    def map_operands(self, f: Callable[[V], W]) -> "Operation[W]":
        """Returns the same operation with `f` applied to every operand and result."""
        return cast("Operation[W]", structs.replace(self, **self.map_fields(f)))

    def map_fields(self, f: Callable[[V], Any]) -> dict[str, Any]:
        """Returns the fields that hold values by name, with `f` applied to each value."""
        return self._fields.map_values(self, f)

    @property
    def matrices(self) -> tuple[int, ...]:
        """Numbers of the matrices that it multiplies with: in its compute for SpatialIR, array groups for PimIR."""
        return ()

    def shift_matrices(self, _first: int) -> Self:
        """Returns the same operation with matrix numbers increased by `_first`."""
        return self

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        """The content of the fields beside values, in hashable form. See `form`."""
        return self._fields.parameters_of(self)

    @property
    def form(self) -> Hashable:
        """Key that two operations share if they do the same work on different values.

        Both have the same class, parameters, shapes and types, and the same places of constants and repeated operands.
        """
        shapes = tuple([shape_key(value) for value in (*self.results, *self.operands)])
        return type(self), shapes, self.parameters, repetition_pattern([value.name for value in self.operands])

    @property
    def mnemonic(self) -> str:
        """Name in the text form, such as `apply_filters`."""
        return re.sub("(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Operands in the text form."""
        return tuple(map(str, self.operands))

    @property
    def attributes(self) -> tuple[str, ...]:
        """Texts in braces after the operands in the text form, besides the matrices."""
        return ()

    def braces(self, matrices_word: str) -> str:
        """Returns the text in braces: the matrices, labelled `matrices_word`, and the attributes. Empty without any."""
        numbers = (f"{matrices_word} = {list(self.matrices)}",) if self.matrices else ()
        inside = ", ".join((*numbers, *self.attributes))
        return f" {{{inside}}}" if inside else ""


def shape_key(value: ShapedValue) -> Hashable:
    """Returns the part of a form key for one value: shape, element type, and whether it is a constant.

    The most frequent type is encoded as None, which hashes faster.
    """
    element = None if value.element is MODELLED_FLOAT else value.element
    return value.rows, value.width, value.channels, element, isinstance(value, ConstantTile)


def repetition_pattern(names: Sequence[str]) -> tuple[int, ...]:
    """Returns the index of the first occurrence of each name, which shows repetitions. Empty if all names differ."""
    if len(names) < 2 or len(set(names)) == len(names):
        return ()
    return tuple([names.index(name) for name in names])


class OneResult(Operation[V], frozen=True, gc=False):
    """An operation with one result, which is its first field."""

    result: V

    @property
    def results(self) -> tuple[V, ...]:
        return (self.result,)


def _computed(values: tuple[V, ...]) -> tuple[V, ...]:
    return tuple(value for value in values if not isinstance(value, ConstantTile))


def _pixel_accumulator(result: V) -> V:
    """Makes a scratch value of one pixel, which is added to the result later."""
    return structs.replace(result, name=f"{result.name}.accum", rows=1, width=1)


class ApplyFilters(OneResult[V], frozen=True, gc=False):
    """MVMs of each input pixel with several matrices, summed per output pixel (thesis, algorithm 4.2).

    All matrices have the same input and output channels of the layer; matrix `weights[i]` belongs to kernel position
    `taps[i]`. channel: first channel of the input that they read.
    """

    input: V
    weights: tuple[int, ...]
    taps: tuple[int, ...]
    channel: int
    window: Window | WindowTable
    relu: bool

    @property
    def scratch(self) -> tuple[V, ...]:
        """One product, if a pixel adds more than one."""
        return (_pixel_accumulator(self.result),) if len(self.taps) > 1 else ()

    @property
    def matrices(self) -> tuple[int, ...]:
        return self.weights

    def shift_matrices(self, first: int) -> Self:
        return structs.replace(self, weights=tuple(first + i for i in self.weights))

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"taps = {list(self.taps)}", *(("relu",) if self.relu else ()))


class ApplyLine(OneResult[V], frozen=True, gc=False, eq=False):
    """MVMs of blocks of image lines, one after another (`raptor.mapping.modes.line_unfolding`).

    products: [products, 4], rows (matrix, index of the line, first element of the block in the line, first element of
    the product in the result).
    """

    lines: tuple[V, ...]
    products: npt.NDArray[np.int64]

    @property
    def matrices(self) -> tuple[int, ...]:
        return tuple(self.products[:, 0].tolist())

    def shift_matrices(self, first: int) -> Self:
        return structs.replace(self, products=self.products + np.array([first, 0, 0, 0]))


class Overlap(OneResult[V], frozen=True, gc=False, eq=False):
    """Scatter-add: the sum of runs of other values. Elements that no run covers are zero.

    runs: [runs, 4], sorted rows (first element in the result, source, first element in the source, number of elements).
    """

    sources: tuple[V, ...]
    runs: npt.NDArray[np.int64]

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"runs = {len(self.runs)}",)


class Vector(OneResult[V], frozen=True, gc=False):
    """Element-wise function. An operand that is shorter than the result is repeated."""

    function: MapFunction
    sources: tuple[V, ...]

    @property
    def reads(self) -> tuple[V, ...]:
        return _computed(self.sources)

    @property
    def mnemonic(self) -> str:
        return f"v{self.function}"


MOST_SEQUENTIAL_TERMS = 64
"""Largest number of terms that a float32 sum adds one after another. Longer sums are added in blocks."""
SUM_BLOCK_TERMS = 16
"""Number of terms of a block, and of blocks in a block of the next level."""


def count_block_levels(count: int, size: int) -> int:
    """Returns the number of block levels below the result of a sum of `count` terms, in blocks of `size`."""
    levels, blocks = 0, -(-count // size)
    while blocks > 1:
        levels, blocks = levels + 1, -(-blocks // size)
    return levels


class Pool(OneResult[V], frozen=True, gc=False):
    """Maximum or sum over a window, channel by channel, for the output rows from `row` on.

    inputs: values with rows of the input, and the number of the first row of each.
    """

    inputs: tuple[tuple[int, V], ...]
    function: Literal["max", "sum"]
    window: Window
    row: int = 0

    @property
    def block(self) -> int:
        """Number of terms of a block of a long float sum (`raptor.pim.pool_terms`); 0 for a sequential sum."""
        is_long = (
            self.function == "sum"
            and self.window.tap_count > MOST_SEQUENTIAL_TERMS
            and self.result.element.kind == "float"
        )
        return SUM_BLOCK_TERMS if is_long else 0

    @property
    def scratch(self) -> tuple[V, ...]:
        """Totals of blocks of a long sum, one for each level."""
        levels = count_block_levels(self.window.tap_count, self.block) if self.block else 0
        return tuple(structs.replace(self.result, name=f"{self.result.name}.block{k}") for k in range(levels))

    @property
    def mnemonic(self) -> str:
        return f"pool_{self.function}"

    @property
    def attributes(self) -> tuple[str, ...]:
        return (format_window(self.window),)


ZERO_WEIGHT, UNIT_WEIGHT = -1, -2
"""Entries of `Stencil.index` for weight vectors of all 0 or all 1, which are not stored."""


class Stencil(OneResult[V], frozen=True, gc=False, eq=False):
    """Weighted sum over a window, channel by channel (depthwise convolution, interpolation).

    inputs: as in `Pool`. vectors: the distinct weight vectors, each a pixel with the channels of the result; None if
    all weights are 0 or 1. index: [output pixels, or 1 for all; taps] -> number of a vector, `ZERO_WEIGHT` or
    `UNIT_WEIGHT`. together: number of neighbouring pixels that one instruction weights; each vector is stored that many
    times in a row.
    """

    inputs: tuple[tuple[int, V], ...]
    vectors: V | None
    index: npt.NDArray[np.int32]
    window: Window | WindowTable
    together: int = 1

    @property
    def reads(self) -> tuple[V, ...]:
        return _computed(self.operands)

    @property
    def scratch(self) -> tuple[V, ...]:
        """Weighted pixels, as many as one instruction makes."""
        return (structs.replace(_pixel_accumulator(self.result), width=self.together),)

    @property
    def attributes(self) -> tuple[str, ...]:
        return (format_window(self.window), *((f"together = {self.together}",) if self.together > 1 else ()))


class Dot(OneResult[V], frozen=True, gc=False):
    """Batched matrix product: result[b, m, n] = pixel (b, m) of `left` times pixel (b, first + n) of `right`, summed.

    cols: pixels of `right` per batch.
    """

    left: V
    right: V
    batch: int
    cols: int
    first: int

    @property
    def attributes(self) -> tuple[str, ...]:
        cols = f"{self.first}:{self.first + self.result.channels}"
        return (f"batch = {self.batch}", f"columns = {cols} of {self.cols}")


class Average(OneResult[V], frozen=True, gc=False):
    """Mean over the channels of each pixel; the result has one channel."""

    input: V


class ChannelPiece(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """A part of a `Gather`: channels `source` and up of `value` become channels `target` and up of the result."""

    value: V
    source: int
    target: int
    channels: int


class Gather(OneResult[V], frozen=True, gc=False):
    """Concatenation of channel ranges of values with the same pixels."""

    pieces: tuple[ChannelPiece[V], ...]

    @property
    def operands(self) -> tuple[V, ...]:
        return tuple(dict.fromkeys(p.value for p in self.pieces))

    @property
    def parameters(self) -> tuple[Hashable, ...]:
        number = {value: i for i, value in enumerate(self.operands)}
        return tuple((number[p.value], p.source, p.target, p.channels) for p in self.pieces)

    def map_operands(self, f: Callable[[V], W]) -> "Gather[W]":
        pieces = (ChannelPiece(f(p.value), p.source, p.target, p.channels) for p in self.pieces)
        return Gather(f(self.result), tuple(pieces))

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(f"{p.value}[{p.source}:{p.source + p.channels}]" for p in self.pieces)


class Move(OneResult[V], frozen=True, gc=False, eq=False):
    """Gather of elements: each run copies strided elements of one source to consecutive ones of the result.

    runs: [runs, 5]: first element in the result, source (-1: zeros), first element in the source, stride, elements.
    """

    sources: tuple[V, ...]
    runs: npt.NDArray[np.int64]

    @property
    def attributes(self) -> tuple[str, ...]:
        return (f"runs = {len(self.runs)}",)


class Softmax(OneResult[V], frozen=True, gc=False):
    """Softmax over the channels of each pixel."""

    input: V
