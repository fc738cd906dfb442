"""The closed form of the error of a weight against programmed chips, and what the range of slices changes."""

from dataclasses import replace

import numpy as np
import pytest

from raptor.common.errors import UserError
from raptor.target import arch
from raptor.target.cell_models import Adc, CellModel, ConductanceSpread
from raptor.target.device_file import load_device
from tests.validator.crossbar.chips import CELLS, exact, products, random_case
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.programmed_chip import GroupUse, program_chip
from validator.crossbar.weight_errors import predict_weight_errors, tabulate_code_errors

NOISY = ("reram-milo", "reram-wan2022", "pcm-aihwkit", "sonos")
CODES = np.array([0, 1, 7, 20, 64, -100, 127])
COUNT = 20_000


def device_setup(name: str, **settings: str) -> ChipSetup:
    return make_setup("noisy", arch.load("bench"), load_device(name), settings)


def simulated(codes: np.ndarray, setup: ChipSetup) -> np.ndarray:
    """Returns programmed weights less the wished ones, [COUNT, codes]: all planes joined as after the conversion."""
    matrix = np.broadcast_to(codes, (COUNT, len(codes)))
    array = program_chip([matrix], [GroupUse(0, 0, 8, 8, "layer")], setup).arrays[0]
    assert array.held_levels is not None
    constant = array.planes.digit_factor
    return (array.held_levels * array.factor[:, None]).sum(axis=0) + constant - codes


@pytest.mark.parametrize("levels", ["full", "shared"])
@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("more", [{}, {"seconds": "1e6"}, {"stuck_off": "0.02", "stuck_on": "0.01"}], ids=str)
def test_the_closed_form_is_the_error_of_the_simulation(name: str, levels: str, more: dict[str, str]):
    """Within three standard errors of the sample's mean and variance, from its own fourth moment."""
    setup = device_setup(name, levels=levels, **more)
    wanted, errors = predict_weight_errors(CODES[None], 8, setup), simulated(CODES, setup)
    spread = errors.std(axis=0)
    of_variance = np.sqrt(np.maximum(((errors - errors.mean(axis=0)) ** 4).mean(axis=0) - spread**4, 0) / COUNT)
    assert np.all(np.abs(errors.mean(axis=0) - wanted.mean[0]) <= 3 * spread / np.sqrt(COUNT) + 1e-4)
    assert np.all(np.abs(spread**2 - wanted.std[0] ** 2) <= 3 * of_variance + 1e-4)


@pytest.mark.parametrize("compensation", ["none", "chip"])
def test_the_table_of_codes_is_that_of_chips_that_have_drifted(compensation: str):
    """PCM after a month: with a factor, errors of the largest code fall from tens of codes to a few."""
    setup = device_setup("pcm-aihwkit", seconds="2592000", compensation=compensation)
    codes = np.arange(-127, 128)
    matrix = np.broadcast_to(codes, (3000, 255))
    array = program_chip([matrix], [GroupUse(0, 0, 8, 8, "layer")], setup).arrays[0]
    assert array.held_levels is not None
    errors = (array.held_levels * array.factor[:, None]).sum(axis=0) + array.planes.digit_factor - codes
    table = tabulate_code_errors(8, setup)
    assert table.std == pytest.approx(errors.std(axis=0), rel=0.12)
    assert table.mean == pytest.approx(errors.mean(axis=0), abs=1.5)
    assert (abs(table.mean[-1]) > 10) == (compensation == "none")


@pytest.mark.parametrize("seed", range(12))
def test_the_closed_form_holds_for_every_encoding(seed: int):
    case = random_case(seed, kind="noisy", cells=CELLS)
    matrix = np.repeat(case.matrix[:4], 300, axis=0)
    array = program_chip([matrix], [GroupUse(0, 0, case.weight_bits, 8, "layer")], case.setup).arrays[0]
    assert array.held_levels is not None
    held = (array.held_levels * array.factor[:, None]).sum(axis=0)
    planned = array.planes.plus.astype(np.float64) - (0 if array.planes.minus is None else array.planes.minus)
    errors = held - (planned * array.factor[:, None]).sum(axis=0)
    if array.planes.doubled:
        errors = errors[0::2] + errors[1::2]
    wanted = predict_weight_errors(matrix, case.weight_bits, case.setup)
    assert np.sqrt((errors**2).mean()) == pytest.approx(np.sqrt((wanted.std**2 + wanted.mean**2).mean()), rel=0.08)


