"""Instructions, bytes, time and energy of each ONNX node, or of each kind of instruction if nodes are not known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.target.isa import BY_OPCODE, OPCODE
from validator.profile.profile_results import PartFigures
from validator.profile.profiled_program import ProfiledProgram
from validator.simulate.analysis import critical_path, energy
from validator.simulate.cycle.state_tables import PortColumn

Floats = npt.NDArray[np.float64]

_D = 4
"""Index of the instruction word that holds the length."""


def count_parts(read: ProfiledProgram) -> int:
    return len(read.provenance.nodes) if read.provenance.has_nodes else max(BY_OPCODE) + 1


def list_part_names(read: ProfiledProgram) -> tuple[str, ...]:
    """Returns the name of each part, by index; empty for an opcode that does not exist."""
    if read.provenance.has_nodes:
        return read.provenance.nodes
    return tuple(BY_OPCODE[k].name if k in BY_OPCODE else "" for k in range(count_parts(read)))


def profile_parts(read: ProfiledProgram) -> tuple[PartFigures, ...]:
    """Returns the parts that have instructions, in the order of steps.json or of opcodes."""
    machine, part, count = read.machine, read.part_index, count_parts(read)
    opcodes = machine.opcodes
    mix = count_opcodes(part, opcodes, count)
    moved = _sum(part, count, np.where(opcodes == OPCODE["send"], machine.words[:, _D], 0))
    stored = _sum(part, count, np.where(np.isin(opcodes, (OPCODE["ld"], OPCODE["st"])), machine.words[:, _D], 0))
    pairs = np.unique(part * machine.core_count + machine.core_index)
    times, names = _times(read, count), list_part_names(read)
    return tuple(
        PartFigures(
            name=names[k],
            instructions=mix[k],
            products=mix[k].get("mvmul", 0),
            moved_bytes=int(moved[k]),
            global_bytes=int(stored[k]),
            cores=tuple(int(c) for c in machine.cores[pairs[pairs // machine.core_count == k] % machine.core_count]),
            **{name: None if values is None else float(values[k]) for name, values in times.items()},
        )
        for k in range(count)
        if mix[k]
    )


def count_opcodes(row: npt.NDArray[np.int64], opcodes: npt.NDArray[Any], count: int) -> list[Mapping[str, int]]:
    """Returns for each of `count` rows the number of its instructions, keyed by name, most frequent first."""
    table = np.bincount(row * 256 + opcodes, minlength=count * 256).reshape(count, 256)
    return [
        {BY_OPCODE[int(op)].name: int(line[op]) for op in sorted(np.flatnonzero(line), key=lambda op: (-line[op], op))}
        for line in table
    ]


def _times(read: ProfiledProgram, count: int) -> dict[str, Floats | None]:
    machine, run, part = read.machine, read.run, read.part_index
    if run is None:
        return dict.fromkeys(("busy_ns", "waited_ns", "critical_ns", "energy_pj"))
    return {
        "busy_ns": _sum(part, count, run.busy) / 1000,
        "waited_ns": _sum(part, count, run.waited) / 1000,
        "critical_ns": _sum(part, count, critical_path.find_critical_times(machine, run)) / 1000,
        "energy_pj": _energies(read, count),
    }


def _energies(read: ProfiledProgram, count: int) -> Floats:
    """Returns the dynamic energy of each part's instructions, pJ. Static energy is left out: it depends on time."""
    rows = energy.count_uses_by(read.machine, read.part_index, count)
    nothing = np.zeros((1, len(PortColumn)), np.int64)
    return np.array([energy.compute_energy(read.machine, row[None, :], nothing, 0.0).total for row in rows])


def _sum(part: npt.NDArray[np.int64], count: int, amounts: npt.NDArray[Any]) -> Floats:
    return np.bincount(part, weights=amounts.astype(np.float64), minlength=count).astype(np.float64)
