"""Recipes: equal to the definition, within 32 bits, cheap; the proof accepts them and refuses planted errors."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from raptor.common.errors import VerifyError
from raptor.graph.requantise.definition import Requantise, RequantiseTerm, evaluate_requantise
from raptor.graph.requantise.proof import count_differences, prove_recipe
from raptor.graph.requantise.synthesis import NoRecipeError, find_exact_recipe, find_short_recipe
from raptor.graph.requantise.vector_program import RangeError, RequantiseRecipe, VectorStep, run_recipe
from tests.graph.requantise.requantisations import (
    INT8,
    INT16,
    accumulator,
    one_term,
    operands,
    requantise,
    term,
    two_terms,
)

CONV = requantise(term(np.linspace(0.0021, 0.0039, 5), np.arange(5) * 911 - 2000, accumulator(17)), zero_point=-128)
ROWS = 4000


def all_equal(given: Requantise, recipe: RequantiseRecipe, rng: np.random.Generator) -> bool:
    images = operands(rng, given, ROWS)
    tall = Requantise(given.terms, np.zeros(ROWS, np.int64), given.zero_point, given.low, given.high)
    return bool((run_recipe(recipe, images) == evaluate_requantise(tall, images)).all())


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize("draw", [one_term, two_terms])
def test_random_ones_are_exact(draw, seed):
    rng = np.random.default_rng(seed)
    given = draw(rng)
    recipe = find_exact_recipe(given)
    prove_recipe(given, recipe)
    assert recipe.flips == 0
    assert all_equal(given, recipe, rng)


@pytest.mark.parametrize("exponent", range(-31, 9))
@pytest.mark.parametrize("bits", [8, 16, 28, 31])
def test_multipliers_from_tiny_to_large(bits, exponent):
    given = requantise(term([2.0**exponent, 1.2345 * 2.0**exponent], [0, 77], accumulator(bits)), zero_point=5)
    recipe = find_exact_recipe(given)
    prove_recipe(given, recipe)
    assert all_equal(given, recipe, np.random.default_rng(bits))


def count(recipe: RequantiseRecipe) -> int:
    return len(recipe.steps)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        (requantise(term(1.0)), 0),
        (requantise(term(1.0, 5)), 1),
        (requantise(term(1.0), term(1.0)), 1),
        (requantise(term(0.37, 5)), 3),
        (requantise(term(0.37, 5), zero_point=-128), 3),
        (requantise(term(2.0**-7, 5, accumulator(20)), zero_point=4), 7),
        (requantise(term(2.0**-7, 5, accumulator(20)), zero_point=5), 8),
        (requantise(term(0.00314, 5, accumulator(18)), zero_point=-128), 6),
    ],
)
def test_few_steps(given, steps):
    assert count(find_exact_recipe(given)) == steps


def test_power_of_two_needs_no_product():
    given = requantise(term(2.0 ** -np.arange(3, 9), np.arange(6) * 13, accumulator(20)))
    assert {step.op for step in find_exact_recipe(given).steps} == {"add", "sra", "sll", "sub"}


def test_equal_numbers_are_one_constant():
    shifts = [
        step.right.shape
        for step in find_exact_recipe(CONV).steps
        if step.op == "sra" and not isinstance(step.right, int)
    ]
    assert (1, 1, 1) in shifts


def test_rows_of_the_padding_have_their_own_constants():
    offset = np.array([3, 400, -77]).reshape(3, 1, 1) * np.arange(1, 5)
    terms = (RequantiseTerm(np.full((1, 1, 4), 0.0123, np.float32), offset, *accumulator(16)),)
    given = Requantise(terms, np.array([0, 1, 1, 1, 2]), 3, *INT8)
    recipe = find_exact_recipe(given)
    prove_recipe(given, recipe)
    image = np.random.default_rng(0).integers(*accumulator(16), (5, 6, 4))
    assert (run_recipe(recipe, [image], given.row_class) == evaluate_requantise(given, [image])).all()


def test_sixteen_bits_of_many_channels_are_proved_by_their_form():
    rng = np.random.default_rng(0)
    drawn = rng.uniform(0.001, 0.01, 600)
    given = requantise(term(drawn, rng.integers(-9999, 9999, 600), accumulator(24)), clamp=INT16)
    recipe = find_exact_recipe(given)
    prove_recipe(given, recipe)
    assert all_equal(given, recipe, rng)


def test_results_at_the_ends_of_the_operand_need_no_clamp_to_be_right():
    given = requantise(term([20.82231, 1.5793881], [8, -31], (-39, 76)), zero_point=32767, clamp=INT16)
    recipe = find_exact_recipe(given)
    prove_recipe(given, recipe)
    assert (recipe.result_low, recipe.result_high) == (32122, 34516)
    assert all_equal(given, recipe, np.random.default_rng(0))


def test_a_clamp_to_one_number_needs_no_proof():
    given = requantise(term(0.5, 3, INT16), term([0.1, 200.0], 3), zero_point=5, clamp=(5, 5))
    prove_recipe(given, find_short_recipe(given))


def test_three_terms():
    given = requantise(term(0.3, 4), term(0.5, -9), term(0.111, 3), zero_point=9)
    recipe = find_exact_recipe(given)
    prove_recipe(given, recipe)
    assert all_equal(given, recipe, np.random.default_rng(0))


def test_too_wide_is_refused_with_numbers():
    given = requantise(term([2.0**20, 2.0**-20], 0, accumulator(31)))
    with pytest.raises(NoRecipeError, match=r"-1073741824\.\.1073741823, multiplier 9\.5.*\.\.1\.0.*06"):
        find_exact_recipe(given)


def test_registers_hold_every_value_until_its_last_use():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        given = (one_term, two_terms)[seed % 2](rng)
        recipe = find_exact_recipe(given)
        images = operands(rng, given, 50)
        held: dict[int, np.ndarray] = {}
        places = recipe.assign_registers()
        inputs = len(images)

        def value(n: int, images=images, held=held, places=places, inputs=inputs) -> np.ndarray:
            return images[n] if n < inputs else held[places[n - inputs]]

        for step, place in zip(recipe.steps, places, strict=True):
            right = step.right
            one = RequantiseRecipe(
                (INT8,) * 2, (VectorStep(step.op, 0, 1 if isinstance(right, int) else right),), (INT8,), *HUGE
            )
            held[place] = run_recipe(
                one, [value(step.left), value(right) if isinstance(right, int) else value(step.left)]
            )
        last = value(inputs + len(places) - 1) if places else images[0]
        assert (np.clip(last, given.low, given.high) == run_recipe(recipe, images)).all()


HUGE = (-(2**31), 2**31 - 1)


@pytest.mark.parametrize("seed", range(40))
def test_short_counts_its_flips(seed):
    rng = np.random.default_rng(seed)
    bits = 14
    given = requantise(term(np.float32(rng.uniform(0.002, 0.03)), int(rng.integers(-999, 999)), accumulator(bits)))
    recipe = find_short_recipe(given)
    prove_recipe(given, recipe)
    every = np.arange(*accumulator(bits)).reshape(-1, 1, 1)
    tall = Requantise(given.terms, np.zeros(len(every), np.int64), 0, *INT8)
    assert recipe.flips == abs(run_recipe(recipe, [every]) - evaluate_requantise(tall, [every])).sum()


def test_short_of_a_power_of_two_flips_the_ties():
    given = requantise(term(0.25, 0, (-400, 400)))
    recipe = find_short_recipe(given)
    assert [step.op for step in recipe.steps] == ["add", "sra"]
    # Ties at 2 (mod 4) that go down to an even number.
    ties = [x for x in range(-510, 508) if x % 4 == 2 and (x // 4) % 2 == 0 and -400 <= x <= 400]
    assert recipe.flips == len(ties)


def test_short_of_two_wide_terms_has_a_bound():
    given = requantise(term(0.0012, 5, INT16), term(0.0023, -9, INT16))
    recipe = find_short_recipe(given)
    prove_recipe(given, recipe)
    rng = np.random.default_rng(0)
    images = [rng.integers(*INT16, (100000, 1, 1)) for _ in range(2)]
    tall = Requantise(given.terms, np.zeros(100000, np.int64), 0, *INT8)
    rate = abs(run_recipe(recipe, images) - evaluate_requantise(tall, images)).mean()
    assert rate * 2**32 <= recipe.flips <= 2**32


def changed(recipe: RequantiseRecipe, number: int, change: Callable[[np.ndarray], np.ndarray]) -> RequantiseRecipe:
    """Returns a recipe with other constants in one step; its recorded ranges are made as wide as they may be."""
    steps = list(recipe.steps)
    right = steps[number].right
    assert not isinstance(right, int)
    steps[number] = replace(steps[number], right=change(right.copy()))
    return replace(recipe, steps=tuple(steps), bounds=(HUGE,) * len(steps))


def refused(given: Requantise, recipe: RequantiseRecipe) -> str:
    with pytest.raises(VerifyError) as error:
        prove_recipe(given, recipe)
    return str(error.value)


TIES = requantise(term([2.0**-7, 0.75, 2.0**-3], [5, 6, 7], accumulator(16)), zero_point=5)
SUM = requantise(term(0.73123, 3), term(0.3211, -9), zero_point=7)
WIDE = requantise(term(np.linspace(0.01, 0.02, 600), np.arange(600), accumulator(24)), clamp=INT16)


@pytest.mark.parametrize("given", [CONV, TIES, SUM])
@pytest.mark.parametrize("bit", range(31))
def test_a_wrong_bit_of_any_constant_is_refused_if_and_only_if_a_result_is_wrong(given, bit):
    recipe = find_exact_recipe(given)
    for place, step in enumerate(recipe.steps):
        if not isinstance(step.right, int):
            wrong = changed(recipe, place, lambda c: c ^ (1 << bit))
            assert accepted(given, wrong) == equal_everywhere(given, wrong)


def accepted(given: Requantise, recipe: RequantiseRecipe) -> bool:
    try:
        prove_recipe(given, recipe)
    except VerifyError:
        return False
    return True


def equal_everywhere(given: Requantise, recipe: RequantiseRecipe) -> bool:
    """Computes all operands; a program that leaves 32 bits is not equal."""
    values = [np.arange(t.low, t.high + 1) for t in given.terms]
    channels = given.terms[0].multiplier.shape[2]
    images = [np.repeat(x.reshape(-1, 1, 1), channels, 2) for x in np.meshgrid(*values)]
    tall = Requantise(given.terms, np.zeros(len(images[0]), np.int64), given.zero_point, given.low, given.high)
    try:
        return bool((run_recipe(recipe, images) == evaluate_requantise(tall, images)).all())
    except (RangeError, ValueError):
        return False


@pytest.mark.parametrize("bit", range(31))
def test_a_wrong_bit_is_refused_where_only_the_form_is_compared(bit):
    recipe = find_exact_recipe(WIDE)
    for place, step in enumerate(recipe.steps):
        if not isinstance(step.right, int):
            assert refused(WIDE, changed(recipe, place, lambda c: c ^ (1 << bit)))


@pytest.mark.parametrize("given", [CONV, TIES, SUM, WIDE])
def test_a_dropped_step_is_refused(given):
    recipe = find_exact_recipe(given)
    for place, step in enumerate(recipe.steps):
        value = place + len(recipe.operands)
        kept = [
            VectorStep(s.op, skipped(s.left, value, step.left), right(s.right, value, step.left))
            for s in recipe.steps[:place] + recipe.steps[place + 1 :]
        ]
        assert refused(given, replace(recipe, steps=tuple(kept), bounds=(HUGE,) * len(kept)))


def skipped(number: int, value: int, instead: int) -> int:
    return instead if number == value else number - (number > value)


def right(operand: object, value: int, instead: int) -> object:
    return skipped(operand, value, instead) if isinstance(operand, int) else operand


def test_half_up_instead_of_even_is_refused():
    assert "gives" in refused(TIES, half_up(TIES))


def half_up(given: Requantise) -> RequantiseRecipe:
    return replace(find_short_recipe(given), flips=0)


def test_a_wrong_count_of_flips_is_refused():
    recipe = find_short_recipe(CONV)
    prove_recipe(CONV, recipe)
    assert "flips" in refused(CONV, replace(recipe, flips=recipe.flips + 1))


def test_a_narrow_recorded_range_is_refused():
    recipe = find_exact_recipe(CONV)
    assert "recorded range" in refused(CONV, replace(recipe, bounds=((0, 0), *recipe.bounds[1:])))


def test_another_clamp_or_operand_range_is_refused():
    recipe = find_exact_recipe(CONV)
    assert "other ranges" in refused(CONV, replace(recipe, high=126))
    assert "other ranges" in refused(replace(CONV, terms=(replace(CONV.terms[0], high=2**20),)), recipe)


def test_swapped_channels_are_refused():
    recipe = find_exact_recipe(CONV)
    place = next(i for i, s in enumerate(recipe.steps) if s.op == "mul")
    assert refused(CONV, changed(recipe, place, lambda c: c[..., ::-1].copy()))


def test_a_clamp_that_is_too_narrow_is_refused():
    given = requantise(term(0.00123, 5, accumulator(26)))
    recipe = find_exact_recipe(given)
    place = next(i for i, s in enumerate(recipe.steps) if s.op == "max")
    prove_recipe(given, changed(recipe, place, lambda c: c))
    assert "gives" in refused(given, changed(recipe, place, lambda c: c + 1000))


def test_overflow_is_refused():
    recipe = find_exact_recipe(CONV)
    place = next(i for i, s in enumerate(recipe.steps) if s.op == "mul")
    assert "reaches" in refused(CONV, changed(recipe, place, lambda c: c * 2**20))


def test_a_program_that_may_fall_is_refused():
    given = requantise(term(1.0))
    steps = (VectorStep("mul", 0, np.full((1, 1, 1), -1)),)
    assert "may fall" in refused(given, RequantiseRecipe((INT8,), steps, (HUGE,), *INT8))


def test_the_proof_names_channel_and_operand():
    recipe = find_exact_recipe(CONV)
    place = max(i for i, s in enumerate(recipe.steps) if s.op == "add" and not isinstance(s.right, int))

    def third(constants: np.ndarray) -> np.ndarray:
        constants[0, 0, 3] += 1 << 20
        return constants

    assert "channel 3: operand" in refused(CONV, changed(recipe, place, third))


def test_differences_of_an_exact_recipe_are_none():
    assert count_differences(CONV, find_exact_recipe(CONV)) == 0
