"""The compiler: one readable list of passes from ONNX to instruction streams."""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raptor import (
    codegen,
    frontend,
    pim,
    spatial,
)
from raptor.codegen import Streams
from raptor.common.errors import (
    InternalError,
    UnsupportedError,
    UnsupportedNode,
    UserError,
)
from raptor.common.options import Objective
from raptor.common.spelling import option
from raptor.driver import Driver
from raptor.graph.ir import (
    EXTENDED,
    Graph,
    Map,
    Operator,
    Softmax,
)
from raptor.mapping.decision import Mapping as Placement
from raptor.mapping.decision import map_raptor
from raptor.mapping.file import read_mapping, write_mapping
from raptor.mapping.pixelwise import map_pixelwise
from raptor.mapping.rows import map_rows
from raptor.mapping.trial import Trial
from raptor.output import files
from raptor.output.compile_report import make_report
from raptor.output.writer import Artifacts
from raptor.pim import GlobalMemory, PimProgram
from raptor.search import EFFORT, search
from raptor.spatial import SpatialGraph
from raptor.target.arch import Arch, check_network_size
from raptor.target.timing import longest_ns

if TYPE_CHECKING:
    import onnx

Floats = npt.NDArray[np.float32]


STRATEGIES = {"raptor": map_raptor, "rows": map_rows, "pixelwise": map_pixelwise}
"""Mapping strategies by name (docs/design.md)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How the mapping is found.

    `strategy`: a name of `STRATEGIES`, or the path of a stored mapping. With `optimize`, a search of `effort`
    mappings instead. `emit`: where to store what was found.
    """

    strategy: str
    optimize: Objective | None = None
    effort: int = EFFORT
    emit: Path | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A mapping; the `trials` of a search, `notes` on a file that was replayed."""

    mapping: Placement
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        tried = (f"tried {t.name}: {t.fault or f'{t.cost:.10g}'}\n" for t in self.trials)
        return f"{self.mapping}{''.join(tried)}"


def choose_mapping(choice: Choice, graph: Graph, arch: Arch) -> Chosen:
    """Raises `UserError` for a stored mapping that is not one for this model and chip."""
    if choice.optimize is not None:
        return Chosen(*search(graph, arch, choice.optimize, choice.effort, partial(_build, graph, arch)))
    if choice.strategy in STRATEGIES:
        return Chosen(STRATEGIES[choice.strategy](graph, arch))
    mapping, notes = read_mapping(Path(choice.strategy), graph, arch)
    return Chosen(mapping, notes=notes)


@contextmanager
def _blaming_its_file(choice: Choice) -> Generator[None]:
    """What passes cannot do with a mapping that somebody wrote is the mapping's fault, not ours."""
    try:
        yield
    except InternalError as e:
        if choice.optimize is not None or choice.strategy in STRATEGIES:
            raise
        reason = e.__cause__ if isinstance(e.__cause__, InternalError) else e
        raise UserError(f"{option('mapping', choice.strategy)}: not a mapping for this model: {reason}") from e


def _build(graph: Graph, arch: Arch, mapping: Placement) -> tuple[PimProgram, Streams]:
    """What a mapping comes to; not verified, as what is chosen of several is built again."""
    placed = spatial.place_cores(spatial.partition(graph, mapping), mapping, arch)
    schedule = spatial.schedule(placed, mapping, arch)
    placed = pim.reuse_operands(pim.place(schedule, pim.map_global_memory(schedule)))
    program = pim.allocate(placed, arch)
    return program, codegen.generate(program, arch)


