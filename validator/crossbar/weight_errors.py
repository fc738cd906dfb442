"""Closed form of the error of a weight in cells: its mean and standard deviation, without programming a chip.

The sum of the moments of all cells of a weight, times their factors. Programming cuts a conductance at 0, so a cell
near 0 holds a rectified normal number; the exponent of drift is the absolute value of a normal number. The resistance
of wires is left out, as it depends on all cells of a crossbar.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from raptor.target.cell_models import CellModel
from validator.crossbar.cells import conductance_steps, find_programming_error, find_read_variance
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.weight_encodings import CellPlanes, encode_weights

Floats = npt.NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class WeightErrors:
    """Errors of weights, in units of their least significant bit, with the shape of the weights.

    `mean`, `std`: of the error that a weight keeps. `read_std`: of a read, anew in each product.
    """

    mean: Floats
    std: Floats
    read_std: Floats

    @property
    def total_std(self) -> Floats:
        return np.hypot(self.std, self.read_std)


def predict_weight_errors(weights: npt.NDArray[np.integer], weight_bits: int, setup: ChipSetup) -> WeightErrors:
    """Returns the errors of weights [rows, cols] in the cells of a chip. Raises `UserError` as `encode_weights` does.

    A weight of two driven rows (encoding xnor) has the error of both.
    """
    planes = encode_weights(setup.encoding, weights, weight_bits, setup.cell_bits)
    zeros = np.zeros(weights.shape)
    if setup.cells is None:
        return WeightErrors(zeros, zeros, zeros)
    step = conductance_steps(setup, setup.cells, planes.bits)
    factor = planes.factor[:, None, :].astype(np.float64)
    found = np.zeros((3, *planes.plus.shape))
    for sign, levels in ((1.0, planes.plus), (-1.0, planes.minus)):
        if levels is None:
            continue
        target = setup.cells.off + step * levels
        mean, variance, read = _cell_moments(target, setup, setup.cells)
        found += np.stack(
            [sign * factor * (mean - target) / step, *(factor**2 * v / step**2 for v in (variance, read))]
        )
    mean, variance, read = _by_weight(found, planes)
    if setup.cells.idle == "unformed":
        mean, variance, read = (np.where(planes.empty, 0.0, x) for x in (mean, variance, read))
    return WeightErrors(mean, np.sqrt(variance), np.sqrt(read))


def tabulate_code_errors(weight_bits: int, setup: ChipSetup) -> WeightErrors:
    """Returns the errors of the codes from -m to m, in this order, where m = 2^(weight_bits - 1) - 1.

    With a factor against drift (`compensation`), the errors after it: the factor is the sum of the magnitudes of all
    codes just after programming, divided by that of the drifted ones. Raises `UserError` as `encode_weights` does.
    """
    most = (1 << (weight_bits - 1)) - 1
    codes = np.arange(-most, most + 1, dtype=np.int64)
    errors = predict_weight_errors(codes[None], weight_bits, setup)
    mean, std, read = (x[0] for x in (errors.mean, errors.std, errors.read_std))
    if setup.compensation == "none":
        return WeightErrors(mean, std, read)
    fresh = predict_weight_errors(codes[None], weight_bits, replace(setup, seconds=0.0)).mean[0]
    factor = float((np.abs(codes) + np.sign(codes) * fresh).sum() / (np.abs(codes) + np.sign(codes) * mean).sum())
    return WeightErrors(factor * (codes + mean) - codes, factor * std, factor * read)


def _by_weight(found: Floats, planes: CellPlanes) -> Floats:
    """Returns the sums over planes [3, planes, driven rows, cols] for each weight, [3, rows, cols]."""
    summed = found.sum(axis=1)
    return summed[:, 0::2] + summed[:, 1::2] if planes.doubled else summed


def _cell_moments(target: Floats, setup: ChipSetup, cells: CellModel) -> tuple[Floats, Floats, Floats]:
    """Returns the mean and the variance of the conductance of cells written to `target`, and the variance of a read."""
    spread = find_programming_error(cells, setup.seconds)
    std = np.zeros_like(target) if spread is None else spread.std(target)
    first, second = _rectified_moments(target, std)
    drift = cells.drift
    if drift is not None and setup.seconds > drift.t0_s:
        share, power = target / cells.on, math.log(setup.seconds / drift.t0_s)
        of_exponent = partial(_mean_of_decay, mean=drift.mean.evaluate(share), std=drift.std.evaluate(share))
        first, second = first * of_exponent(power), second * of_exponent(2 * power)
    works = 1 - cells.stuck_off - cells.stuck_on
    first = works * first + cells.stuck_off * cells.off + cells.stuck_on * cells.on
    second = works * second + cells.stuck_off * cells.off**2 + cells.stuck_on * cells.on**2
    read = find_read_variance(first, setup, cells)
    return first, np.maximum(second - first**2, 0.0), np.zeros_like(first) if read is None else read


def _rectified_moments(mean: Floats, std: Floats) -> tuple[Floats, Floats]:
    """Returns the first two moments of max(x, 0) for normal numbers x."""
    ratio = mean / np.maximum(std, 1e-300)
    above = 0.5 * (1 + _erf(ratio / math.sqrt(2)))
    density = np.exp(-(np.minimum(np.abs(ratio), 1e3) ** 2) / 2) / math.sqrt(2 * math.pi)
    first = mean * above + std * density
    return first, (mean**2 + std**2) * above + mean * std * density


def _mean_of_decay(power: float, mean: Floats, std: Floats) -> Floats:
    """Returns the mean of exp(-power |x|) for normal numbers x: the moment generating function of a folded normal."""
    safe = np.maximum(std, 1e-300)
    most = (power * std) ** 2 / 2

    def side(sign: float) -> Floats:
        return (
            np.exp(most - sign * power * mean) * 0.5 * (1 + _erf((sign * mean - power * std**2) / safe / math.sqrt(2)))
        )

    return side(1.0) + side(-1.0)
