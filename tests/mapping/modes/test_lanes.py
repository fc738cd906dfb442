"""Lanes: ranges of output lines of a layer that have cores of their own."""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.common.errors import UserError
from raptor.compiler.pipeline import MappedGraph, complete, generate_code, prepare_graph, rewrite_and_map, run_lowering
from raptor.frontend import load
from raptor.graph.ir import Filter
from raptor.graph.layers import find_filters
from raptor.graph.window import Window
from raptor.mapping.decision import Decision, LineUnfolding, Range
from raptor.mapping.evaluation.cell_layout import CellLayout, PlacedCell
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.evaluation.node_work import NodeWork, StepNeed
from raptor.mapping.evaluation.work_schedule import schedule_work
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.mapping_file import make_mapping_file
from raptor.mapping.modes.line_plans import MOST_LANES
from raptor.mapping.modes.line_unfolding import count_lane_bands, cut_bands
from raptor.mapping.modes.plan_cache import plan_layers
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, list_orders, measure_times
from raptor.mapping.strategies import STRATEGIES, rows_strategy
from raptor.options import ChipOptions
from raptor.target.arch import Target, load_chip
from raptor.target.tensor_layout import Image
from tests.mapping.evaluation.test_decision_work import computed_ns, counted, evaluated_ns, sent
from tests.pipeline import by_line, check, chip, passes
from tests.tiny_models import make_model, node, random
from tests.values import replace

CORES = 12
"""Cores of a decision before lanes get more."""


Step = tuple[str, str, Mapping[str, Any]]
"""Operator, inputs -> result, attributes."""

WEIGHTS = {
    "first": random(8, 3, 3, 3),
    "wide": random(8, 8, 3, 3, seed=1),
    "point": random(8, 8, 1, 1, seed=2),
    "both": random(4, 16, 3, 3, seed=3),
    "each": random(8, 1, 3, 3, seed=4),
    "many": random(40, 3, 3, 3, seed=5),
    "all": random(40, 40, 3, 3, seed=6),
    "few": random(8, 40, 3, 3, seed=7),
    "ends": np.array([0, 0, 2, 1, 0, 0, 0, 1]),
}


def of_lines(*steps: Step, height: int = 8, width: int = 8) -> ModelProto:
    """Operators on an image of `height` x `width` pixels with 3 channels, with some of `WEIGHTS`."""
    nodes = [node(op, *names.split(" -> "), name=names.split(" -> ")[1], **more) for op, names, more in steps]
    read = {name for _, names, _ in steps for name in names.split()}
    constants = {name: values for name, values in WEIGHTS.items() if name in read}
    return make_model(nodes, {"x": (1, 3, height, width)}, ["y"], constants)


PADDED: Mapping[str, Any] = {"pads": [1, 1, 1, 1]}
FIRST: Step = ("Conv", "x first -> a", PADDED)
THREE = FIRST, ("Conv", "a wide -> b", PADDED), ("Conv", "b wide -> y", PADDED)
DOWN = {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}
FORMS = {
    "layers": of_lines(FIRST, ("Relu", "a -> b", {}), ("Conv", "b wide -> y", PADDED)),
    "strided": of_lines(FIRST, ("Conv", "a wide -> y", {**PADDED, "strides": [2, 1]}), height=9),
    "dilated": of_lines(FIRST, ("Conv", "a wide -> y", {"dilations": [2, 1], "pads": [2, 1, 2, 1]})),
    "transposed": of_lines(FIRST, ("ConvTranspose", "a wide -> y", {"strides": [2, 2]})),
    "residual": of_lines(*THREE[:2], ("Add", "a b -> c", {}), ("Conv", "c point -> y", {})),
    "concatenated": of_lines(
        FIRST, ("Conv", "a point -> b", {}), ("Concat", "a b -> c", {"axis": 1}), ("Conv", "c both -> y", PADDED)
    ),
    "pooled": of_lines(FIRST, ("MaxPool", "a -> b", DOWN), ("Conv", "b wide -> y", PADDED)),
    "depthwise": of_lines(FIRST, ("Conv", "a each -> b", {**PADDED, "group": 8}), ("Conv", "b point -> y", {})),
    "gated": of_lines(
        FIRST, ("GlobalAveragePool", "a -> b", {}), ("Mul", "a b -> c", {}), ("Conv", "c wide -> y", PADDED)
    ),
    "shifted": of_lines(FIRST, ("Pad", "a ends -> b", {}), ("Conv", "b wide -> y", {})),
    "partial sums": of_lines(
        ("Conv", "x many -> a", PADDED), ("Conv", "a all -> b", PADDED), ("Conv", "b few -> y", PADDED)
    ),
}
VOLUME = make_model(
    [node("Conv", "x w", "a", name="a", pads=[1] * 6), node("Conv", "a v", "y", name="b", pads=[1] * 6)],
    {"x": (1, 2, 4, 5, 3)},
    ["y"],
    {"w": random(4, 2, 3, 3, 3), "v": random(4, 4, 3, 3, 3, seed=1)},
)


