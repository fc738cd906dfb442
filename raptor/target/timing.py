"""The cost model: the time of an instruction in the simulator, from the target alone (docs/developers/target.md, 4.2).

Mappings, schedules, bounds and figures of chips use only these functions. They are device times in ns without
contention: the time that a core is busy with an instruction. In the simulator, each ends at the next edge of the core's
clock, and issuing takes some more cycles. `tests/target/test_timing.py` compares them with the simulator. Docstrings
mark estimates: for work that has no place yet, the distance between two typical cores is assumed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.arch import (
    Memory,
    Target,
    estimate_flit_ns,
    flit_ns,
    memory_flit_ns,
    upper_bound_flit_ns,
)
from raptor.target.chip_elements import ElementType

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ISSUE_NS = 5
"""Estimated time of an instruction beyond its device time: issue, loads of its registers, completion.

With a `rob_size` of 1 and a core period of 1 ns it is 2 ns, for an `mvmul` 3, and 1 for each register that is loaded
(docs/developers/target.md, 4.1, 4.2). The streams of ResNet-18 at half width on 500 cores of `bench` load 1.1 registers
an instruction, which would make it 3 to 4. It was 5 before that was counted, and stays, as all mappings depend on it.
"""

_LONG = 2**12
"""Number of elements for which the time per element is computed: so large that fixed costs hardly count."""


def mvmul_ns(target: Target, xbars: int) -> float:
    """Returns the time of an MVM with `xbars` crossbars side by side.

    The simulator reads the input eight times, once for each bit of a byte. Its time to compute does not depend on the
    number of crossbars.
    """
    memory = target.core.memory
    read, write = mvmul_bytes(target, xbars)
    return _read_ns(memory, read) + crossbars_ns(target) + _write_ns(memory, write)


def local_port_ns(target: Target, xbars: int) -> float:
    """Returns the time for which an MVM occupies the port of local memory, which bounds the rate of MVMs."""
    memory = target.core.memory
    read, write = mvmul_bytes(target, xbars)
    return _read_ns(memory, read) + _write_ns(memory, write)


def mvmul_bytes(target: Target, xbars: int) -> tuple[int, int]:
    """Returns (bytes read from local memory, bytes written to it) of an MVM (`mvmul_ns`)."""
    return 8 * target.xbar_rows * target.element_bytes, target.outputs_per_xbar * target.accumulator_bytes * xbars


def vector_ns(target: Target, elements: int, operands: int, result: ElementType | None = None) -> float:
    """Returns the time of an element-wise function of `operands` vectors of `elements`.

    `result`: element type of the result; None for the type of the operands.
    """
    core, size = target.core, elements * target.element_bytes
    written = size if result is None else elements * target.bytes_of(result)
    steps = math.ceil(elements / core.vector_width) * core.vector_step_ns
    return operands * _read_ns(core.memory, size) + steps + _write_ns(core.memory, written)


MOST_STENCIL_ELEMENTS = 512
"""Largest number of elements that a stencil multiplies at once, which bounds the memory of repeated weights."""


@cache
def best_pixels_per_op(target: Target, pixels: int, channels: int) -> int:
    """Returns the fastest number of neighbouring pixels for one vector instruction, so that few lanes are idle."""
    most = max(1, min(pixels, MOST_STENCIL_ELEMENTS // channels))
    return min(range(1, most + 1), key=lambda count: pixel_runs_ns(target, pixels, channels, count))


def pixel_runs_ns(target: Target, pixels: int, channels: int, together: int) -> float:
    """Returns the time of a function of two vectors for `pixels` neighbouring pixels, `together` per instruction."""
    runs, rest = divmod(pixels, together)
    more = vector_ns(target, rest * channels, 2) + ISSUE_NS if rest else 0.0
    return runs * (vector_ns(target, together * channels, 2) + ISSUE_NS) + more


def _read_ns(memory: Memory, size: int) -> float:
    return math.ceil(size / memory.beat_bytes) * memory.read_cycles * memory.period_ns


def _write_ns(memory: Memory, size: int) -> float:
    return math.ceil(size / memory.beat_bytes) * memory.write_cycles * memory.period_ns


def crossbars_ns(target: Target) -> float:
    """Returns the time of the crossbars in an MVM: rounds of two pipeline stages (`front_cycles`, `back_cycles`)."""
    converters = target.core.xbar.converters
    front, back = sum(front_cycles(target).values()), sum(back_cycles(target).values())
    rounds = conversion_rounds(target)
    if rounds == 0:
        return min(front, back) * converters.period_ns
    if converters.pipelined:
        return (front + back + (rounds - 1) * max(front, back)) * converters.period_ns
    return rounds * (front + back) * converters.period_ns


def conversion_rounds(target: Target) -> int:
    """Returns the number of reads of a crossbar in an MVM: one for each slice of the input's bits and batch of rows.

    Divisions round down here and in `back_cycles`, as in the simulator.
    """
    converters = target.core.xbar.converters
    return (target.widths.activations // converters.dac_bits) * (target.xbar_rows // converters.dacs)


def front_cycles(target: Target) -> dict[str, int]:
    """Returns the cycles to convert a slice of the input and to read the crossbar, by part."""
    converters = target.core.xbar.converters
    return {
        "DAC": converters.dac_cycles,
        "crossbar read": math.ceil(target.core.xbar.read_ns / converters.period_ns),
        "sample and hold": converters.sample_hold_cycles,
    }


def back_cycles(target: Target) -> dict[str, int]:
    """Returns the cycles to convert all columns, by part. The slower of ADC and adder counts for each column."""
    converters = target.core.xbar.converters
    adc, shift, buffer = converters.adc_cycles, converters.shift_add_cycles, converters.output_buffer_cycles
    turns = target.xbar_cols // converters.adcs
    adcs, adders = (turns, 1) if adc >= shift + buffer else (1, turns)
    return {"ADC": adcs * adc, "shift and add": adders * shift, "output buffer": adders * buffer}


def copy_ns(target: Target, elements: int) -> float:
    """Returns the time of a copy inside local memory."""
    memory, size = target.core.memory, elements * target.element_bytes
    return _read_ns(memory, size) + _write_ns(memory, size)


def repeat_ns(target: Target, piece: int, elements: int) -> float:
    """Returns the time to fill `elements` elements with copies of a piece: one move for one element, else doublings."""
    if piece == 1:
        return vector_ns(target, elements, 1) + ISSUE_NS
    return sum(copy_ns(target, b - a) + ISSUE_NS for a, b in pairwise(copied_ends(piece, elements)))


def copied_ends(piece: int, elements: int) -> list[int]:
    """Returns the ends of the copies that fill `elements` elements: 0, one piece, then twice as much each time."""
    ends = [0, piece]
    while ends[-1] < elements:
        ends.append(min(2 * ends[-1], elements))
    return ends


def message_ns(target: Target, elements: int) -> float:
    """Estimates the time of a message with both ends ready, for which the receiver is busy."""
    memory, size = target.core.memory, elements * target.element_bytes
    flits = math.ceil(size / target.network.flit_bytes)
    return _read_ns(memory, size) + (flits + 2) * estimate_flit_ns(target) + _write_ns(memory, size)


@cache
def typical_message_times(target: Target, elements: int) -> tuple[float, float, float]:
    """Estimates (sender, wire, receiver) in ns, as in `MessageTimes`, of a message between two typical cores."""
    memory, size = target.core.memory, elements * target.element_bytes
    sender_ns = _read_ns(memory, size)
    wire_ns = math.ceil(size / target.network.flit_bytes) * estimate_flit_ns(target)
    return sender_ns, wire_ns, sender_ns + wire_ns + _write_ns(memory, size)


@cache
def vector_element_ns(target: Target) -> float:
    """Returns the time per element of a function of two long vectors."""
    return vector_ns(target, _LONG, 2) / _LONG


@cache
def message_element_ns(target: Target) -> float:
    """Estimates the time per element of a long message; see `message_ns`."""
    return message_ns(target, _LONG) / _LONG


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Times of messages, one row each, with both ends ready (docs/developers/target.md, 4.5).

    `request_ns`, `grant_ns`: from the sender's switch to the receiver's and back. `sender_ns`, `wire_ns`: time that the
    sender and then its switch are busy, once it may send. `receiver_ns`: from that moment to the end of the receive.
    """

    request_ns: Floats
    grant_ns: Floats
    sender_ns: Floats
    wire_ns: Floats
    receiver_ns: Floats


