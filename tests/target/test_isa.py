"""The instruction table: one golden record per opcode, text, and ranges."""

import numpy as np
import pytest

from raptor.target import encoding, isa
from raptor.target.isa import (
    BY_NAME,
    INSTRUCTIONS,
    RECORD,
    OperandKind,
)
from tests.validator.builder import op, stream

# Written by hand after pimsim-nn's toBinaryRecord (src/isa/Instruction.cpp): opcode, rd, r1, flags, then the int32
# fields r2_or_imm, generic1, generic2, generic3, little endian. A round trip cannot see a slot that is wrong twice.
GOLDEN = {
    "nop": "00000000 00000000 00000000 00000000 00000000",
    "sldi": "01010000 05000000 00000000 00000000 00000000",
    "sld": "02010200 00000000 00000000 07000000 00000000",
    "sadd": "03010200 00000000 00000000 00000000 00000000",
    "ssub": "04010200 00000000 00000000 00000000 00000000",
    "smul": "05010200 00000000 00000000 00000000 00000000",
    "saddi": "06010200 05000000 00000000 00000000 00000000",
    "smuli": "07010200 05000000 00000000 00000000 00000000",
    "setbw": "08000000 00000000 08000000 10000000 00000000",
    "mvmul": "09010200 08000000 01000000 04000000 00000000",
    "vvadd": "0a010200 03000000 07000000 09000000 80000000",
    "vvsub": "0b010200 03000000 07000000 09000000 80000000",
    "vvmul": "0c010200 03000000 07000000 09000000 80000000",
    "vvdmul": "0d010200 03000000 07000000 09000000 80000000",
    "vvmax": "0e010200 03000000 07000000 09000000 80000000",
    "vvsll": "0f010200 03000000 07000000 09000000 80000000",
    "vvsra": "10010200 03000000 07000000 09000000 80000000",
    "vavg": "11010200 03000000 07000000 09000000 80000000",
    "vrelu": "12010200 00000000 07000000 09000000 80000000",
    "vtanh": "13010200 00000000 07000000 09000000 80000000",
    "vsigm": "14010200 00000000 07000000 09000000 80000000",
    "vsoftmax": "15010200 00000000 07000000 09000000 80000000",
    "vmv": "16010200 03000000 07000000 09000000 80000000",
    "vrsu": "17010200 03000000 07000000 09000000 80000000",
    "vrsl": "18010200 03000000 07000000 09000000 80000000",
    "ld": "19010200 00000000 07000000 09000000 40000000",
    "st": "1a010200 00000000 07000000 09000000 40000000",
    "lldi": "1b010000 05000000 07000000 09000000 80000000",
    "lmv": "1c010200 00000000 07000000 09000000 80000000",
    "send": "1d010200 0b000000 07000000 09000000 40000000",
    "recv": "1e010000 0b000000 07000000 09000000 40000000",
    "wait": "1f000000 00000000 06000000 03000000 00000000",
    "sync": "20000000 0b000000 06000000 00000000 00000000",
}
OWN = 64
"""The first opcode of RAPTOR's own."""
LAID_OUT_AS = {"vlut": "vvmul"}
"""RAPTOR's own that have more operands than those that they are simulated as."""
VALUES = {
    **{"rd": 1, "rs1": 2, "rs2": 3, "imm": 5, "mbiw": 8, "relu": 1, "group": 4, "ibiw": 8, "obiw": 16, "len": 128},
    **{"size": 64, "core": 11, "event_register": 6, "wait_value": 3, "offset_select": 7, "offset_value": 9},
}


def example(name: str) -> tuple[int, ...]:
    """The instruction of `GOLDEN`."""
    values = {o.name: VALUES[o.name] for o in BY_NAME[name].operands}
    if name == "sld":
        values["offset_value"] = 7
    if name in ("sadd", "ssub", "smul"):
        values["rs2"] = 0  # lost by the simulator
    return op(name, **values)


def test_golden_covers_the_table() -> None:
    assert GOLDEN.keys() == {i.name for i in INSTRUCTIONS if i.opcode < OWN}


@pytest.mark.parametrize("spec", INSTRUCTIONS, ids=lambda i: i.name)
def test_known_bytes(spec: isa.Instruction) -> None:
    """RAPTOR's own are laid out as those that they are simulated as."""
    content = encoding.encode_pim(stream(example(spec.name)))
    assert content[:12] == b"PIMB" + bytes([1, 0, 0, 0, 1, 0, 0, 0])
    like = LAID_OUT_AS.get(spec.name, spec.simulated_as)
    rest = GOLDEN[spec.name if spec.opcode < OWN else str(like)][2:]
    assert content[12:].hex(" ", 4) == f"{spec.opcode:02x}{rest}"


def test_opcodes_are_those_of_the_simulator_and_records_have_20_bytes() -> None:
    published = [i for i in INSTRUCTIONS if i.opcode < OWN]
    assert [i.opcode for i in published] == [*range(33)]
    assert [i.opcode for i in INSTRUCTIONS[33:]] == [*range(OWN, OWN + len(INSTRUCTIONS) - 33)]
    assert {i.name for i in INSTRUCTIONS if i.extension} == {"vsoftmax"} | {i.name for i in INSTRUCTIONS[33:]}
    assert RECORD.itemsize == 20


@pytest.mark.parametrize("spec", INSTRUCTIONS, ids=lambda i: i.name)
def test_operands_have_slots_and_keys_of_their_own(spec: isa.Instruction) -> None:
    for what in ([o.slot for o in spec.operands], [k for o in spec.operands for k in o.json]):
        assert len(what) == len(set(what))


@pytest.mark.parametrize("spec", INSTRUCTIONS, ids=lambda i: i.name)
def test_every_bound_is_kept(spec: isa.Instruction) -> None:
    for operand in spec.operands:
        for value, refused in ((operand.low, False), (operand.high, False), (operand.low - 1, True)):
            limits = np.iinfo(RECORD[operand.slot])
            if limits.min <= value <= limits.max:
                records = stream(example(spec.name))
                records[operand.slot] = value
                faults = [f for f in isa.find_range_faults(records) if f.operand is operand]
                assert bool(faults) is refused


def test_a_fault_says_what_and_where() -> None:
    records = stream(example("sldi"), op("vvadd", rd=40, rs1=1, rs2=2, len=4))
    (fault,) = isa.find_range_faults(records)
    assert (fault.pc, str(fault)) == (1, "rd=40 is outside 0..31")
    records["opcode"] = 99
    assert [str(f) for f in isa.find_range_faults(records)] == ["unknown opcode 99"] * 2


def test_text() -> None:
    assert isa.format_record(stream(op("vvadd", rd=1, rs1=1, rs2=3, len=128))[0]) == "vvadd rd=1 rs1=1 rs2=3 len=128"
    moved = op("lmv", rd=1, rs1=2, offset_select=1, offset_value=4, len=8)
    assert isa.format_record(stream(moved)[0]) == "lmv rd=1 rs1=2 offset_select=1 offset_value=4 len=8"
    records = stream(op("nop"))
    records["opcode"] = 77
    assert isa.format_record(records[0]) == "<unknown opcode 77>"


def test_pairs_are_even_registers_by_kind() -> None:
    pairs = {i.name: [o.name for o in i.operands if o.kind is OperandKind.USE_PAIR] for i in INSTRUCTIONS}
    assert {k: v for k, v in pairs.items() if v} == {"sld": ["rs1"], "ld": ["rs1"], "st": ["rd"]}