def test_reads_have_the_variance_of_the_closed_form():
    setup = device_setup("sonos")
    array = program_chip([np.broadcast_to(CODES, (2000, 7))], [GroupUse(0, 0, 8, 8, "layer")], setup).arrays[0]
    assert array.variance is not None
    found = (array.variance * array.factor[:, None] ** 2).sum(axis=0).mean(axis=0)
    assert np.sqrt(found) == pytest.approx(predict_weight_errors(CODES[None], 8, setup).read_std[0], rel=0.03)


@pytest.mark.parametrize(
    ("name", "shared", "full"),
    [
        ("reram-milo", [8.4, 8.3, 8.0, 7.7], [4.0, 3.8, 3.6, 3.3]),
        ("sonos", [0, 1.4, 2.7, 2.9], [0, 1.0, 1.4, 1.4]),
    ],
)
def test_errors_by_hand(name: str, shared: list[float], full: list[float]):
    """Codes 0, 20, 64, 127. Milo, code 0, shared: sqrt(2) x 16 x 4.33 / 11.67 = 8.4; full: 7 / 15 of the high slice."""
    for levels, wanted in (("shared", shared), ("full", full)):
        found = predict_weight_errors(np.array([[0, 20, 64, 127]]), 8, device_setup(name, levels=levels)).std[0]
        assert found == pytest.approx(wanted, abs=0.11)


@pytest.mark.parametrize("seed", range(12))
def test_ideal_chips_are_exact_in_every_range_of_levels(seed: int):
    for levels in ("full", "shared"):
        assert np.array_equal(products(random_case(seed, levels=levels)), exact(random_case(seed)))


def test_a_slice_of_few_bits_uses_all_codes_of_a_converter():
    """7 bits in cells of 4: the high slice of 3 bits has 7 levels, so its largest sum is 7 / 15 of the other."""
    case = random_case(3, cell_bits=4, dac_bits=1, adc=Adc(bits=8), rows_at_once=128)
    matrix = np.full((128, 2), 100)
    use = [GroupUse(0, 0, 8, 8, "layer")]
    steps = {
        levels: program_chip([matrix], use, replace(case.setup, levels=levels)).arrays[0].ranges.step[:, 0]
        for levels in ("full", "shared")
    }
    assert steps["full"] == pytest.approx([128 * 15 / 127, 128 * 7 / 127])
    assert steps["shared"] == pytest.approx([128 * 15 / 127] * 2)


def test_calibrated_converters_of_a_layer_share_a_current():
    case = random_case(3, cell_bits=4, levels="full", adc=Adc(bits=8, range="calibrated", scope="layer"))
    chip = program_chip([np.full((128, 2), 100)], [GroupUse(0, 0, 8, 8, "layer")], case.setup)
    seen = [np.array([[1500.0, 15.0], [70.0, 1400.0]])]
    step = chip.with_ranges([-s for s in seen], seen).arrays[0].ranges.step
    assert step[:, 0] * chip.codes.high == pytest.approx([3000.0, 1400.0])


def idle_setup(**changes: object) -> ChipSetup:
    cells = CellModel(off=1.0, on=50.0, programming=(ConductanceSpread(polynomial=(5.0,)),), idle="unformed")
    return replace(
        random_case(3, kind="noisy", encoding="differential_analog", cells=cells, cell_bits=4).setup, **changes
    )


def test_cells_that_are_never_formed_have_no_error():
    matrix = np.array([[0, 9], [120, 0]])
    array = program_chip([matrix], [GroupUse(0, 0, 8, 8, "layer")], idle_setup()).arrays[0]
    assert array.held_levels is not None
    assert (array.held_levels[:, matrix == 0] == 0).all()
    assert (array.held_levels[:, matrix != 0] != np.rint(array.held_levels[:, matrix != 0])).all()
    errors = predict_weight_errors(matrix, 8, idle_setup())
    assert (errors.std > 0).tolist() == (matrix != 0).tolist()


def test_single_cells_cannot_stay_unformed():
    with pytest.raises(UserError, match=r"idle=unformed: encoding offset has no pairs"):
        device_setup("reram-milo", idle="unformed", encoding="offset")
