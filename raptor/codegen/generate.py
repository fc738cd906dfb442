"""PimIR to instruction streams: one for each core."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from raptor.codegen.emit import Emitter
from raptor.codegen.registers import VIRTUAL, Ints, Registers, Virtual, set_widths, width_code
from raptor.pim.ir import Buffer, CoreProgram, PimProgram
from raptor.spatial.operations import Operation
from raptor.target import isa
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Instructions of one core. The first k steps of its program take the first `step_ends[k]` records."""

    records: isa.Records
    step_ends: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Streams of the cores that have work, by number of the core."""

    cores: Mapping[int, Stream]

    def __str__(self) -> str:
        return "".join(map("".join, (_lines(core, stream) for core, stream in self.cores.items())))


def _lines(core: int, stream: Stream) -> Iterator[str]:
    yield f"core {core} {{\n"
    for pc, record in enumerate(stream.records):
        yield f"  {pc:6} {isa.text(record)}\n"
    yield "}\n"


def generate(program: PimProgram, arch: Target) -> Streams:
    """Returns the stream of each core, with every operation unrolled into instructions."""
    return Streams({i: _stream(core, arch) for i, core in program.cores.items()})


def _stream(core: CoreProgram, arch: Target) -> Stream:
    if not core.steps:
        return Stream(np.zeros(0, isa.RECORD), np.zeros(1, np.intp))
    body, counts = Emitter(core, arch).emit([step.operation for step in core.steps])
    widths = first_widths(body, arch)
    records, ends = Registers(widths=widths).materialise(np.concatenate([set_widths(widths), body], dtype=VIRTUAL))
    return Stream(records, ends[1 + np.cumsum([0, *counts])])


def first_widths(body: Virtual, arch: Target) -> int:
    """Returns the widths that a core sets at the start: those of its first instruction that depends on widths.

    Every stream begins with a `setbw`. Without it, MVMs cost next to nothing in the simulator.
    """
    wanted = body["widths"][body["widths"] > 0]
    return int(wanted[0]) if len(wanted) else width_code(arch.element_bits, arch.element_bits)


def operation_name(operation: Operation[Buffer]) -> str:
    """Returns the name of an operation for people, such as `apply filters`."""
    return _spoken(type(operation).__name__)


@cache
def _spoken(name: str) -> str:
    """Returns the name of a class as words."""
    return re.sub("(?<!^)(?=[A-Z])", " ", name).lower()
