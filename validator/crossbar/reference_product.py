"""The definition of a product on crossbars, in plain numpy, step by step. The compiled kernels must agree with it."""

import numpy as np
import numpy.typing as npt

from validator.crossbar import counter_rng
from validator.crossbar.converters import convert_sums
from validator.crossbar.input_codings import extract_digits, input_offset
from validator.crossbar.kernel_tables import make_reading_key
from validator.crossbar.programmed_chip import CellArray, ProgrammedChip

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def multiply_on_crossbars(chip: ProgrammedChip, group: int, x: Ints, bits: int, sample: int = 0, read: int = 0) -> Ints:
    """Returns inputs `x` of `bits` bits times the matrix of a group. `sample`, `read`: select the noise."""
    array, setup = chip.arrays[group], chip.setup
    if setup.kind == "whole":
        assert array.held_levels is not None  # repaired weights
        exact = x.astype(np.float64) @ array.held_levels[0].astype(np.float64)
        return np.clip(exact, *array.product_bounds(x)).astype(np.int64)
    driven = np.stack([x, -x], axis=1).ravel() if array.planes.doubled else x
    total = -float(0 if array.planes.doubled else input_offset(setup.inputs, bits)) * array.sums
    for start in range(0, array.driven_rows, array.rows_at_once):
        rows = slice(start, start + array.rows_at_once)
        for t, step in enumerate(array.input_steps(setup, bits)):
            entered = extract_digits(driven[rows], step, bits)
            sums = _sums(chip, array, rows, entered, (group, sample, read, t))
            for plane, factor in zip(convert_sums(sums, array.ranges, chip.codes), array.factor, strict=True):
                total = total + step.factor * factor * plane
            total = total + step.factor * array.planes.digit_factor * float(entered.sum())
    return np.clip(np.rint(total), *array.product_bounds(x)).astype(np.int64)


def _sums(
    chip: ProgrammedChip, array: CellArray, rows: slice, entered: Ints, place: tuple[int, int, int, int]
) -> Floats:
    """Returns the inputs of the converters, [planes, cols]: in a noisy chip, float32 numbers added row by row."""
    if array.held_levels is None:
        minus = 0 if array.planes.minus is None else array.planes.minus[:, rows].astype(np.int64)
        return np.tensordot(entered, array.planes.plus[:, rows].astype(np.int64) - minus, (0, 1)).astype(np.float64)
    held, single = array.held_levels[:, rows], entered.astype(np.float32)
    found = np.zeros((held.shape[0], held.shape[2]), np.float32)
    spread = np.zeros_like(found)
    for r, digit in enumerate(single):
        found += digit * held[:, r]
        if array.variance is not None:
            spread += digit * digit * array.variance[:, rows][:, r]
    return found + _noise(chip, array, spread, rows.start, place)


def _noise(
    chip: ProgrammedChip,
    array: CellArray,
    spread: npt.NDArray[np.float32],
    start: int,
    place: tuple[int, int, int, int],
) -> Floats:
    group, sample, read, t = place
    of_converter = (chip.setup.adc.noise_lsb if chip.setup.adc is not None else 0.0) * array.ranges.step
    std = np.sqrt(spread.astype(np.float64) + of_converter**2)
    key = counter_rng.extend_key(make_reading_key(chip.setup.seed, chip.arrays[group]), sample, read, start)
    first = t * std.size
    drawn = counter_rng.draw_normals(key, first + std.size)[first:].reshape(std.shape)
    return np.where(std > 0, std * drawn, 0.0)
