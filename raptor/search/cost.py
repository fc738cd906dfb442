"""Time and energy of a program in memory, by the built-in simulator; searches and studies compare them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raptor.codegen import Streams
from raptor.common.option_values import Objective
from raptor.common.packages import require_own
from raptor.mapping.trial import Cost
from raptor.pim import PimProgram
from raptor.target import isa
from raptor.target.arch import Target

STEADY_SAMPLES = 4
"""Samples that each core begins in a simulation of the steady state, which gives throughput and energy."""


def cost_of(
    records: Mapping[int, isa.Records], groups: Mapping[int, Sequence[int]], arch: Target, samples: int
) -> Cost:
    """Simulates a program in which each core begins `samples` samples; with 0, one sample runs alone.

    `records`: instructions, keyed by core. `groups`: crossbars of each array group, keyed by core. Cores without either
    are idle. Raises `DeadlockError` with every waiting core.
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
    return Cost(*estimate(raw, arch, samples))


def cost_for(objective: Objective, program: PimProgram, streams: Streams, arch: Target) -> Cost:
    """Simulates a program as its objective needs: one sample alone for the latency, else the steady state."""
    records = {i: core.records for i, core in streams.cores.items()}
    groups = {i: [g.matrix.xbars for g in core.groups] for i, core in program.cores.items()}
    return cost_of(records, groups, arch, 0 if objective == "latency" else STEADY_SAMPLES)
