"""What an instruction takes in the simulator, from the architecture alone (docs/target.md, 4.2).

Times are device times without contention: what a core is busy with, whatever else waits.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target import isa
from raptor.target.arch import (
    Arch,
    MatrixConfig,
    MemoryConfig,
    flit_ns,
    longest_flit_ns,
    memory_flit_ns,
    typical_flit_ns,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def mvmul_ns(arch: Arch, xbars: int) -> float:
    """A product of one vector with `xbars` crossbars side by side.

    The simulator reads the input once for each bit of a byte, and computes alike for any number of crossbars.
    """
    memory = arch.file.chip_config.core_config.local_memory_config
    read, write = product_bytes(arch, xbars)
    return _read_ns(memory, read) + _crossbar_ns(arch) + _write_ns(memory, write)


def port_ns(arch: Arch, xbars: int) -> float:
    """What such a product keeps the one port of local memory busy: no core can start them faster."""
    memory = arch.file.chip_config.core_config.local_memory_config
    read, write = product_bytes(arch, xbars)
    return _read_ns(memory, read) + _write_ns(memory, write)


def product_bytes(arch: Arch, xbars: int) -> tuple[int, int]:
    """What such a product reads and writes of local memory."""
    return 8 * arch.xbar_rows * arch.element_bytes, arch.outputs_per_xbar * arch.element_bytes * xbars


def vector_ns(arch: Arch, elements: int, operands: int) -> float:
    """An element-wise function of `operands` vectors of `elements`."""
    core = arch.file.chip_config.core_config
    size = elements * arch.element_bytes
    steps = math.ceil(elements / core.vector_width) * core.vector_latency_cycle
    return operands * _read_ns(core.local_memory_config, size) + steps + _write_ns(core.local_memory_config, size)


def _read_ns(memory: MemoryConfig, size: int) -> float:
    return math.ceil(size / memory.data_width) * memory.read_latency_cycle * memory.period


def _write_ns(memory: MemoryConfig, size: int) -> float:
    return math.ceil(size / memory.data_width) * memory.write_latency_cycle * memory.period


def _crossbar_ns(arch: Arch) -> float:
    """Two stages for each bit of the input and each batch of rows; the simulator's divisions round down."""
    matrix = arch.file.chip_config.core_config.matrix_config
    front = matrix.dac_latency_cycle + math.ceil(matrix.xbar_latency / matrix.period) + matrix.sample_hold_latency_cycle
    back = _back_cycles(matrix)
    rounds = (arch.element_bits // matrix.dac_resolution) * (matrix.xbar_size[0] // matrix.dac_count)
    if rounds == 0:
        return min(front, back) * matrix.period
    if matrix.pipeline_mode:
        return (front + back + (rounds - 1) * max(front, back)) * matrix.period
    return rounds * (front + back) * matrix.period


def _back_cycles(matrix: MatrixConfig) -> int:
    """Digitising the columns."""
    after = matrix.shift_adder_latency_cycle + matrix.output_buffer_latency_cycle
    batches = matrix.xbar_size[1] // matrix.adc_count
    return matrix.adc_latency_cycle + after + (batches - 1) * max(matrix.adc_latency_cycle, after)


def copy_ns(arch: Arch, elements: int) -> float:
    """A copy inside local memory."""
    memory, size = arch.file.chip_config.core_config.local_memory_config, elements * arch.element_bytes
    return _read_ns(memory, size) + _write_ns(memory, size)


def message_ns(arch: Arch, elements: int) -> float:
    """From a send to the end of its receive when both are ready; the receiver is busy as long."""
    memory, size = arch.file.chip_config.core_config.local_memory_config, elements * arch.element_bytes
    flits = math.ceil(size / arch.file.chip_config.network_config.bus_width)
    return _read_ns(memory, size) + (flits + 2) * typical_flit_ns(arch) + _write_ns(memory, size)


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """What messages take, one row each, once both ends are ready (docs/target.md, 4.5).

    request_ns, grant_ns: from the sender's switch to the receiver's and back. sender_ns, wire_ns: how long the sender
    and then its switch are busy from when it may send. receiver_ns: from then to the end of the receive.
    """

    request_ns: Floats
    grant_ns: Floats
    sender_ns: Floats
    wire_ns: Floats
    receiver_ns: Floats


def message_times(arch: Arch, source: Ints, to: Ints, elements: Ints) -> MessageTimes:
    memory, size = arch.file.chip_config.core_config.local_memory_config, elements * arch.element_bytes
    there_ns, back_ns = flit_ns(arch, source, to), flit_ns(arch, to, source)
    beats = -(-size // memory.data_width) * memory.period
    wire = message_flits(arch, elements) * there_ns
    sender = beats * memory.read_latency_cycle
    receiver = sender + wire + beats * memory.write_latency_cycle
    return MessageTimes(*(column.astype(np.float64) for column in (there_ns, back_ns, sender, wire, receiver)))


def message_flits(arch: Arch, elements: Ints) -> Ints:
    """What the elements of messages take on the network."""
    return -(-elements * arch.element_bytes // arch.file.chip_config.network_config.bus_width)


def load_ns(arch: Arch, elements: int, core: int | None = None) -> float:
    """From global memory; `core` as in `memory_flit_ns`."""
    chip, size = arch.file.chip_config, elements * arch.element_bytes
    read_ns, write_ns = _read_ns(chip.global_memory_config, size), _write_ns(chip.core_config.local_memory_config, size)
    return memory_flit_ns(arch, core) + read_ns + write_ns


def _of_units(*units: isa.Unit) -> npt.NDArray[np.bool_]:
    """By opcode: whether one of these units executes it."""
    table = np.zeros(256, np.bool_)
    table[[i.opcode for i in isa.INSTRUCTIONS if i.unit in units]] = True
    return table


_IS_VECTOR = _of_units(isa.Unit.VECTOR)
_MOVES_DATA = _of_units(isa.Unit.VECTOR, isa.Unit.TRANSFER)


def longest_ns(records: isa.Records, xbars: int, arch: Arch) -> float:
    """More than one core's instructions take if nothing overlaps and every message crosses the chip.

    `xbars`: the most crossbars that one of its products drives.
    """
    chip = arch.file.chip_config
    local, memory = chip.core_config.local_memory_config, chip.global_memory_config
    count = len(records)
    products = int((records["opcode"] == isa.OPCODE["mvmul"]).sum()) * mvmul_ns(arch, xbars)
    records = records[_MOVES_DATA[records["opcode"]]]
    vector = _IS_VECTOR[records["opcode"]]
    length = records["d"].astype(np.float64)
    size = np.where(vector, length * arch.element_bytes, length)
    beats = np.ceil(size / local.data_width)
    moved = beats * (2 * local.read_latency_cycle + local.write_latency_cycle) * local.period
    steps = np.ceil(length / chip.core_config.vector_width) * chip.core_config.vector_latency_cycle
    flits = np.ceil(size / chip.network_config.bus_width) + 2
    outside = np.ceil(size / memory.data_width) * (memory.read_latency_cycle + memory.write_latency_cycle)
    across = flits * longest_flit_ns(arch) + outside * memory.period
    busy = moved + np.where(vector, steps, across)
    return products + float(busy.sum()) + 10 * count * chip.core_config.period