def cut_lines(lines: int, rng: Random) -> tuple[Range, ...]:
    """Random lanes of a layer with some output lines; at most four."""
    ends = sorted(rng.sample(range(1, lines), min(lines - 1, rng.randint(1, 3))))
    return tuple(zip([0, *ends], [*ends, lines], strict=True))


def with_lanes(mapped: MappedGraph, rng: Random) -> tuple[Decision, int]:
    """The decision with random lanes for about two of three layers, each on cores of its own, and all its cores."""
    first, layers = 1 + max(mapped.decision.cores), dict(mapped.decision.layers)
    filters = find_filters(mapped.graph)
    for key, layer in by_line(mapped.decision).items():
        lines = filters[key].window.out_lines
        if lines > 1 and rng.random() < 0.7:
            lanes = cut_lines(lines, rng)
            added = len(layer.cores) * (len(lanes) - 1)
            cores = (*layer.cores, *range(first, first + added))
            layers[key] = LineUnfolding(replace(layer.grid, lanes=lanes), cores)
            first += added
    return replace(mapped.decision, layers=layers), first


def lanes_of(decision: Decision) -> dict[str, tuple[Range, ...]]:
    return {key: layer.grid.lanes for key, layer in by_line(decision).items() if layer.grid.lanes}


def stored(model: ModelProto, seed: int, folder: Path) -> dict[str, Any]:
    """Options that compile a model with random lanes, of which there is at least one."""
    arch = chip((32, 32), xbars_per_core=64, cores=CORES)
    graph = prepare_graph(load(model).graph, arch)
    mapped, rng = rewrite_and_map(graph, arch, rows_strategy().without_search()), Random(seed)
    decision, cores = with_lanes(mapped, rng)
    while not lanes_of(decision):
        decision, cores = with_lanes(mapped, rng)
    file = folder / "mapping.json"
    file.write_bytes(make_mapping_file(decision, graph, replace(arch, core_count=cores)).to_json())
    return {"xbar": 32, "xbars_per_core": 64, "cores": cores, "mapping": str(file)}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FORMS)
def test_values_are_right(name: str, seed: int, tmp_path: Path) -> None:
    check(FORMS[name], **stored(FORMS[name], seed, tmp_path))


def test_values_of_a_volume_are_right(tmp_path: Path) -> None:
    check(VOLUME, **stored(VOLUME, 0, tmp_path))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["layers", "strided", "residual", "concatenated", "partial sums"])
def test_messages_of_lanes_are_counted(name: str, seed: int, tmp_path: Path) -> None:
    done = passes(FORMS[name], **stored(FORMS[name], seed, tmp_path))
    expected, found = sent(done), counted(done)
    assert len(expected) >= 20
    assert {pair: count for pair, (count, _) in found.items()} == {p: count for p, (count, _) in expected.items()}
    work, counted_work = computed_ns(done), evaluated_ns(done)
    assert work.keys() == counted_work.keys()
    assert all(0.7 < counted_work[core] / ns < 1.1 for core, ns in work.items())


