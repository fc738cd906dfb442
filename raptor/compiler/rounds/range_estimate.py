"""Estimates ranges of units as rounds: each is mapped as it would be compiled, and the decision is evaluated."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.common.errors import CapacityError, UserError
from raptor.compiler import pipeline
from raptor.frontend.segments.cut_points import ModelUnits
from raptor.graph.ir import Dot, Filter, Graph
from raptor.graph.layers import find_layer_nodes
from raptor.graph.subgraph import StructuralKeys, extract_subgraph
from raptor.mapping.decision import Decision, LineUnfolding
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.modes.plan_cache import PlanCache, count_least_crossbars, plan_layers
from raptor.mapping.strategies import STRATEGIES
from raptor.target.arch import Target
from raptor.target.device_file import DeviceFile
from raptor.transforms.choose_recipes import RequantMethod
from raptor.transforms.rewrite_choices import JoinedLayer, OnVectorUnit

Floats = npt.NDArray[np.float64]
WORTH_FEWER_CORES = 0.1
"""Smaller parts of the chip are tried only if writing takes at least this share of a round's time."""

RoundGoal = Literal["time", "writes"]
CHIP_SHARES: Mapping[RoundGoal, tuple[float, ...]] = {
    "time": (1.0, 0.5, 0.25),
    "writes": (1.0, 0.5, 0.25, 0.125, 0.0625),
}
"""Shares of the chip that a round may use: on fewer cores layers have fewer copies, so less is written."""


@dataclass(frozen=True, slots=True)
class RoundConfiguration:
    """A configuration of a range as one round, with estimates. `cores`: usable cores. `cells`: cells to write."""

    cores: int
    write_ns: float
    latency_ns: float
    interval_ns: float
    cells: int

    def batch_ns(self, batch: int) -> float:
        """Returns the time of a batch in ns: writing, the first sample, and an interval for each further sample."""
        return self.write_ns + self.latency_ns + (batch - 1) * self.interval_ns


