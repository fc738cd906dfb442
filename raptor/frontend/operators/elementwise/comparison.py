"""Comparisons and logic; truth values are 1 and 0."""

from collections.abc import Callable

from raptor.frontend.formulas import boolean_formulas
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer


@importer("Equal", since=7, counts=True)
def import_equal(node: NodeView, ctx: ImportContext) -> None:
    """True where a = b."""
    _lower(node, ctx, boolean_formulas.is_equal)


@importer("Greater", since=7, counts=True)
def import_greater(node: NodeView, ctx: ImportContext) -> None:
    """True where a > b."""
    _lower(node, ctx, boolean_formulas.is_above)


@importer("GreaterOrEqual", since=12, counts=True)
def import_greater_or_equal(node: NodeView, ctx: ImportContext) -> None:
    """True where a >= b."""
    _lower(node, ctx, boolean_formulas.is_at_least)


@importer("Less", since=7, counts=True)
def import_less(node: NodeView, ctx: ImportContext) -> None:
    """True where a < b."""
    _lower(node, ctx, lambda f, x, y: boolean_formulas.is_above(f, y, x))


@importer("LessOrEqual", since=12, counts=True)
def import_less_or_equal(node: NodeView, ctx: ImportContext) -> None:
    """True where a <= b."""
    _lower(node, ctx, lambda f, x, y: boolean_formulas.is_at_least(f, y, x))


@importer("And", since=7, counts=True)
def import_and(node: NodeView, ctx: ImportContext) -> None:
    """True where both operands are true."""
    _lower(node, ctx, FormulaBuilder.mul)


@importer("Or", since=7, counts=True)
def import_or(node: NodeView, ctx: ImportContext) -> None:
    """True where at least one operand is true."""
    _lower(node, ctx, FormulaBuilder.max)


@importer("Xor", since=7, counts=True)
def import_xor(node: NodeView, ctx: ImportContext) -> None:
    """True where exactly one operand is true."""
    _lower(node, ctx, boolean_formulas.emit_xor)


@importer("Not", since=1, counts=True)
def import_not(node: NodeView, ctx: ImportContext) -> None:
    """True where the input is false."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    f.finish(boolean_formulas.emit_not(f, f.operand(node.inputs[0])))


@importer("IsNaN", since=9)
def import_is_nan(node: NodeView, ctx: ImportContext) -> None:
    """True where the input is NaN."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    f.finish(boolean_formulas.emit_not(f, boolean_formulas.is_number(f, f.operand(node.inputs[0]))))


@importer("IsInf", since=10)
def import_is_inf(node: NodeView, ctx: ImportContext) -> None:
    """True where the input is infinite, of either sign or of the chosen one."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    x, signs = f.operand(node.inputs[0]), [node.integer(f"detect_{name}", 1) for name in ("positive", "negative")]
    size = f.abs(x) if all(signs) else x if signs[0] else f.neg(x)
    is_beyond = boolean_formulas.is_positive_number(f, f.sub(size, boolean_formulas.LARGEST_FLOAT))
    f.finish(is_beyond if any(signs) else f.mul(is_beyond, 0))


def _lower(node: NodeView, ctx: ImportContext, function: Callable[[FormulaBuilder, Value, Value], Value]) -> None:
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    f.finish(function(f, *(f.operand(i) for i in node.inputs)))
