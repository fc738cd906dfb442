"""Products on crossbars: slices and steps equal exact sums, and the compiled kernels equal the definition."""

from dataclasses import replace

import numpy as np
import pytest

from raptor.common.errors import UserError
from raptor.target.cell_models import Adc
from tests.validator.crossbar.chips import CELLS, Case, defined, exact, products, random_adc, random_case, sweep
from validator.crossbar import weight_encodings
from validator.crossbar.input_codings import extract_digits, input_offset, make_input_steps
from validator.crossbar.programmed_chip import GroupUse, program_chip
from validator.crossbar.weight_encodings import encode_weights


@pytest.mark.parametrize("seeds", sweep(180, 2000))
def test_slices_equal_exact_sums(seeds: range):
    for seed in seeds:
        case = random_case(seed)
        assert np.array_equal(products(case), exact(case)), case


@pytest.mark.parametrize("seeds", sweep(36, 150))
def test_kernels_equal_the_definition_whatever_converters_lose(seeds: range):
    for seed in seeds:
        case = random_case(seed, adc=random_adc(seed))
        assert np.array_equal(products(case), defined(case)), case


@pytest.mark.parametrize("seeds", sweep(18, 60))
def test_kernels_equal_the_definition_with_errors_of_cells(seeds: range):
    lost = 0
    for seed in seeds:
        case = random_case(seed, kind="noisy", cells=CELLS, adc=random_adc(seed) if seed % 3 else None)
        found = products(case)
        assert np.array_equal(found, defined(case)), case
        lost += not np.array_equal(found, exact(case))
    assert lost > 0.8 * len(seeds)


@pytest.mark.parametrize("seeds", sweep(18, 60))
def test_a_noisy_chip_without_errors_is_the_sliced_chip(seeds: range):
    for seed in seeds:
        case = random_case(seed, adc=random_adc(seed).model_copy(update={"noise_lsb": 0.0}))
        assert np.array_equal(products(case), products(case.with_setup(kind="noisy"))), case


def test_a_wrong_weight_of_a_plane_is_found(monkeypatch: pytest.MonkeyPatch):
    real = weight_encodings._ENCODERS["offset"]

    def wrong(*args):
        planes = real(*args)
        return replace(planes, factor=np.where(planes.factor == planes.factor.max(), -planes.factor, planes.factor))

    monkeypatch.setitem(weight_encodings._ENCODERS, "offset", wrong)
    cases = [random_case(seed) for seed in range(0, 60, 6)]
    assert any(not np.array_equal(products(case), exact(case)) for case in cases)


@pytest.mark.parametrize(
    ("encoding", "cell_bits", "levels", "cells"),
    [
        ("offset", 2, [[[1, 1]], [[1, 3]], [[2, 1]], [[2, 2]]], 4),
        ("differential", 4, [[[5, 13]], [[2, 1]], [[0, 0]], [[0, 0]]], 4),
        ("twos_complement", 7, [[[37, 29]], [[0, 0]]], 2),
    ],
)
def test_encodings_by_hand(encoding: str, cell_bits: int, levels: list, cells: int):
    """37 + 128 = 10 10 01 01, 29 + 128 = 10 01 11 01; 37 = 2 x 16 + 5, 29 = 1 x 16 + 13."""
    planes = encode_weights(encoding, np.array([[37, 29]]), 8, cell_bits)
    assert planes.plus.tolist() == levels
    assert planes.cells_per_weight == cells


def test_a_flipped_column_has_at_most_half_of_the_largest_sum():
    matrix = np.random.default_rng(0).integers(-128, 128, (128, 64))
    plain, flipped = (encode_weights(name, matrix, 8, 2).plus.sum(axis=1) for name in ("offset", "flipped"))
    assert plain.max() > 192 >= flipped.max()


@pytest.mark.parametrize("coding", ["twos_complement", "offset", "two_passes"])
@pytest.mark.parametrize("dac_bits", [1, 2, 3, 8])
def test_digits_make_up_the_input(coding: str, dac_bits: int):
    for bits in (1, 2, 5, 8):
        x = np.arange(-(1 << bits - 1), 1 << bits - 1)
        found = make_input_steps(coding, bits, dac_bits)
        total = sum(s.factor * extract_digits(x, s, bits) for s in found) - input_offset(coding, bits)
        assert np.array_equal(total, x)
        assert [s.most for s in found] == [int(extract_digits(x, s, bits).max()) for s in found]


def test_weights_that_cannot_be_encoded():
    setup = random_case(5).setup
    with pytest.raises(UserError, match=r"fc1: encoding xnor: for weights of 1 and -1 only"):
        program_chip([np.array([[0, 1]])], [GroupUse(0, 0, 2, 2, "fc1")], setup)
    with pytest.raises(UserError, match=r"fc1: products of 16 and 32 bits on 64 rows need 55 bits; .* at most 52"):
        program_chip([np.ones((64, 2), np.int16)], [GroupUse(0, 0, 16, 32, "fc1")], setup)


def test_cut_weights_are_cut():
    case = Case(np.array([[100], [-128], [3]]), np.array([[1, 1, 1]]), 8, 8, random_case(0, cut=0.5).setup)
    assert products(case).tolist() == [[64 - 64 + 3]]


def test_results_saturate_at_the_range_of_exact_products():
    case = random_case(0, kind="noisy", cells=CELLS.model_copy(update={"stuck_on": 1.0, "stuck_off": 0.0}))
    found = products(case)
    for x, y in zip(case.x, found, strict=True):
        low, high = case.chip.arrays[0].product_bounds(x)
        assert ((low <= y) & (y <= high)).all()
    ends = np.array([case.x.min(), case.x.max(), 0])
    assert (np.abs(found) <= np.abs(case.matrix).sum(axis=0) * np.abs(ends).max()).all()


def test_results_saturate_at_what_inputs_of_few_values_can_reach():
    """Trial B7: inputs of 16 bits that hold 0 to 255 have a range of products that is far below that of their width."""
    setup = random_case(0, kind="noisy", cells=CELLS.model_copy(update={"read_noise": 50.0})).setup
    x = np.random.default_rng(0).integers(0, 256, (20, 6))
    case = Case(np.array([[3, -1], [2, -2], [1, -3], [3, -1], [1, 1], [0, 0]]), x, 8, 16, setup)
    positive, negative = np.array([10, 1]), np.array([0, -7])
    most = x.max(axis=1)[:, None]
    found = products(case)
    assert ((most * negative <= found) & (found <= most * positive)).all()
    assert (found == most * positive).any()
    assert (found == most * negative).any()


def test_a_converter_of_one_level_a_code_cuts():
    setup = replace(random_case(0).setup, cell_bits=8, dac_bits=8, rows_at_once=4, adc=Adc(bits=8, range="unit"))
    case = Case(np.full((4, 1), 127), np.array([[1, 0, 0, 0], [1, 1, 0, 0]]), 8, 8, replace(setup, inputs="offset"))
    wide = case.with_setup(adc=Adc(bits=20, range="unit"))
    assert not np.array_equal(products(case), exact(case))
    assert np.array_equal(products(wide), exact(case))
