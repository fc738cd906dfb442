"""Costs of integer programs: elements of accumulator width, and the time of a requantisation."""

from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.target.arch import Target, Widths
from raptor.target.chip_elements import ElementType, integer_type
from raptor.target.timing import vector_ns


def with_accumulators(target: Target) -> Target:
    """Returns the target with accumulators as elements, for the costs of adding and sending partial sums."""
    widths = target.widths
    return target.with_widths(Widths(widths.weights, widths.accumulators, widths.accumulators))


def requantise_ns(recipe: RequantiseRecipe, result: ElementType, elements: int, arch: Target) -> float:
    """Returns the time in ns of a recipe for `elements` elements: its steps on words, then the clamps."""
    words = arch.with_element(integer_type(32))
    binary = sum(step.op not in ("max", "min") for step in recipe.steps)
    unary = len(recipe.steps) - binary + (recipe.result_low < recipe.low and recipe.result_high > recipe.high)
    steps = binary * vector_ns(words, elements, 2) + unary * vector_ns(words, elements, 1)
    return steps + vector_ns(words, elements, 1, result)
