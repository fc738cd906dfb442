"""Explains why a program does not end: lists every blocked core, and the core or token that it waits for."""

from raptor.target import isa
from raptor.target.isa import Timing
from validator.errors import BlockedCore, DeadlockError
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.state_tables import THREADS_PER_CORE, TRANSFER, CoreColumn, OpColumn, ThreadStep

_WAITING = {ThreadStep.PERMISSION: "receive", ThreadStep.DATA: "send"}


def make_deadlock_error(machine: CycleModel, run: CycleRun) -> DeadlockError:
    """Returns the error for a run that stopped before its end, with every core that has not finished."""
    unfinished = [i for i in range(machine.core_count) if run.core[i, CoreColumn.FINISH] < 0]
    return DeadlockError(tuple(_blocked(machine, run, i) for i in unfinished))


def _blocked(machine: CycleModel, run: CycleRun, i: int) -> BlockedCore:
    first, last = int(machine.first[i]), int(machine.first[i + 1])
    op = run.thread[1 + THREADS_PER_CORE * i + TRANSFER]
    step = ThreadStep(op[OpColumn.STATE])
    if step in _WAITING:
        other = int(op[OpColumn.OTHER])
        reason = f"core {machine.cores[other]} to {_WAITING[step]}; it {_doing(machine, run, other)}"
        return _at(machine, i, int(op[OpColumn.PC]), reason)
    if step is ThreadStep.TOKEN:
        return _at(
            machine, i, int(op[OpColumn.PC]), f"{op[OpColumn.VALUE]} tokens in event register {op[OpColumn.OTHER]}"
        )
    nop = _nop(machine, run, i)
    if nop >= 0:
        return _at(machine, i, nop, "nothing: nop never completes in the simulator")
    if run.core[i, CoreColumn.ENDED] and isa.BY_OPCODE[int(machine.opcodes[last - 1])].unit is isa.Unit.SCALAR:
        return _at(machine, i, last - 1, "nothing: the simulator never ends a core whose last instruction is scalar")
    return _at(
        machine, i, min(max(int(run.core[i, CoreColumn.PC]), first), last - 1), "an instruction that does not end"
    )


def _at(machine: CycleModel, i: int, pc: int, reason: str) -> BlockedCore:
    return BlockedCore(int(machine.cores[i]), pc - int(machine.first[i]), machine.instruction_text(pc), reason)


def _doing(machine: CycleModel, run: CycleRun, i: int) -> str:
    if run.core[i, CoreColumn.FINISH] >= 0:
        return "has finished"
    op = run.thread[1 + THREADS_PER_CORE * i + TRANSFER]
    pc = (
        int(op[OpColumn.PC])
        if ThreadStep(op[OpColumn.STATE]) in (*_WAITING, ThreadStep.TOKEN)
        else int(run.core[i, CoreColumn.PC])
    )
    if pc >= machine.first[i + 1]:
        return "is at its end"
    return f"is at {pc - int(machine.first[i])} ({machine.instruction_text(pc)})"


def _nop(machine: CycleModel, run: CycleRun, i: int) -> int:
    """Returns the index of the `nop` at which core i hangs, or -1."""
    never_ends = machine.timing_mask(Timing.NEVER_ENDS)
    pc, last = int(run.core[i, CoreColumn.PC]), int(machine.first[i + 1])
    if pc < last and never_ends[pc] and run.core[i, CoreColumn.ROB_COUNT] == 0:
        return pc
    slots, head = run.rob.shape[1] - 1, int(run.core[i, CoreColumn.ROB_HEAD])
    for k in range(int(run.core[i, CoreColumn.ROB_COUNT])):
        op = run.rob[i, (head + k) % slots]
        if op[OpColumn.TIMING] == Timing.NEVER_ENDS:
            return int(op[OpColumn.PC])
    return -1
