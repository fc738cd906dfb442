"""Pipeline of several chips: layers become stages, one for each chip, so that the slowest stage takes least time.

A stage is a range of layers with their epilogues, on the cores of one chip. A link counts as a stage, too: it takes
the time of all flits that cross it. The cuts are found by a search over the estimated times of stages
(`raptor.mapping.multichip.stage_search`); each range is mapped as for a chip of its own.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import add

from raptor.common.errors import CapacityError
from raptor.graph.ir import Dot, Filter, Graph, Move, Node, Rename
from raptor.graph.layers import filter_key
from raptor.graph.streaming_layout import can_stream
from raptor.graph.subgraph import StructuralKeys, extract_subgraph
from raptor.mapping.decision import LayerRecord, LineFlow
from raptor.mapping.evaluation.evaluate import WorkBounds
from raptor.mapping.knobs import TuningKnobs
from raptor.mapping.modes.line_streaming import cut_channels, line_channel_ranges
from raptor.mapping.modes.plan_cache import PlanCache, count_least_crossbars, plan_layers
from raptor.mapping.multichip.chip_numbering import (
    LineDecision,
    find_line_work,
    number_cores_by_use,
    renumber_decision,
)
from raptor.mapping.multichip.chip_traffic import link_flits, offchip_flits, sum_core_traffic, sum_memory_traffic
from raptor.mapping.multichip.stage_search import StageProblem
from raptor.target.arch import Target

STAGE_SLACK = 1.03
"""Slack of the slowest stage: among cuts within this factor of its least time, the fewest flits over links win."""

MOST_LINK_USE = 0.7
"""Largest utilisation of a link. Above it, flits would wait for each other, which the simulator does not model."""

MapStage = Callable[[Graph, Target, Collection[str]], LineDecision | None]
"""(graph, chip, inputs from other chips) -> layers and flow on cores from 0; None if the graph does not fit."""


def map_to_chips(
    graph: Graph, arch: Target, knobs: TuningKnobs, cache: PlanCache, map_lines: MapStage, whole: LineDecision | None
) -> LineDecision | None:
    """Maps a graph to the chips of a target: as one large chip, or with one stage on each chip if links are too slow.

    `whole`: the decision that takes all chips as one; None if there is none. It is kept if its links can carry its
    traffic, because its layers share the cores best. (ResNet-50 on four chips of 36 cores, 50 ns a flit: 379 samples/s.
    With stages it had 174, as the last stage shares cores between its last layers.)
    """
    chips = ChipPipeline(graph, arch, knobs, cache, map_lines)
    if whole is None:
        return chips.find_decision()
    whole = number_cores_by_use(graph, whole, arch)
    times = chips.estimate_intervals(whole)
    if times.link_ns <= times.alone_ns:
        return whole
    staged = chips.find_decision()
    return whole if staged is None or times.bound_ns < chips.estimate_intervals(staged).bound_ns else staged


@dataclass(frozen=True, slots=True)
class ChipIntervals:
    """Estimated bounds of the interval between samples.

    alone_ns: work of the busiest core without its messages to other chips. sending_ns: with these messages. link_ns:
    time for which the busiest link is in use.
    """

    alone_ns: float
    sending_ns: float
    link_ns: float

    @property
    def bound_ns(self) -> float:
        """Interval for which neither a core nor a link is overloaded."""
        return max(self.sending_ns, self.link_ns / MOST_LINK_USE)


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Estimates of a stage: interval between samples, and traffic per sample.

    `flits`: flits over the link before the stage: its inputs, and tensors that pass through to later stages.
    `busiest`: flits that its busiest core exchanges with other stages.
    """

    interval_ns: float
    flits: int
    busiest_flits: float


