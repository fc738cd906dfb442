"""Rounding of floats to integers, and the sign."""

import numpy as np

from raptor.frontend.formulas import boolean_formulas, step_functions
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.operators.elementwise.activations import lower_activation
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval


@importer("Floor", since=1)
def import_floor(node: NodeView, ctx: ImportContext) -> None:
    """Largest integer not above x, exact."""
    lower_activation(node, ctx, step_functions.floor)


@importer("Ceil", since=1)
def import_ceil(node: NodeView, ctx: ImportContext) -> None:
    """Smallest integer not below x, exact."""
    lower_activation(node, ctx, step_functions.ceil)


@importer("Round", since=11)
def import_round(node: NodeView, ctx: ImportContext) -> None:
    """Nearest integer, ties to even, exact."""
    lower_activation(node, ctx, step_functions.round_half_even)
    bounds = ctx.float_bounds(ctx.tensor(node.inputs[0]))
    if bounds is not None and np.isfinite(bounds).all():
        ctx.declare_range(node.output, IntegerInterval(round(bounds[0]), round(bounds[1])))


@importer("Sign", since=9, counts=True)
def import_sign(node: NodeView, ctx: ImportContext) -> None:
    """Sign: 1, 0 or -1."""
    lower_activation(node, ctx, _sign)


def _sign(f: FormulaBuilder, x: Value) -> Value:
    return f.min(f.max(x, -1), 1) if boolean_formulas.is_exact_integer(f, x) else step_functions.sign(f, x)
