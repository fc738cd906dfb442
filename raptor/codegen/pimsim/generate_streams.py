"""Pass from PimIR to instruction streams, one per core."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from raptor.codegen.pimsim.assign_registers import VIRTUAL, Ints, RegisterState, Virtual, make_width_setter, width_code
from raptor.codegen.pimsim.form_expansion import FormInstructions
from raptor.pim.auxiliary_programs import Auxiliary, auxiliary_programs
from raptor.pim.ir import CoreProgram, PimProgram
from raptor.target import isa
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True, eq=False)
class CoreStream:
    """Instructions of one core. The first k steps of its program become the first `step_ends[k]` records."""

    records: isa.Records
    step_ends: Ints


@dataclass(frozen=True, slots=True, eq=False)
class InstructionStreams:
    """Instruction streams of the cores that have work, by core.

    `auxiliary`: the streams of the auxiliary programs, by name of the program.
    """

    cores: Mapping[int, CoreStream]
    auxiliary: Mapping[Auxiliary, Mapping[int, CoreStream]] = field(
        default_factory=dict[Auxiliary, Mapping[int, CoreStream]]
    )

    def __str__(self) -> str:
        beside = {f"{name} of core {i}": s for name, streams in self.auxiliary.items() for i, s in streams.items()}
        titled = beside | {f"core {i}": stream for i, stream in self.cores.items()}
        return "".join(map("".join, (_lines(title, stream) for title, stream in titled.items())))


def _lines(title: str, stream: CoreStream) -> Iterator[str]:
    yield f"{title} {{\n"
    for pc, record in enumerate(stream.records):
        yield f"  {pc:6} {isa.format_record(record)}\n"
    yield "}\n"


def generate(program: PimProgram, arch: Target) -> InstructionStreams:
    """Returns the streams of each core, with every operation unrolled into instructions."""
    skeletons = {id(core.steps.forms): core.steps.forms for core in program.cores.values()}
    known = {key: FormInstructions.from_forms(forms, arch) for key, forms in skeletons.items()}
    return InstructionStreams(
        _streams(program.cores, known, arch),
        {name: _streams(cores, known, arch) for name, cores in auxiliary_programs(program).items()},
    )


def _streams(
    cores: Mapping[int, CoreProgram], known: Mapping[int, FormInstructions], arch: Target
) -> dict[int, CoreStream]:
    return {i: _stream(core, known[id(core.steps.forms)], arch) for i, core in cores.items()}


def _stream(core: CoreProgram, skeletons: FormInstructions, arch: Target) -> CoreStream:
    if not len(core.steps):
        return CoreStream(np.zeros(0, isa.RECORD), np.zeros(1, np.intp))
    body, counts = skeletons.instructions(core, arch)
    widths = initial_widths(body, arch)
    records, ends = RegisterState(widths=widths).materialise(
        np.concatenate([make_width_setter(widths), body], dtype=VIRTUAL)
    )
    return CoreStream(records, ends[1 + np.concatenate([[0], np.cumsum(counts)])])


def initial_widths(body: Virtual, arch: Target) -> int:
    """Returns the width code that a core sets at the start: of its first instruction that depends on widths.

    Every stream begins with a `setbw`. Without it, MVMs cost next to nothing in the simulator.
    """
    wanted = body["widths"][body["widths"] > 0]
    return int(wanted[0]) if len(wanted) else width_code(arch.element_bits, arch.element_bits)
