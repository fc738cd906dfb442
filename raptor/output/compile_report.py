"""`report.json`: resources of a compiled program, per layer and per core.

It holds no wall-clock times, so equal inputs give equal bytes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from raptor.common.files import file_access
from raptor.common.files.program_path import check_program_path
from raptor.common.files.schema_types import JsonArray, JsonObject, StrictSchema
from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.layers import filter_key
from raptor.graph.mac_count import count_macs
from raptor.mapping.decision import Decision, FullyConnected, KernelUnfolding, LineUnfolding, Matrix
from raptor.mapping.decision import LayerRecord as DecidedLayer
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.mapping.paces import StoredPace
from raptor.mapping.search_trial import SearchTrial
from raptor.output import files
from raptor.output.machine_files import CodeFacts
from raptor.output.product_count import count_products
from raptor.pim.ir import PimProgram
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.operations import Stencil
from raptor.target.arch import Target
from raptor.target.extensions import EXTENDED_INSTRUCTIONS
from raptor.transforms.rewrite_choices import JoinedLayer, OnVectorUnit


class LayerReport(StrictSchema):
    """Resources and instructions of an ONNX node."""

    node: str
    op_type: str
    inputs: JsonArray[JsonArray[int]] = Field(description="shapes of the tensors it reads, weights left out")
    shape: JsonArray[int] = Field(description="of its last tensor")
    unfolding: str | None = Field(
        description="kernel: a matrix a kernel position; line HxP: blocks of H lines and P pixels; vector: vector unit"
    )
    replicas: int = Field(description="copies of its matrices; 0 without matrices")
    matrices: int = Field(description="of all copies")
    xbars: int
    utilisation: float = Field(description="cells that hold weights, of the crossbars used; 0 without matrices")
    products_skipped: int = Field(description="products not emitted because all they read is padding")
    cores: JsonArray[int]
    instructions: JsonObject[int]


class CoreReport(StrictSchema):
    """Resources and instructions of a core that has work."""

    core: int
    xbars: int
    local_bytes: int
    instructions: JsonObject[int]


class TrialReport(StrictSchema):
    """A mapping that `--optimize` tried."""

    mapping: str
    cost: float | None = Field(
        description="what is compared: ns a sample, with `--optimize energy` pJ; null: it does not fit"
    )
    latency_ns: float | None = Field(description="of a sample: alone with `--optimize latency`, else among others")
    interval_ns: float | None = Field(description="between samples; equals the latency if one ran alone")
    energy_pj: float | None = Field(description="of a sample, in the same simulation")
    fault: str = Field(description="why it does not fit the chip; empty if it does")


class CompileReport(StrictSchema):
    """Resources, instruction counts and warnings of a compiled program."""

    version: Literal[1] = files.FORMAT_VERSION
    strategy: str = Field(description="by which the mapping was made: a name that `--mapping` takes")
    pace: StoredPace = "own"
    tile_channels: int = Field(description="0: all channels of a tensor together")
    macs: Annotated[int, Field(ge=0, le=2**62)] | None = Field(
        default=None, description="multiply-accumulates of a sample, those with padding included; null: not noted"
    )
    matrices: int
    xbars_used: int
    xbars_available: int
    cores_used: int
    cores_available: int
    peak_local_bytes: int
    instructions: JsonObject[int]
    layers: JsonArray[LayerReport]
    cores: JsonArray[CoreReport]
    warnings: JsonArray[str]
    search: JsonArray[TrialReport] = Field(
        default=(), description="what `--optimize` tried, in order; empty without it"
    )

    @property
    def instruction_count(self) -> int:
        return sum(self.instructions.values())

    @property
    def extended(self) -> dict[str, tuple[str, ...]]:
        """Extended instructions of the program, with the nodes that use them; pimsim-nn refuses a program with any."""
        found = {
            n: tuple(layer.node for layer in self.layers if n in layer.instructions) for n in EXTENDED_INSTRUCTIONS
        }
        return {name: nodes for name, nodes in found.items() if nodes}


def read_report(folder: Path) -> tuple[CompileReport, files.OutputManifest]:
    """Reads the report and the manifest of an output directory with one segment.

    Raises `UserError` if `folder` is not such a directory.
    """
    check_program_path(folder, directory=True)
    manifest = file_access.read_json_file(files.OutputManifest, folder, files.MANIFEST)
    return file_access.read_json_file(CompileReport, folder, files.REPORT), manifest


def read_any_report(folder: Path) -> CompileReport:
    """Reads the report of an output directory with one or several segments. Raises `UserError` for other folders."""
    if not (folder / files.SEGMENTS).is_file():
        return read_report(folder)[0]
    file_access.read_json_file(files.SegmentList, folder, files.SEGMENTS)
    return file_access.read_json_file(CompileReport, folder, files.REPORT)


def make_report(
    graph: Graph,
    spatial: SpatialGraph,
    decision: Decision,
    program: PimProgram,
    facts: CodeFacts,
    arch: Target,
    warnings: tuple[str, ...],
    trials: tuple[SearchTrial, ...] = (),
) -> CompileReport:
    """Returns the report of a program, with counts of its instructions and of the matrices on its cores."""
    by_node = _instructions_by_node(program, facts)
    cores = tuple(
        CoreReport(
            core=i,
            xbars=sum(g.matrix.xbars for g in core.groups),
            local_bytes=core.local_bytes,
            instructions=_counts_by_name(facts.count(i), facts),
        )
        for i, core in program.cores.items()
    )
    by_name = {node: _counts_by_name(counts, facts) for node, counts in by_node.items()}
    layers = tuple(_layers(graph, spatial, decision, program, by_name, arch))
    return CompileReport(
        strategy=decision.strategy,
        pace=decision.pace,
        tile_channels=decision.tile,
        macs=sum(count_macs(node, graph) for node in graph.nodes),
        matrices=sum(layer.matrices for layer in layers),
        xbars_used=sum(core.xbars for core in cores),
        xbars_available=arch.core_count * arch.xbars_per_core,
        cores_used=len(cores),
        cores_available=arch.core_count,
        peak_local_bytes=max((core.local_bytes for core in cores), default=0),
        instructions=_counts_by_name(sum(map(facts.count, facts.kinds), np.zeros(len(facts.names), np.int64)), facts),
        layers=layers,
        cores=cores,
        warnings=warnings,
        search=tuple(_trial_report(trial) for trial in trials),
    )


def _trial_report(trial: SearchTrial) -> TrialReport:
    cost = trial.cost
    return TrialReport(
        mapping=trial.name,
        cost=None if cost is None else trial.figure,
        latency_ns=None if cost is None else cost.latency_ns,
        interval_ns=None if cost is None else cost.interval_ns,
        energy_pj=None if cost is None else cost.energy_pj,
        fault=str(trial.fault or ""),
    )


def _layers(
    graph: Graph,
    spatial: SpatialGraph,
    decision: Decision,
    program: PimProgram,
    instructions: Mapping[str, dict[str, int]],
    arch: Target,
) -> list[LayerReport]:
    """Returns the report of each node, in the order of the model. Nodes with the same name are one layer."""
    cores: defaultdict[str, set[int]] = defaultdict(set)
    for core in program.cores.values():
        for node in np.unique(core.steps.node).tolist():
            cores[core.steps.nodes[node]].add(core.core)
    held: defaultdict[str, list[Matrix | LineMatrix]] = defaultdict(list)
    for core in program.cores.values():
        for group in core.groups:
            held[group.layer].append(group.matrix)
    layers: list[LayerReport] = []
    products = count_products(program)
    sources: defaultdict[str, list[Node]] = defaultdict(list)
    for source in graph.nodes:
        sources[source.name].append(source)
    nodes = _by_model_order({compute.node: compute.op_type for compute in spatial.computes}, sources)
    flow = spatial.dataflow
    stencils = {spatial.computes[i].node for i in flow.computes_with_class(Stencil)}
    names: defaultdict[str, list[str]] = defaultdict(list)
    for tensor in spatial.tensors.values():
        names[tensor.node].append(tensor.name)
    for node, op_type in nodes.items():
        keys = dict.fromkeys(spatial.filter_of[n].key for n in names[node] if n in spatial.filter_of)
        matrices = [m for key in keys for m in held[key]]
        xbars = sum(m.xbars for m in matrices)
        weights = sum((m.rows[1] - m.rows[0]) * (m.cols[1] - m.cols[0]) for m in matrices)
        places = sum(m.xbars * arch.weight_columns(spatial.filters[key].weight_bits) for key in keys for m in held[key])
        places *= arch.xbar_rows
        layers.append(
            LayerReport(
                node=node,
                op_type=op_type,
                inputs=tuple(_inputs(graph, sources[node])),
                # A view has no tiles of its own: parts of it are made where they are read.
                shape=graph.tensors[names[node][-1] if names[node] else sources[node][-1].output].shape,
                unfolding=_unfolding(matrices) if matrices else "vector" if node in stencils else None,
                replicas=max((_replicas(decision.layers[key], held[key]) for key in keys), default=0),
                matrices=len(matrices),
                xbars=xbars,
                utilisation=round(weights / places, 4) if places else 0.0,
                products_skipped=_skipped(decision, sources[node], products.get(node, 0)),
                cores=tuple(sorted(cores[node])),
                instructions=instructions.get(node, {}),
            )
        )
    return layers


def _by_model_order(nodes: Mapping[str, str], sources: Mapping[str, Sequence[Node]]) -> dict[str, str]:
    """Returns the operator type of each node: first nodes of the model in its order, then all others."""
    known = {name: found[-1].op_type for name, found in sources.items() if name in nodes}
    return known | {name: op_type for name, op_type in nodes.items() if name not in known}


def _inputs(graph: Graph, nodes: Sequence[Node]) -> Iterator[tuple[int, ...]]:
    """Yields the shapes of the tensors that these nodes read but do not compute."""
    own = {node.output for node in nodes}
    for name in dict.fromkeys(name for node in nodes for name in node.inputs):
        if name not in own:
            yield graph.tensors[name].shape


def _replicas(layer: DecidedLayer, matrices: Sequence[Matrix | LineMatrix]) -> int:
    """Returns the number of copies of a layer's weights: one for each column of the grid, times copies on a core.

    It counts copies in the program; the decision may allow more than a line has products for.
    """
    match layer:
        case LineUnfolding(grid, cores):
            of_core = len(cores) // len(set(cores))  # ranges of columns that share the matrices of a core
            copies = max((m.copy for m in matrices if isinstance(m, LineMatrix)), default=0)
            return grid.segment_count * (1 + copies) // of_core
        case KernelUnfolding(steps, cores) | FullyConnected(steps, cores):
            return len(cores) // max(1, len(steps))
        case OnVectorUnit() | JoinedLayer():
            return 0


def _skipped(decision: Decision, nodes: Sequence[Node], products: int) -> int:
    """Returns the number of skipped MVMs: output pixels times matrices, minus the emitted `products`.

    A layer computed by line skips none, because it has no blocks in the padding.
    """
    layers = [(n.operator, decision.layers[filter_key(n)]) for n in nodes if isinstance(n.operator, Filter)]
    if any(isinstance(layer, LineUnfolding) for _, layer in layers):
        return 0
    on_crossbars = ((o, x) for o, x in layers if isinstance(x, KernelUnfolding | FullyConnected))
    return sum(o.window.out_pixels * len(x.matrices) for o, x in on_crossbars) - products


def _unfolding(matrices: Sequence[Matrix | LineMatrix]) -> str:
    """Names the unfolding of a layer: `kernel`, or `line HxP` (see `LayerReport`)."""
    first = matrices[0]
    return f"line {first.band.lines}x{first.pixels}" if isinstance(first, LineMatrix) else "kernel"


def _instructions_by_node(program: PimProgram, facts: CodeFacts) -> dict[str, np.ndarray]:
    """Returns the number of instructions of each node by kind, [kinds]."""
    kinds = len(facts.names)
    counts: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(kinds, np.int64))
    for i, core in program.cores.items():
        ends, steps = facts.step_ends[i], core.steps
        node = np.repeat(steps.node, np.diff(ends))
        found = np.bincount(kinds * node + facts.kinds[i][ends[0] :], minlength=kinds * len(steps.nodes))
        for k in np.unique(steps.node).tolist():
            counts[steps.nodes[k]] += found.reshape(-1, kinds)[k]
    return counts


def _counts_by_name(counts: np.ndarray, facts: CodeFacts) -> dict[str, int]:
    """Returns counts [kinds] keyed by name of the instruction, without zeros."""
    return dict(sorted(Counter({name: int(n) for name, n in zip(facts.names, counts, strict=True) if n}).items()))
