"""Whole numbers near a float, and its sign."""

from raptor.frontend import steps, truth
from raptor.frontend.formulas import Formula, Value
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.activations import lower_activation
from raptor.frontend.registry import importer


@importer("Floor", since=1)
def import_floor(node: NodeView, ctx: ImportContext) -> None:
    """The largest whole number that is not larger, exactly."""
    lower_activation(node, ctx, steps.floor)


@importer("Ceil", since=1)
def import_ceil(node: NodeView, ctx: ImportContext) -> None:
    """The smallest whole number that is not smaller, exactly."""
    lower_activation(node, ctx, steps.ceil)


@importer("Round", since=11)
def import_round(node: NodeView, ctx: ImportContext) -> None:
    """The nearest whole number, of two the even one, exactly."""
    lower_activation(node, ctx, steps.round_half_even)


@importer("Sign", since=9, counts=True)
def import_sign(node: NodeView, ctx: ImportContext) -> None:
    """1, 0 or -1."""
    lower_activation(node, ctx, _sign)


def _sign(f: Formula, x: Value) -> Value:
    return f.min(f.max(x, -1), 1) if truth.is_whole(f, x) else steps.sign(f, x)
