"""State of a running chip for both engines: plain arrays.

A program of floats has one float32 for every modelled element. Addresses in streams count bytes of elements of the
modelled width; here they count elements. Local memory starts as NaN, so that the use of an element before it is written
shows in the outputs. An integer program has bytes, and `Written` records which of them were written.

The result of a program must not depend on the order in which cores run. Messages and events guarantee this if no core
reads what another core writes in global memory. So all cores may read the elements that are there at the start, and
every other element belongs to the core that stores it first.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import InternalError, RaptorError
from raptor.target import isa
from raptor.target.isa import BY_OPCODE, OPCODE, REGISTER_COUNT
from validator.engines.run_template import CaptureSpans, make_run_template
from validator.errors import BlockedCore, DeadlockError, IdError, ProgramError
from validator.program.program import Bytes, ExternalCrossbars, GroupWeights, Indices, LoadedProgram, Values

if TYPE_CHECKING:
    from validator.crossbar.programmed_chip import ProgrammedChip

EVENT_COUNT = 32
WORD_BYTES = 4
"""Bytes that `sld` reads in an integer program; in a program of floats it reads an element."""
SHARED, UNUSED = -2, -1
"""Owners of an element of global memory: all cores, which may read it, or no core yet. Others are core numbers."""


class EngineStop(IntEnum):
    """Reason why an engine stopped. Faults come with a core, an address and a size in bytes."""

    DONE = 0
    DEADLOCK = 1
    STEPS = 2
    UNALIGNED = 3
    LOCAL_RANGE = 4
    GLOBAL_RANGE = 5
    OVERLAP = 6
    SEND_REGISTERS = 7
    SIZES_DIFFER = 8
    NOT_OWNED = 9
    NO_MEANING = 10
    """The engine does not know the instruction: an internal error, because `check` refuses unknown instructions."""
    OVERFLOW = 11
    """An operand or a result does not fit its width."""
    UNWRITTEN = 12
    """Arithmetic on a byte that was never written."""
    SHIFT = 13
    NOT_A_NUMBER = 14
    """A NaN is converted to an integer."""
    NOT_WHOLE = 15
    """A row number is not an integer."""
    NO_ROW = 16
    """A row number is not in its table."""


@dataclass(frozen=True, slots=True)
class EngineFault:
    """Reason why an engine stopped, with the core and the wrong span (bytes).

    The program counter of `core` stays at the instruction. Integer programs also give the index of the element in its
    vector, its value (limited to 64 bits), and the bits that it should fit.
    """

    stop: EngineStop
    core: int = 0
    address: int = 0
    size: int = 0
    element: int = 0
    value: int = 0
    bits: int = 0


@dataclass(frozen=True, slots=True)
class ProbeState:
    """Spans of local memory that are copied to `captured` when a core reaches `pc`, sorted by core and pc.

    `first[core]`: first entry of a core; `next[core]`: next entry to be copied. `offset`: position in `captured`.
    Addresses, sizes and offsets count elements, or bytes in an integer program.
    """

    pc: Indices
    first: Indices
    next: Indices
    address: Indices
    size: Indices
    offset: Indices
    captured: Values


@dataclass(frozen=True, slots=True)
class WrittenFlags:
    """Flags of the bytes in the memories of `Machine`, and of the captured bytes: 1 if the byte was written, else 0."""

    local: Bytes
    memory: Bytes
    captured: Bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """Memories, registers and program counters of all cores. The arrays are changed in place.

    `words`: the records of all streams, core after core, as five int32; core c has the records `first[c]` to `first[c +
    1]`, and `pc[c]` is such an index. `rows`: for each `sld` of all streams, the rows of the table that its number
    indexes; `rows[next_id[c]]` is for the next `sld` of core c. The local memory of core c has `local_size[c]` elements
    from `local[local_first[c]]` on. `written` is None in a program of floats. `widths`: for each core, bits of an input
    and an output element (0 before the first `setbw`), and 1 after `setfp`; only used with integers. `products`,
    `crossbars`: as in `Program`; `work`: scratch space for products on `crossbars`.
    """

    words: npt.NDArray[np.int32]
    first: Indices
    pc: Indices
    registers: npt.NDArray[np.int32]
    events: Indices
    rows: Indices
    next_id: Indices
    widths: Indices
    local: Values
    local_first: Indices
    local_size: Indices
    memory: Values
    written: WrittenFlags | None
    owners: npt.NDArray[np.int32]
    weights: GroupWeights
    element_bytes: int
    probes: ProbeState
    products: ExternalCrossbars | None = None
    crossbars: "ProgrammedChip | None" = None
    work: tuple[Any, ...] = ()

    @property
    def core_count(self) -> int:
        return len(self.pc)

    @property
    def executed_count(self) -> int:
        """Instructions executed so far, over all cores."""
        return int((self.pc - self.first[:-1]).sum())


def create_machine(program: LoadedProgram, captures: CaptureSpans, *, sample: int = 0, watch: bool = False) -> Machine:
    """Returns a chip with the program's constants in global memory.

    `sample`: number of the input, which selects the noise of crossbars. `watch`: record the lowest and the highest sum
    at each converter.
    """
    start, width = make_run_template(program), program.memory.element_bytes
    local, memory, captured = (
        _unwritten_memory(program, int(size))
        for size in (start.local_first[-1], program.memory.size_bytes // width, captures.size.sum())
    )
    written = (
        WrittenFlags(*(np.zeros(len(m), np.uint8) for m in (local, memory, captured))) if program.has_integers else None
    )
    owners = np.full(len(memory), UNUSED, np.int32)
    constants = slice(first := program.memory.constants.address // width, first + len(program.constants))
    memory[constants], owners[constants] = program.constants, SHARED
    if written is not None:
        written.memory[constants] = 1
    cores, c = program.core_count, captures
    return Machine(
        words=start.words,
        first=start.first,
        pc=start.first[:-1].copy(),
        registers=np.zeros((cores, REGISTER_COUNT), np.int32),
        events=np.zeros(cores * EVENT_COUNT, np.int64),
        rows=start.rows,
        next_id=start.next_id.copy(),
        widths=np.zeros((cores, 3), np.int64),
        local=local,
        local_first=start.local_first,
        local_size=start.local_size,
        memory=memory,
        written=written,
        owners=owners,
        weights=program.weights,
        element_bytes=width,
        probes=ProbeState(c.pc, c.first, c.first[:-1].copy(), c.address, c.size, c.offset, captured),
        products=program.products,
        crossbars=program.crossbars,
        work=_work(program, sample, watch=watch),
    )


def _work(program: LoadedProgram, sample: int, *, watch: bool) -> tuple[Any, ...]:
    if program.crossbars is None:
        return ()
    from validator.crossbar.kernel_tables import make_kernel_tables, make_work_space  # they import numba

    return make_work_space(make_kernel_tables(program.crossbars), sample=sample, watch=watch)


def _unwritten_memory(program: LoadedProgram, size: int) -> Values:
    return np.zeros(size, np.uint8) if program.has_integers else np.full(size, np.nan, np.float32)


def explain_fault(machine: Machine, fault: EngineFault) -> RaptorError:
    """Returns the exception that explains `fault` to the user."""
    if fault.stop is EngineStop.DEADLOCK:
        return DeadlockError(tuple(_blocked(machine, core) for core in range(machine.core_count) if _at(machine, core)))
    width, core = machine.element_bytes, fault.core
    span = f"{fault.size} bytes at {fault.address}"
    local = int(machine.local_size[core]) * width
    reasons = {
        EngineStop.STEPS: "stopped here: the limit of instructions is reached",
        EngineStop.UNALIGNED: f"{span}: not a multiple of the {fault.bits // 8 or width} bytes of an element",
        EngineStop.LOCAL_RANGE: f"{span} leave the {local} bytes of local memory of core {core}",
        EngineStop.GLOBAL_RANGE: f"{span} leave the {len(machine.memory) * width} bytes of global memory",
        EngineStop.OVERLAP: f"the result, {span}, overlaps a source in part",
        EngineStop.SEND_REGISTERS: "rd and rs1 differ: the simulator times rd and checks rs1",
        EngineStop.SIZES_DIFFER: f"the partner's size is {fault.size} bytes",
        EngineStop.NOT_OWNED: f"{span} of global memory {_not_owned(machine, fault)}",
        EngineStop.OVERFLOW: f"element {fault.element} is {fault.value}, which does not fit {fault.bits} bits",
        EngineStop.UNWRITTEN: f"element {fault.element}, {span}, was never written",
        EngineStop.SHIFT: f"the shift amount of element {fault.element} is {fault.value}, allowed are {_shifts(fault)}",
        EngineStop.NOT_A_NUMBER: f"element {fault.element} is not a number, so there is no integer for it",
    }
    pc, instruction = _at(machine, core) or (0, "nothing")
    if fault.stop in (EngineStop.NOT_WHOLE, EngineStop.NO_ROW):
        return IdError(core, pc, instruction, _wrong_id(machine, fault))
    if fault.stop is EngineStop.NO_MEANING:
        return InternalError(f"core {core}, instruction {pc} ({instruction}): the engine has no meaning for it")
    return ProgramError(core, pc, instruction, reasons[fault.stop])


def read_address(machine: Machine, core: int) -> int:
    """Returns the global address that the `sld` at which a core stopped reads."""
    record = machine.words[int(machine.pc[core])].view(isa.RECORD)[0]
    high, low = (int(machine.registers[core, int(record["rs1"]) + k]) for k in (0, 1))
    return (high << 32) + (low & 0xFFFFFFFF) + int(record["c"])


def _shifts(fault: EngineFault) -> str:
    return f"0 to {fault.bits}" if fault.bits else "0 and more"


def _wrong_id(machine: Machine, fault: EngineFault) -> str:
    last = int(machine.rows[machine.next_id[fault.core]]) - 1
    held = machine.memory[fault.address // machine.element_bytes]
    found = f"{held:.10g}" if machine.written is None else f"{fault.value}"
    return f"the id is {found}, but the rows of the table are 0 to {last}"


def _not_owned(machine: Machine, fault: EngineFault) -> str:
    start = fault.address // machine.element_bytes
    owners = machine.owners[start : start + fault.size // machine.element_bytes]
    others = owners[(owners >= 0) & (owners != fault.core)]
    if others.size:
        return f"are of core {others[0]}, which has stored there, sooner or later than this; send them instead"
    return "hold an input or a constant, which other cores may read sooner or later than this"


def _at(machine: Machine, core: int) -> tuple[int, str] | None:
    """Returns the program counter of a core and its instruction, or None if it has finished."""
    at = int(machine.pc[core])
    if at == machine.first[core + 1]:
        return None
    return at - int(machine.first[core]), isa.format_record(machine.words[at].view(isa.RECORD)[0])


def _blocked(machine: Machine, core: int) -> BlockedCore:
    word = machine.words[machine.pc[core]]
    pc, instruction = _at(machine, core) or (0, "")
    name = BY_OPCODE[int(word[0]) & 255].name
    if name == "wait":
        tokens = int(machine.events[core * EVENT_COUNT + int(word[2])])
        return BlockedCore(
            core, pc, instruction, f"{int(word[3])} tokens in event register {int(word[2])}, has {tokens}"
        )
    partner = int(word[1])
    there = _at(machine, partner)
    doing = f"which is at {there[0]} ({there[1]})" if there else "which has finished"
    wanted = "recv" if word[0] & 255 == OPCODE["send"] else "send"
    return BlockedCore(core, pc, instruction, f"a {wanted} of core {partner}, {doing}")
