"""Tables of a simulation and the meaning of their columns, for the model and its kernels.

Times are picoseconds where a column says ps, else clock edges ("ticks"). Cores are numbered as they occur in the
program, not by their number on the chip. Thread 0 is the clock; then come three threads for each core (vector unit,
transfer unit, switch), then one for each array group.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

THREADS_PER_CORE = 3
VECTOR, TRANSFER, SWITCH, GROUP, NO_UNIT = 0, 1, 2, 3, 4
NONE = -1
NEVER = 2**62
EVENT_REGISTERS = 32


class RunStop(IntEnum):
    """Reason why the kernel returned."""

    DONE = 0
    BLOCKED = 1
    QUEUE_FULL = 2


class ThreadStep(IntEnum):
    """Position of a unit's thread in its instruction: what it does when it runs next."""

    START = 0
    WRITING = 1
    ENDING = 2
    PERMISSION = 3
    SENDING = 4
    DATA = 5
    STORING = 6
    LOADED = 7
    STORED = 8
    TOKEN = 9


class KernelProgram(NamedTuple):
    """A program and the table of its instructions: everything that a run does not change.

    `rules`: see `opcode_tables.Rule`. `words`: five for each instruction. `place_of`: place of a core by its number on
    the chip. `group_first`: thread of the first array group of each core. `xbars`: number of crossbars by thread.
    `flit_ns`: see `simulated_chip.Network.latencies`.
    """

    rules: npt.NDArray[np.uint8]
    words: npt.NDArray[np.int32]
    place_of: Ints
    group_first: Ints
    xbars: Ints
    flit_ns: tuple[Ints, Ints, npt.NDArray[np.float64]]


class RunTables(NamedTuple):
    """Tables that change in a run, in addition to the counters `Global`.

    `core`, `thread`, `port`: tables with columns `Core`, `Op`, `PortColumn`. `rob[core]`: slots of the reorder buffer,
    a ring (columns `Op`); the last row is the instruction in the dispatcher. `heap_time` and `heap_thread`: the heap,
    from place 1; `earlier_heap`: an earlier state of it, to find turns that change nothing. `calendar`: entries tick *
    cores + core. `run` and `next_delta`: threads to run in this instant, and in its next delta cycle. `queue`: messages
    (columns `QueueColumn`); those in a core's switch begin at `queue_first`. `tokens`: number by core and event
    register."""

    core: Ints
    thread: Ints
    rob: Ints
    heap_time: Ints
    heap_thread: Ints
    earlier_heap: Ints
    calendar: Ints
    run: Ints
    next_delta: Ints
    queue: Ints
    queue_first: Ints
    tokens: Ints
    registers: Ints
    port: Ints


class InstructionLog(NamedTuple):
    """Notes on each instruction, and (`marks`) on each round of a core; see `cycle_model.Run`."""

    start: Ints
    end: Ints
    cause: npt.NDArray[np.int32]
    marks: Ints
    waited: Ints
    busy: Ints


class CoreColumn(IntEnum):
    """Columns of the core table.

    `PC`: the instruction that the unit executes (fast path), else the one in the dispatcher. `OPEN_TO`: the core at
    which a request to send waits for its receive. `LOCAL`: time (ps) at which the local memory will have served all
    requests made so far.
    """

    PC = 0
    FIRST = 1
    LAST = 2
    IB = 3
    OB = 4
    IBIW = 5
    LOCAL = 6
    ROUNDS = 7
    FINISH = 8
    RECV_FROM = 9
    OPEN_TO = 10
    WAIT_EVENT = 11
    WAIT_VALUE = 12
    QUEUE_HEAD = 13
    QUEUE_TAIL = 14
    BUSY_VECTOR = 15
    BUSY_MATRIX = 16
    BUSY_TRANSFER = 17
    ON_SEND = 18
    ON_RECV = 19
    ON_TOKEN = 20
    ARRIVED = 21
    INSERT_AT = 22
    ROB_HEAD = 23
    ROB_COUNT = 24
    FREE_VECTOR = 25
    FREE_TRANSFER = 26
    HELD_SLOT = 27
    HELD_GROUP = 28
    COMMITTED = 29
    REAL = 30
    ENDED = 31
    LAST_START = 32
    WAIT_PC = 33


class OpColumn(IntEnum):
    """Columns of an instruction that runs, in the thread table and in the reorder buffer.

    `READ`, `COMPUTE`, `WRITE`: times, ps. `SIZE`: flits. `OTHER`: partner core, event register or thread of the array
    group. `TIMING`: an `isa.Timing`.
    """

    PC = 0
    READ = 1
    COMPUTE = 2
    WRITE = 3
    SIZE = 4
    OTHER = 5
    TIMING = 6
    VALUE = 7
    STATE = 8
    CORE = 9
    SLOT = 10
    SINCE = 11
    FREE_AT = 12
    UNIT = 13
    DONE_AT = 14
    LOW1 = 15
    HIGH1 = 16
    LOW2 = 17
    HIGH2 = 18
    LOW3 = 19
    HIGH3 = 20


class SwitchState(IntEnum):
    """State of a switch's thread."""

    IDLE = 0
    ON_WIRE = 1
    SENT = 2
    RESPONSE = 3


class MessageKind(IntEnum):
    """Kinds of message. The last two go to global memory."""

    REQUEST = 0
    DATA = 1
    PERMISSION = 2
    TOKEN = 3
    LOAD = 4
    STORE = 5


class QueueColumn(IntEnum):
    """Columns of the messages that wait in a switch."""

    KIND = 0
    TO = 1
    FLITS = 2
    PC = 3
    VALUE = 4


class GlobalCounter(IntEnum):
    """Entries of the table of counters."""

    HEAP = 0
    NOW = 1
    TICK = 2
    ZERO = 3
    RUN = 4
    CALENDAR = 5
    GLOBAL_MEMORY = 6
    UNFINISHED = 7
    LAST_FINISH = 8
    FAULT = 9
    FAULT_CORE = 10


class PortColumn(IntEnum):
    """Columns of the register-file table: the ports of decode and scalar unit, for the energy of each access."""

    WRITE_RD = 0
    WRITE_VALUE = 1
    OUT_RD = 2
    OUT_VALUE = 3
    ADDR_RD = 4
    ADDR_RS1 = 5
    ADDR_RS2 = 6
    ADDR_DOUBLE = 7
    VALUE_RD = 8
    VALUE_RS1 = 9
    VALUE_RS2 = 10
    VALUE_RD2 = 11
    VALUE_RS12 = 12
    READS = 13
    WRITES = 14
    DECODES = 15
    SCALARS = 16
    FETCHES = 17
    WRITTEN = 18


class CountColumn(IntEnum):
    """Columns of the counts of a core: its use of the parts of the chip in one run of its stream."""

    CROSSBAR_PASSES = 0
    VECTOR_STEPS = 1
    LOCAL_READ_BEATS = 2
    LOCAL_WRITE_BEATS = 3
    GLOBAL_READ_BEATS = 4
    GLOBAL_WRITE_BEATS = 5
    NETWORK_PJ = 6
    INSTRUCTIONS = 7


class DemandColumn(IntEnum):
    """Columns of the least times of an instruction, ps: all its time, and the time at each memory port in it."""

    TIME = 0
    LOCAL = 1
    GLOBAL = 2
