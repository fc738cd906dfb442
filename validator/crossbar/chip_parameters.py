"""Parameters of a chip's crossbars, from a device file, an architecture file, and settings of the user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.target.cell_models import Adc, CellModel, SliceLevels

Compensation = Literal["none", "chip", "layer", "column"]


@dataclass(frozen=True, slots=True)
class ChipSetup:
    """Parameters of the crossbars of a chip.

    `whole`: exact products with the weights that repaired cells hold. `sliced`: slices, steps and converters, with
    perfect cells. `noisy`: with errors of `cells` and converters.
    `rows_at_once`: rows driven at the same time. `seconds`: time since programming. `compensation`: scope of the
    factors that compensate drift. `cut`: weights are clipped to this share of the largest in their matrix.
    `levels`: see `ReadOut`. `lossless_rows`: each layer drives fewer rows at once if its converters would lose
    something.
    """

    kind: Literal["whole", "sliced", "noisy"]
    encoding: str
    inputs: str
    cell_bits: int
    dac_bits: int
    rows_at_once: int
    xbar: tuple[int, int]
    adc: Adc | None = None
    cells: CellModel | None = None
    seconds: float = 0.0
    seed: int = 0
    compensation: Compensation = "none"
    cut: float = 1.0
    lossless_rows: bool = False
    levels: SliceLevels = "full"

    @property
    def is_signed(self) -> bool:
        """True if converters see differences of currents."""
        return self.encoding == "differential_analog"

    def highest_levels(self, bits: Sequence[int]) -> npt.NDArray[np.int64]:
        """Returns the level of each slice of `bits` bits whose conductance is `on`."""
        return np.array([(1 << (b if self.levels == "full" else self.cell_bits)) - 1 for b in bits], np.int64)