def test_a_core_is_busy_for_the_lines_of_its_lane(tmp_path: Path) -> None:
    """The evaluation knows for each core and each message of a layer with lanes which output lines they are for."""
    done = passes(FORMS["layers"], **stored(FORMS["layers"], 1, tmp_path))
    works = {work.name: work for work in decision_work(done.chosen, done.decision, done.arch)}
    found = [(key, layer) for key, layer in by_line(done.decision).items() if layer.grid.lanes]
    assert found
    for key, layer in found:
        segments = [*layer.grid.segments(layer.grid.lanes[-1][1])]
        assert [works[key].spans[layer.core(s, 0, 0)] for s in range(len(segments))] == [lane for lane, _ in segments]


LANES = (0, 3), (3, 4), (4, 9)


def test_a_layout_with_lanes() -> None:
    """Three lanes of cells, each of two cores; equal cells of different lines are different tiles."""
    lines = tuple(((PlacedCell(0, 2, 2 * n), PlacedCell(2, 5, 2 * n + 1)),) for n in range(3))
    layout = CellLayout(Image((1, 4, 9, 5), 1), ((0, 4),), lines, starts=tuple(low for low, _ in LANES))
    lane_of = [n for n, (low, high) in enumerate(LANES) for _ in range(low, high)]
    assert [layout.index(y) for y in range(9)] == lane_of
    assert [count for _, count in layout.distinct()] == [3, 1, 5]
    assert [*layout.under((2, 6))] == [(2, 1), (3, 1), (4, 2)]
    number = layout.cell_of_element
    assert len(np.unique(number)) == 9 * 2
    for y, x in product(range(9), range(5)):
        core = 2 * lane_of[y] + (x >= 2)
        assert layout.cell_cores[number[y, x, 0] % len(layout.cell_cores)] == core
        assert layout.core_of((y * 5 + x) * 4) == core


def test_bands_of_lanes() -> None:
    """A lane has the bands that its lines read: with its own lines, and one above and below."""
    graph = load(FORMS["layers"]).graph
    window = next(node.operator.window for node in graph.nodes if isinstance(node.operator, Filter))
    assert isinstance(window, Window)
    lines = [[band.lines[0] for band, _ in cut_bands(window, 1, clipped=False, lane=lane)] for lane in ((0, 3), (3, 8))]
    assert lines == [[0, 1, 2, 3], [2, 3, 4, 5, 6, 7]]
    sums = Counter[int]()
    for (_, outs), count in count_lane_bands(window, 1, clipped=False, lane=(3, 8)).items():
        sums[outs] += count
    assert sums == {1: 1, 2: 2, 3: 3}


def test_a_layer_that_reads_padding_only_has_no_bands() -> None:
    """The two rows of the kernel are three lines apart, on both sides of the only line."""
    window = Window((1, 4), (1, 4), (2, 1), (1, 1), (2, 0), (3, 1))
    assert cut_bands(window, 1, clipped=False, lane=(0, 1)) == ()
    assert not count_lane_bands(window, 1, clipped=False, lane=(0, 1))


def test_a_lane_works_when_its_lines_arrive() -> None:
    """A core makes 8 lines of 100 ns; two cores read 4 of them each, 100 ns for a line."""
    made = NodeWork("lines", 0, 8)
    made.compute_ns[9] = 800
    read = NodeWork("lanes", 1, 8, [StepNeed(made, 1, 1, 0)], spans={0: (0, 4), 1: (4, 8)})
    read.compute_ns[0] = read.compute_ns[1] = 400
    steps = schedule_work([made, read], load_chip(ChipOptions(arch="bench", cores=10)), 8)
    assert np.bincount(steps.core).tolist() == [8, 4, 4]
    assert steps.work_ns.tolist() == [100.0] * 16
    latency_ns, interval_ns = measure_times(steps, list_orders(steps, 0, 1)[0])
    assert (latency_ns, interval_ns) == (900, 800)


def test_plans_with_lanes_have_their_share_of_the_work() -> None:
    """Each lane reads a line more than its own on each side that is not the border of the image."""
    arch = chip((32, 32), xbars_per_core=64, cores=60)
    graph = prepare_graph(load(FORMS["layers"]).graph, arch)
    (_, plans) = plan_layers(graph, arch, replace(DEFAULT_KNOBS, lanes=MOST_LANES)).values()
    for lanes in ((0, 4), (4, 8)), ((0, 2), (2, 5), (5, 8)):
        cut = [plan for plan in plans if plan.grid.lanes == lanes and plan.grid.height == 1]
        assert cut
        for plan in cut:
            whole = next(p for p in plans if p.grid == replace(plan.grid, lanes=()))
            assert (plan.cores, plan.xbars) == (len(lanes) * whole.cores, whole.xbars)
            assert plan.core_ns == pytest.approx(5 / 8 * whole.core_ns)
    assert {len(plan.grid.lanes) for plan in plans} == {0, 2, 3, 4, 8}
    assert all(not plan.grid.lanes for plan in plan_layers(graph, arch, DEFAULT_KNOBS)["y"])


