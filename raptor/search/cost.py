"""Time and energy of a program in memory, by the built-in simulator: what searches and studies compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raptor.common.packages import require_own
from raptor.target import isa
from raptor.target.arch import Target

STEADY_SAMPLES = 4
"""Samples that each core begins in a simulation of the steady state: of its throughput, and of its energy."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Latency of a sample in ns, interval between samples in ns, energy of a sample in pJ.

    If one sample ran alone, the interval is its latency and the energy is that of this run; if several ran, both are
    those of the steady state.
    """

    latency_ns: float
    interval_ns: float
    energy_pj: float


def cost_of(
    records: Mapping[int, isa.Records], groups: Mapping[int, Sequence[int]], arch: Target, samples: int
) -> Cost:
    """Simulates a program of which each core begins `samples`; with 0, one sample runs alone.

    `records`: instructions by core. `groups`: crossbars of each array group by core. Cores without either are idle.
    Raises `DeadlockError` with every core that waits.
    """
    require_own("validator")
    from validator.programs import RawProgram
    from validator.simulate.builtin import estimate

    count = arch.core_count
    empty = np.zeros(0, isa.RECORD)
    raw = RawProgram(
        core_cnt=count,
        groups=tuple(tuple(groups.get(i, ())) for i in range(count)),
        records=tuple(records.get(i, empty) for i in range(count)),
        instantiated=(True,) * count,
        core_files=("",) * count,
        folder=Path(),
        source=Path(),
    )
    return Cost(*estimate(raw, arch.file, arch.table, samples))
