"""Explains a mapping, for `raptor explain`: the choice for each layer, its alternatives, and the bounds on time.

Choices are read from `mapping.json`; alternatives are computed from the model in the output directory.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor import frontend
from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.options import arguments
from raptor.compiler import pipeline
from raptor.compiler.analysis.idle_cells import LayerZeros, find_layer_zeros
from raptor.compiler.analysis.memory_advice import advise_memory, advise_overlap
from raptor.compiler.analysis.proved_bound import ProvedBound, prove_interval, write_certificate
from raptor.compiler.analysis.refinements import Change, changes
from raptor.compiler.analysis.unstreamed_tensors import UnstreamedTensor, find_unstreamed_tensors
from raptor.compiler.analysis.vector_work import VectorWork
from raptor.compiler.compilation import set_residency
from raptor.compiler.pass_driver import Driver
from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key
from raptor.mapping.decide import StoredDecision
from raptor.mapping.decision import FullyConnected, KernelUnfolding, LineFlow, LineGrid, LineUnfolding, TileFlow
from raptor.mapping.decision import LayerRecord as DecidedLayer
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.mapping_file import read_mapping
from raptor.mapping.modes.line_plans import MOST_LANES
from raptor.mapping.modes.plan_cache import plan_layers
from raptor.mapping.modes.plan_choice import LayerPlan, pareto_front
from raptor.mapping.transformer.token_stages import find_stages
from raptor.options import ChipOptions, ModelInputs, ResidencyOptions, collect_options, read_options
from raptor.output import files, repair_files, round_files
from raptor.output.compile_report import CompileReport, LayerReport, read_report
from raptor.target.arch import Target, load_chip
from raptor.transforms.choose_recipes import RequantMethod
from raptor.transforms.rewrite_choices import JoinedLayer, OnVectorUnit
from validator.program.pimsim_program import read_program, refuse_other_machine
from validator.program.rounds import read_rounds
from validator.program.segment_list import chip_folders, has_rounds, read_segments, require_one_segment
from validator.simulate import builtin
from validator.simulate.analysis import instruction_nodes
from validator.simulate.analysis.core_work import LeastWork, TimeSplit, compute_least_work, split_core_time
from validator.simulate.analysis.instruction_nodes import Provenance
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.state_tables import CoreColumn
from validator.simulate.segment_simulation import simulate_any
from validator.simulate.what_if import WhatIf, try_faster_parts

Ints = npt.NDArray[np.int64]

VERSION = 6
STREAMED_SAMPLES = 16
_RELOADED = "no bound on the interval of every mapping: the program reloads its crossbars in rounds"
BOTTLENECK_SHARE = 0.9
"""Share of the interval above which a part of the chip counts as the bottleneck."""


@dataclass(frozen=True, slots=True)
class GridChoice:
    """Grid of cores for a layer: columns of the image x groups of input channels x parts of the output channels.

    `lanes`: ranges of lines of the image, each of which has such a grid of its own.
    `predicted_ns`: work of the busiest of these cores for a sample, as the mapping estimates it.
    """

    cores: int
    columns: int
    inputs: int
    outputs: int
    lanes: int
    predicted_ns: float


@dataclass(frozen=True, slots=True)
class GridOptions:
    """The chosen grid of a layer, and the nearest Pareto-optimal grids with fewer and with more cores, None if none.

    `unknown`: the reason if nothing is known about grids, else empty.
    """

    chosen: GridChoice | None = None
    smaller: GridChoice | None = None
    larger: GridChoice | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedLayer:
    """An ONNX node with weights. `cores`: cores that compute with them; `core`: the one with most work in total.

    `products_ns`: time of the layer's MVMs, summed over all cores. The other fields describe `core`: `work_ns`, its
    least work for a sample; `finish_ns`, when it ends; `split`, how it spends its time if one sample runs alone;
    `others`, the other nodes with weights that it computes.
    """

    node: str
    op_type: str
    unfolding: str
    cores: tuple[int, ...]
    xbars: int
    options: GridOptions
    products_ns: float
    core: int
    work_ns: float
    finish_ns: float
    split: TimeSplit
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Lower bounds on latency and interval of a program, in ns.

    `average`: all work, spread evenly over the `cores` of the chip. `products`: all MVMs, spread evenly. `busiest`: the
    work of `core`, the core with most work; `node_share` of it is for `node`, the node with the largest share. `port`:
    all loads and stores at the rate of global memory.
    """

    average: float
    busiest: float
    port: float
    products: float
    core: int
    node: str
    node_share: float
    cores: int

    @property
    def tightest_ns(self) -> float:
        """The largest bound, which is the tightest."""
        return max(self.average, self.busiest, self.port, self.products)


