"""Typed interface of the compiled engine."""

import numpy as np

from raptor.target.opcode_tables import RULES
from validator.machine import Fault, Machine, Stop


def execute(machine: Machine, *, block: bool, max_steps: int) -> Fault:
    """Runs all cores like `reference.execute`, some thousand times faster.

    The first call on a computer compiles for some seconds.
    """
    from validator.engine_kernels import run  # numba takes a while to import

    m, w, p = machine, machine.weights, machine.probes
    fault = np.zeros(3, np.int64)
    cores = (m.words, m.pc, m.first, m.registers, m.events)
    memories = (m.local, m.local_first, m.memory, m.element_bytes, m.owners)
    weights = (w.values, w.offset, w.rows, w.cols, w.first)
    probes = (p.pc, p.first, p.next, p.address, p.size, p.offset, p.captured)
    stop = Stop(run(block, max_steps, RULES, cores, memories, weights, probes, fault))
    return Fault(stop, *(int(value) for value in fault))
