"""Times of every instruction of the table, by its row: none silently gets the time of another kind."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raptor.target import arch as architectures
from raptor.target.isa import (
    BY_NAME,
    INSTRUCTIONS,
    Instruction,
    Operand,
    OperandKind,
    Timing,
    Unit,
)
from raptor.target.opcode_tables import MISSING, OPCODE_RULES, RuleColumn
from tests.validator.builder import op, stream
from validator.errors import ProgramError
from validator.program.pimsim_program import RawProgram
from validator.simulate.builtin import estimate_program
from validator.simulate.cycle import cycle_model

LENGTH, WIDTH_IN, WIDTH_OUT = 100, 2, 4
CHIP = architectures.load("bench", cores=1)
WIDE = {
    "vvmul",
    "vvsll",
    "vvsra",
    "vtanh",
    "vsigm",
    "vsoftmax",
    "vrsu",
    "vrsl",
    "vexp",
    "vlog",
    "vsqrt",
    "verf",
    "vvdiv",
}
"""Opcodes that are charged for results of the output width; vvdmul and vavg are not, though their result has it."""
VECTORS = [i for i in INSTRUCTIONS if i.unit is Unit.VECTOR]


def latency_ns(*rows: tuple[int, ...]) -> float:
    widths = op("setbw", ibiw=8 * WIDTH_IN, obiw=8 * WIDTH_OUT)
    raw = RawProgram(1, ((),), (stream(widths, *rows),), (True,), ("",), Path(), Path())
    return estimate_program(raw, CHIP, 0)[0]


def vector_ns(spec: Instruction) -> float:
    """Computes the time (docs/developers/target.md, 4.2): reads of operands, steps of the unit, write of the result."""
    core, memory = CHIP.core, CHIP.core.memory
    operands = sum(o.kind is OperandKind.SOURCE for o in BY_NAME[spec.simulated_as or spec.name].operands)
    read = math.ceil(WIDTH_IN * LENGTH / memory.beat_bytes) * memory.read_cycles
    width = WIDTH_OUT if (spec.simulated_as or spec.name) in WIDE else WIDTH_IN
    write = math.ceil(width * LENGTH / memory.beat_bytes) * memory.write_cycles
    steps = math.ceil(LENGTH / core.vector_width) * core.vector_step_ns
    return operands * read + steps + write


@pytest.mark.parametrize("spec", VECTORS, ids=lambda s: s.name)
def test_a_vector_instruction_takes_what_its_row_says(spec: Instruction):
    row = op(spec.name, len=LENGTH)
    assert latency_ns(row, row) - latency_ns(row) == vector_ns(spec) + 2


def test_an_instruction_of_our_own_says_what_it_is_simulated_as():
    operands: tuple[Operand, ...] = VECTORS[0].operands
    with pytest.raises(ValueError, match="vabs: simulated_as must say"):
        Instruction(99, "vabs", Timing.VECTOR, operands, "y = abs(a)")


def test_what_it_is_simulated_as_has_its_shape():
    known = {i.name: i for i in INSTRUCTIONS}
    for spec in INSTRUCTIONS:
        if spec.simulated_as is not None:
            other = known[spec.simulated_as]
            assert not other.extension
            assert other.timing is spec.timing
            own = [o for o in spec.operands if o.name == "rs2" and spec.name in TABLES]
            kept = [o for o in other.operands if not own or o.name != "rs2"]
            assert [(o.kind, o.access) for o in kept] == [(o.kind, o.access) for o in spec.operands if o not in own]


def test_the_hazard_check_sees_of_a_table_what_it_would_read_there():
    """It takes `vlut` for an instruction of one operand, and `vrequant` for a product of two vectors."""
    assert [BY_NAME[name].operand("rs2").seen for name in TABLES] == [None, BY_NAME["vvmul"].operand("rs2").seen]


@pytest.mark.parametrize("spec", INSTRUCTIONS, ids=lambda s: s.name)
def test_every_instruction_has_a_time(spec: Instruction):
    """In the table, which is all that the model looks at."""
    assert OPCODE_RULES[spec.opcode, RuleColumn.TIMING] == spec.timing
    assert list(Unit)[OPCODE_RULES[spec.opcode, RuleColumn.UNIT]] is spec.unit


def test_an_opcode_without_a_row_has_nothing():
    known = {i.opcode for i in INSTRUCTIONS}
    assert {int(code) for code in np.flatnonzero((OPCODE_RULES != MISSING).any(axis=1))} == known


def test_an_instruction_without_a_time_is_named(monkeypatch: pytest.MonkeyPatch):
    rules = OPCODE_RULES.copy()
    rules[BY_NAME["vrelu"].opcode] = MISSING
    monkeypatch.setattr(cycle_model, "OPCODE_RULES", rules)
    with pytest.raises(ProgramError, match=r"vrelu .*: the table of instructions gives it no time"):
        latency_ns(op("vrelu", len=LENGTH))


@pytest.mark.parametrize(
    ("column", "fault"), [(RuleColumn.TIMING, "takes no known"), (RuleColumn.UNIT, "without a unit")]
)
def test_a_time_that_the_model_does_not_know_is_a_fault(
    column: RuleColumn, fault: str, monkeypatch: pytest.MonkeyPatch
):
    """And is not taken for the last case of a dispatch."""
    rules = OPCODE_RULES.copy()
    rules[BY_NAME["vrelu"].opcode, column] = 99
    monkeypatch.setattr(cycle_model, "OPCODE_RULES", rules)
    with pytest.raises(NotImplementedError, match=fault):
        latency_ns(op("vrelu", len=LENGTH))


LACKS = {
    "timing must say": {"timing": None},
    "simulated_as must say": {"simulated_as": None},
    "access of rd must say": {"operands": (replace(BY_NAME["vexp"].operands[0], access=None),)},
    "access of rs1 must say": {"operands": (replace(BY_NAME["vexp"].operands[1], access=None),)},
}


@pytest.mark.parametrize("message", LACKS)
def test_a_row_that_lacks_something_says_what(message: str):
    with pytest.raises(ValueError, match=f"vexp: {message}"):
        replace(BY_NAME["vexp"], **LACKS[message])


TABLES = {"vlut": "table", "vrequant": "parameters"}
"""Operands `rs2` that differ from those of the instruction that they are simulated as."""
ONE, LENGTH_IN, LENGTH_OUT, BYTES = "one", "inputs", "outputs", "bytes"
ACCESSES = {
    # name: (rd, rs1, rs2), by the text of the ISA. RAPTOR's own are like those that they are simulated as.
    **dict.fromkeys(("vvadd", "vvsub", "vvmax"), (LENGTH_IN, LENGTH_IN, LENGTH_IN)),
    **dict.fromkeys(("vvmul", "vvsll", "vvsra"), (LENGTH_OUT, LENGTH_IN, LENGTH_IN)),
    "vvdmul": (ONE, LENGTH_IN, LENGTH_IN),
    "vavg": (ONE, LENGTH_IN, None),
    **dict.fromkeys(("vrelu", "vmv"), (LENGTH_IN, LENGTH_IN, None)),
    **dict.fromkeys(("vtanh", "vsigm"), (LENGTH_OUT, LENGTH_IN, None)),
    **dict.fromkeys(("vrsu", "vrsl"), (LENGTH_OUT, LENGTH_IN, None)),
    "mvmul": ("columns", "rows", None),
    **dict.fromkeys(("ld", "lldi", "recv"), (BYTES, None, None)),
    **dict.fromkeys(("st", "send"), (None, BYTES, None)),
    "lmv": (BYTES, BYTES, None),
}
COUNTS = {
    (0, 0): None,
    (1, 2): ONE,
    (2, 0): BYTES,
    (2, 1): LENGTH_IN,
    (2, 2): LENGTH_OUT,
    (3, 1): "rows",
    (4, 2): "columns",
    (2, 3): "parameters",
    (5, 2): "table",
}


@pytest.mark.parametrize("spec", INSTRUCTIONS, ids=lambda s: s.name)
def test_every_instruction_has_an_access_rule(spec: Instruction):
    row, name = [int(x) for x in OPCODE_RULES[spec.opcode]], spec.simulated_as or spec.name
    found = [COUNTS[row[RuleColumn.COUNT_RD + k], row[RuleColumn.WIDTH_RD + k]] for k in range(3)]
    assert found[:2] == [*ACCESSES.get(name, (None, None))][:2]
    assert found[2] == TABLES.get(spec.name, ACCESSES.get(name, (None, None, None))[2])
    assert bool(row[RuleColumn.STRIDED]) == (spec.name in ("vavg", "vmv"))
    assert (name in ACCESSES) == (spec.unit is not Unit.SCALAR and spec.name not in ("wait", "sync"))
