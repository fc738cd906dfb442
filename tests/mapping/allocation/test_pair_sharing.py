"""Layers that share cores with a neighbour, and cores that go where a sample waits for them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto

from raptor.graph.ir import Graph
from raptor.graph.layers import find_filters
from raptor.mapping.allocation.core_division import CoreDivision, CoreOption, plan_options
from raptor.mapping.allocation.latency_rebalancing import LinePipeline, rebalance_cores
from raptor.mapping.allocation.pair_sharing import WORTH_SHARING, layer_predecessors, share_in_pairs
from raptor.mapping.knobs import DEFAULT_KNOBS, MESSAGE_OVERHEAD_NS, TuningKnobs
from raptor.mapping.modes.plan_choice import LayerPlan, pareto_front
from raptor.target import arch as architectures
from tests.mapping.modes.test_plan_choice import XBARS, plan_of, plans
from tests.pipeline import by_line, check, map_by_rows, passes
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 64, "cores": 12, "mapping": "rows"}
LAYERS = 4


def chain(channels: Sequence[int] = (16, 2) * (LAYERS // 2), size: int = 12) -> ModelProto:
    """Convolutions of 3x3 one after another, with so many output channels each."""
    nodes: list[NodeProto] = []
    weights: dict[str, Any] = {}
    x, given_ = "x", 16
    for i, count in enumerate(channels):
        weights[f"w{i}"] = random(count, given_, 3, 3, seed=i)
        nodes.append(node("Conv", f"{x} w{i}", f"c{i}", name=f"c{i}", pads=[1, 1, 1, 1]))
        x, given_ = f"c{i}", count
    return make_model(nodes, {"x": (1, 16, size, size)}, {x: 4}, weights)


def prepared(model: ModelProto) -> Graph:
    """Prepares a graph for the decision; compiles it with a mapping that shares no cores."""
    return passes(model, **CHIP | {"mapping": "raptor"}).graph


GRAPH = prepared(chain())
KEYS = [*find_filters(GRAPH)]


def divided(fronts: Mapping[str, Sequence[LayerPlan]], cores: int) -> CoreDivision | None:
    """The division of the default: each layer has cores of its own."""
    division = CoreDivision.with_fewest_cores([plan_options(key, front) for key, front in fronts.items()])
    return division.grown(cores) if division.cores <= cores else None


def best_limit(given_: Sequence[Sequence[LayerPlan]], cores: int) -> float:
    """The least time of the busiest core, of all ways to pair neighbours and all plans."""

    def ways(first: int) -> Iterator[list[tuple[int, ...]]]:
        if first == len(given_):
            yield []
        for size in (1, 2):
            if first + size <= len(given_):
                yield from ([tuple(range(first, first + size)), *rest] for rest in ways(first + size))

    found = float("inf")
    for way, chosen in product(ways(0), product(*given_)):
        units = [[chosen[i] for i in unit] for unit in way]
        held = all(len(unit) == 1 or sum(p.xbars for p in unit) <= XBARS for unit in units)
        if held and sum(max(p.cores for p in unit) for unit in units) <= cores:
            found = min(found, max(sum(p.core_ns for p in unit) for unit in units))
    return found


def test_a_layer_reads_those_before_it():
    nodes = [
        *(node("Conv", "x a", "a1", name="a1"), node("Relu", "a1", "a2"), node("Conv", "a1 b", "b1", name="b1")),
        *(node("Add", "a2 b1", "sum"), node("Conv", "sum c", "c1", name="c1"), node("Conv", "c1 d", "y", name="d1")),
    ]
    weights = {name: random(4, 4, 1, 1, seed=i) for i, name in enumerate("abcd")}
    graph = prepared(make_model(nodes, {"x": (1, 4, 6, 6)}, {"y": 4}, weights))
    a, b, c, d = find_filters(graph)
    assert layer_predecessors(graph) == {a: frozenset(), b: {a}, c: {a, b}, d: {c}}


@given(st.lists(plans(), min_size=LAYERS, max_size=LAYERS), st.integers(1, 12))
def test_the_busiest_core_is_as_quick_as_any_pairs_allow(given_: list[list[LayerPlan]], cores: int):
    by_key = dict(zip(KEYS, given_, strict=True))
    apart = divided({key: pareto_front(found) for key, found in by_key.items()}, cores)
    if apart is None:
        return
    shared = share_in_pairs(GRAPH, by_key, apart, cores, XBARS, 1.0)
    best_ns = best_limit(given_, cores)
    assert shared.slowest_ns == (best_ns if best_ns <= WORTH_SHARING * apart.slowest_ns else apart.slowest_ns)
    assert shared.cores <= cores
    _, placed = shared.placed()
    assert [*placed] == KEYS
    on_core: dict[int, list[str]] = {}
    for key, layer in placed.items():
        assert len({*layer.cores}) == layer.plan.cores
        for core in layer.cores:
            on_core.setdefault(core, []).append(key)
    assert max(on_core, default=-1) < cores
    for keys in on_core.values():
        assert sum(placed[key].plan.xbars for key in keys) <= XBARS
        assert len(keys) == 1 or tuple(keys) in [*pairwise(KEYS)]


def test_a_pair_must_gain_more_than_its_factor():
    """Together the layers take 11 on two cores, and 12 apart; with a factor of 1.2, that is no gain."""
    front = [plan_of(1, 1, 12.0), plan_of(2, 1, 5.5)]
    by_key = dict.fromkeys(KEYS[:2], front)
    apart = divided(by_key, 2)
    assert apart is not None
    assert share_in_pairs(GRAPH, by_key, apart, 2, XBARS, 1.0).slowest_ns == 11.0
    assert share_in_pairs(GRAPH, by_key, apart, 2, XBARS, 1.2) is apart


def test_cores_that_are_left_go_to_a_pair():
    """The third layer bounds the work of a core, with 11.5. A pair needs two cores for that, and gets the third one."""
    front = [plan_of(n, 1, 12.0 / n) for n in (1, 2, 3)]
    by_key = {KEYS[0]: front, KEYS[1]: front, KEYS[2]: [plan_of(1, XBARS, 11.5)]}
    apart = divided(by_key, 4)
    assert apart is not None
    shared = share_in_pairs(GRAPH, by_key, apart, 4, XBARS, 0.9)
    assert [len(placed.cores) for placed in shared.placed()[1].values()] == [3, 3, 1]


def test_a_pair_must_be_worth_its_waiting():
    """Together the layers take 11.9 on two cores, and 12 apart."""
    front = [plan_of(1, 1, 12.0), plan_of(2, 1, 5.95)]
    by_key = dict.fromkeys(KEYS[:2], front)
    apart = divided(by_key, 2)
    assert apart is not None
    assert share_in_pairs(GRAPH, by_key, apart, 2, XBARS, 1.0) is apart


def test_layers_side_by_side_share_no_cores():
    """Both read the input, so none of them waits for the other."""
    nodes = [node("Conv", f"x {name}", f"{name}1", name=f"{name}1") for name in "ab"]
    outputs = {"a1": 4, "b1": 4}
    graph = prepared(make_model(nodes, {"x": (1, 4, 6, 6)}, outputs, {name: random(4, 4, 1, 1) for name in "ab"}))
    front = [plan_of(1, 1, 12.0), plan_of(2, 1, 5.5)]
    by_key = dict.fromkeys(find_filters(graph), front)
    apart = divided(by_key, 2)
    assert apart is not None
    assert share_in_pairs(graph, by_key, apart, 2, XBARS, 1.0) is apart


def test_a_pair_has_one_copy_of_each_matrix():
    """Crossbars are counted with one copy; more of them would not fit beside the other layer."""
    plan = plan_of(2, 1, 5.5)
    front = [plan_of(1, 1, 12.0), replace(plan, grid=replace(plan.grid, copies=3))]
    by_key = dict.fromkeys(KEYS[:2], front)
    apart = divided(by_key, 2)
    assert apart is not None
    shared = share_in_pairs(GRAPH, by_key, apart, 2, XBARS, 1.0)
    assert [placed.plan.grid.copies for placed in shared.placed()[1].values()] == [1, 1]


def test_distant_layers_share_no_cores():
    """Each layer needs all crossbars of a core, but for the first and the third."""
    light, heavy = [plan_of(1, 1, 1.0)], [plan_of(1, XBARS, 9.0), plan_of(2, XBARS, 4.0)]
    by_key = dict(zip(KEYS, (light, heavy, light, heavy), strict=True))
    apart = divided(by_key, 5)
    assert apart is not None
    assert share_in_pairs(GRAPH, by_key, apart, 5, XBARS, 1.0) is apart


def test_lines_wait_for_lines_and_cores():
    """A kernel of 3 lines with a border of 1: line y needs line y + 1, or the last one.

    The first layer takes 10 for each of its 12 input lines, and with the last one its last two lines are ready. So each
    layer behind it has two lines left to do, of 6, of 3 and of 1.
    """
    pipeline = LinePipeline.from_graph(GRAPH, {key: i for i, key in enumerate(KEYS)})
    height = np.ones(LAYERS, np.int64)
    times = np.array([120.0, 72.0, 36.0, 12.0])
    assert pipeline.latency_ns(times, height) == pytest.approx(120 + 2 * (6 + 3 + 1) + LAYERS * MESSAGE_OVERHEAD_NS)


def test_a_slower_layer_counts_whole():
    """The second layer takes ten times as long: it begins after two lines of the first one, and then never waits."""
    pipeline = LinePipeline.from_graph(GRAPH, {key: i for i, key in enumerate(KEYS)})
    times, height = np.array([12.0, 120.0, 0.0, 0.0]), np.ones(LAYERS, np.int64)
    assert pipeline.latency_ns(times, height) == pytest.approx(2 + 120 + LAYERS * MESSAGE_OVERHEAD_NS)


def test_what_works_on_all_lines_waits_for_the_last():
    """The upper half of an image is not followed line by line: the second layer begins when the first one is done."""
    nodes = [
        node("Conv", "x a", "one", name="one"),
        node("Slice", "one start end axis", "half"),
        node("Conv", "half b", "two", name="two"),
    ]
    bounds = {"start": np.array([0]), "end": np.array([3]), "axis": np.array([2])}
    weights = {"a": random(4, 4, 1, 1), "b": random(4, 4, 1, 1, seed=1), **bounds}
    graph = prepared(make_model(nodes, {"x": (1, 4, 6, 6)}, {"two": 4}, weights))
    pipeline = LinePipeline.from_graph(graph, {key: i for i, key in enumerate(find_filters(graph))})
    times = np.array([60.0, 60.0])
    assert pipeline.latency_ns(times, np.ones(2, np.int64)) == pytest.approx(120 + 2 * MESSAGE_OVERHEAD_NS)


def test_blocks_of_several_lines_wait_for_all_of_them():
    pipeline = LinePipeline.from_graph(GRAPH, {key: i for i, key in enumerate(KEYS)})
    times, height = np.array([12.0, 120.0, 0.0, 0.0]), np.array([4, 1, 1, 1])
    assert pipeline.latency_ns(times, height) == pytest.approx(4 + 120 + LAYERS * MESSAGE_OVERHEAD_NS)


@given(st.lists(plans(), min_size=LAYERS, max_size=LAYERS), st.integers(1, 16), st.floats(0.5, 8.0))
def test_an_exchange_of_cores_gains(given_: list[list[LayerPlan]], cores: int, latency: float):
    """It never uses more cores than there are, and no single move to another plan would gain more."""
    fronts = {key: pareto_front(found) for key, found in zip(KEYS, given_, strict=True)}
    apart = divided(fronts, cores)
    if apart is None:
        return
    pipeline = LinePipeline.from_graph(GRAPH, {key: i for i, key in enumerate(KEYS)})

    def cost(chosen: Sequence[LayerPlan]) -> float:
        times = np.array([plan.core_ns for plan in chosen])
        return times.max() * pipeline.latency_ns(times, np.ones(LAYERS, np.int64)) ** latency

    exchanged = rebalance_cores(GRAPH, apart, cores, latency)
    before, after = ([p.plan for p in division.placed()[1].values()] for division in (apart, exchanged))
    assert exchanged.cores <= cores
    assert cost(after) <= cost(before) * (1 + 1e-9)
    for i, key in enumerate(KEYS):
        for plan in fronts[key]:
            moved = [*after[:i], plan, *after[i + 1 :]]
            assert sum(p.cores for p in moved) > cores or cost(moved) >= cost(after) * (1 - 1e-6)


def test_a_pair_takes_as_long_as_both_layers():
    """A core goes to the pair, which takes 12 on one core, and not to the layer behind it, which takes 8."""
    pair, single = (
        [CoreOption(i, ns / i, dict.fromkeys(keys, plan_of(i, 1, ns / i / len(keys)).on_first_cores())) for i in (1, 2)]
        for keys, ns in ((KEYS[:2], 12.0), (KEYS[2:3], 8.0))
    )
    exchanged = rebalance_cores(GRAPH, CoreDivision((pair, single), (0, 0)), 3, 0.5)
    assert [*exchanged.at] == [1, 0]


def test_no_layers_exchange_no_cores():
    nothing = CoreDivision((), ())
    assert rebalance_cores(GRAPH, nothing, 4, 8.0) is nothing
    assert share_in_pairs(GRAPH, {}, nothing, 4, XBARS, 1.0) is nothing


def test_neighbours_share_cores_of_a_chip():
    layers = by_line(
        map_by_rows(GRAPH, architectures.load(xbar=16, xbars_per_core=64, cores=7), TuningKnobs(neighbours=1.0))
    )
    serves = Counter(core for layer in layers.values() for core in {*layer.cores})
    assert max(serves.values()) == 2
    for (a, first), (b, second) in product(layers.items(), repeat=2):
        assert a == b or (a, b) in pairwise(KEYS) or (b, a) in pairwise(KEYS) or not {*first.cores} & {*second.cores}


def test_the_latency_moves_cores():
    arch = architectures.load(xbar=16, xbars_per_core=64, cores=12)
    assert map_by_rows(GRAPH, arch, TuningKnobs(latency=8.0)) != map_by_rows(GRAPH, arch, DEFAULT_KNOBS)


@pytest.mark.parametrize("knobs", [{"neighbours": 1.0}, {"neighbours": 1.1, "latency": 8.0}, {"latency": 8.0}])
@pytest.mark.parametrize("cores", [4, 7, 12, 40])
def test_answers(knobs: dict[str, float], cores: int):
    options: dict[str, Any] = CHIP | {"cores": cores}
    check(chain(), **options, knobs=knobs)


@pytest.mark.parametrize(
    ("options", "cores", "at"),
    [
        ((((1, 100.0), (3, 10.0)), ((1, 1.0),)), 3, [0, 0]),
        ((((1, 100.0), (3, 10.0)), ((1, 1.0),)), 4, [1, 0]),
        ((((1, 100.0), (4, 10.0)), ((1, 1.5), (2, 1.0))), 4, [0, 1]),
        ((((1, 100.0), (4, 10.0)), ((1, 1.5), (2, 1.0))), 5, [1, 0]),
    ],
)
def test_an_exchange_takes_no_core_too_many(options: Sequence[Sequence[tuple[int, float]]], cores: int, at: list[int]):
    """The first layer would gain most by many cores more; of the other layer, one can be had at most."""
    keyed = zip(KEYS, options, strict=False)
    fronts = [[CoreOption(n, ns, {key: plan_of(n, 1, ns).on_first_cores()}) for n, ns in few] for key, few in keyed]
    exchanged = rebalance_cores(GRAPH, CoreDivision(fronts, [0, len(options[1]) - 1]), cores, 1.0)
    assert [*exchanged.at] == at
