"""The definition of requantisation, against fractions."""

import numpy as np
import pytest

from raptor.graph.requantise.definition import Requantise, RequantiseTerm, evaluate_requantise, find_parameter_sets
from raptor.graph.requantise.rounding_slack import compute_staircase
from tests.graph.requantise.requantisations import (
    INT8,
    accumulator,
    by_fractions,
    one_term,
    operands,
    requantise,
    term,
    two_terms,
)

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("draw", [one_term, two_terms])
def test_random_ones_against_fractions(draw, seed):
    rng = np.random.default_rng(seed)
    given = draw(rng)
    images = operands(rng, given, rows=40)
    wide = Requantise(given.terms, np.zeros(40, np.int64), given.zero_point, given.low, given.high)
    found = evaluate_requantise(wide, images)
    for place in np.ndindex(*found.shape):
        assert found[place] == by_fractions(given, [int(x[place]) for x in images], place)


def test_ties_go_to_even():
    given = requantise(term(0.5), zero_point=3)
    halves = np.array([-5, -3, -1, 1, 3, 5]).reshape(1, 1, -1)
    assert evaluate_requantise(given, [halves]).reshape(-1).tolist() == [1, 1, 3, 3, 5, 5]


def test_each_row_has_the_parameters_of_its_class():
    offset = np.array([10, 20, 30]).reshape(3, 1, 1)
    given = Requantise(
        (RequantiseTerm(np.ones((1, 1, 1), np.float32), offset, *INT8),), np.array([0, 1, 1, 2]), 0, *INT8
    )
    assert evaluate_requantise(given, [np.zeros((4, 2, 3), np.int64)])[:, 0, 0].tolist() == [10, 20, 20, 30]


@pytest.mark.parametrize("multipliers", [(2.0**-120, 1.5), (2.0**100, 1.0), (3e38, 1e-38), (1e-45, 0.5)])
def test_extreme_multipliers_need_more_than_64_bits(multipliers):
    given = requantise(*(term(m, 1, accumulator(31)) for m in multipliers), zero_point=-7)
    for x in (-1, 0, 1, 2**30 - 1, -(2**30)):
        for z in (-2, -1, 0, 5, 2**30 - 1):
            found = evaluate_requantise(given, [np.full((1, 1, 1), v) for v in (x, z)])
            assert found == by_fractions(given, [x, z], (0, 0, 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_thresholds_are_the_first_operands_of_their_results(seed):
    given = find_parameter_sets(one_term(np.random.default_rng(seed)))
    moving, results, at = compute_staircase(given)
    part = given.select(moving)
    assert (part.results([at]) >= results).all()
    assert (part.results([at - 1]) < results).all()


def test_equal_parameters_are_one_set():
    given = find_parameter_sets(requantise(term([0.5, 0.25, 0.5, 0.5], [1, 1, 1, 2])))
    assert given.size == 3
    assert given.set_numbers.reshape(-1).tolist()[0] == given.set_numbers.reshape(-1).tolist()[2]
