"""Explains why a program does not end: lists every blocked core, and the core or token that it waits for."""

from raptor.target import isa
from raptor.target.isa import Timing
from validator.errors import Blocked, DeadlockError
from validator.simulate.cycle_model import CycleModel, Run
from validator.simulate.state import THREADS_PER_CORE, TRANSFER, Core, Op, Step

_WAITING = {Step.PERMISSION: "receive", Step.DATA: "send"}


def deadlock(machine: CycleModel, run: Run) -> DeadlockError:
    """Returns the error for a run that stopped before its end, with every core that has not finished."""
    unfinished = [i for i in range(machine.count) if run.core[i, Core.FINISH] < 0]
    return DeadlockError(tuple(_blocked(machine, run, i) for i in unfinished))


def _blocked(machine: CycleModel, run: Run, i: int) -> Blocked:
    first, last = int(machine.first[i]), int(machine.first[i + 1])
    op = run.thread[1 + THREADS_PER_CORE * i + TRANSFER]
    step = Step(op[Op.STATE])
    if step in _WAITING:
        other = int(op[Op.OTHER])
        reason = f"core {machine.cores[other]} to {_WAITING[step]}; it {_doing(machine, run, other)}"
        return _at(machine, i, int(op[Op.PC]), reason)
    if step is Step.TOKEN:
        return _at(machine, i, int(op[Op.PC]), f"{op[Op.VALUE]} tokens in event register {op[Op.OTHER]}")
    nop = _nop(machine, run, i)
    if nop >= 0:
        return _at(machine, i, nop, "nothing: nop never completes in the simulator")
    if run.core[i, Core.ENDED] and isa.BY_OPCODE[int(machine.opcodes[last - 1])].unit is isa.Unit.SCALAR:
        return _at(machine, i, last - 1, "nothing: the simulator never ends a core whose last instruction is scalar")
    return _at(machine, i, min(max(int(run.core[i, Core.PC]), first), last - 1), "an instruction that does not end")


def _at(machine: CycleModel, i: int, pc: int, reason: str) -> Blocked:
    return Blocked(int(machine.cores[i]), pc - int(machine.first[i]), machine.text(pc), reason)


def _doing(machine: CycleModel, run: Run, i: int) -> str:
    if run.core[i, Core.FINISH] >= 0:
        return "has finished"
    op = run.thread[1 + THREADS_PER_CORE * i + TRANSFER]
    pc = int(op[Op.PC]) if Step(op[Op.STATE]) in (*_WAITING, Step.TOKEN) else int(run.core[i, Core.PC])
    if pc >= machine.first[i + 1]:
        return "is at its end"
    return f"is at {pc - int(machine.first[i])} ({machine.text(pc)})"


def _nop(machine: CycleModel, run: Run, i: int) -> int:
    """Returns the index of the `nop` at which core i hangs, or -1."""
    never_ends = machine.timed(Timing.NEVER_ENDS)
    pc, last = int(run.core[i, Core.PC]), int(machine.first[i + 1])
    if pc < last and never_ends[pc] and run.core[i, Core.ROB_COUNT] == 0:
        return pc
    slots, head = run.rob.shape[1] - 1, int(run.core[i, Core.ROB_HEAD])
    for k in range(int(run.core[i, Core.ROB_COUNT])):
        op = run.rob[i, (head + k) % slots]
        if op[Op.TIMING] == Timing.NEVER_ENDS:
            return int(op[Op.PC])
    return -1
