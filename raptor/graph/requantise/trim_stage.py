"""The trim stage of a requantisation: a gain and a bias for each channel of a layer's sums, which are set later.

It computes x' = clamp((x * gain + bias) >> shift, low, high) before anything else. As compiled, the gain is 2^shift and
the bias half of that, so x' = x. A chip whose sums are off gets other gains and biases: constants in memory, while
instructions and crossbars stay. low, high: the range of the sums, for which the rest of the program is proved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.common.errors import VerifyError
from raptor.graph.requantise.vector_program import INT32, RequantiseRecipe, TrimStage, VectorStep

LEAST_SHIFT = 5
"""Least shift of a useful stage: gains are multiples of 1/32."""
_MOST_SHIFT = 14
_STEPS = 5


@dataclass(frozen=True, slots=True)
class _Reserve:
    """Ranges that the steps of a trim stage reach with any gain and bias that may be set."""

    product: int
    total: int


def choose_trim_shift(low: int, high: int) -> int | None:
    """Returns the largest shift with which sums from `low` to `high` can be trimmed in 32 bits; None if there is none.

    Room is kept for gains below 2, and for a bias as large as the largest sum.
    """
    most = max(abs(low), abs(high), 1)
    shift = ((INT32[1] + 1) // (3 * most + 1)).bit_length() - 1
    return None if shift < LEAST_SHIFT else min(shift, _MOST_SHIFT)


def add_trim_stage(
    recipe: RequantiseRecipe, tensor: str, layer: str, operand: int, channels: int
) -> RequantiseRecipe | None:
    """Returns the recipe with a trim stage for an operand; None if 32 bits leave no room for it.

    `tensor`, `layer`, `channels`: name of the operand, the ONNX node that makes it, and its number of channels.
    """
    low, high = recipe.operands[operand]
    shift = choose_trim_shift(low, high)
    if shift is None:
        return None
    stage = TrimStage(tensor, layer, operand, shift, low, high)
    reserve, inputs = _reserve(stage), len(recipe.operands)
    bounds = (-reserve.product, reserve.product), (-reserve.total, reserve.total)
    rest = -(reserve.total >> shift) - 1, reserve.total >> shift
    ends = rest, (low, max(high, rest[1])), (low, high)
    moved = [_renumber(step, operand, inputs) for step in recipe.steps]
    steps = (*_stage_steps(stage, channels, inputs), *moved)
    return replace(recipe, steps=steps, bounds=(*bounds, *ends, *recipe.bounds), trim=stage)


def _reserve(stage: TrimStage) -> _Reserve:
    most = max(abs(stage.low), abs(stage.high), 1)
    product = most * stage.most_gain
    return _Reserve(product, product + stage.most_bias)


def _stage_steps(stage: TrimStage, channels: int, inputs: int) -> Sequence[VectorStep]:
    def of(value: int, count: int = 1) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        return np.full((1, 1, count), value, np.int64)

    return (
        VectorStep("mul", stage.operand, of(stage.unit_gain, channels)),
        VectorStep("add", inputs, of(stage.unit_bias, channels)),
        VectorStep("sra", inputs + 1, of(stage.shift)),
        VectorStep("max", inputs + 2, of(stage.low)),
        VectorStep("min", inputs + 3, of(stage.high)),
    )


def _renumber(step: VectorStep, operand: int, inputs: int) -> VectorStep:
    def new(value: int) -> int:
        return inputs + _STEPS - 1 if value == operand else value if value < inputs else value + _STEPS

    return VectorStep(step.op, new(step.left), new(step.right) if isinstance(step.right, int) else step.right)


def remove_trim_stage(recipe: RequantiseRecipe) -> RequantiseRecipe:
    """Returns the recipe without its trim stage. Raises `VerifyError` unless the stage changes nothing as it is."""
    stage, inputs = recipe.trim, len(recipe.operands)
    if stage is None:
        return recipe
    wrong = VerifyError("requantisation: the trim stage is not the identity")
    own, rest = recipe.steps[:_STEPS], recipe.steps[_STEPS:]
    channels = int(np.asarray(own[0].right).size) if own else 1
    for step, wanted in zip(own, _stage_steps(stage, channels, inputs), strict=False):
        constants = (np.asarray(step.right), np.asarray(wanted.right))
        if (step.op, step.left) != (wanted.op, wanted.left) or np.unique(constants[0]).tolist() != [
            constants[1].flat[0]
        ]:
            raise wrong
    reserve = _reserve(stage)
    fits = reserve.total <= INT32[1] and recipe.bounds[1] == (-reserve.total, reserve.total)
    if len(own) != _STEPS or not fits or (stage.low, stage.high) != recipe.operands[stage.operand]:
        raise wrong
    back = {inputs + _STEPS - 1: stage.operand}

    def old(value: int) -> int:
        if value == stage.operand or inputs <= value < inputs + _STEPS - 1:
            raise wrong
        return back.get(value, value if value < inputs else value - _STEPS)

    steps = [VectorStep(s.op, old(s.left), old(s.right) if isinstance(s.right, int) else s.right) for s in rest]
    return replace(recipe, steps=tuple(steps), bounds=recipe.bounds[_STEPS:], trim=None)
