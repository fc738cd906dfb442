"""The compiled cycle model: what pimsim-nn does in time, without its data.

The simulator is a set of SystemC threads (per core: vector unit, transfer unit, switch, one for each array group) and
a clock thread. A thread that waits for a time sits in one heap, together with the clock; what happens at a clock edge
happens when the clock's thread runs. Which of two threads comes first in one instant decides whether a unit's end is
noticed at this edge or at the next, so the heap and the order of running are those of SystemC, edge by edge. Edges at
which nothing happens only turn the heap; as soon as a turn changes nothing the clock jumps.

Times are picoseconds, as in the simulator; clock edges ("ticks") are counted. Pipeline rules: docs/target.md, 4.
NOTE: opcodes are constants in cached machine code; they are the simulator's and must not change.
"""

# Kernels are untyped for numba's sake; `model` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.isa import OPCODE
from raptor.jit import helper, kernel
from validator.simulate.state import (
    AGAIN,
    BLOCKED,
    CAUSE_NONE,
    DONE,
    FULL,
    NEVER,
    Core,
    Thread,
)

# Columns of the tables.
_PC, _IB, _OB, _IBIW = int(Core.PC), int(Core.IB), int(Core.OB), int(Core.IBIW)
_LOCAL, _ROUNDS, _FINISH, _STOPPED = int(Core.LOCAL), int(Core.ROUNDS), int(Core.FINISH), int(Core.STOPPED)
_RECV_FROM, _OPEN_TO, _OPEN_PC = int(Core.RECV_FROM), int(Core.OPEN_TO), int(Core.OPEN_PC)
_WAIT_EVENT, _WAIT_VALUE = int(Core.WAIT_EVENT), int(Core.WAIT_VALUE)
_HEAD, _TAIL = int(Core.QUEUE_HEAD), int(Core.QUEUE_TAIL)
_BUSY_VECTOR, _BUSY_MATRIX, _BUSY_TRANSFER = int(Core.BUSY_VECTOR), int(Core.BUSY_MATRIX), int(Core.BUSY_TRANSFER)
_ON_SEND, _ON_RECV, _ON_TOKEN = int(Core.ON_SEND), int(Core.ON_RECV), int(Core.ON_TOKEN)
_ARRIVED, _INSERT_AT, _ROB_HEAD, _ROB_SIZE = (
    int(Core.ARRIVED),
    int(Core.INSERT_AT),
    int(Core.ROB_HEAD),
    int(Core.ROB_SIZE),
)
_FREE_VECTOR, _FREE_TRANSFER, _WAITING_PC = int(Core.FREE_VECTOR), int(Core.FREE_TRANSFER), int(Core.WAITING_PC)
_WAITING_GROUP, _COMMIT_SLOT, _AT_END = int(Core.WAITING_GROUP), int(Core.COMMIT_SLOT), int(Core.AT_END)

_STATE, _OP_PC, _READ, _COMPUTE, _WRITE = (
    int(Thread.STATE),
    int(Thread.PC),
    int(Thread.READ),
    int(Thread.COMPUTE),
    int(Thread.WRITE),
)
_SIZE, _PARTNER, _SLOT, _SINCE, _FREE_AT = (
    int(Thread.SIZE),
    int(Thread.PARTNER),
    int(Thread.SLOT),
    int(Thread.SINCE),
    int(Thread.FREE_AT),
)