@dataclass(slots=True, eq=False)
class ChipPipeline:
    """Search for the stages of a graph on equal chips, with memoised estimates.

    unit_of: unit of each node's output (`number_units`). shapes: keys of equal subgraphs. work_ns: prefix sums of the
    least work of the units. `_stages`, `_mapped`: estimate and decision by range of units. `_shaped`: estimates by
    shape of the subgraph, without tensors that pass through. `_crossing`: tensors by cut."""

    graph: Graph
    arch: Target
    knobs: TuningKnobs
    cache: PlanCache
    map_lines: MapStage
    unit_of: dict[str, int] = field(init=False)
    shapes: StructuralKeys = field(init=False)
    work_ns: list[float] = field(init=False)
    _stages: dict[tuple[int, int], StageEstimate | None] = field(
        default_factory=dict[tuple[int, int], StageEstimate | None]
    )
    _mapped: dict[tuple[int, int], LineDecision | None] = field(
        default_factory=dict[tuple[int, int], LineDecision | None]
    )
    _shaped: dict[object, StageEstimate | None] = field(default_factory=dict[object, StageEstimate | None])
    _crossing: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def __post_init__(self) -> None:
        self.unit_of, self.shapes = number_units(self.graph), StructuralKeys.of_graph(self.graph)
        self.work_ns = list(accumulate(self._work_ns(), initial=0.0))

    def find_decision(self) -> LineDecision | None:
        """Returns the decision whose slowest stage takes least time; on near ties, the one with the least traffic.

        None if some stage does not fit a chip, however the graph is cut.
        """
        count = 1 + max(self.unit_of.values(), default=0)
        problem = StageProblem(count, self.cuts(count), self.arch.chips, self.stage_cost_ns, self.least_ns)
        slowest = problem.minimise_slowest()
        if slowest is None:
            return None
        found = problem.minimise_traffic(self.traffic_cost, self.least_flits, slowest[1] * STAGE_SLACK)
        assert found is not None, "the stages of which the slowest takes least time are within the limit"
        return self.join_stages(list(pairwise([0, *found[0], count])))

    def estimate_intervals(self, found: LineDecision) -> ChipIntervals:
        """Estimates the times of a decision about the whole graph."""
        works = find_line_work(self.graph, found, self.arch)
        traffic, alone = sum_core_traffic(works, self.arch), WorkBounds.from_work(works, self.arch)
        most = max(link_flits(traffic, self.arch), default=0.0)
        sending_ns = self._with_links_ns(alone, offchip_flits(traffic, self.arch))
        return ChipIntervals(alone.busiest_ns, sending_ns, most * self._flit_ns)

    def _with_links_ns(self, bounds: WorkBounds, flits: Counter[int]) -> float:
        """Returns the work in ns of the busiest core, with the flits that each core exchanges over links."""
        return max((ns + flits[core] * self._flit_ns for core, ns in bounds.busy_ns.items()), default=0.0)

    def link_ns(self, flits: float) -> float:
        """Returns the shortest interval at which a link can carry `flits` per sample."""
        return flits * self._flit_ns / MOST_LINK_USE

    @property
    def _flit_ns(self) -> float:
        """Time of a flit over a link."""
        return self.arch.network.link.ns if self.arch.network.link else 0.0

    @property
    def one_chip(self) -> Target:
        return self.arch.with_places(range(self.arch.cores_per_chip))

    def stage_graph(self, first: int, last: int) -> Graph:
        return extract_subgraph(self.graph, self.unit_of, range(first, last))

    def map_stage(self, part: Graph) -> LineDecision | None:
        """Maps a stage to a chip; None if it does not fit, or if its attentions get no cores of their own."""
        if count_least_crossbars(part, self.arch) > self.arch.cores_per_chip * self.arch.xbars_per_core:
            return None
        try:
            found = self.map_lines(part, self.one_chip, frozenset(part.inputs).difference(self.graph.inputs))
        except CapacityError:
            return None
        attends = any(isinstance(node.operator, Dot) for node in part.nodes)
        return None if found is None or (attends and not found[1].products) else found

    def estimate_stage(self, first: int, last: int) -> StageEstimate | None:
        """Returns the estimates of units `first` to `last` (excluded) as a stage; None if they do not fit a chip."""
        if (first, last) not in self._stages:
            part = self.stage_graph(first, last)
            shape = self.shapes.key_of(part), len(part.inputs) - len(self._fed(part))
            if shape not in self._shaped:
                found = self.map_stage(part)
                self._shaped[shape] = None if found is None else self._estimated(part, found)
                self._mapped[first, last] = found
            stage, passing = self._shaped[shape], self.crossing_flits(first, part.inputs)
            self._stages[first, last] = None if stage is None else replace(stage, flits=stage.flits + passing)
        return self._stages[first, last]

    def stage_cost_ns(self, first: int, last: int) -> float:
        """Returns the longer interval of a stage and of the link before it; infinite if the stage does not fit."""
        stage = self.estimate_stage(first, last)
        return math.inf if stage is None else max(stage.interval_ns, self.link_ns(stage.flits))

    def traffic_cost(self, first: int, last: int) -> float:
        """Returns the traffic cost of a stage: flits over the link before it, plus flits of its busiest core."""
        stage = self.estimate_stage(first, last)
        return math.inf if stage is None else stage.flits + stage.busiest_flits

    def least_flits(self, first: int, _: int) -> int:
        """Returns a lower bound of `moved`: each tensor crosses the link before unit `first` once."""
        return self.crossing_flits(first)

    def crossing_flits(self, cut: int, without: Collection[str] = ()) -> int:
        """Returns the flits of the tensors that cross a cut, each tensor once, except the tensors `without`."""
        return sum(
            tensor_flits(self.graph, name, self.arch) for name in self.crossing_tensors(cut) if name not in without
        )

    def _fed(self, part: Graph) -> list[str]:
        return [name for name in part.inputs if name not in self.graph.inputs]

    def _estimated(self, part: Graph, found: LineDecision) -> StageEstimate:
        """Estimates a stage. Its cores are also busy with the flits that they exchange over links.

        The global memory is on the first chip, which reads the inputs of the model: what other stages load, constants
        too, crosses links. Outputs count once, because the number of their readers is not known.
        """
        works = find_line_work(part, found, self.one_chip)
        moved, loaded = sum_memory_traffic(works, self.arch, loads=bool(self._fed(part)))
        interval_ns = self._with_links_ns(WorkBounds.from_work(works, self.one_chip), moved)
        return StageEstimate(interval_ns, int(loaded), max(moved.values(), default=0.0))

    def least_ns(self, first: int, last: int) -> float:
        """Returns a lower bound of the interval of units `first` to `last` on one chip: their work, spread evenly."""
        return (self.work_ns[last] - self.work_ns[first]) / self.arch.cores_per_chip

    def _work_ns(self) -> list[float]:
        found = [0.0] * (1 + max(self.unit_of.values(), default=0))
        if any(isinstance(node.operator, Dot) for node in self.graph.nodes):
            return found
        for key, plans in plan_layers(self.graph, self.arch, self.knobs, cache=self.cache).items():
            found[self.unit_of[key]] += min(plan.core_ns * plan.cores for plan in plans)
        return found

    def crossing_tensors(self, cut: int) -> list[str]:
        """Returns the tensors that units before a cut make and units after it read."""
        if cut not in self._crossing:
            self._crossing[cut] = self._found_crossing(cut) if cut else []
        return self._crossing[cut]

    def _found_crossing(self, cut: int) -> list[str]:
        behind = {n for node in self.graph.nodes if self.unit_of[node.output] >= cut for n in node.inputs}
        found = [n for n in self.graph.tensors if n in behind and self.unit_of.get(n, cut) < cut]
        views = {n.output: n.inputs[0] for n in self.graph.nodes if isinstance(n.operator, Move | Rename)}
        return [n for n in found if views.get(n) not in found]

    def cuts(self, count: int) -> set[int]:
        """Returns the units before which the graph can be cut: every stage must cut channels as the whole graph does.

        A graph with attentions is cut only before the layers of an attention; elsewhere more tensors would wait or
        pass through.
        """
        parts, rows = line_channel_ranges(self.graph, self.arch), self.arch.xbar_rows

        def alone(name: str) -> object:
            image = self.graph.tensors[name].image
            return cut_channels(image.channels, rows) if can_stream(image) else None

        together = list(self._together())
        begun = {r.start for r, node in together if isinstance(node.operator, Dot)}
        found = (begun or set(range(1, count))).difference({0}, *(set(r) - {r.start} for r, _ in together))
        return {cut for cut in found if all(parts.get(n) == alone(n) for n in self.crossing_tensors(cut))}

    def _together(self) -> Iterator[tuple[range, Node]]:
        """Yields the units that may not be separated, for each product of computed tensors and each recurrent layer."""
        since, begun = dict[str, int](), dict[str, int]()
        for node in self.graph.nodes:
            own = self.unit_of[node.output]
            recurrent = isinstance(node.operator, Filter) and bool(node.operator.key)
            if isinstance(node.operator, Filter):
                since[node.output] = first = begun.setdefault(filter_key(node), own)
            else:
                since[node.output] = first = min((since[n] for n in node.inputs if n in since), default=own)
            if recurrent or isinstance(node.operator, Dot):
                yield range(first, own + 1), node

    def join_stages(self, stages: list[tuple[int, int]]) -> LineDecision:
        """Concatenates the decisions of all stages, each on the cores of its chip."""
        layers: dict[str, LayerRecord] = {}
        flows: list[LineFlow] = []
        for number, (first, last) in enumerate(stages):
            found = self._mapped.get((first, last)) or self.map_stage(self.stage_graph(first, last))
            assert found is not None, "the stage was mapped before, or one of its shape"
            own, flow = renumber_decision(found, partial(add, number * self.arch.cores_per_chip))
            layers |= own
            flows.append(flow)
        return layers, replace(
            flows[0],
            loaders={name: pairs for flow in flows for name, pairs in flow.loaders.items()},
            products={name: grid for flow in flows for name, grid in flow.products.items()},
            makes_constants=any(flow.makes_constants for flow in flows),
        )


def tensor_flits(graph: Graph, name: str, arch: Target) -> int:
    """Returns the flits of a tensor."""
    tensor = graph.tensors[name]
    return -(-tensor.image.elements * arch.bytes_of(tensor.element) // arch.network.flit_bytes)


def number_units(graph: Graph) -> dict[str, int]:
    """Returns the unit of each node's output. A unit is a layer with its epilogue; units are in graph order."""
    found: dict[str, int] = {}
    keys: dict[str, int] = {}
    for node in graph.nodes:
        before = max((found[n] for n in node.inputs if n in found), default=0)
        if isinstance(node.operator, Filter):
            before = max(before, keys.setdefault(filter_key(node), len(keys)))
        found[node.output] = before
    return found
