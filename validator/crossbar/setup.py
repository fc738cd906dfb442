"""Settings of a chip: how its crossbars compute, from a device file, an architecture file, and the user's wishes."""

from dataclasses import dataclass
from typing import Literal

from raptor.target.analog import Adc, Cells

Compensation = Literal["none", "chip", "layer", "column"]


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of the crossbars of a chip.

    `sliced`: slices, steps and converters, all cells as they should be. `noisy`: with the errors of `cells` and of the
    converters. `rows_at_once`: rows driven at the same time. `seconds`: time since programming. `seed`: of the chip.
    `compensation`: what shares a factor against drift. `cut`: weights are cut to this share of the largest of their
    matrix. `lossless_rows`: each layer drives fewer rows at once if its converters would lose something.
    """

    kind: Literal["sliced", "noisy"]
    encoding: str
    inputs: str
    cell_bits: int
    dac_bits: int
    rows_at_once: int
    xbar: tuple[int, int]
    adc: Adc | None = None
    cells: Cells | None = None
    seconds: float = 0.0
    seed: int = 0
    compensation: Compensation = "none"
    cut: float = 1.0
    lossless_rows: bool = False

    @property
    def is_signed(self) -> bool:
        """True if converters see differences."""
        return self.encoding == "differential_analog"
