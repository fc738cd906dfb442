"""Drives the compiler in tests: every pass's result, and compile - save - validate in one call."""

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

import raptor
from raptor.codegen.pimsim import InstructionStreams
from raptor.common.errors import CapacityError
from raptor.compiler import pipeline
from raptor.compiler.pass_driver import Driver
from raptor.compiler.pipeline import MappedGraph
from raptor.graph.ir import Graph
from raptor.mapping.check_decision import decision_faults, record_faults
from raptor.mapping.decide import StoredDecision
from raptor.mapping.decision import (
    Decision,
    FullyConnected,
    KernelUnfolding,
    LineFlow,
    LineUnfolding,
)
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs
from raptor.mapping.strategies import rows_strategy
from raptor.pim import GlobalMemory, PimProgram
from raptor.spatial import Partition, PlacedGraph, Schedule, SpatialGraph
from raptor.target import arch as architectures
from raptor.target import isa
from raptor.target.arch import Target
from tests.tiny_models import Array, make_model, node, random
from validator.judge.sample_runs import QUICK_INSTRUCTIONS
from validator.judge.validation_report import ValidationReport
from validator.options import FEWEST_SAMPLES
from validator.validate import validate

THESIS_CHIP = {"xbar": 3, "xbars_per_core": 5, "cores": 16}
"""The machine of the thesis's example (sections 4.3 to 4.6)."""