def compile_model(
    source: "str | Path | onnx.ModelProto",
    arch: Arch,
    driver: Driver,
    *,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    constants: Mapping[str, Any],
    base_isa: bool = False,
    choice: Choice,
    options: Mapping[str, Any],
) -> Artifacts:
    """Runs every pass. `options` are recorded in the manifest, with the inputs that are constants.

    `base_isa` refuses extended instructions.
    """
    check_network_size(arch)
    load = partial(frontend.load, shapes=shapes, dims=dims, constants=constants)
    model = driver.run("import", lambda m: m.graph.verify(), load, source)
    if base_isa:
        _refuse_extensions(model.graph)
    graph = driver.run("fold_relu", Graph.verify, spatial.fold_relu, model.graph, arch)
    graph = driver.run("choose_depthwise", Graph.verify, spatial.choose_depthwise, graph, arch)
    chosen = driver.run("map", _nothing, choose_mapping, choice, graph, arch)
    mapping = chosen.mapping
    with _blaming_its_file(choice):
        tiles, memory, program, streams = _lower(driver, graph, mapping, arch)
    if choice.emit is not None:
        write_mapping(choice.emit, mapping, graph, arch)
    warnings = (*model.notes, *arch.notes, *chosen.notes, *pim.memory_warnings(program, arch))
    report = make_report(graph, tiles, mapping, program, streams, arch, warnings, chosen.trials)
    return Artifacts(
        name=model.name,
        arch=arch.with_timeout_ms(_timeout_ms(program, streams, arch)),
        options={**options, files.CONSTANT_INPUTS: {n: v.tolist() for n, v in model.constants.items()}},
        config=_config(program, arch),
        memory=_memory_map(tiles, memory, program, arch),
        layers=_layers(program, streams, arch),
        steps=_steps(program, streams),
        report=report,
        records={i: stream.records for i, stream in streams.cores.items()},
        weights=_weights(program, tiles),
        constants=memory.constant_values,
        onnx_bytes=model.onnx_bytes,
    )


def _lower(
    driver: Driver, graph: Graph, mapping: Placement, arch: Arch
) -> tuple[SpatialGraph, GlobalMemory, PimProgram, Streams]:
    """The passes after the mapping."""
    verify_pim = partial(pim.verify, arch=arch)
    verify_partition = partial(spatial.verify_partition, arch=arch)
    tiles = driver.run("partition", verify_partition, spatial.partition, graph, mapping)
    verify_placed = partial(spatial.verify_placed, partition=tiles, arch=arch)
    on_chip = driver.run("place_cores", verify_placed, spatial.place_cores, tiles, mapping, arch)
    verify_schedule = partial(spatial.verify_schedule, placed=on_chip)
    schedule = driver.run("schedule", verify_schedule, spatial.schedule, on_chip, mapping, arch)
    memory = driver.run("map_memory", _nothing, pim.map_global_memory, schedule)
    placed = driver.run("place", verify_pim, pim.place, schedule, memory)
    reused = driver.run("reuse_operands", verify_pim, pim.reuse_operands, placed)
    program = driver.run("allocate", verify_pim, pim.allocate, reused, arch)
    streams = driver.run(
        "generate", lambda s: codegen.verify_streams(s, program, arch), codegen.generate, program, arch
    )
    return tiles.graph, memory, program, streams


def _nothing(_: object) -> None:
    """For values whose invariants the next pass verifies."""


def _refuse_extensions(graph: Graph) -> None:
    """All nodes that need an instruction outside the published set."""
    nodes = {n.name: n for n in graph.nodes if _extension(n.operator)}
    if nodes:
        reason = f"needs the extended instruction {{}}, which {option('base_isa', True)} excludes"
        raise UnsupportedError(
            [UnsupportedNode(n.name, n.op_type, reason.format(_extension(n.operator))) for n in nodes.values()]
        )


def _extension(operator: Operator) -> str | None:
    if isinstance(operator, Softmax):
        return "vsoftmax"
    if isinstance(operator, Map) and operator.function in EXTENDED:
        return codegen.VECTOR_OPCODE[operator.function]
    return None


def _timeout_ms(program: PimProgram, streams: Streams, arch: Arch) -> int:
    """Simulated time after which a run has gone wrong: twice the cores one after another, nothing overlapped."""
    widest = {i: max((g.matrix.xbars for g in core.groups), default=1) for i, core in program.cores.items()}
    total_ns = sum(longest_ns(stream.records, widest[i], arch) for i, stream in streams.cores.items())
    return math.ceil(2 * total_ns / 1e6) + 1