@dataclass(slots=True, eq=False)
class RangeEstimates:
    """Memoised estimates of ranges of units as rounds. `strategy`: the mapping; `cache`: plans of layers."""

    units: ModelUnits
    arch: Target
    device: DeviceFile
    strategy: str
    requantising: RequantMethod
    batch: int
    goal: RoundGoal = "time"
    cache: PlanCache = field(default_factory=PlanCache)
    _graph: Graph | None = None
    _work: Floats | None = None
    _shapes: StructuralKeys | None = None
    _known: dict[object, tuple[RoundConfiguration, ...]] = field(
        default_factory=dict[object, tuple[RoundConfiguration, ...]]
    )
    _ways: dict[tuple[int, int], tuple[RoundConfiguration, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[RoundConfiguration, ...]]
    )
    refused: dict[tuple[int, int], UserError] = field(default_factory=dict[tuple[int, int], UserError])

    @property
    def graph(self) -> Graph:
        """Graph of the whole model, after the passes that precede the mapping."""
        if self._graph is None:
            self._graph = pipeline.prepare_graph(self.units.graph, self.arch, self.requantising)
        return self._graph

    @property
    def shapes(self) -> StructuralKeys:
        """Keys of subgraphs: subgraphs with equal keys get the same mapping, so they are estimated once."""
        if self._shapes is None:
            self._shapes = StructuralKeys.of_graph(self.graph)
        return self._shapes

    def part(self, first: int, last: int) -> Graph:
        """Returns the subgraph of units `first` to `last` (excluded)."""
        return extract_subgraph(self.graph, self.units.unit_of, range(first, last))

    def configurations(self, first: int, last: int) -> tuple[RoundConfiguration, ...]:
        """Returns the configurations of units `first` to `last` (excluded) as one round; none if they do not fit."""
        if any(first <= a and b <= last for a, b in self.refused):
            return ()
        if (first, last) not in self._ways:
            graph = self.part(first, last)
            shape = self.shapes.key_of(graph)
            if shape not in self._known:
                self._known[shape] = tuple(self._found(graph))
            self._ways[first, last] = self._known[shape]
        return self._ways[first, last]

    def best_configuration(self, first: int, last: int) -> RoundConfiguration | None:
        """Returns the configuration that is best by `goal`; None if the range does not fit the chip."""
        found = self.configurations(first, last)
        if self.goal == "writes":
            return min(found, key=lambda w: (w.cells, w.batch_ns(self.batch)), default=None)
        return min(found, key=lambda w: (w.batch_ns(self.batch), w.cells), default=None)

    def least(self, first: int, last: int) -> float:
        """Returns a lower bound of the time of a batch for a range, however it is cut: its work spread over all cores.

        It is 0 with the goal `writes`, mappings other than `rows`, and models with products of two activations.
        """
        if self._work is None:
            self._work = np.concatenate([[0.0], np.cumsum(self._work_ns())])
        return float(self._work[last] - self._work[first]) / self.arch.core_count * self.batch

    def _work_ns(self) -> Floats:
        """Returns the least work of each unit for a sample, in ns, summed over its cores."""
        found = np.zeros(len(self.units.nodes))
        attends = any(isinstance(node.operator, Dot) for node in self.graph.nodes)
        if self.goal == "writes" or self.strategy != "rows" or attends:
            return found
        for key, plans in plan_layers(self.graph, self.arch, DEFAULT_KNOBS, cache=self.cache).items():
            unit = self.units.unit_of.get(key)
            if unit is not None:
                found[unit] += min(plan.core_ns * plan.cores for plan in plans)
        return found

    def refuse(self, first: int, last: int, error: UserError) -> None:
        """Records that a range cannot be compiled."""
        self.refused[first, last] = error

    def refusal(self, unit: int) -> UserError | None:
        """Returns the reason why a unit alone does not fit the chip; None if it is not known."""
        if (known := self.refused.get((unit, unit + 1))) is not None:
            return known
        try:
            map_range(self.strategy, self.part(unit, unit + 1), self.arch, self.cache)
        except CapacityError as error:
            return error
        return None

    def _found(self, graph: Graph) -> Iterator[RoundConfiguration]:
        most = self.arch.core_count
        if count_least_crossbars(graph, self.arch) > most * self.arch.xbars_per_core:
            return
        for cores in dict.fromkeys(max(1, int(most * share)) for share in CHIP_SHARES[self.goal]):
            try:
                way = self._way(graph, self.arch.with_places(range(cores)))
            except CapacityError:
                return  # fewer cores hold even less
            yield way
            if self.goal == "time" and way.write_ns < WORTH_FEWER_CORES * way.batch_ns(self.batch):
                return

    def _way(self, graph: Graph, arch: Target) -> RoundConfiguration:
        mapped = map_range(self.strategy, graph, arch, self.cache)
        times = evaluate(mapped.graph, mapped.decision, arch)
        write_ns, cells = estimate_writes(graph, mapped.decision, arch, self.device)
        return RoundConfiguration(arch.usable_cores, write_ns, times.latency_ns, times.interval_ns, cells)


def map_range(strategy: str, graph: Graph, arch: Target, cache: PlanCache) -> pipeline.MappedGraph:
    """Maps a prepared graph with the chip's own times. `cache`: see `plan_layers`."""
    return pipeline.rewrite_and_map(graph, arch, STRATEGIES[strategy].at_pace("own").without_search(), cache=cache)


def estimate_writes(graph: Graph, decision: Decision, arch: Target, device: DeviceFile) -> tuple[float, int]:
    """Estimates the time in ns and the cells to write for all matrices of a decision: all rows of full crossbars."""
    held, weights = 0, 0
    for key, node in find_layer_nodes(graph).items():
        layer = decision.layers.get(key)
        if isinstance(layer, JoinedLayer):
            layer = decision.layers[layer.layer]
        if layer is None or isinstance(layer, OnVectorUnit):
            continue
        assert isinstance(node.operator, Filter), "layers have weights"
        copies = layer.grid.segment_count * layer.grid.copies if isinstance(layer, LineUnfolding) else 1
        weights += node.operator.weights.size * copies
    cells_per_weight = -(-arch.widths.weights // arch.cell_bits)
    cells = weights * cells_per_weight
    used = max(1, len(set(decision.cores)))
    held = min(arch.xbars_per_core, -(-cells // (used * arch.xbar_rows * arch.xbar_cols)))
    one_ns = device.write.time_ns(arch.xbar_rows, arch.xbar_rows * arch.xbar_cols)
    turns = max(
        -(-held // (device.write.at_once_per_core or max(1, held))),
        -(-held * used // (device.write.at_once or max(1, held * used))),
    )
    return one_ns * turns, cells
