"""Time, energy and wear of rounds: the weights of a program that is larger than the chip are written for each batch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

WRITING_SHARE = 0.1
"""Part of the time that writing may take at the batch that is reported."""


@dataclass(frozen=True, slots=True)
class RoundUse:
    """A round of a batch. `interval_ns`: between samples; null for a batch of one. `write_pj`: null if not known.

    `compute_pj`: energy of all samples of the batch, without writing.
    """

    path: str
    cores: int
    crossbars_written: int
    write_ns: float
    write_pj: float | None
    latency_ns: float
    interval_ns: float | None
    compute_pj: float

    def run_ns(self, batch: int) -> float:
        """Returns the time for all samples of a batch, without writing."""
        return self.latency_ns + (batch - 1) * (self.interval_ns or 0.0)


@dataclass(frozen=True, slots=True)
class ReloadingFigures:
    """Figures of rounds, with and without writing. Times and energies of writing come from the device file `device`.

    `sample_ns`, `sample_pj`: time and energy of a batch divided by its samples; `without_ns`, `without_pj`: without
    writing (standby while the chip is written counts as writing). `writes_per_cell`: writes per sample of a cell, mean
    of the chip; `worst_per_sample`: writes per sample of the cell that is written most; `years`: its life at
    `rate_per_s` samples a second, null without an endurance. `batch_for_tenth`: the least batch with which writing is
    at most a tenth of the time. `memory_bytes`: global memory of the round that needs most.
    """

    batch: int
    device: str
    source: str
    rounds: tuple[RoundUse, ...]
    batch_ns: float
    writing_ns: float
    sample_ns: float
    without_ns: float
    sample_pj: float | None
    without_pj: float
    writes_per_cell: float
    worst_per_sample: float
    endurance_cycles: int | None
    rate_per_s: float
    years: float | None
    batch_for_tenth: int | None
    memory_bytes: int
