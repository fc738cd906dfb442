"""Times of every instruction of the table, by its row: none silently gets the time of another kind."""

import math
from pathlib import Path

import pytest

from raptor.target import arch as architectures
from raptor.target.isa import (
    INSTRUCTIONS,
    Instruction,
    Kind,
    Operand,
    Unit,
)
from tests.validator.builder import op, stream
from validator.checks.columns import WRITES_OUTPUT_WIDTH
from validator.programs import RawProgram
from validator.simulate.builtin import estimate

LENGTH, WIDTH_IN, WIDTH_OUT = 100, 2, 4
CHIP = architectures.load("bench", cores=1).file
VECTORS = [i for i in INSTRUCTIONS if i.unit is Unit.VECTOR]


def latency_ns(*rows: tuple[int, ...]) -> float:
    widths = op("setbw", ibiw=8 * WIDTH_IN, obiw=8 * WIDTH_OUT)
    raw = RawProgram(1, ((),), (stream(widths, *rows),), (True,), ("",), Path(), Path())
    return estimate(raw, CHIP, None, 0)[0]


def vector_ns(spec: Instruction) -> float:
    """Computes the time by docs/target.md, 4.2: reads of each operand, steps of the unit, the write of the result."""
    core = CHIP.chip_config.core_config
    memory = core.local_memory_config
    operands = sum(o.kind is Kind.SOURCE for o in spec.operands)
    read = math.ceil(WIDTH_IN * LENGTH / memory.data_width) * memory.read_latency_cycle
    width = WIDTH_OUT if WRITES_OUTPUT_WIDTH[spec.opcode] and spec.name not in ("vvdmul", "vavg") else WIDTH_IN
    write = math.ceil(width * LENGTH / memory.data_width) * memory.write_latency_cycle
    steps = math.ceil(LENGTH / core.vector_width) * core.vector_latency_cycle
    return operands * read + steps + write


@pytest.mark.parametrize("spec", VECTORS, ids=lambda s: s.name)
def test_a_vector_instruction_takes_what_its_row_says(spec: Instruction):
    row = op(spec.name, len=LENGTH)
    assert latency_ns(row, row) - latency_ns(row) == vector_ns(spec) + 2


def test_an_instruction_of_our_own_says_what_it_is_simulated_as():
    operands: tuple[Operand, ...] = VECTORS[0].operands
    with pytest.raises(ValueError, match="vabs: simulated_as must say"):
        Instruction(69, "vabs", Unit.VECTOR, operands, "y = abs(a)")


def test_what_it_is_simulated_as_has_its_shape():
    known = {i.name: i for i in INSTRUCTIONS}
    for spec in INSTRUCTIONS:
        if spec.simulated_as is not None:
            other = known[spec.simulated_as]
            assert not other.extension
            assert (other.unit, [o.kind for o in other.operands]) == (spec.unit, [o.kind for o in spec.operands])