def _config(program: PimProgram, arch: Arch) -> files.Config:
    groups = {f"core{i}": () for i in range(arch.core_count)}
    groups |= {f"core{i}": tuple(g.matrix.xbars for g in core.groups) for i, core in program.cores.items()}
    return files.Config(core_cnt=arch.core_count, array_group_map=groups)


def _memory_map(graph: SpatialGraph, memory: GlobalMemory, program: PimProgram, arch: Arch) -> files.Memory:
    width = arch.element_bytes
    used = {i: core.local_elements * width for i, core in program.cores.items()}
    return files.Memory(
        element_bits=arch.element_bits,
        element_bytes=width,
        size_bytes=memory.elements * width,
        local_bytes=tuple(used.get(i, 0) for i in range(arch.core_count)),
        inputs=tuple(_tensor_place(graph, n, memory.inputs[n], width) for n in graph.inputs),
        constants=files.ConstantsPlace(address=memory.constants_address * width, elements=memory.constant_values.size),
        outputs=tuple(_tensor_place(graph, n, memory.outputs[n], width) for n in graph.outputs),
    )


def _tensor_place(graph: SpatialGraph, name: str, addresses: tuple[int, ...], element_bytes: int) -> files.TensorPlace:
    tensor = graph.tensors[name]
    return files.TensorPlace(
        name=name,
        shape=tensor.shape,
        image_shape=tensor.image.shape,
        channel_axis=tensor.image.channel_axis,
        tiles=tuple(
            files.TilePlace(
                channels=p.region.channels, rows=p.region.rows, cols=p.region.cols, address=at * element_bytes
            )
            for p, at in zip(tensor.parts, addresses, strict=True)
        ),
    )


def _layers(program: PimProgram, streams: Streams, arch: Arch) -> files.Layers:
    def tile(spot: pim.Spot) -> files.ProbeTile:
        core = program.cores[spot.core]
        (buffer,) = core.steps[spot.step - 1].operation.results
        return files.ProbeTile(
            channels=spot.region.channels,
            rows=spot.region.rows,
            cols=spot.region.cols,
            core=spot.core,
            pc=int(streams.cores[spot.core].step_ends[spot.step]),
            address=core.address(buffer) * arch.element_bytes,
        )

    probes = (
        files.Probe(
            tensor=t.tensor,
            node=t.node,
            image_shape=t.image.shape,
            channel_axis=t.image.channel_axis,
            tiles=tuple(map(tile, t.spots)),
        )
        for t in program.traces
    )
    return files.Layers(probes=tuple(probes))


def _steps(program: PimProgram, streams: Streams) -> files.Steps:
    """Which node and operation each instruction serves; a core's prologue counts to its first step."""
    steps = {i: core.steps for i, core in program.cores.items() if core.steps}
    nodes = {name: k for k, name in enumerate(dict.fromkeys(s.node for core in steps.values() for s in core))}
    kinds = dict.fromkeys(codegen.operation_name(s.operation) for core in steps.values() for s in core)
    operations = {name: k for k, name in enumerate(kinds)}
    cores = (
        files.CoreSteps(
            core=i,
            ends=tuple(map(int, streams.cores[i].step_ends[1:])),
            nodes=tuple(nodes[s.node] for s in core),
            operations=tuple(operations[codegen.operation_name(s.operation)] for s in core),
        )
        for i, core in steps.items()
    )
    return files.Steps(nodes=tuple(nodes), operations=tuple(operations), cores=tuple(cores))


def _weights(program: PimProgram, graph: SpatialGraph) -> dict[int, list[Floats]]:
    """The matrix of each array group: views of the layers' weights, except of grouped convolutions."""
    return {i: [g.matrix.values(graph.filters[g.layer]) for g in c.groups] for i, c in program.cores.items()}
