"""Columns of the streams: what they hold, and how much memory they take beside the streams."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from raptor.target.isa import OPCODE, RECORD, Records
from tests.validator.builder import op, stream
from validator.checks.instruction_table import make_instruction_table, opcode_mask


def peak_bytes(work: Callable[[], object]) -> int:
    """Returns the most memory that some work takes at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def random_streams(cores: int, length: int) -> list[Records]:
    values = np.random.default_rng(0).integers(0, 256, (cores, length, RECORD.itemsize), dtype=np.uint8)
    return list(values.view(RECORD)[..., 0])


@pytest.mark.parametrize("cores", [0, 1, 255, 256, 257])
def test_columns_hold_every_field_of_all_streams(cores: int):
    streams = random_streams(cores, 3)
    found = make_instruction_table(streams)
    together = np.concatenate([np.zeros(0, RECORD), *streams])
    for name in RECORD.names or ():
        column = found.flag_column() if name == "flags" else getattr(found, name)
        assert column.tolist() == together[name].tolist()
    assert found.core.tolist() == [core for core in range(cores) for _ in range(3)]


def test_an_instruction_is_found_at_its_place_among_cores_without_any():
    streams = [
        stream(),
        stream(op("nop"), op("vrelu", rd=1, rs1=2, len=3)),
        stream(),
        stream(op("sldi", rd=255, imm=4)),
    ]
    found = make_instruction_table(streams)
    assert [found.locate_instruction(i)[:2] for i in range(3)] == [(1, 0), (1, 1), (3, 0)]
    assert found.locate_instruction(2)[2] == "sldi rd=255 imm=4"


def test_a_table_of_opcodes_is_looked_up_for_each_instruction():
    found = make_instruction_table(random_streams(5, 100))
    table = np.arange(256, dtype=np.int16)[::-1]
    assert found.look_up_opcodes(table).tolist() == table[found.opcode].tolist()
    wanted = [OPCODE["send"], OPCODE["recv"]]
    assert found.find_named("send", "recv").tolist() == np.flatnonzero(np.isin(found.opcode, wanted)).tolist()


def test_columns_take_hardly_more_memory_than_the_streams():
    """BERT-base has 15 million instructions. A copy of the records beside their columns took 0.7 GiB for them."""
    streams = random_streams(64, 2000)
    assert peak_bytes(lambda: make_instruction_table(streams)) < 1.2 * sum(s.nbytes for s in streams)


def test_a_lookup_by_opcode_takes_hardly_more_memory_than_its_result():
    found = make_instruction_table(random_streams(64, 2000))
    assert peak_bytes(lambda: found.look_up_opcodes(opcode_mask("send", "recv"))) < 1.5 * len(found)