@dataclass(frozen=True, slots=True)
class RoundCutting:
    """Rounds of a program: layers that were `split`, the cuts with reasons, and the results of other cutting methods.

    `estimated_ns`: estimated time of a batch of `batch` samples, by which the cuts were chosen.
    """

    batch: int
    estimated_ns: float
    split: tuple[str, ...]
    cuts: tuple[round_files.RoundCut, ...]
    alternatives: tuple[round_files.CutAlternative, ...]


@dataclass(frozen=True, slots=True)
class MappingExplanation:
    """The result of `explain`. Times are in ns.

    `interval_ns`: time between samples in the steady state. `binds`: a sentence that names the bottleneck. `changes`:
    what the decision changes after the layers are placed, and the order of work. `whole`: tensors that are made of
    lines or cut into lines, because some operator does not stream. Only for integer programs: `vector`, nodes with work
    on vector units, most work first, mostly requantisation; `zeros`, zeros in the matrices of each layer, whose cells
    add errors on an imperfect chip. `what_if`: results with one part of the chip twice as fast; empty unless requested.
    `advice`: sentences about values that could stay on the chip between samples. `rounds`: for a program in rounds,
    where it was cut and why; `layers` are then those of all rounds, `latency_ns` is the time of a batch with writing,
    `interval_ns` this time divided by the samples of the batch, and the bounds are for the longest round. `proved`: a
    bound on the interval of every mapping.
    """

    program: str
    model: str
    strategy: str
    latency_ns: float
    interval_ns: float
    bounds: TimeBounds
    binds: str
    layers: tuple[ExplainedLayer, ...]
    warnings: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    whole: tuple[UnstreamedTensor, ...] = ()
    vector: tuple[VectorWork, ...] = ()
    zeros: tuple[LayerZeros, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    advice: tuple[str, ...] = ()
    rounds: RoundCutting | None = None
    proved: ProvedBound = field(default_factory=ProvedBound)
    version: int = VERSION


@dataclass(frozen=True, slots=True, eq=False)
class _Simulated:
    """A program, a run of one sample, and the work and origin of each instruction."""

    machine: CycleModel
    run: CycleRun
    work: LeastWork
    of: Provenance

    def nodes(self, chosen: npt.NDArray[np.bool_]) -> dict[str, Counter[int]]:
        """Returns the number of the chosen instructions, keyed by node and core index."""
        at = np.flatnonzero(chosen)
        found: defaultdict[str, Counter[int]] = defaultdict(Counter)
        pairs = np.stack([self.of.node_index[self.of.step_index[at]], self.machine.core_index[at]], axis=1)
        for (node, core), count in zip(*np.unique(pairs, axis=0, return_counts=True), strict=True):
            found[self.of.nodes[node]][int(core)] = int(count)
        return found

    def products_ns(self, node: str) -> float:
        """Returns the time of all MVMs of a node in ns, summed over the cores."""
        serves = self.of.node_index[self.of.step_index] == self.of.nodes.index(node)
        return float(self.work.least[serves & (self.machine.is_product)].sum()) / 1000

    def work_by_node(self) -> dict[str, float]:
        """Returns the work of all cores by ONNX node, in ns, with the issue of instructions where nothing overlaps."""
        nodes, issue_ps = self.of.node_index[self.of.step_index], round(self.machine.period_ns * 1000)
        least = self.work.least + (issue_ps if self.machine.numbers.rob_size == 1 else 0)
        taken = np.bincount(nodes, least, len(self.of.nodes)) / 1000
        return dict(zip(self.of.nodes, taken.tolist(), strict=True))

    def most(self, i: int) -> tuple[str, float]:
        """Returns the node with most work on the core of index `i`, and its share of the core's work."""
        stream = slice(self.machine.first[i], self.machine.first[i + 1])
        taken = np.bincount(self.of.node_index[self.of.step_index[stream]], weights=self.work.least[stream])
        return self.of.nodes[int(np.argmax(taken))], float(taken.max() / taken.sum())


def explain(folder: str | Path, *, faster: bool = False, certificate: str | Path | None = None) -> MappingExplanation:
    """Simulates the program in an output directory and explains its mapping. Changes nothing in it.

    `faster`: simulate the program with each part of the chip twice as fast, too. `certificate`: a file for the proof of
    the bound (docs/explanation/bounds.md). Raises `UserError` if the directory is not a complete output, or a
    certificate is wanted and there is no bound, and `DeadlockError` if the program does not end.
    """
    folder, faster = arguments.parse_path("folder", folder), arguments.parse_flag("faster", faster)
    file = None if certificate is None else arguments.parse_path("certificate", certificate)
    if has_rounds(folder):
        if file is not None:
            raise UserError(f"--certificate: {_RELOADED}")
        return replace(_explain_rounds(folder, faster=faster), proved=ProvedBound(unknown=_RELOADED))
    require_one_segment(folder, "an explanation")
    found, done, graph, arch = _explain_program(folder, faster=faster)
    try:
        proved, proof = prove_interval(folder, graph, arch, done.work_by_node())
    except UserError as e:
        if file is not None:
            raise
        return replace(found, proved=ProvedBound(unknown=str(e)))
    if file is not None:
        write_certificate(file, proof)
    return replace(found, proved=proved)


def _explain_program(folder: Path, *, faster: bool) -> tuple[MappingExplanation, "_Simulated", Graph, Target]:
    """Explains one program. Also returns its run, and the graph and the chip for which its mapping was decided."""
    report, manifest = read_report(folder)
    refuse_other_machine(folder)
    for name in (files.ARCH, files.STEPS, files.MODEL):
        file_access.check_regular_file(folder, name)
    program = read_program(folder)
    machine = cycle_model.build_cycle_model(program, simulated_chip.read_simulated_chip(folder / files.ARCH))
    run = cycle_model.run_cycle_model(machine)
    builtin.check_ended(machine, run)
    done = _Simulated(machine, run, compute_least_work(machine), instruction_nodes.read_provenance(program, machine))
    latency_ns = run.last_tick * machine.period_ns
    interval_ns = builtin.measure_steady_state(machine, STREAMED_SAMPLES, counting=False).interval_ns
    bounds = _bounds(done, report.cores_available)
    graph, mapped, arch = _read_decision(folder, manifest)
    found = tuple(_layers(done, report, _options(graph, mapped, arch)))
    changed, partition = changes(mapped, arch)
    explained = MappingExplanation(
        program=str(folder),
        model=manifest.model,
        strategy=report.strategy,
        latency_ns=latency_ns,
        interval_ns=interval_ns,
        bounds=bounds,
        binds=_bottleneck(bounds, interval_ns, found),
        layers=found,
        warnings=machine.warnings,
        changes=changed,
        whole=find_unstreamed_tensors(partition.graph, arch) if isinstance(mapped.decision.flow, LineFlow) else (),
        vector=_vector(done, report) if manifest.numbers != "float" else (),
        zeros=find_layer_zeros(folder, graph) if manifest.numbers != "float" else (),
        what_if=try_faster_parts(machine, STREAMED_SAMPLES) if faster else (),
        advice=(
            *advise_memory(graph, partition, arch, (latency_ns, interval_ns, bounds.port, bounds.tightest_ns)),
            *advise_overlap(graph, mapped.decision.flow, interval_ns, bounds.tightest_ns),
        ),
    )
    return explained, done, graph, arch


def _explain_rounds(folder: Path, *, faster: bool) -> MappingExplanation:
    listed = read_segments(folder)
    rounds, figures = read_rounds(folder, listed), simulate_any(folder, mode="throughput").reloading
    assert rounds is not None, "the program has rounds"
    assert figures is not None, "the program has rounds"
    parts = [_explain_program(part, faster=faster)[0] for part in chip_folders(folder)]
    times = [one.write_ns + one.run_ns(figures.batch) for one in figures.rounds]
    slowest = times.index(max(times))
    longest, one = parts[slowest], figures.rounds[slowest]
    share = f"{one.path} takes {times[slowest] / figures.batch_ns:.0%} of a batch"
    writing = f"{one.write_ns / times[slowest]:.0%} of it is writing" if one.write_ns else "nothing is written for it"
    return replace(
        longest,
        program=str(folder),
        model=listed.model,
        latency_ns=figures.batch_ns,
        interval_ns=figures.sample_ns,
        binds=f"{share}; {writing}. In it: {longest.binds}",
        layers=tuple(layer for part in parts for layer in part.layers),
        warnings=tuple(dict.fromkeys(w for part in parts for w in part.warnings)),
        changes=tuple(change for part in parts for change in part.changes),
        whole=tuple(tensor for part in parts for tensor in part.whole),
        vector=tuple(work for part in parts for work in part.vector),
        zeros=tuple(layer for part in parts for layer in part.zeros),
        rounds=RoundCutting(rounds.batch, rounds.estimated_ns, rounds.split, rounds.cuts, rounds.alternatives),
    )


def _vector(done: _Simulated, report: CompileReport) -> tuple[VectorWork, ...]:
    chosen = np.flatnonzero(done.machine.is_vector)
    taken = (
        np.bincount(done.of.node_index[done.of.step_index[chosen]], done.work.least[chosen], len(done.of.nodes)) / 1000
    )
    op_types = {layer.node: layer.op_type for layer in report.layers}
    found = (
        VectorWork(done.of.nodes[i], op_types.get(done.of.nodes[i], ""), float(taken[i])) for i in taken.nonzero()[0]
    )
    return tuple(sorted(found, key=lambda x: -x.work_ns))


def _bounds(done: _Simulated, cores: int) -> TimeBounds:
    """Returns the bounds, given the work of each instruction. `cores`: number of cores of the chip."""
    work, machine = done.work, done.machine
    busiest = int(np.argmax(work.total))
    node, share = done.most(busiest)
    return TimeBounds(
        average=float(work.total.sum()) / cores / 1000,
        busiest=float(work.total[busiest]) / 1000,
        port=work.port / 1000,
        products=float(work.products.sum()) / cores / 1000,
        core=int(machine.cores[busiest]),
        node=node,
        node_share=share,
        cores=cores,
    )


def _layers(done: _Simulated, report: CompileReport, options: Mapping[str, GridOptions]) -> Iterator[ExplainedLayer]:
    """Yields the nodes with weights, on crossbars or on the vector unit."""
    products, vectors = done.nodes(done.machine.is_product), done.nodes(done.machine.is_vector)
    weighted = [
        (r, (vectors if r.unfolding == "vector" else products).get(r.node)) for r in report.layers if r.unfolding
    ]
    on_core: defaultdict[int, list[str]] = defaultdict(list)
    for layer, cores in weighted:
        for core in cores or ():
            on_core[core].append(layer.node)
    for layer, cores in weighted:
        if cores:
            yield _layer(done, layer, sorted(cores), options[layer.node], on_core)


def _layer(
    done: _Simulated,
    layer: LayerReport,
    cores: Sequence[int],
    options: GridOptions,
    on_core: Mapping[int, Sequence[str]],
) -> ExplainedLayer:
    machine = done.machine
    busiest = max(cores, key=lambda i: int(done.work.total[i]))
    return ExplainedLayer(
        node=layer.node,
        op_type=layer.op_type,
        unfolding=layer.unfolding or "",
        cores=tuple(int(machine.cores[i]) for i in cores),
        xbars=layer.xbars,
        options=options,
        products_ns=done.products_ns(layer.node),
        core=int(machine.cores[busiest]),
        work_ns=float(done.work.total[busiest]) / 1000,
        finish_ns=float(done.run.core[busiest, CoreColumn.FINISH] * machine.period_ns),
        split=split_core_time(machine, done.run, done.work, busiest),
        others=tuple(n for n in on_core[busiest] if n != layer.node),
    )


def _read_decision(folder: Path, manifest: files.OutputManifest) -> tuple[Graph, pipeline.MappedGraph, Target]:
    """Reads the decision of an output. Returns the prepared graph, the rewritten graph with decision, and the chip."""
    graph, arch = _imported(folder, manifest)
    path = folder / files.MAPPING
    if not path.exists():
        raise UserError(f"{path}: missing: compiled by an earlier version; compile the model again")
    decision, _ = read_mapping(file_access.check_regular_file(folder, files.MAPPING), str(path), graph, arch)
    mapped = pipeline.rewrite_and_map(graph, arch, StoredDecision(decision, str(path)))
    return graph, pipeline.complete(mapped, arch, driver=Driver(verified=False)).mapped, arch


_CHAINED = "in a chain of layers between two attentions, whose cores are chosen together"


def _options(graph: Graph, mapped: pipeline.MappedGraph, arch: Target) -> Mapping[str, GridOptions]:
    """Returns the grid options of all nodes with weights of the prepared graph, keyed by node."""
    decision = mapped.decision
    if not isinstance(decision.flow, LineFlow):
        why = "has one way to place a layer" if isinstance(decision.flow, TileFlow) else "keeps no alternatives"
        return defaultdict(lambda: GridOptions(unknown=f"strategy {decision.strategy} {why}"))
    plans, stages = plan_layers(mapped.graph, arch, TuningKnobs(lanes=MOST_LANES)), find_stages(mapped.graph, arch, {})
    chained: set[str] = set() if stages is None else stages.keys
    # The decision has no entry for nodes that never were filters, such as an average over windows.
    found: defaultdict[str, GridOptions] = defaultdict(lambda: _option(OnVectorUnit(), ()))
    for node in (node for node in graph.nodes if isinstance(node.operator, Filter)):
        key = filter_key(node)
        layer, option = decision.layers[key], _option(decision.layers[key], plans.get(key, ()))
        together = key in chained and isinstance(layer, LineUnfolding) and option.chosen is None
        found[node.name] = GridOptions(unknown=_CHAINED) if together else option
    return found


def _option(layer: DecidedLayer, plans: Sequence[LayerPlan]) -> GridOptions:
    """Returns the chosen plan of a layer and its neighbours on the Pareto front. `plans`: all plans of the layer."""
    match layer:
        case LineUnfolding(grid):
            return _neighbours(
                pareto_front(plans), next((plan for plan in plans if _equal_grids(plan.grid, grid)), None)
            )
        case OnVectorUnit():
            return GridOptions(unknown="on the vector unit, for which there are no grids")
        case JoinedLayer(other):
            return GridOptions(unknown=f"computed by the products of layer {other}")
        case KernelUnfolding() | FullyConnected():
            return GridOptions(unknown="not computed by line: placed whole")


def _equal_grids(grid: LineGrid, other: LineGrid) -> bool:
    """Returns True if two grids have equal estimates, which do not depend on `step` and `copies`."""
    return replace(grid, step=0, copies=0) == replace(other, step=0, copies=0)


def _imported(folder: Path, manifest: files.OutputManifest) -> tuple[Graph, Target]:
    """Imports the model of an output again. Returns the prepared graph, to which the decision belongs, and the chip."""
    model, file = (
        file_access.check_regular_file(folder, files.MODEL),
        file_access.check_regular_file(folder, files.ARCH),
    )
    recorded = manifest.options
    try:
        inputs = read_options(ModelInputs, {name: recorded.get(name) for name in collect_options(ModelInputs)})
        beside = folder / repair_files.CHIP if recorded.get("chip") else None
        chip = read_options(ChipOptions, {"arch": file, "bits": recorded["bits"], "chip": beside})
        kept = read_options(ResidencyOptions, {name: recorded.get(name) for name in collect_options(ResidencyOptions)})
    except (KeyError, UserError) as e:
        raise UserError(f"{folder / files.MANIFEST}: options: not those of a compilation: {e}") from e
    arch, graph = load_chip(chip), set_residency(frontend.load(model, inputs).graph, kept)
    requant = manifest.integers.requant if manifest.integers else "exact"
    method = RequantMethod(requant, files.TRIM in manifest.files)
    return pipeline.prepare_graph(graph, arch, method), arch


def _neighbours(front: Sequence[LayerPlan], chosen: LayerPlan | None) -> GridOptions:
    """Returns the chosen plan, and the plans of `front` with the nearest smaller and larger numbers of cores."""
    if chosen is None:
        return GridOptions(unknown="what was compiled is none of the grids that this version would consider")
    return GridOptions(
        chosen=_choice(chosen),
        smaller=next((_choice(p) for p in reversed(front) if p.cores < chosen.cores), None),
        larger=next((_choice(p) for p in front if p.cores > chosen.cores), None),
    )


def _choice(plan: LayerPlan) -> GridChoice:
    grid = plan.grid
    return GridChoice(plan.cores, len(grid.cols), len(grid.ins), len(grid.outs), max(1, len(grid.lanes)), plan.core_ns)


def _bottleneck(bounds: TimeBounds, interval_ns: float, found: Sequence[ExplainedLayer]) -> str:
    """Returns a sentence that names the bottleneck of the interval between samples."""
    share = bounds.tightest_ns / interval_ns
    layer = next((x for x in found if x.core == bounds.core), None)
    if bounds.port == bounds.tightest_ns:
        name, works = "the port of global memory", f"is busy {share:.0%} of the interval"
    else:
        name = f"core {bounds.core} ({bounds.node_share:.0%} of it for {bounds.node or 'loading inputs'})"
        works = f"works {share:.0%} of the interval{_main_work(layer)}"
    if share > BOTTLENECK_SHARE:
        return f"{name[0].upper()}{name[1:]} binds: it {works}."
    return f"Waiting binds: no part is full; {name}, the fullest, {works}, and what is left is waiting for others."


def _main_work(layer: ExplainedLayer | None) -> str:
    """Names the kind of work that takes most of the time of a layer's core."""
    if layer is None:
        return ""
    split = layer.split
    kinds = {"products": split.matrix, "vectors": split.vector, "memory": split.memory, "messages": split.network}
    kind = max(kinds, key=lambda k: kinds[k])
    return f", {kinds[kind] / max(sum(kinds.values()), 1e-9):.0%} of that on {kind}"
