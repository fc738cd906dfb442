"""Bytes and messages between cores, and between cores and global memory."""

import numpy as np
import numpy.typing as npt

from raptor.target.isa import OPCODE
from validator.profile.core_positions import find_mesh
from validator.profile.profile_results import GLOBAL_MEMORY, NOBODY, Mesh, MessageFlow
from validator.profile.profiled_program import ProfiledProgram
from validator.simulate.cycle.cycle_model import index_cores

Ints = npt.NDArray[np.int64]

_A, _D = 1, 4
"""Indices of the words of an instruction that hold its partner and its length."""


def profile_traffic(read: ProfiledProgram) -> tuple[MessageFlow, ...]:
    """Returns the flows, sorted by source and destination."""
    machine, opcodes = read.machine, read.machine.opcodes
    sends, loads, stores = (np.flatnonzero(opcodes == OPCODE[name]) for name in ("send", "ld", "st"))
    memory = machine.core_count
    source = np.concatenate([machine.core_index[sends], np.full(len(loads), memory), machine.core_index[stores]])
    to = np.concatenate([find_partners(read)[sends], machine.core_index[loads], np.full(len(stores), memory)])
    sizes = machine.words[np.concatenate([sends, loads, stores]), _D]
    keys, at, counts = np.unique(source * (memory + 1) + to, return_inverse=True, return_counts=True)
    totals = np.bincount(at, weights=sizes, minlength=len(keys))
    mesh = find_mesh(read)
    return tuple(
        _flow(read, mesh, *divmod(int(key), memory + 1), int(n), int(total))
        for key, n, total in zip(keys, counts, totals, strict=True)
    )


def _flow(read: ProfiledProgram, mesh: Mesh, source: int, to: int, messages: int, size: int) -> MessageFlow:
    machine, memory = read.machine, read.machine.core_count
    ends = [GLOBAL_MEMORY if end == memory else int(machine.cores[end]) for end in (source, to)]
    # The table has only the direction from core to memory, which is charged for loads as well.
    row, col = (to, source) if source == memory else (source, to)
    return MessageFlow(
        source=ends[0],
        to=ends[1],
        messages=messages,
        bytes=size,
        hops=None if memory in (source, to) else mesh.hops(*ends),
        flit_ns=machine.network.flit_ns(row, col) if read.chip is not None else None,
    )


def find_partners(read: ProfiledProgram) -> Ints:
    """Returns for each instruction the index of the core with which it exchanges a message, or `NOBODY`.

    For a `wait`, it is the core that sent the token; this is known only after a run.
    """
    machine = read.machine
    partner = np.full(len(machine.words), NOBODY, np.int64)
    named = np.flatnonzero(np.isin(machine.opcodes, (OPCODE["send"], OPCODE["recv"], OPCODE["sync"])))
    partner[named] = index_cores(machine.cores)[machine.words[named, _A]]
    if read.run is not None:
        waits = np.flatnonzero((machine.opcodes == OPCODE["wait"]) & (read.run.cause >= 0))
        partner[waits] = machine.core_index[read.run.cause[waits]]
    return partner
