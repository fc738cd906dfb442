"""Encodings: how a matrix of signed weights is stored in cells that hold levels from 0 to 2^bits - 1.

An encoding splits a matrix into planes. A plane has a cell for each weight, or a pair of cells whose currents are
subtracted before the converter. Let D be the sum of the digits of the inputs in one step. The product of this step is

    sum over planes of `factor` x converted sum   +   `digit_factor` x D

Sources: Shafiee et al. 2016 (ISCA) for `offset` (biased weights) and `flipped`, CrossSim for the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.cell_models import ENCODINGS

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CellPlanes:
    """A matrix [rows, cols] in cells.

    `plus` [planes, driven rows, cols]: levels; `minus`: levels to be subtracted, or None if cells are single. `bits`:
    bits of each plane. `factor` [planes, cols], `digit_factor` [cols]: see the formula above. `doubled`: row r of the
    matrix occupies the driven rows 2r, for inputs above 0, and 2r + 1, for inputs below 0.
    """

    plus: Ints
    minus: Ints | None
    bits: tuple[int, ...]
    factor: Ints
    digit_factor: Ints
    doubled: bool = False

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """True for each driven row and column [driven rows, cols] whose cells all have level 0."""
        sides = [side for side in (self.plus, self.minus) if side is not None]
        return np.all([(side == 0).all(axis=0) for side in sides], axis=0)

    @property
    def cells_per_weight(self) -> int:
        return len(self.bits) * (1 if self.minus is None else 2) * (2 if self.doubled else 1)


def encode_weights(encoding: str, matrix: npt.NDArray[np.integer], weight_bits: int, cell_bits: int) -> CellPlanes:
    """Returns the cells of a matrix of weights of `weight_bits`. Raises `UserError` for weights it cannot encode."""
    return _ENCODERS[encoding](matrix.astype(np.int64), weight_bits, cell_bits)


def _offset(w: Ints, weight_bits: int, cell_bits: int) -> CellPlanes:
    """Adds 2^(bits - 1) to each weight, so that none is negative."""
    half = 1 << weight_bits - 1
    levels, bits, powers = _sliced(w + half, weight_bits, cell_bits)
    return CellPlanes(levels, None, bits, _powers_per_column(powers, w), _constant_per_column(w, -half))


def _flipped(w: Ints, weight_bits: int, cell_bits: int) -> CellPlanes:
    """Stores the complement of a column of cells if its sum is smaller, so that a converter needs one bit less."""
    plain = _offset(w, weight_bits, cell_bits)
    highest = (1 << np.array(plain.bits))[:, None] - 1
    flips = 2 * plain.plus.sum(axis=1) > len(w) * highest
    stored = np.where(flips[:, None], highest[:, None] - plain.plus, plain.plus)
    more = (flips * plain.factor * highest).sum(axis=0)
    return CellPlanes(stored, None, plain.bits, np.where(flips, -plain.factor, plain.factor), plain.digit_factor + more)


def _differential(w: Ints, weight_bits: int, cell_bits: int) -> CellPlanes:
    """Stores positive and negative weights in separate columns, which are converted separately."""
    plus, minus, bits, powers = _by_sign(w, weight_bits, cell_bits)
    factor = np.concatenate([_powers_per_column(powers, w), -_powers_per_column(powers, w)])
    return CellPlanes(np.concatenate([plus, minus]), None, bits * 2, factor, _constant_per_column(w, 0))


def _differential_analog(w: Ints, weight_bits: int, cell_bits: int) -> CellPlanes:
    """Stores positive and negative weights in pairs of cells; the converter sees the difference of their currents."""
    plus, minus, bits, powers = _by_sign(w, weight_bits, cell_bits)
    return CellPlanes(plus, minus, bits, _powers_per_column(powers, w), _constant_per_column(w, 0))


def _twos_complement(w: Ints, weight_bits: int, cell_bits: int) -> CellPlanes:
    """Stores the bits of two's complement; the sign bits are a plane of their own, which is subtracted."""
    sign = (w < 0).astype(np.int64)[None]
    powers = [-(1 << weight_bits - 1)]
    if weight_bits == 1:
        return CellPlanes(sign, None, (1,), _powers_per_column(powers, w), _constant_per_column(w, 0))
    levels, bits, low = _sliced(w & (1 << weight_bits - 1) - 1, weight_bits - 1, cell_bits)
    factor = _powers_per_column([*low, *powers], w)
    return CellPlanes(np.concatenate([levels, sign]), None, (*bits, 1), factor, _constant_per_column(w, 0))


def _xnor(w: Ints, weight_bits: int, cell_bits: int) -> CellPlanes:
    """Stores weights of 1 and -1 in two cells; the input's sign drives one of them: 2 x (equal signs) - inputs."""
    if not (np.abs(w) == 1).all():
        raise UserError("encoding xnor: for weights of 1 and -1 only; take another encoding, or a binary network")
    levels = np.stack([w > 0, w < 0], axis=1).reshape(1, 2 * len(w), -1).astype(np.int64)
    return CellPlanes(levels, None, (1,), _powers_per_column([2], w), _constant_per_column(w, -1), doubled=True)


def _sliced(levels: Ints, bits: int, cell_bits: int) -> tuple[Ints, tuple[int, ...], list[int]]:
    """Slices numbers of `bits` bits into cells, low bits first. Returns the planes, their bits and powers of two."""
    starts = range(0, bits, cell_bits)
    widths = tuple(min(cell_bits, bits - start) for start in starts)
    planes = [(levels >> start) & ((1 << width) - 1) for start, width in zip(starts, widths, strict=True)]
    return np.stack(planes), widths, [1 << start for start in starts]


def _by_sign(w: Ints, weight_bits: int, cell_bits: int) -> tuple[Ints, Ints, tuple[int, ...], list[int]]:
    """Slices the magnitudes of positive and negative weights. Only the lowest weight of a type needs all bits."""
    bits = max(1, weight_bits if w.min() == -(1 << weight_bits - 1) else weight_bits - 1)
    plus, widths, powers = _sliced(np.maximum(w, 0), bits, cell_bits)
    return plus, _sliced(np.maximum(-w, 0), bits, cell_bits)[0], widths, powers


def _constant_per_column(w: Ints, value: int) -> Ints:
    return np.array([value] * w.shape[1], np.int64)


def _powers_per_column(powers: list[int], w: Ints) -> Ints:
    return np.repeat(np.array(powers, np.int64)[:, None], w.shape[1], axis=1)


_ENCODERS: dict[str, Callable[[Ints, int, int], CellPlanes]] = {
    "offset": _offset,
    "flipped": _flipped,
    "differential": _differential,
    "differential_analog": _differential_analog,
    "twos_complement": _twos_complement,
    "xnor": _xnor,
}
assert tuple(_ENCODERS) == ENCODINGS
