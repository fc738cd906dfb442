"""Instruction selection for embedding lookups, whose row addresses are computed from ids in global memory."""

import numpy as np

from raptor.codegen.pimsim.assign_registers import Symbolic, computed_register, make_virtual, set_operand
from raptor.pim.operations import Buffer, LoadRows
from raptor.target.isa import OPCODE

# NOTE: a scalar instruction that overwrites its own source is executed more than once in the simulator, so each result
# has a register of its own.
ID, OFFSET, ROW_HIGH, ROW_LOW = 8, 9, 10, 11
_SEQUENCE = ("sld", "smuli", "saddi", "ld")


def emit_load_rows(op: LoadRows[Buffer], local: int, size: int, registers: tuple[int, int, int]) -> Symbolic:
    """Emits four instructions for each pixel: read its id, multiply, add the address of the table, load the row.

    local, size: address of the result, and bytes of a pixel. registers: the register that holds 0, and the register
    pair of a global address.
    """
    zero, high, low = registers
    block = make_virtual("ld", len(_SEQUENCE) * len(op.ids))
    block["opcode"] = np.tile([OPCODE[name] for name in _SEQUENCE], len(op.ids))
    read, times, add, load = (block[k :: len(_SEQUENCE)] for k in range(len(_SEQUENCE)))
    first = int(op.ids.min())
    read["register"][:, 0] = computed_register(ID)
    set_operand(read, 1, high, first >> 32)
    set_operand(read, 2, low, np.uint32(first % 2**32).astype(np.int32))
    read["c"] = op.ids - first
    for block_of, target, source, number in ((times, OFFSET, ID, op.stride), (add, ROW_LOW, OFFSET, op.table)):
        block_of["register"][:, 0], block_of["register"][:, 1] = computed_register(target), computed_register(source)
        block_of["a"] = np.uint32(number).astype(np.int32)
    set_operand(load, 0, zero, 0)
    set_operand(load, 1, ROW_HIGH, 0)
    load["b"], load["c"], load["d"] = 1, local + np.arange(len(op.ids)) * size, size
    return block
