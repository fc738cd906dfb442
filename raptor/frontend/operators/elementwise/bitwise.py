"""Bit shifts and bitwise logic of integers."""

from collections.abc import Callable

import numpy as np

from raptor.frontend.formulas import boolean_formulas
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import NeedsConstantError
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.float32_integers import BoundRefusal, find_type_limits, is_within
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Constant, Tensor

MOST_BITS = 16
"""Maximum number of bits of operands of bitwise logic; each bit takes a dozen instructions."""


@importer("BitShift", since=11, counts=True, limits="a constant number of places")
def import_bit_shift(node: NodeView, ctx: ImportContext) -> None:
    """a shifted by b places; bits beyond the type are lost."""
    places = ctx.constant(node.inputs[1])
    if places is None:
        raise NeedsConstantError(node.inputs[1])
    kind = ctx.numpy_dtype(node.output)
    # A shift by a negative number of places acts as one beyond the width: only the sign is left.
    width = 8 * kind.itemsize
    places = np.where((places < 0) | (places > width), width, places)
    f = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
    x = f.operand(node.inputs[0])
    found = _range(f, x)
    if node.string("direction", "") == "LEFT":
        kept = np.where(places == width, 0, places)
        f.finish(f.mul(x, f.constant(np.where(places == width, 0, 2.0**kept).astype(np.float32))))
        return
    most = max(-found.low, found.high).bit_length()
    f.finish(f.floor(x, (2.0 ** -np.minimum(places, most).astype(np.float64)).astype(np.float32)))
    ctx.declare_range(node.output, found.with_zero())


@importer("BitwiseNot", since=18, counts=True)
def import_bitwise_not(node: NodeView, ctx: ImportContext) -> None:
    """Bitwise not."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    kind = ctx.numpy_dtype(node.output)
    f.finish(f.sub(find_type_limits(kind).high if kind.name.startswith("u") else -1, f.operand(node.inputs[0])))


@importer("BitwiseAnd", since=18, counts=True, limits=f"integers of at most {MOST_BITS} bits")
def import_bitwise_and(node: NodeView, ctx: ImportContext) -> None:
    """Bitwise and."""
    _lower_bits(node, ctx, FormulaBuilder.mul)


@importer("BitwiseOr", since=18, counts=True, limits=f"integers of at most {MOST_BITS} bits")
def import_bitwise_or(node: NodeView, ctx: ImportContext) -> None:
    """Bitwise or."""
    _lower_bits(node, ctx, FormulaBuilder.max)


@importer("BitwiseXor", since=18, counts=True, limits=f"integers of at most {MOST_BITS} bits")
def import_bitwise_xor(node: NodeView, ctx: ImportContext) -> None:
    """Bitwise exclusive or."""
    _lower_bits(node, ctx, boolean_formulas.emit_xor)


def _lower_bits(node: NodeView, ctx: ImportContext, function: Callable[[FormulaBuilder, Value, Value], Value]) -> None:
    """Computes the result bit by bit and adds up the bits; in two's complement the highest bit is negative."""
    kind = ctx.numpy_dtype(node.output)
    count = 8 * kind.itemsize
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    operands = [f.operand(i) for i in node.inputs]
    ranges = [_range(f, x) for x in operands]
    most = max(max(-r.low, r.high + 1) for r in ranges)
    bits = min(count, most.bit_length() + 1)
    if bits > MOST_BITS:
        size = 2 ** (MOST_BITS - 1) - 1
        raise BoundRefusal(
            IntegerInterval(min(r.low for r in ranges), max(r.high for r in ranges)), IntegerInterval(-size, size)
        )
    total: Value | None = None
    for place, pair in enumerate(zip(*(_bits(f, x, bits) for x in operands), strict=True)):
        weight = -(2**place) if kind.name.startswith("i") and place == bits - 1 else 2**place
        part = f.mul(function(f, *pair), float(weight))
        total = part if total is None else f.add(total, part)
    assert total is not None, "every type has bits"
    f.finish(total)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind.name.startswith("i") else (0, 2**bits - 1)
    ctx.declare_range(node.output, IntegerInterval(low, high))


def _bits(f: FormulaBuilder, x: Value, count: int) -> list[Value]:
    """Returns `count` bits of two's complement as 0 or 1, the lowest first."""
    if isinstance(x, Constant):
        whole = x.pixels.astype(np.int64)
        return [Constant(((whole >> i) & 1).astype(np.float32)) for i in range(count)]
    found: list[Value] = []
    for _ in range(count):
        half = f.floor(x, 0.5)
        bit = f.sub(x, f.mul(half, 2))
        assert isinstance(half, Tensor)
        assert isinstance(bit, Tensor)
        f.ctx.declare_range(bit.name, IntegerInterval(0, 1))
        found.append(bit)
        x = half
    return found


def _range(f: FormulaBuilder, x: Value) -> IntegerInterval:
    """Returns the range of an integer operand. Raises `BoundRefusal` beyond +-2^22, where quotients are not exact."""
    limits = IntegerInterval(-(2**22), 2**22)
    if isinstance(x, Constant):
        return IntegerInterval(int(x.pixels.min()), int(x.pixels.max()))
    found = f.ctx.integer_range(x)
    if found is None or not is_within(found, limits):
        raise BoundRefusal(found, limits)
    return found