def test_aligned_lanes_are_those_of_all_layers_with_enough_lines() -> None:
    """Layers of 8 lines have two lanes, and one of 4 lines none, until these are enough; a full chip has none."""
    model = of_lines(FIRST, ("Conv", "a wide -> b", {**PADDED, "strides": [2, 1]}), ("Conv", "b point -> y", {}))
    arch = chip((32, 32), xbars_per_core=64, cores=60)
    graph, two = prepare_graph(load(model).graph, arch), ((0, 4), (4, 8))
    found = {
        lines: [
            {plan.grid.lanes for plan in plans}
            for plans in plan_layers(graph, arch, replace(DEFAULT_KNOBS, lanes=2, aligned_lines=lines)).values()
        ]
        for lines in (9, 8, 4)
    }
    assert found == {9: [{()}] * 3, 8: [{two}, {()}, {()}], 4: [{two}, *[{((0, 2), (2, 4))}] * 2]}
    small = chip((32, 32), xbars_per_core=64, cores=1)
    (_, plans, _) = plan_layers(graph, small, replace(DEFAULT_KNOBS, lanes=2, aligned_lines=1)).values()
    assert {plan.grid.lanes for plan in plans} == {()}


def test_a_large_chip_has_lanes() -> None:
    """An image of 16 columns has at most 16 cores for a layer; its lanes have more, and both times are shorter."""
    arch = load_chip(ChipOptions(arch="bench", cores=160))
    graph = prepare_graph(load(of_lines(*THREE, height=16, width=16)).graph, arch)
    usual, cut = (rows_strategy(replace(DEFAULT_KNOBS, lanes=n)).without_search() for n in (1, MOST_LANES))
    found = [rewrite_and_map(graph, arch, strategy) for strategy in (usual, cut, STRATEGIES["rows"])]
    assert [bool(lanes_of(mapped.decision)) for mapped in found] == [False, True, True]
    times = [simulated_ns(mapped, arch) for mapped in found]
    assert all(after < 0.8 * before for before, after in zip(times[0], times[2], strict=True))
    evaluated = evaluate(found[2].graph, found[2].decision, arch)
    assert evaluated.latency_ns == pytest.approx(times[2][0], rel=0.15)
    assert evaluated.interval_ns == pytest.approx(times[2][1], rel=0.25)


def simulated_ns(mapped: MappedGraph, arch: Target) -> tuple[float, float]:
    """Latency and interval of a decision."""
    done = complete(mapped, arch, aim=BALANCED_OBJECTIVE)
    lowered = run_lowering(done.mapped, arch, known=done.known)
    cost = simulate_objective("throughput", lowered.program, generate_code(lowered, PIMSIM_BACKEND), arch)
    return cost.latency_ns, cost.interval_ns


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        (((0, 3), (4, 8)), r"layer y: grid.lanes: .*expected ranges that follow each other from 0 to 8"),
        (((0, 3), (3, 9)), r"layer y: grid.lanes: .*expected ranges that follow each other from 0 to 8"),
        (tuple((y, y + 1) for y in range(8)), r"layer y: cores: \d+ for a grid of \d+"),
    ],
)
def test_lanes_that_do_not_fit(lanes: tuple[Range, ...], message: str, tmp_path: Path) -> None:
    options = stored(FORMS["layers"], 0, tmp_path)
    file = Path(options["mapping"])
    found = json.loads(file.read_bytes())
    found["decision"]["layers"]["y"]["grid"]["lanes"] = lanes
    file.write_text(json.dumps(found))
    with pytest.raises(UserError, match=message):
        raptor.compile(FORMS["layers"], **options)
