"""Layout of the cells of a weight: slices of one array, or of two arrays whose cells are subtracted.

A matrix [rows, cols] takes neighbouring columns of cells for the slices of a weight, and a second array of the same
crossbar for what is subtracted. So the encodings without doubled rows have one layout: levels
[arrays, rows, cols, slices], and a weight is the sum of power x (level of array 0 - level of array 1), plus a constant.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.weight_encodings import CellPlanes, encode_weights

Ints = npt.NDArray[np.int64]
Levels = npt.NDArray[np.uint8]
_PAIRS = ("differential", "differential_analog")


@dataclass(frozen=True, slots=True)
class CellLayout:
    """The cells of a weight. `bits`, `powers`, `highest`: bits of a slice, its factor, and the level of a cell at `on`.

    `constant` is added to the sum of the slices. `arrays`: 2 if cells are subtracted.
    """

    encoding: str
    bits: tuple[int, ...]
    powers: tuple[int, ...]
    highest: tuple[int, ...]
    constant: int
    arrays: int

    @property
    def slices(self) -> int:
        return len(self.bits)

    @property
    def limits(self) -> tuple[int, int]:
        """Lowest and highest weight that free cells can hold."""
        spans = [(1 << bits) - 1 for bits in self.bits]
        high = sum(p * span for p, span in zip(self.powers, spans, strict=True) if p > 0)
        low = sum(p * span for p, span in zip(self.powers, spans, strict=True) if p < 0)
        return (-high if self.arrays == 2 else low) + self.constant, high + self.constant

    def decode(self, levels: Levels) -> Ints:
        """Returns the weights [rows, cols] of levels [arrays, rows, cols, slices]."""
        digits = levels[0].astype(np.int16)
        if self.arrays == 2:
            digits -= levels[1]
        weights = np.full(digits.shape[:-1], self.constant, np.int64)
        for k, power in enumerate(self.powers):  # a product with a vector of few integers takes four times as long
            weights += digits[..., k] * np.int64(power)
        return weights

    def make_planes(self, levels: Levels, signs: Ints) -> CellPlanes:
        """Returns the planes of levels whose columns [cols] hold the weights times `signs`."""
        sides = np.moveaxis(levels, 3, 1)
        factor = np.array(self.powers, np.int64)[:, None] * signs
        constant = self.constant * signs
        if self.encoding == "differential":
            both = np.concatenate([sides[0], sides[1]])
            return CellPlanes(both, None, self.bits * 2, np.concatenate([factor, -factor]), constant)
        return CellPlanes(sides[0], sides[1] if self.arrays == 2 else None, self.bits, factor, constant)


def make_layout(matrix: npt.NDArray[np.integer], weight_bits: int, setup: ChipSetup) -> CellLayout:
    """Returns the layout of a matrix. Raises `UserError` for an encoding without one, or weights it cannot hold."""
    if setup.encoding in ("flipped", "xnor"):
        raise UserError(
            f"encoding={setup.encoding}: cells of this encoding cannot be repaired; take offset, whose columns a "
            "repair negates itself, or differential_analog"
        )
    ends = np.array([[matrix.min(), matrix.max()]])  # widths of slices depend on no other weight
    planes = encode_weights(setup.encoding, ends, weight_bits, setup.cell_bits)
    arrays = 2 if setup.encoding in _PAIRS else 1
    slices = len(planes.bits) // (2 if setup.encoding == "differential" else 1)
    bits = planes.bits[:slices]
    return CellLayout(
        encoding=setup.encoding,
        bits=bits,
        powers=tuple(int(factor) for factor in planes.factor[:slices, 0]),
        highest=tuple(int(level) for level in setup.highest_levels(bits)),
        constant=int(planes.digit_factor[0]),
        arrays=arrays,
    )
