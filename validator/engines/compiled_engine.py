"""Typed interface of the compiled engine."""

from typing import Any, Literal

import numpy as np

from raptor.target.opcode_tables import OPCODE_RULES
from validator.engines.machine import EngineFault, EngineStop, Machine
from validator.program.program import Values

_US = 12.0
"""Microseconds that `reference` takes per instruction of a program of floats."""
_MOST_US = 4e6
"""Microseconds in a process up to which `reference` is quicker than compiling the kernel."""


class _Spent:
    """Estimated microseconds that `reference` has taken in this process."""

    us = 0.0


def is_quicker(machine: Machine) -> bool:
    """Checks whether `execute` is quicker than `reference.execute`, including the compilation of the kernel if needed.

    For integers it always is: `reference` takes longer for them.
    """
    from raptor.common.jit.decorators import has_machine_code  # numba takes a while to import
    from validator.engines.engine_kernels import run_cores

    if machine.written is not None or has_machine_code(run_cores):
        return True
    _Spent.us += _US * len(machine.words)
    return _Spent.us > _MOST_US


def execute(machine: Machine, *, block: bool, max_steps: int) -> EngineFault:
    """Runs all cores like `reference.execute`, several thousand times faster.

    The first call on a computer compiles for several seconds.
    """
    from validator.engines.engine_kernels import run_cores  # numba takes a while to import

    m, w, p = machine, machine.weights, machine.probes
    fault = np.zeros(6, np.int64)
    cores = (m.words, m.pc, m.first, m.registers, m.events, m.rows, m.next_id)
    memories = (_planes(m, "local"), m.local_first, m.local_size, _planes(m, "memory"), m.element_bytes, m.owners)
    weights = (w.values, w.offset, w.rows, w.cols, w.first)
    captured = (p.captured,) if m.written is None else (p.captured, m.written.captured)
    probes = (p.pc, p.first, p.next, p.address, p.size, p.offset, captured)
    state = cores, memories, weights, probes, _integers(m), _crossbars(m), _make_space(m)
    stop = EngineStop(run_cores(block, max_steps, OPCODE_RULES, *state, fault))
    if stop in (EngineStop.DONE, EngineStop.DEADLOCK):
        return EngineFault(stop)  # a message leaves the numbers of its cores in `fault`
    return EngineFault(stop, *(int(value) for value in fault))


def _planes(machine: Machine, name: Literal["local", "memory"]) -> tuple[Values, ...]:
    values: Values = getattr(machine, name)
    return (values,) if machine.written is None else (values, getattr(machine.written, name))


def _make_space(machine: Machine) -> tuple[Any, ...]:
    """Returns the scratch space of `run_cores`: a ring of cores, those that are in it, cores to wake, a product."""
    cores, widest = machine.core_count, int(machine.weights.cols.max(initial=0))
    return np.arange(cores), np.ones(cores, np.bool_), np.zeros(2, np.int64), np.empty(widest, np.float32)


def _integers(machine: Machine) -> tuple[Any, ...] | None:
    """Returns the operands of `integer_kernels`: widths, views of local memory, scratch space."""
    if machine.written is None:
        return None
    from validator.engines.integer_kernels import CHUNK

    views = [machine.local.view(kind) for kind in (np.int8, np.int16, np.int32, np.float32)]
    rows, cols = (int(sizes.max(initial=1)) for sizes in (machine.weights.rows, machine.weights.cols))
    chunks = (np.zeros(CHUNK, np.int64), np.zeros(CHUNK, np.int64))
    space = (np.zeros(rows, np.int32), np.zeros(cols, np.int32), np.zeros(cols, np.int64))
    return machine.widths, *views, *chunks, *space


def _crossbars(machine: Machine) -> tuple[Any, ...] | None:
    """Returns tables and scratch space of the crossbars.

    None if products are exact: numba then leaves them out, which halves the time to compile the engine.
    """
    if machine.crossbars is None:
        return None
    from validator.crossbar.kernel_tables import make_kernel_tables

    return make_kernel_tables(machine.crossbars), machine.work
