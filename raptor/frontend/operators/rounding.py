"""Rounding of floats to integers, and the sign."""

from raptor.frontend import steps, truth
from raptor.frontend.formulas import FormulaBuilder, Value
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.activations import lower_activation
from raptor.frontend.registry import importer


@importer("Floor", since=1)
def import_floor(node: NodeView, ctx: ImportContext) -> None:
    """Largest integer not above x, exact."""
    lower_activation(node, ctx, steps.floor)


@importer("Ceil", since=1)
def import_ceil(node: NodeView, ctx: ImportContext) -> None:
    """Smallest integer not below x, exact."""
    lower_activation(node, ctx, steps.ceil)


@importer("Round", since=11)
def import_round(node: NodeView, ctx: ImportContext) -> None:
    """Nearest integer, ties to even, exact."""
    lower_activation(node, ctx, steps.round_half_even)


@importer("Sign", since=9, counts=True)
def import_sign(node: NodeView, ctx: ImportContext) -> None:
    """Sign: 1, 0 or -1."""
    lower_activation(node, ctx, _sign)


def _sign(f: FormulaBuilder, x: Value) -> Value:
    return f.min(f.max(x, -1), 1) if truth.is_exact_integer(f, x) else steps.sign(f, x)
