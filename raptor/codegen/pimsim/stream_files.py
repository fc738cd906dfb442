"""Files of a program for pimsim-nn: streams, groups of crossbars, weights, and what lies where at which instruction."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import orjson

from raptor.codegen.machine_backend import ProgramParts
from raptor.codegen.pimsim.generate_streams import InstructionStreams
from raptor.codegen.pimsim.program_cost import simulate_cost, simulate_peak_w
from raptor.common.files import file_access
from raptor.common.options.option_values import StreamFormat, WeightFormat
from raptor.common.package_clashes import require_own_packages
from raptor.mapping.search_trial import ProgramCost
from raptor.output import file_contents, files, resident_files
from raptor.output.crossbar_matrices import CrossbarMatrices
from raptor.output.machine_files import CodeFacts, Content, FileForms
from raptor.output.trim_files import TrimTable
from raptor.output.trim_table import make_trim_table
from raptor.output.writer import ProgramArtifacts
from raptor.pim import PimProgram
from raptor.spatial import SpatialGraph
from raptor.target import encoding, isa
from raptor.target.arch import Target, Widths
from raptor.target.timing import upper_bound_ns

if TYPE_CHECKING:
    from validator.checks import Finding


@dataclass(frozen=True, slots=True, eq=False)
class PimsimFiles:
    """Contents of the files that only programs for pimsim-nn have.

    `records`, `weights`: no entry for a core without work. `layers`, `steps`: complete files. `auxiliary`: streams
    beside those of a sample, by name of their program and core. `resident`: None for a program that forgets everything
    between two samples. `trim`: None unless the program is trimmable.
    """

    target: Target
    config: files.SimulatorConfig
    layers: bytes
    steps: bytes
    records: Mapping[int, isa.Records]
    weights: Mapping[int, CrossbarMatrices]
    auxiliary: Mapping[str, Mapping[int, isa.Records]]
    resident: resident_files.ResidentMap | None = None
    trim: TrimTable | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(self.auxiliary)

    def records_of(self, core: int) -> isa.Records:
        """Returns the stream of a core; without instructions if it has no work."""
        return self.records[core] if core in self.records else np.zeros(0, isa.RECORD)

    def contents(self, forms: FileForms) -> Iterator[Content]:
        yield from _weights(self.weights, forms.weights)
        yield from _streams(self.records, self.config.core_cnt, forms.streams)
        yield files.CONFIG, [file_access.model_to_json(self.config)]
        if self.resident is not None:
            yield files.RESIDENT, [file_access.model_to_json(self.resident)]
            for name, records in self.auxiliary.items():
                yield from _auxiliary(name, records, self.config, forms.streams)
        yield files.LAYERS, [self.layers]
        yield files.STEPS, [self.steps]
        if self.trim is not None:
            yield files.TRIM, [file_access.model_to_json(self.trim)]

    @property
    def _groups(self) -> dict[int, tuple[int, ...]]:
        return {core: self.config.group_sizes(core) for core in self.records}

    def cost(self, target: Target, samples: int) -> ProgramCost:
        return simulate_cost(self.records, self._groups, target, samples)

    def peak_w(self, target: Target) -> float:
        return simulate_peak_w(self.records, self._groups, target)

    def find_problems(self, memory: files.MemoryMap, *, extended: bool) -> "tuple[Finding, ...]":
        require_own_packages("validator")
        from validator import checks

        cores = range(self.config.core_cnt)
        return checks.check_output(
            [self.records_of(core) for core in cores],
            self.config,
            self.target,
            memory,
            [self.weights[core].shapes if core in self.weights else () for core in cores],
            extended=extended,
            resident=self.resident,
        )

    def group_writes(self, cells_of: Callable[[files.AnyMatrix], int]) -> Iterator[files.GroupWrite]:
        for core, matrices in self.weights.items():
            yield from self.config.list_group_writes(core, matrices, cells_of)


def pimsim_files(artifacts: ProgramArtifacts) -> PimsimFiles:
    """Returns the files of a program that was compiled for pimsim-nn."""
    assert isinstance(artifacts.machine, PimsimFiles), "compiled for another machine"
    return artifacts.machine


def make_facts(streams: InstructionStreams) -> CodeFacts:
    """Returns the instructions of each core."""
    names = [""] * 256
    for instruction in isa.INSTRUCTIONS:
        names[instruction.opcode] = instruction.name
    kinds = {i: stream.records["opcode"] for i, stream in streams.cores.items()}
    return CodeFacts(tuple(names), kinds, {i: stream.step_ends for i, stream in streams.cores.items()})


def make_files(streams: InstructionStreams, parts: ProgramParts) -> PimsimFiles:
    """Returns the files of a program."""
    program, graph, target, facts = parts.program, parts.graph, parts.target, make_facts(streams)
    return PimsimFiles(
        target=target.with_timeout_ms(compute_timeout_ms(graph, program, streams, target)),
        config=file_contents.make_config(program, target),
        layers=file_contents.make_layers(program, facts),
        steps=file_contents.make_steps(program, facts),
        records={i: stream.records for i, stream in streams.cores.items()},
        weights=file_contents.collect_weights(program, graph),
        auxiliary={name: {i: s.records for i, s in cores.items()} for name, cores in streams.auxiliary.items()},
        resident=file_contents.make_resident(graph, program, target),
        trim=make_trim_table(graph, parts.memory, program, facts) if parts.trimmable else None,
    )


def compute_timeout_ms(graph: SpatialGraph, program: PimProgram, streams: InstructionStreams, arch: Target) -> int:
    """Returns a timeout for simulation, in simulated ms: twice the time of all instructions in sequence."""
    if graph.numbers != "float":  # no element is wider than a word
        arch = arch.with_widths(Widths(arch.widths.weights, 32, 32))
    widest = {i: max((g.matrix.xbars for g in core.groups), default=1) for i, core in program.cores.items()}
    total_ns = sum(upper_bound_ns(stream.records, widest[i], arch) for i, stream in streams.cores.items())
    return math.ceil(2 * total_ns / 1e6) + 1


def _auxiliary(
    folder: str, by_core: Mapping[int, isa.Records], config: files.SimulatorConfig, stream_format: StreamFormat
) -> Iterator[Content]:
    """Yields the files of an auxiliary program (initialise, save or restore memory): a folder that the simulator takes.

    It multiplies nothing, so its cores have no array groups.
    """
    groups = dict.fromkeys(config.array_group_map, ())
    own = files.SimulatorConfig(core_cnt=config.core_cnt, array_group_map=groups)
    yield f"{folder}/{files.CONFIG}", [file_access.model_to_json(own)]
    for name, chunks in _streams(by_core, config.core_cnt, stream_format):
        yield f"{folder}/{name}", chunks


def _streams(by_core: Mapping[int, isa.Records], cores: int, stream_format: StreamFormat) -> Iterator[Content]:
    empty = np.zeros(0, isa.RECORD)
    for core in range(cores):
        records = by_core.get(core, empty)
        if stream_format in ("json", "both"):
            yield files.stream_name(core, "json"), encoding.encode_json_chunks(records)
        if stream_format in ("pim", "both"):
            yield files.stream_name(core, "pim"), encoding.encode_pim_chunks(records)


def _weights(weights: Mapping[int, CrossbarMatrices], weight_format: WeightFormat) -> Iterator[Content]:
    chunks = _weights_json if weight_format == "json" else _weights_npz
    for core, matrices in weights.items():
        yield files.weights_name(core, weight_format), chunks(matrices)


def _weights_json(matrices: CrossbarMatrices) -> Iterator[bytes]:
    """Yields `{"0": [[...], ...], ...}`: the matrix of each array group, one group per line."""
    for group, matrix in enumerate(matrices):
        yield b'%s"%d": ' % (b",\n" if group else b"{", group)
        yield orjson.dumps(np.ascontiguousarray(matrix), option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"}\n"


def _weights_npz(matrices: CrossbarMatrices) -> Iterator[bytes]:
    buffer = BytesIO()
    # NOTE: numpy stamps members with a constant date, so equal weights give equal bytes.
    np.savez(buffer, **{str(g): np.ascontiguousarray(m) for g, m in enumerate(matrices)})  # pyright: ignore
    yield buffer.getvalue()