@dataclass
class Recorder(Driver):
    """A driver that keeps what every pass returns."""

    results: dict[str, Any] = field(default_factory=dict)

    def run(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        self.results[step.__name__] = super().run(step, *args, **kwargs)
        return self.results[step.__name__]


@dataclass(frozen=True)
class Passes:
    """Results of the passes for one model, by the names in `_PASS`."""

    arch: Target
    graph: Graph
    chosen: Graph
    decision: Decision
    partition: Partition
    on_chip: PlacedGraph
    schedule: Schedule
    memory: GlobalMemory
    placed: PimProgram
    reused: PimProgram
    program: PimProgram
    streams: InstructionStreams

    @property
    def mapped(self) -> MappedGraph:
        return MappedGraph(self.chosen, self.decision)

    @property
    def spatial(self) -> SpatialGraph:
        return self.partition.graph


_PASS = {
    "graph": "fold_relu",
    "decision": "choose_order",
    "chosen": "compose_gathers",
    "partition": "partition",
    "on_chip": "place_cores",
    "schedule": "schedule",
    "memory": "map_global_memory",
    "placed": "lower",
    "reused": "reuse_operands",
    "program": "allocate",
    "streams": "generate",
}


def passes(model: ModelProto, **options: Any) -> Passes:
    """Compiles, by the reference mapping unless `mapping` says otherwise, and keeps the result of every pass.

    Options as for `raptor.compile`.
    """
    recorder = Recorder()
    compiled = raptor.compile(model, driver=recorder, **{"mapping": "raptor"} | options)
    assert compiled.artifacts is not None
    results = recorder.results | {"choose_order": recorder.results["choose_order"].decision}
    return Passes(compiled.artifacts.arch, **{field: results[name] for field, name in _PASS.items()})


def map_by_rows(graph: Graph, arch: Target, knobs: TuningKnobs = DEFAULT_KNOBS) -> Decision:
    """The first decision of `rows` about a prepared graph, by the times of the chip."""
    return pipeline.rewrite_and_map(graph, arch, rows_strategy(knobs).without_search()).decision


def faults(decision: Decision, graph: Graph, arch: Target) -> Iterator[str]:
    """Sentences about what is wrong with a decision about a prepared graph."""
    yield from record_faults(decision, graph, arch)
    yield from decision_faults(decision, pipeline.rewrite_and_map(graph, arch, StoredDecision(decision)).graph, arch)


def streamed(graph: Graph) -> Graph:
    """The graph with the layouts in which tensors stream; no layer is joined with another one."""
    for rewrite in pipeline.LAYOUT_REWRITES:
        graph = rewrite(graph)
    return graph


def by_line(decision: Decision) -> dict[str, LineUnfolding]:
    """The layers that are computed line by line."""
    return {key: layer for key, layer in decision.layers.items() if isinstance(layer, LineUnfolding)}


def in_matrices(decision: Decision) -> dict[str, KernelUnfolding | FullyConnected]:
    """The layers whose decision lists matrices."""
    return {k: layer for k, layer in decision.layers.items() if isinstance(layer, KernelUnfolding | FullyConnected)}


def line_flow(decision: Decision) -> LineFlow:
    """The settings of a decision by line."""
    assert isinstance(decision.flow, LineFlow)
    return decision.flow


def chip(xbar: tuple[int, int] = (4, 4), *, xbars_per_core: int = 8, cores: int = 8, **options: Any) -> Target:
    return architectures.load(xbar=xbar, xbars_per_core=xbars_per_core, cores=cores, **options)


def arch_file(folder: Path, *, memory_size: int | None = None, rob_size: int = 1) -> Path:
    """The preset as a file; with `memory_size`, the size of local memory named."""
    preset = json.loads((resources.files("raptor.target") / "presets" / "bench.json").read_text())
    core = preset["chip_config"]["core_config"]
    core["rob_size"] = rob_size
    if memory_size is not None:
        core["local_memory_config"]["memory_size"] = memory_size
    path = folder / "arch.json"
    path.write_text(json.dumps(preset))
    return path


def conv_model(
    shape: Sequence[int],
    filters: int,
    kernel: Sequence[int] = (3, 3),
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    bias: bool = False,
    relu: bool = False,
    weights: Array | None = None,
) -> ModelProto:
    """x -> Conv [-> Relu] -> y with seeded normal weights."""
    constants = {"w": random(filters, shape[1], *kernel) if weights is None else weights}
    if bias:
        constants["b"] = random(filters, seed=1)
    attributes = {"strides": list(strides), "pads": list(pads), "dilations": list(dilations)}
    nodes = [node("Conv", "x w b" if bias else "x w", "c" if relu else "y", name="conv", **attributes)]
    if relu:
        nodes.append(node("Relu", "c", "y", name="relu"))
    return make_model(nodes, {"x": shape}, ["y"], constants)


def thesis_model(channels: int, filters: int) -> ModelProto:
    """The thesis's layer: kernel 3x3 over a 4x4 image, as many pixels out as in."""
    return conv_model((1, channels, 4, 4), filters, pads=(1, 1, 1, 1))


MOST_SAMPLES = 20
"""Largest number of inputs that `check` tries. A command tries more, but the tests have thousands of programs."""


def compile_to_fit(model: ModelProto, **options: Any) -> "raptor.Program":
    """Compiles for exactly as many cores as the model needs."""
    try:
        return raptor.compile(model, cores=1, **options)
    except CapacityError as e:
        return raptor.compile(model, cores=e.needed, **options)


def check(model: ModelProto, *, tolerance: float = 1e-5, layers: bool = True, **options: Any) -> "raptor.Program":
    """Compiles, saves and validates, with `layers` every tensor. Without `cores`, as many as are needed."""
    program = raptor.compile(model, **options) if "cores" in options else compile_to_fit(model, **options)
    samples = max(
        FEWEST_SAMPLES, min(MOST_SAMPLES, QUICK_INSTRUCTIONS["auto"] // (1 + program.report.instruction_count))
    )
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        report = validate(out, samples=samples, layers=layers, tolerance=tolerance)
    assert report.verdict == "pass", _differences(report)
    assert all(np.isfinite(c.max_absolute) for c in report.outputs)
    return program


def _differences(report: ValidationReport) -> str:
    found = [*(layer.comparison for layer in report.layers), *report.outputs]
    return f"{report.first_deviation}: {[c for c in found if not c.passed]}"


@dataclass(frozen=True)
class Executed:
    """An instruction with the values of its registers (0 where never written)."""

    pc: int
    name: str
    record: Any
    rd: int
    rs1: int
    rs2: int


def executed(records: isa.Records) -> Iterator[Executed]:
    """Yields all instructions except `sldi`, in order."""
    registers: dict[int, int] = {}
    for pc, record in enumerate(records):
        spec = isa.BY_OPCODE[int(record["opcode"])]
        if spec.name == "sldi":
            registers[int(record["rd"])] = int(record["a"])
            continue
        yield Executed(pc, spec.name, record, *(registers.get(int(record[slot]), 0) for slot in ("rd", "rs1", "a")))


def count_ops(streams: InstructionStreams) -> Mapping[str, int]:
    """Instructions by name, over all cores."""
    opcodes = np.concatenate([s.records["opcode"] for s in streams.cores.values()])
    return {isa.BY_OPCODE[int(op)].name: int(n) for op, n in zip(*np.unique(opcodes, return_counts=True), strict=True)}


def chain(*steps: tuple[str, Mapping[str, Any]]) -> list[NodeProto]:
    """Operators of one input after one another: x, t1, t2, ..., y."""
    names = ["x", *(f"t{i}" for i in range(1, len(steps))), "y"]
    return [
        node(op, source, target, name=f"{op.lower()}{i}", **attributes)
        for i, ((op, attributes), (source, target)) in enumerate(zip(steps, itertools.pairwise(names), strict=True))
    ]
