"""Whole streams, and every rule of `verify_streams` on streams that break it."""

from collections.abc import Callable

import numpy as np
import pytest

from raptor.codegen.pimsim import InstructionStreams, generate, verify_streams
from raptor.common.errors import VerifyError
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.target import isa
from tests.pim.programs import of_operations
from tests.pipeline import THESIS_CHIP, Passes, chip, executed, passes, thesis_model
from tests.values import replace

ARCH = chip((3, 3), xbars_per_core=5, cores=16)


@pytest.fixture(scope="module")
def good() -> Passes:
    return passes(thesis_model(4, 8), **THESIS_CHIP)


def changed(good: Passes, core: int, change: Callable[[isa.Records], isa.Records | None]) -> InstructionStreams:
    """The streams with one core's records changed, in place or by what `change` returns."""
    records = good.streams.cores[core].records.copy()
    result = change(records)
    stream = replace(good.streams.cores[core], records=records if result is None else result)
    return InstructionStreams({**good.streams.cores, core: stream})


def first(records: isa.Records, name: str) -> int:
    return int(np.flatnonzero(records["opcode"] == isa.OPCODE[name])[0])


def set_field(name: str, field: str, value: int) -> Callable[[isa.Records], None]:
    """Sets a field of the first instruction of a kind."""

    def change(records: isa.Records) -> None:
        records[field][first(records, name)] = value

    return change


def refuse(good: Passes, message: str, core: int, change: Callable[[isa.Records], isa.Records | None]) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_streams(changed(good, core, change), good.program, ARCH)


def test_accepted(good: Passes):
    verify_streams(good.streams, good.program, ARCH)


def test_streams_start_with_the_widths(good: Passes):
    for stream in good.streams.cores.values():
        assert isa.format_record(stream.records[0]) == "setbw ibiw=8 obiw=8"
        assert (stream.records["opcode"] == isa.OPCODE["setbw"]).sum() == 1


def test_a_core_without_steps_has_no_instructions():
    idle = PimProgram("tiny", {0: CoreProgram(0, (), of_operations(), np.zeros(0, np.int64), 0)}, 0, ())
    streams = generate(idle, ARCH)
    assert len(streams.cores[0].records) == 0
    verify_streams(streams, idle, ARCH)


def test_step_ends_cut_the_stream_into_steps(good: Passes):
    core, stream = good.program.cores[0], good.streams.cores[0]
    assert len(stream.step_ends) == len(core.steps) + 1
    kinds = [type(step.operation).__name__ for step in core.steps]
    names = [
        {e.name for e in executed(stream.records[a:b])}
        for a, b in zip(stream.step_ends, stream.step_ends[1:], strict=False)
    ]
    assert list(zip(kinds, names, strict=True)) == [
        ("Load", {"ld"}),
        ("ApplyFilters", {"lldi", "mvmul", "vvadd"} & names[1]),
        ("Send", {"send"}),
    ]


def test_sends_name_the_address_twice(good: Passes):
    """The ISA reads rs1, the simulator rd."""
    sends = [e for s in good.streams.cores.values() for e in executed(s.records) if e.name == "send"]
    assert sends
    assert all(e.rd == e.rs1 for e in sends)


def test_an_unknown_opcode(good: Passes):
    refuse(good, "stream of core 0, pc 5: unknown opcode 200", 0, lambda r: r["opcode"].__setitem__(5, 200))


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("mvmul", "rs1", 32, "rs1=32 is outside 0..31"),
        ("mvmul", "a", 33, "mbiw=33 is outside 1..32"),
        ("mvmul", "c", -1, "group=-1 is outside 0"),
        ("vvadd", "d", 0, "len=0 is outside 1"),
        ("setbw", "b", 0, "ibiw=0 is outside 1..32"),
        ("send", "a", -1, "core=-1 is outside 0"),
        ("ld", "c", -1, "offset_value=-1 is outside 0"),
    ],
)
def test_an_operand_out_of_range(good: Passes, name: str, field: str, value: int, message: str):
    refuse(good, rf"stream of core 0, pc \d+: {message}", 0, set_field(name, field, value))


def test_no_widths_at_the_start(good: Passes):
    refuse(good, "stream of core 0: setbw does not come first", 0, lambda r: r[1:])


def test_a_scalar_instruction_at_the_end(good: Passes):
    def ends_with_sldi(records: isa.Records) -> isa.Records:
        return np.concatenate([records, records[1:2]])

    refuse(good, "stream of core 0: ends with sldi, so the simulator never finishes it", 0, ends_with_sldi)


def test_a_register_read_before_it_is_written(good: Passes):
    refuse(good, r"stream of core 0, pc \d+: rs1 is read before it is written", 0, set_field("mvmul", "rs1", 20))
    refuse(good, r"stream of core 0, pc \d+: rs2 is read before it is written", 0, set_field("vvadd", "a", 20))


def test_the_second_register_of_a_pair_read_before_it_is_written(good: Passes):
    def without_low_word(records: isa.Records) -> isa.Records:
        return records[~((records["opcode"] == isa.OPCODE["sldi"]) & (records["rd"] == 5))]

    refuse(good, "is read before it is written", 0, without_low_word)


def test_an_address_outside_local_memory(good: Passes):
    def beyond(records: isa.Records) -> None:
        records["a"][first(records, "mvmul") - 1] = 10**6

    refuse(good, "local memory", 0, beyond)


def test_a_core_that_the_chip_does_not_have(good: Passes):
    with pytest.raises(VerifyError, match="stream of core 10: the chip has 10 cores"):
        verify_streams(good.streams, good.program, chip((3, 3), xbars_per_core=5, cores=10))


def test_an_array_group_that_the_core_does_not_have(good: Passes):
    refuse(good, "stream of core 0: array group 5 of 5", 0, set_field("mvmul", "c", 5))


@pytest.mark.parametrize("change", [("d", 40), ("a", 2)], ids=["size", "partner"])
def test_messages_that_disagree(good: Passes, change: tuple[str, int]):
    refuse(good, "streams: sends and receives from core 0 to 1 disagree", 0, set_field("send", *change))
    refuse(good, r"streams: sends and receives from core \d to \d disagree", 1, set_field("recv", *change))