def message_times(target: Target, source: Ints, to: Ints, size_bytes: Ints) -> MessageTimes:
    """Returns the times of messages from core `source` to core `to`; all three have one length."""
    memory = target.core.memory
    there_ns, back_ns = flit_ns(target, source, to), flit_ns(target, to, source)
    beats = -(-size_bytes // memory.beat_bytes) * memory.period_ns
    wire = message_flits(target, size_bytes) * there_ns
    sender = beats * memory.read_cycles
    receiver = sender + wire + beats * memory.write_cycles
    return MessageTimes(*(column.astype(np.float64) for column in (there_ns, back_ns, sender, wire, receiver)))


def message_flits(target: Target, size_bytes: Ints) -> Ints:
    """Returns the number of flits of messages."""
    return -(-size_bytes // target.network.flit_bytes)


def load_ns(target: Target, elements: int, core: int | None = None) -> float:
    """Returns the time of a load from global memory, one flit of which counts; `core` as in `memory_flit_ns`."""
    size = elements * target.element_bytes
    return memory_flit_ns(target, core) + _read_ns(target.memory, size) + _write_ns(target.core.memory, size)


def store_ns(target: Target, elements: int, core: int | None = None) -> float:
    """Returns the time of a store to global memory, all flits of which count; `core` as in `memory_flit_ns`."""
    size = elements * target.element_bytes
    sent = math.ceil(size / target.network.flit_bytes) * memory_flit_ns(target, core)
    return _read_ns(target.core.memory, size) + sent + _write_ns(target.memory, size)


def global_port_ns(target: Target, elements: int) -> float:
    """Returns the time for which a load occupies the only port of global memory."""
    return _read_ns(target.memory, elements * target.element_bytes)


def store_port_ns(target: Target, elements: int) -> float:
    """Returns the time for which a store occupies the only port of global memory."""
    return _write_ns(target.memory, elements * target.element_bytes)


def _of_units(*units: isa.Unit) -> npt.NDArray[np.bool_]:
    """Returns a mask over opcodes: True for instructions of one of these units."""
    table = np.zeros(256, np.bool_)
    table[[i.opcode for i in isa.INSTRUCTIONS if i.unit in units]] = True
    return table


_IS_VECTOR = _of_units(isa.Unit.VECTOR)
_MOVES_DATA = _of_units(isa.Unit.VECTOR, isa.Unit.TRANSFER)


def upper_bound_ns(records: isa.Records, xbars: int, target: Target, most_flit_ns: float | None = None) -> float:
    """Returns an upper bound on the time of a core's instructions: nothing overlaps, every message crosses the chip.

    `xbars`: largest number of crossbars of one of its MVMs. `most_flit_ns`: longest time of a flit; None for the
    longest one of the target.
    """
    count = len(records)
    products = int((records["opcode"] == isa.OPCODE["mvmul"]).sum()) * mvmul_ns(target, xbars)
    records = records[_MOVES_DATA[records["opcode"]]]
    vector = _IS_VECTOR[records["opcode"]]
    flit_ns = upper_bound_flit_ns(target) if most_flit_ns is None else most_flit_ns
    busy = sum(n * vector_ns(target, length, 2) for length, n in _lengths(records[vector]))
    busy += sum(n * _longest_transfer_ns(target, size, flit_ns) for size, n in _lengths(records[~vector]))
    return products + busy + 10 * count * target.core.period_ns


def _lengths(records: isa.Records) -> Iterator[tuple[int, int]]:
    """Yields each value of the field `d` (elements or bytes), and the number of instructions that have it."""
    lengths, counts = np.unique(records["d"], return_counts=True)
    yield from zip(lengths.tolist(), counts.tolist(), strict=True)


def _longest_transfer_ns(target: Target, size: int, flit_ns: float) -> float:
    """Returns an upper bound on the time of any instruction that moves `size` bytes."""
    local, memory = target.core.memory, target.memory
    moved = 2 * _read_ns(local, size) + _write_ns(local, size)
    outside = _read_ns(memory, size) + _write_ns(memory, size)
    return moved + (math.ceil(size / target.network.flit_bytes) + 2) * flit_ns + outside
