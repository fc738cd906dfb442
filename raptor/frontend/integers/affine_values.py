"""Symbolic dequantised values ("views"): real-valued tensors as exact expressions of integer tensors.

The result of DequantizeLinear is not computed. The operators after it change the expression or compute other integers;
QuantizeLinear turns it into integers again. Only where an operator needs real numbers, the view is computed in float32
(`as_floats`), which starts a float section of the program.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.frontend.formulas.formula import FormulaBuilder, Value, choose_result_image
from raptor.frontend.import_context import DequantisedView, ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import find_importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.frontend.types.quant_params import Ints, QuantParams, Shape, quantise_values
from raptor.graph.ir import Bound, Floats, Lookup, Numbers, Operator, Rename, Tensor
from raptor.graph.rearrangement import c_order, make_move
from raptor.graph.requantise import definition
from raptor.graph.requantise.definition import Requantise
from raptor.target.chip_elements import ElementCoding, integer_type
from raptor.target.tensor_layout import Image


def _one() -> Ints:
    return np.ones((), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class AffineTerm:
    """(tensor + offset) * (scale / count). The arrays broadcast to the view; `count`: divisor of a mean, else 1."""

    tensor: Tensor
    scale: Floats
    offset: Ints
    count: Ints = field(default_factory=_one)

    @property
    def is_uniform(self) -> bool:
        """True if all elements have the same scale and offset, and the term is no mean."""
        return self.scale.size == self.offset.size == self.count.size == 1 and self.count.item() == 1


@dataclass(frozen=True, slots=True, eq=False)
class AffineView:
    """Sum of terms, each of the view's shape or broadcast to it, clamped to [low, high].

    takes_bias: True for products of a layer to which no bias has been added yet.
    """

    node: NodeView
    shape: Shape
    terms: tuple[AffineTerm, ...]
    low: float = -math.inf
    high: float = math.inf
    takes_bias: bool = False

    @property
    def single_term(self) -> AffineTerm | None:
        """The term if there is only one, with the same parameters for all elements; else None."""
        return self.terms[0] if len(self.terms) == 1 and self.terms[0].is_uniform else None

    def clamp(self, node: NodeView, low: float, high: float) -> DequantisedView:
        """Returns min(max(view, low), high)."""
        first, last = (min(max(bound, low), high) for bound in (self.low, self.high))
        return replace(self, node=node, low=first, high=last, takes_bias=False)

    def emit_floats(self, node: NodeView, ctx: ImportContext, name: str) -> None:
        tensors = [t.tensor for t in self.terms]
        f = FormulaBuilder(
            replace(self.node, outputs=(name,)), ctx, self.shape, choose_result_image(tensors, self.shape)
        )
        total = self._float_term(f, self.terms[0])
        for term in self.terms[1:]:
            total = f.add(total, self._float_term(f, term))
        if self.low > -math.inf:
            total = f.relu(total) if self.low == 0 else f.max(total, self.low)
        f.finish(total if self.high == math.inf else f.min(total, self.high), name)

    @staticmethod
    def _float_term(f: FormulaBuilder, term: AffineTerm) -> Value:
        value = f.apply("float", f.broadcast(term.tensor))
        if term.offset.any():
            value = f.add(value, f.constant(term.offset.astype(np.float32)))
        scale = np.asarray(term.scale / term.count.astype(np.float32), np.float32)
        return value if (scale == 1).all() else f.apply("mul", value, f.constant(scale))

    def emit_quantised(self, node: NodeView, ctx: ImportContext, by: QuantParams, name: str) -> bool:
        if by.zero_point.size > 1:
            return False
        zero = int(by.zero_point.item()) - by.code.offset
        low, high = (int(v) - by.code.offset for v in self._bounds(by))
        result = IntegerInterval(low, high)
        simple = self._same_codes(by, zero, result)
        if simple is not None:
            source = self.terms[0].tensor
            ctx.emit(node, (source.name,), source.image, simple, name, by.code.element, result)
            return True
        image = choose_result_image([t.tensor for t in self.terms], self.shape)
        terms = [self._pixel_term(node, ctx, t, by, image) for t in self.terms]
        classes, packed = _row_classes(terms, image.rows)
        operator = Requantise(packed, classes, zero, low, high)
        inputs = [self._laid(node, ctx, t.tensor, image).name for t in self.terms]
        ctx.emit(node, inputs, image, operator, name, by.code.element, result)
        return True

    def _bounds(self, by: QuantParams) -> tuple[int, int]:
        """Returns `low` and `high` quantised. Raises `ImportRefusal` if they differ between channels."""
        bounds = [quantise_values(np.float32(b), by) for b in (self.low, self.high)]
        if any((b != b.flat[0]).any() for b in bounds):
            raise ImportRefusal("bounds of a Relu or Clip before scales that differ by channel")
        return int(bounds[0].flat[0]), int(bounds[1].flat[0])

    def _same_codes(self, by: QuantParams, zero: int, result: IntegerInterval) -> Operator | None:
        """Returns an operator without arithmetic if scale, zero point and type stay the same; else None."""
        term, element = self.single_term, by.code.element
        if term is None or by.scale.size > 1 or term.scale.item() != by.scale.item():
            return None
        if term.tensor.element != element or term.offset.item() + zero != 0 or term.tensor.shape != self.shape:
            return None
        if result == IntegerInterval.from_element(element):
            return Rename()
        return Bound(
            None if result.low == element.low else result.low, None if result.high == element.high else result.high
        )

    def _pixel_term(
        self, node: NodeView, ctx: ImportContext, term: AffineTerm, by: QuantParams, image: Image
    ) -> definition.RequantiseTerm:
        with np.errstate(over="ignore", under="ignore"):
            step = np.asarray(by.scale * term.count.astype(np.float32), np.float32)
            multiplier = np.asarray(term.scale / step, np.float32)
        if not np.isfinite(multiplier).all() or (multiplier < np.finfo(np.float32).tiny).any():
            wrong = f"scale {term.scale.flat[0]} over {by.scale.flat[0]} is beyond the range of float32"
            raise UserError(f"{node.name} ({node.op_type}): {wrong}")
        found = ctx.code_range(term.tensor)
        return definition.RequantiseTerm(
            broadcast_params(multiplier, self.shape, image),
            broadcast_params(term.offset, self.shape, image),
            found.low,
            found.high,
        )

    def _laid(self, node: NodeView, ctx: ImportContext, tensor: Tensor, image: Image) -> Tensor:
        if tensor.shape == self.shape:
            return ctx.lay_out(node, tensor, image)
        wanted = np.broadcast_to(c_order(tensor.shape), self.shape)
        moved = make_move([tensor.image], wanted, image)
        return ctx.emit_inner(node, (tensor.name,), self.shape, image, moved, f"{tensor.name}.expanded")

    def host_coding(self) -> tuple[Tensor, ElementCoding] | None:
        term, *others = self.terms
        if others or self.low > -math.inf or self.high < math.inf:
            return None
        scale, offset = np.broadcast_arrays(term.scale, term.offset)
        wide = [a for a, n in enumerate(scale.shape) if n > 1]
        if (term.count != 1).any() or len(wide) > 1 or term.tensor.shape != self.shape:
            return None
        zeros = tuple(int(-v) for v in offset.ravel())
        if max(map(abs, zeros)) > integer_type(32).high:
            return None
        # Scales may have fewer dimensions than the tensor, aligned at the last one.
        axis = wide[0] + len(self.shape) - scale.ndim if wide else None
        return term.tensor, ElementCoding("float32", 0, tuple(map(float, scale.ravel())), zeros, axis)


def view_as_integers(node: NodeView, tensor: Tensor) -> AffineView:
    """Returns the view of an integer tensor of the model whose real values are the integers themselves."""
    offset = np.asarray(tensor.coding.offset if tensor.coding else 0, np.int64)
    return AffineView(node, tensor.shape, (AffineTerm(tensor, np.ones((), np.float32), offset),))


@dataclass(frozen=True, slots=True, eq=False)
class TableView:
    """A function of one integer tensor of at most 8 bits. `values`: result for each integer, lowest integer first."""

    node: NodeView
    shape: Shape
    tensor: Tensor
    values: Floats

    def clamp(self, node: NodeView, low: float, high: float) -> DequantisedView:
        """Returns the table of the bounded function."""
        bounded = np.minimum(np.maximum(self.values, np.float32(low)), np.float32(high))
        return replace(self, node=node, values=bounded)

    def emit_floats(self, node: NodeView, ctx: ImportContext, name: str) -> None:
        _replay(self.node, ctx)

    def host_coding(self) -> None:
        return None

    def emit_quantised(self, node: NodeView, ctx: ImportContext, by: QuantParams, name: str) -> bool:
        if not by.is_uniform:
            return False
        table = (quantise_values(self.values, by) - by.code.offset).astype(np.int32)
        found = IntegerInterval(int(table.min()), int(table.max()))
        tensor = self.tensor
        ctx.emit(node, (tensor.name,), tensor.image, Lookup(table), name, by.code.element, found)
        return True


@dataclass(frozen=True, slots=True, eq=False)
class ConcatView:
    """Concatenation of views whose integers have different scales until they are quantised with one scale.

    join: the Concat node.
    """

    node: NodeView
    shape: Shape
    parts: tuple[DequantisedView, ...]
    concat_node: NodeView

    def clamp(self, node: NodeView, low: float, high: float) -> DequantisedView:
        """Returns the concatenation of the bounded parts."""
        return replace(self, node=node, parts=tuple(part.clamp(node, low, high) for part in self.parts))

    def emit_floats(self, node: NodeView, ctx: ImportContext, name: str) -> None:
        _replay(self.node, ctx)

    def host_coding(self) -> None:
        return None

    def emit_quantised(self, node: NodeView, ctx: ImportContext, by: QuantParams, name: str) -> bool:
        if not by.is_uniform:
            return False
        names = [ctx.register_tensor(f"{name}.{i}", part.shape) for i, part in enumerate(self.parts)]
        if not all(p.emit_quantised(node, ctx, by, n) for p, n in zip(self.parts, names, strict=True)):
            raise ImportRefusal("operands with scales of different granularity")
        join = replace(self.concat_node, inputs=tuple(names), outputs=(name,))
        _importer(join)(join, ctx)
        return True


def _replay(node: NodeView, ctx: ImportContext) -> None:
    """Computes a node in floats, as if its operands had never been quantised."""
    _importer(node)(node, ctx)


def _importer(node: NodeView):
    found = find_importer(node.op_type, node.version)
    if found is None:
        raise ImportRefusal("not supported")
    return found.function


def broadcast_params(values: Numbers, shape: Shape, image: Image) -> Numbers:
    """Returns parameters that broadcast to `shape` as [rows or 1, width or 1, channels or 1] of the image."""
    if values.size == 1:
        return values.reshape(1, 1, 1)
    padded = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
    if shape != image.shape:
        padded = np.broadcast_to(padded, shape).reshape(image.shape)
    moved = np.moveaxis(padded, image.channel_axis, -1)
    if math.prod(moved.shape[:-2]) > 1:
        moved = np.broadcast_to(moved, (*image.pixel_dims[:-1], *moved.shape[-2:]))
    pixels = moved.reshape(math.prod(moved.shape[:-2]), *((1,) * (2 - moved.ndim)), *moved.shape[-2:])
    for axis in range(3):
        first = pixels.take([0], axis=axis)
        if pixels.shape[axis] > 1 and (pixels == first).all():
            pixels = first
    return np.ascontiguousarray(pixels)


def _row_classes(
    terms: list[definition.RequantiseTerm], rows: int
) -> tuple[npt.NDArray[np.intp], tuple[definition.RequantiseTerm, ...]]:
    """Groups rows with equal parameters. Returns the class of each row, and terms whose first axis is the class."""
    varying = [a for t in terms for a in (t.multiplier, t.offset) if a.shape[0] > 1]
    if not varying:
        return np.zeros(rows, np.intp), tuple(terms)
    labels = [np.unique(a.reshape(rows, -1), axis=0, return_inverse=True)[1].reshape(-1) for a in varying]
    _, first, classes = np.unique(np.stack(labels, axis=1), axis=0, return_index=True, return_inverse=True)
    return classes.reshape(-1).astype(np.intp), tuple(
        replace(t, multiplier=_of_classes(t.multiplier, first), offset=_of_classes(t.offset, first)) for t in terms
    )


def _of_classes(values: Numbers, first: npt.NDArray[np.intp]) -> Numbers:
    return values if values.shape[0] == 1 else np.ascontiguousarray(values[first])
