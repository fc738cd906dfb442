"""Profile of each core: crossbars, memory, instructions, time."""

import numpy as np
import numpy.typing as npt

from validator.profile.node_profile import count_opcodes, list_part_names
from validator.profile.profile_results import CoreFigures
from validator.profile.profiled_program import ProfiledProgram
from validator.profile.traffic import find_partners
from validator.simulate import builtin
from validator.simulate.analysis import energy
from validator.simulate.simulation_report import CoreUse

Ints = npt.NDArray[np.int64]


def profile_cores(read: ProfiledProgram) -> tuple[CoreFigures, ...]:
    """Returns the facts of all cores that the program instantiates, idle ones included."""
    machine = read.machine
    mix = count_opcodes(machine.core_index, machine.opcodes, machine.core_count)
    uses = _uses(read)
    parts = _parts(read)
    waits = _waits(read)
    local = read.subject.memory.local_bytes if read.subject.memory is not None else ()
    return tuple(
        CoreFigures(
            core=int(core),
            xbars=sum(read.subject.groups[int(core)] or ()),
            local_bytes=local[int(core)] if int(core) < len(local) else None,
            instructions=mix[i],
            use=uses.get(int(core)),
            parts=parts.get(i, ()),
            waits=waits.get(i, ()),
        )
        for i, core in enumerate(machine.cores)
    )


def _uses(read: ProfiledProgram) -> dict[int, CoreUse]:
    if read.run is None:
        return {}
    latency_ns = read.run.last_tick * read.machine.period_ns
    return {
        u.core: u
        for u in builtin.measure_core_uses(read.machine, read.run, energy.count_uses(read.machine), latency_ns)
    }


def _parts(read: ProfiledProgram) -> dict[int, tuple[tuple[str, float], ...]]:
    amounts = np.ones(len(read.part_index)) if read.run is None else read.run.busy / 1000
    found, names = _ranked(read.machine.core_index, read.part_index, amounts), list_part_names(read)
    return {i: tuple((names[k], amount) for k, amount in ranked) for i, ranked in found.items()}


def _waits(read: ProfiledProgram) -> dict[int, tuple[tuple[int, float], ...]]:
    if read.run is None:
        return {}
    partner = find_partners(read)
    at = np.flatnonzero((read.run.waited > 0) & (partner >= 0))
    found = _ranked(read.machine.core_index[at], partner[at], read.run.waited[at] / 1000)
    return {i: tuple((int(read.machine.cores[k]), ns) for k, ns in ranked) for i, ranked in found.items()}


def _ranked(core: Ints, item: Ints, amounts: npt.NDArray[np.float64]) -> dict[int, list[tuple[int, float]]]:
    """Returns for each core its items and the sums of their amounts, largest first."""
    width = int(item.max(initial=0)) + 1
    keys, at = np.unique(core * width + item, return_inverse=True)
    sums = np.bincount(at, weights=amounts, minlength=len(keys))
    ranked: dict[int, list[tuple[int, float]]] = {}
    for k in np.lexsort((keys, -sums)):
        ranked.setdefault(int(keys[k] // width), []).append((int(keys[k] % width), float(sums[k])))
    return ranked
