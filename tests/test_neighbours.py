"""Layers that share cores with a neighbour, and cores that go where a sample waits for them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from raptor.graph.ir import Graph
from raptor.mapping.decision import filters_of
from raptor.mapping.knobs import DEFAULT, MESSAGE_NS, Knobs
from raptor.mapping.neighbours import Division, layers_read, share_neighbours
from raptor.mapping.pipeline import Pipeline, exchange_cores
from raptor.mapping.plans import Plan, choose, pareto
from raptor.mapping.rows import map_rows
from raptor.target import arch as architectures
from tests.frontend.support import make_model, node, random
from tests.pipeline import by_line, check, passes
from tests.test_plans import XBARS, plan_of, plans

CHIP = {"xbar": 16, "xbars_per_core": 64, "cores": 12, "mapping": "rows"}
LAYERS = 4


def chain(channels: Sequence[int] = (16, 2) * (LAYERS // 2), size: int = 12) -> ModelProto:
    """Convolutions of 3x3 one after another, with so many output channels each."""
    nodes, weights, x, given_ = [], {}, "x", 16
    for i, count in enumerate(channels):
        weights[f"w{i}"] = random(count, given_, 3, 3, seed=i)
        nodes.append(node("Conv", f"{x} w{i}", f"c{i}", name=f"c{i}", pads=[1, 1, 1, 1]))
        x, given_ = f"c{i}", count
    return make_model(nodes, {"x": (1, 16, size, size)}, {x: 4}, weights)


def prepared(model: ModelProto) -> Graph:
    return passes(model, **CHIP).graph


GRAPH = prepared(chain())
KEYS = [*filters_of(GRAPH)]


def divided(fronts: Mapping[str, Sequence[Plan]], cores: int) -> Division | None:
    """The division of the default: each layer has cores of its own."""
    placed = choose({key: [*front] for key, front in fronts.items()}, cores, 0, 1.0)
    return None if placed is None else Division.apart(fronts, placed)


def best_limit(given_: Sequence[Sequence[Plan]], cores: int) -> float:
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
        *(node("Add", "a2 b1", "sum"), node("Conv", "sum c", "y", name="c1")),
    ]
    weights = {name: random(4, 4, 1, 1, seed=i) for i, name in enumerate("abc")}
    graph = prepared(make_model(nodes, {"x": (1, 4, 6, 6)}, {"y": 4}, weights))
    a, b, c = filters_of(graph)
    assert layers_read(graph) == {a: frozenset(), b: {a}, c: {a, b}}


@given(st.lists(plans(), min_size=LAYERS, max_size=LAYERS), st.integers(1, 12))
def test_the_busiest_core_is_as_quick_as_any_pairs_allow(given_: list[list[Plan]], cores: int):
    by_key = dict(zip(KEYS, given_, strict=True))
    apart = divided({key: pareto(found) for key, found in by_key.items()}, cores)
    if apart is None:
        return
    shared = share_neighbours(GRAPH, by_key, apart, cores, XBARS, 1.0)
    assert shared.slowest_ns == min(apart.slowest_ns, best_limit(given_, cores))
    assert shared.cores <= cores
    placed = shared.placed()
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
    assert share_neighbours(GRAPH, by_key, apart, 2, XBARS, 1.0).slowest_ns == 11.0
    assert share_neighbours(GRAPH, by_key, apart, 2, XBARS, 1.2) is apart


def test_distant_layers_share_no_cores():
    """Each layer needs all crossbars of a core, but for the first and the third."""
    light, heavy = [plan_of(1, 1, 1.0)], [plan_of(1, XBARS, 9.0), plan_of(2, XBARS, 4.0)]
    by_key = dict(zip(KEYS, (light, heavy, light, heavy), strict=True))
    apart = divided(by_key, 5)
    assert apart is not None
    assert share_neighbours(GRAPH, by_key, apart, 5, XBARS, 1.0) is apart


def test_lines_wait_for_lines_and_cores():
    """A kernel of 3 lines with a border of 1: line y needs line y + 1, or the last one.

    The first layer takes 10 for each of its 12 input lines, and with the last one its last two lines are ready. So each
    layer behind it has two lines left to do, of 6, of 3 and of 1.
    """
    pipeline = Pipeline.of(GRAPH, {key: i for i, key in enumerate(KEYS)})
    height = np.ones(LAYERS, np.int64)
    times = np.array([120.0, 72.0, 36.0, 12.0])
    assert pipeline.latency_ns(times, height) == pytest.approx(120 + 2 * (6 + 3 + 1) + LAYERS * MESSAGE_NS)


def test_a_slower_layer_counts_whole():
    """The second layer takes ten times as long: it begins after two lines of the first one, and then never waits."""
    pipeline = Pipeline.of(GRAPH, {key: i for i, key in enumerate(KEYS)})
    times, height = np.array([12.0, 120.0, 0.0, 0.0]), np.ones(LAYERS, np.int64)
    assert pipeline.latency_ns(times, height) == pytest.approx(2 + 120 + LAYERS * MESSAGE_NS)


def test_blocks_of_several_lines_wait_for_all_of_them():
    pipeline = Pipeline.of(GRAPH, {key: i for i, key in enumerate(KEYS)})
    times, height = np.array([12.0, 120.0, 0.0, 0.0]), np.array([4, 1, 1, 1])
    assert pipeline.latency_ns(times, height) == pytest.approx(4 + 120 + LAYERS * MESSAGE_NS)


@given(st.lists(plans(), min_size=LAYERS, max_size=LAYERS), st.integers(1, 16), st.floats(0.5, 8.0))
def test_an_exchange_of_cores_gains(given_: list[list[Plan]], cores: int, latency: float):
    """It never uses more cores than there are, and no single move to another plan would gain more."""
    fronts = {key: pareto(found) for key, found in zip(KEYS, given_, strict=True)}
    apart = divided(fronts, cores)
    if apart is None:
        return
    pipeline = Pipeline.of(GRAPH, {key: i for i, key in enumerate(KEYS)})

    def cost(chosen: Sequence[Plan]) -> float:
        times = np.array([plan.core_ns for plan in chosen])
        return times.max() * pipeline.latency_ns(times, np.ones(LAYERS, np.int64)) ** latency

    exchanged = exchange_cores(GRAPH, apart, cores, latency)
    before, after = ([p.plan for p in division.placed().values()] for division in (apart, exchanged))
    assert exchanged.cores <= cores
    assert cost(after) <= cost(before) * (1 + 1e-9)
    for i, key in enumerate(KEYS):
        for plan in fronts[key]:
            moved = [*after[:i], plan, *after[i + 1 :]]
            assert sum(p.cores for p in moved) > cores or cost(moved) >= cost(after) * (1 - 1e-6)


def test_no_layers_exchange_no_cores():
    nothing = Division((), ())
    assert exchange_cores(GRAPH, nothing, 4, 8.0) is nothing
    assert share_neighbours(GRAPH, {}, nothing, 4, XBARS, 1.0) is nothing


def test_neighbours_share_cores_of_a_chip():
    layers = by_line(map_rows(GRAPH, architectures.load(xbar=16, xbars_per_core=64, cores=7), Knobs(neighbours=1.0)))
    serves = Counter(core for layer in layers.values() for core in {*layer.cores})
    assert max(serves.values()) == 2
    for (a, first), (b, second) in product(layers.items(), repeat=2):
        assert a == b or (a, b) in pairwise(KEYS) or (b, a) in pairwise(KEYS) or not {*first.cores} & {*second.cores}


def test_the_latency_moves_cores():
    arch = architectures.load(xbar=16, xbars_per_core=64, cores=12)
    assert map_rows(GRAPH, arch, Knobs(latency=8.0)) != map_rows(GRAPH, arch, DEFAULT)


@pytest.mark.parametrize("knobs", [{"neighbours": 1.0}, {"neighbours": 1.1, "latency": 8.0}, {"latency": 8.0}])
@pytest.mark.parametrize("cores", [4, 7, 12, 40])
def test_answers(knobs: dict[str, float], cores: int):
    check(chain(), **{**CHIP, "cores": cores}, knobs=knobs)
