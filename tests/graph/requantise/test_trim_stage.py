"""Trim stages: nothing changes as compiled, all gains and biases fit 32 bits, and wrong stages are refused."""

from dataclasses import replace

import numpy as np
import pytest

from raptor.common.errors import VerifyError
from raptor.graph.requantise.definition import Requantise
from raptor.graph.requantise.proof import prove_recipe
from raptor.graph.requantise.synthesis import find_exact_recipe
from raptor.graph.requantise.trim_stage import add_trim_stage, choose_trim_shift
from raptor.graph.requantise.vector_program import INT32, RequantiseRecipe, TrimStage, VectorStep, run_recipe
from tests.graph.requantise.requantisations import accumulator, one_term, operands, requantise, term, two_terms

CONV = requantise(term(np.linspace(0.0021, 0.0039, 5), np.arange(5) * 911 - 2000, accumulator(17)), zero_point=-128)


def trimmed(given: Requantise, operand: int = 0) -> RequantiseRecipe | None:
    channels = int(given.terms[operand].multiplier.shape[2])
    return add_trim_stage(find_exact_recipe(given), "sums", "conv", operand, channels)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("draw", [one_term, two_terms])
def test_nothing_changes_as_compiled(draw, seed: int):
    rng = np.random.default_rng(seed)
    given = draw(rng)
    for operand in range(len(given.terms)):
        recipe = trimmed(given, operand)
        if recipe is None:
            assert choose_trim_shift(given.terms[operand].low, given.terms[operand].high) is None
            continue
        images = operands(rng, given, 300)
        assert np.array_equal(run_recipe(recipe, images), run_recipe(find_exact_recipe(given), images))
        prove_recipe(given, recipe)


@pytest.mark.parametrize("high", [1, 127, 1000, 87_385, 2**20, 2**24])
def test_every_gain_and_bias_fits(high: int):
    """The bounds of each step hold at the extremes, and results stay in the range of the sums."""
    shift = choose_trim_shift(-high, high - 1)
    assert shift is not None
    stage = TrimStage("sums", "conv", 0, shift, -high, high - 1)
    x = np.array([-high, 0, high - 1], np.int64)
    for gain in (0, stage.most_gain):
        for bias in (-stage.most_bias, stage.most_bias):
            assert abs(x * gain + bias).max() <= INT32[1]
    assert 1.9 < stage.most_gain / stage.unit_gain < 2


def test_sums_that_need_all_bits_have_no_stage():
    assert choose_trim_shift(-(2**30), 2**30) is None


def test_gains_and_biases_act_on_their_channel():
    recipe = trimmed(CONV)
    assert recipe is not None
    assert recipe.trim is not None
    gain, bias = (np.asarray(step.right).copy() for step in recipe.steps[:2])
    gain[..., 1] //= 2
    bias[..., 3] += 400 << recipe.trim.shift
    steps = (VectorStep("mul", 0, gain), VectorStep("add", 1, bias), *recipe.steps[2:])
    x = np.full((1, 1, 5), 30_000, np.int64)
    wanted = x.copy()
    wanted[..., 1], wanted[..., 3] = 15_000, 30_400
    assert np.array_equal(run_recipe(replace(recipe, steps=steps), [x]), run_recipe(find_exact_recipe(CONV), [wanted]))


@pytest.mark.parametrize("number", range(5))
def test_a_stage_that_changes_something_is_refused(number: int):
    recipe = trimmed(CONV)
    assert recipe is not None
    step = recipe.steps[number]
    steps = list(recipe.steps)
    steps[number] = VectorStep(step.op, step.left, np.asarray(step.right) + 1)
    with pytest.raises(VerifyError, match="trim stage is not the identity"):
        prove_recipe(CONV, replace(recipe, steps=tuple(steps)))


def test_a_program_that_reads_untrimmed_sums_is_refused():
    recipe = trimmed(CONV)
    assert recipe is not None
    steps = tuple(s if n != 5 else VectorStep(s.op, 0, s.right) for n, s in enumerate(recipe.steps))
    with pytest.raises(VerifyError, match="trim stage is not the identity"):
        prove_recipe(CONV, replace(recipe, steps=steps))
