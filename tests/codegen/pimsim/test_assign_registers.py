"""Register loads: each instruction finds what it asked for, and nothing is loaded twice."""

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raptor.codegen.pimsim.assign_registers import UNUSED_REGISTER, RegisterState, Virtual, make_virtual, set_operand
from raptor.target import isa
from tests.pipeline import executed

OPERANDS = {"vvadd": 3, "vrelu": 2, "lmv": 2, "lldi": 1, "setbw": 0}
VALUES = st.one_of(st.integers(0, 3), st.sampled_from([-(2**31), 2**31 - 1, -1]))


@st.composite
def instruction(draw: Callable[..., int]) -> Virtual:
    """Draws one instruction; a register in two operands holds one value."""
    name = draw(st.sampled_from(sorted(OPERANDS)))
    block = make_virtual(name, 1)
    held: dict[int, int] = {}
    for slot in range(OPERANDS[name]):
        register = draw(st.integers(0, 4))
        set_operand(block, slot, register, held.setdefault(register, draw(VALUES)))
    return block


BLOCKS = st.lists(instruction(), min_size=1, max_size=30).map(np.concatenate)


def execute(records: isa.Records, registers: dict[int, int]) -> tuple[list[np.void], list[dict[int, int]], int]:
    """The instructions, what the registers hold at each, and how many loads change nothing."""
    instructions: list[np.void] = []
    seen: list[dict[int, int]] = []
    idle = 0
    for record in records:
        if record["opcode"] != isa.OPCODE["sldi"]:
            instructions.append(record)
            seen.append(dict(registers))
            continue
        register, value = int(record["rd"]), int(record["a"])
        idle += registers.get(register) == value
        registers[register] = value
    return instructions, seen, idle


@given(BLOCKS, BLOCKS)
def test_each_instruction_sees_its_operands(first: Virtual, second: Virtual):
    """Registers keep their values from one call to the next."""
    state, registers = RegisterState(), {}
    for block in (first, second):
        records, _ = state.materialise(block)
        instructions, seen, _ = execute(records, registers)
        assert [int(r["opcode"]) for r in instructions] == block["opcode"].tolist()
        for wanted, record, held in zip(block, instructions, seen, strict=True):
            for field, register, value in zip(("rd", "rs1", "a"), wanted["register"], wanted["value"], strict=True):
                if register != UNUSED_REGISTER:
                    assert int(record[field]) == register
                    assert held[int(register)] == value


@given(BLOCKS)
def test_no_register_is_loaded_with_what_it_holds(block: Virtual):
    records, _ = RegisterState().materialise(block)
    _, _, idle = execute(records, {})
    assert idle == 0


@given(BLOCKS)
def test_no_register_is_loaded_for_nothing(block: Virtual):
    """The instruction after a load uses its register."""
    pending: set[int] = set()
    for record in RegisterState().materialise(block)[0]:
        if record["opcode"] == isa.OPCODE["sldi"]:
            pending.add(int(record["rd"]))
            continue
        spec = isa.BY_OPCODE[int(record["opcode"])]
        assert pending <= {int(record[o.slot]) for o in spec.operands if o.is_register}
        pending.clear()
    assert not pending


@given(BLOCKS)
def test_ends_are_where_each_instruction_ends(block: Virtual):
    records, ends = RegisterState().materialise(block)
    assert ends[0] == 0
    assert ends[-1] == len(records)
    assert records["opcode"][ends[1:] - 1].tolist() == block["opcode"].tolist()


def test_other_fields_are_kept():
    block = make_virtual("ld", 1)
    set_operand(block, 0, 0, 0)
    set_operand(block, 1, 4, 7)
    set_operand(block, 2, 5, -9)
    block["b"], block["c"], block["d"] = 1, 20, 30
    records, _ = RegisterState().materialise(block)
    (load,) = executed(records)
    assert isa.format_record(load.record) == "ld rd=0 rs1=4 offset_select=1 offset_value=20 size=30"
    assert [(int(r["rd"]), int(r["a"])) for r in records[:-1]] == [(0, 0), (4, 7), (5, -9)]


def test_no_instructions():
    records, ends = RegisterState().materialise(make_virtual("nop", 0))
    assert len(records) == 0
    assert ends.tolist() == [0]
