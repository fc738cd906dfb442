"""Time and energy of a program in memory, by the built-in simulator; searches and studies compare them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raptor.codegen.pimsim import InstructionStreams
from raptor.common.options.option_values import Objective
from raptor.common.package_clashes import require_own_packages
from raptor.mapping.search_trial import ProgramCost
from raptor.pim import PimProgram
from raptor.target import isa
from raptor.target.arch import Target

if TYPE_CHECKING:
    from validator.program.pimsim_program import RawProgram

STEADY_SAMPLES = 4
"""Samples that each core begins in a simulation of the steady state, which gives throughput and energy."""


def simulate_cost(
    records: Mapping[int, isa.Records], groups: Mapping[int, Sequence[int]], arch: Target, samples: int
) -> ProgramCost:
    """Simulates a program in which each core begins `samples` samples; with 0, one sample runs alone.

    `records`: instructions, keyed by core. `groups`: crossbars of each array group, keyed by core. Cores without either
    are idle. Raises `DeadlockError` with every waiting core.
    """
    require_own_packages("validator")
    from validator.simulate.builtin import estimate_program

    return ProgramCost(*estimate_program(_make_raw_program(records, groups, arch), arch, samples))


def simulate_peak_w(records: Mapping[int, isa.Records], groups: Mapping[int, Sequence[int]], arch: Target) -> float:
    """Simulates one sample alone. Returns its highest mean power in a microsecond, W; arguments as `simulate_cost`."""
    require_own_packages("validator")
    from validator.simulate.builtin import estimate_peak_w

    return estimate_peak_w(_make_raw_program(records, groups, arch), arch)


def _make_raw_program(
    records: Mapping[int, isa.Records], groups: Mapping[int, Sequence[int]], arch: Target
) -> "RawProgram":
    from validator.program.pimsim_program import RawProgram

    count = arch.core_count
    empty = np.zeros(0, isa.RECORD)
    return RawProgram(
        core_cnt=count,
        groups=tuple(tuple(groups.get(i, ())) for i in range(count)),
        records=tuple(records.get(i, empty) for i in range(count)),
        instantiated=(True,) * count,
        core_files=("",) * count,
        folder=Path(),
        source=Path(),
    )


def simulate_objective(
    objective: Objective, program: PimProgram, streams: InstructionStreams, arch: Target
) -> ProgramCost:
    """Simulates a program as its objective needs: one sample alone for the latency, else the steady state."""
    records = {i: core.records for i, core in streams.cores.items()}
    groups = {i: [g.matrix.xbars for g in core.groups] for i, core in program.cores.items()}
    return simulate_cost(records, groups, arch, 0 if objective == "latency" else STEADY_SAMPLES)
