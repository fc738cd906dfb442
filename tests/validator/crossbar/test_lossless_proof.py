"""Proofs of what converters lose: never denied where a run shows it, and never claimed for nothing."""

import numpy as np
import pytest

from raptor.target.cell_models import Adc
from tests.validator.crossbar.chips import Case, exact, products, random_adc, random_case, sweep
from validator.crossbar.lossless_proof import bound_sums, prove_layers, with_lossless_rows


def attacks(case: Case) -> Case:
    """Returns the case with inputs that drive all rows, those with a level in one plane, and single rows."""
    rows, planes = len(case.matrix), case.chip.arrays[0].planes
    low, high = -(1 << case.input_bits - 1), (1 << case.input_bits - 1) - 1
    if planes.doubled:
        low, high = -1, 1
        driven = [np.where(case.matrix[:, c] > 0, s, -s) for c in range(case.matrix.shape[1]) for s in (1, -1)]
    else:
        sides = [*planes.plus, *(() if planes.minus is None else planes.minus)]
        rest = low if case.setup.inputs == "offset" else 0  # what drives a row with 0
        driven = [np.where(column > 0, value, rest) for side in sides for column in side.T for value in (high, low)]
    singles = [v * row for row in np.eye(rows, dtype=np.int64)[:4] for v in (1, -1) if low <= v <= high]
    every = np.stack([*case.x, np.full(rows, low), np.full(rows, high), *driven, *singles])
    return Case(case.matrix, every, case.weight_bits, case.input_bits, case.setup)


@pytest.mark.parametrize("seeds", sweep(60, 300))
def test_nothing_is_lost_where_the_proof_says_so(seeds: range):
    claimed = 0
    for seed in seeds:
        case = attacks(random_case(seed, adc=random_adc(seed)))
        if prove_layers(case.chip)[0].is_lossless:
            claimed += 1
            assert np.array_equal(products(case), exact(case)), case
    assert claimed > 0.1 * len(seeds)


@pytest.mark.parametrize("seeds", sweep(36, 200))
def test_the_proof_is_tight(seeds: range):
    """With a bit less, there is an input for which a sum is cut."""
    lost = 0
    for seed in seeds:
        needed = prove_layers(random_case(seed, adc=Adc(bits=1, range="unit")).chip)[0].needed_bits
        enough, less = (
            attacks(random_case(seed, adc=Adc(bits=max(1, bits), range="unit"))) for bits in (needed, needed - 1)
        )
        if needed < 1:
            continue
        assert prove_layers(enough.chip)[0].is_lossless
        assert np.array_equal(products(enough), exact(enough)), enough
        if needed > 1:
            assert not prove_layers(less.chip)[0].is_lossless
            assert not np.array_equal(products(less), exact(less)), less
            lost += 1
    assert lost > 0.75 * len(seeds)


def test_bounds_are_reached():
    case = random_case(0, rows_at_once=7)
    chip = case.chip
    low, high = bound_sums(chip.arrays[0], 1)
    plus = chip.arrays[0].planes.plus
    assert high[0].tolist() == plus[:, :7].sum(axis=1).tolist()
    assert not low.any()


def test_fewer_rows_are_driven_where_converters_would_lose():
    case = random_case(0, adc=Adc(bits=8, range="unit"), rows_at_once=512, cell_bits=2, dac_bits=1)
    case = Case(np.full((256, 3), 127), case.x[:, :1].repeat(256, axis=1), 8, 8, case.setup)
    before, chip = prove_layers(case.chip)[0], with_lossless_rows(case.chip)
    after = prove_layers(chip)[0]
    assert (before.rows_at_once, before.is_lossless) == (256, False)
    assert (after.rows_at_once, after.parts, after.is_lossless) == (64, 4, True)
    assert np.array_equal(products(case, chip), exact(case))


@pytest.mark.parametrize(
    ("cell_bits", "dac_bits", "bits"),
    [(1, 1, 8), (2, 1, 9), (1, 2, 9), (2, 2, 11), (4, 1, 11), (4, 2, 13)],
)
def test_bits_as_in_the_literature(cell_bits: int, dac_bits: int, bits: int):
    """Loss-free widths for 128 rows: log2(rows (2^v - 1) (2^c - 1) + 1), Shafiee et al. 2016 with v, c as there."""
    setup = random_case(
        0, adc=Adc(bits=8), cell_bits=cell_bits, dac_bits=dac_bits, rows_at_once=128, inputs="offset"
    ).setup
    case = Case(np.full((128, 1), 127), np.zeros((1, 128), np.int64), 8, 8, setup)
    assert prove_layers(case.chip)[0].needed_bits == bits
