"""Moves of computed tensors have cores of their own where much work is behind them, and later moves follow them."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.graph.ir import Elementwise, Filter, Graph, Move
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.modes.epilogue_cost import find_epilogues
from raptor.mapping.modes.line_streaming import find_gathers, find_views, line_channel_ranges
from raptor.mapping.modes.operator_cost import copies_ns
from raptor.mapping.modes.spread_moves import can_spread, find_move_work
from raptor.spatial.ir import Copy
from raptor.spatial.operation_costs import CostModel
from tests.mapping.evaluation.test_decision_work import counted, sent
from tests.pipeline import Passes, check, faults, line_flow, passes
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"cores": 40, "xbar": 32}
BINS, FRAMES = 12, 24


def spectrum(*, joined: bool = True) -> ModelProto:
    """Two layers make bins of a spectrum, which become an image of frames x bins, and this one of shifted copies."""
    several = [node("Conv", "x w", "b", name="high"), node("Concat", "a b", "c", name="both", axis=1)] if joined else []
    nodes = [
        node("Conv", "x v", "a", name="low"),
        *several,
        node("Slice", "c first last axis" if joined else "a first last axis", "s", name="slice"),
        *(node("Exp", "s", "e"), node("Transpose", "e", "t", perm=[0, 2, 1]), node("Unsqueeze", "t one", "u")),
        *(node("Tanh", "u", "h"), node("Slice", "h start stop columns", "i", name="shift")),
        *(node("Slice", "h begin end columns", "j", name="keep"), node("Concat", "i j", "k", name="shifted", axis=1)),
        node("Conv", "k f", "y", name="image", pads=[1] * 4),
    ]
    width = 2 * BINS - 1 if joined else BINS - 1
    ints = {"first": 1, "last": width + 1, "axis": 1, "one": 1, "start": 2, "stop": width, "begin": 0, "end": width - 2}
    constants = {name: np.array([value]) for name, value in (ints | {"columns": 3}).items()}
    weights = {"v": random(BINS, 3, 5), "w": random(BINS, 3, 5, seed=1), "f": random(4, 2, 3, 3)}
    return make_model(nodes, {"x": (1, 3, FRAMES + 4)}, {"y": 4}, constants | weights, opset=13)


@pytest.fixture(scope="module")
def done() -> Passes:
    return passes(spectrum(), mapping="rows", **CHIP)


def test_the_join_of_several_layers_has_cores_and_later_moves_follow(done: Passes):
    graph, parts = done.chosen, line_channel_ranges(done.chosen, done.arch)
    found = find_move_work(graph, parts, done.arch).spread(1)
    (name,) = found.moves
    assert len(found.moves[name].inputs) == 2
    moves = [each.output for each in graph.nodes if isinstance(each.operator, Move)]
    assert found.following == {*moves} - {name}
    work = find_epilogues(graph, done.arch, found)
    after = [each for each in graph.nodes if each.output in found.following]
    assert work[name].elements_ns > sum(copies_ns(graph, each, done.arch) for each in after)
    assert name not in find_epilogues(graph, done.arch)


def test_work_below_the_limit_stays_where_it_is(done: Passes):
    graph, parts = done.chosen, line_channel_ranges(done.chosen, done.arch)
    spread = find_move_work(graph, parts, done.arch).spread(1e6)
    assert not spread.moves
    assert spread.gathers(graph, parts) == find_gathers(graph, parts)


@pytest.fixture(scope="module")
def found() -> Passes:
    """Passes of a decision in which the move has cores of its own."""
    return passes(spectrum(), mapping="rows", knobs={"moves": 1}, **CHIP)


def test_lines_are_made_on_the_cores_that_have_their_tokens(found: Passes):
    """Messages and the work of functions on each core are evaluated as they are lowered."""
    loaders = line_flow(found.decision).loaders["s"]
    assert len({core for _, core in loaders}) == len(loaders) > 3
    home = dict(zip((c.results[0].name for c in found.spatial.computes), found.partition.cores, strict=True))
    frames = {frame: core for (low, high), core in loaders for frame in range(low, high)}
    lines = [each for each in home if each.startswith("h.")]
    assert len({home[each] for each in lines}) == len(loaders)
    assert len(lines) == FRAMES == len(frames)
    expected, evaluated = sent(found), counted(found)
    assert {pair: count for pair, (count, _) in evaluated.items()} == {p: count for p, (count, _) in expected.items()}
    costs, lowered = CostModel(found.arch, found.spatial.filters), defaultdict[int, float](float)
    for compute, core in zip(found.spatial.computes, found.partition.cores, strict=True):
        if compute.results[0].name.startswith(("e.", "h.")):
            lowered[core] += sum(costs.op_ns(op, compute) for op in compute.body)
    evaluated_ns = defaultdict[int, float](float)
    for work in decision_work(found.chosen, found.decision, found.arch):
        for core, ns in work.compute_ns.items() if work.name in "eh" else ():
            evaluated_ns[core] += ns
    assert evaluated_ns == pytest.approx(lowered)


def test_a_decision_with_moves_on_cores_of_their_own_is_right():
    check(spectrum(), mapping="rows", knobs={"moves": 1}, **CHIP)


def test_a_decision_gives_cores_to_moves_that_can_have_some(found: Passes):
    flow = line_flow(found.decision)
    assert not [*faults(found.decision, found.graph, found.arch)]
    other = next(node.output for node in found.chosen.nodes if isinstance(node.operator, Elementwise))
    moved = replace(found.decision, flow=replace(flow, loaders={other: flow.loaders["s"]}))
    assert any(f"flow.loaders: {other}" in each for each in faults(moved, found.graph, found.arch))


def test_a_decision_gives_cores_to_a_move_that_makes_an_output():
    """The end of a long signal is cut off; nothing reads the result."""
    nodes = [node("Conv", "x v", "a", name="low"), node("Squeeze", "a one", "s"), node("Slice", "s start end one", "y")]
    constants = {"v": random(1, 3, 5), "one": np.array([1]), "start": np.array([48]), "end": np.array([4048])}
    model = make_model(nodes, {"x": (1, 3, 4100)}, {"y": 1}, constants, opset=13)
    ended = passes(model, mapping="rows", knobs={"moves": 1}, **CHIP)
    assert {*line_flow(ended.decision).loaders} == {"x", "y"}
    assert not [*faults(ended.decision, ended.graph, ended.arch)]


def tokens(reader: str) -> Graph:
    """Every other token of a sequence; what reads it is a function or a layer."""
    last = {"function": node("Exp", "r", "y"), "layer": node("MatMul", "r w", "y", name="after")}[reader]
    nodes = [node("MatMul", "x v", "a", name="before"), node("Slice", "a zero end one two", "r"), last]
    given = {"v": random(4, 4), "w": random(4, 3)}
    given |= {name: np.array([value]) for name, value in {"zero": 0, "end": 12, "one": 1, "two": 2}.items()}
    return passes(make_model(nodes, {"x": (1, 12, 4)}, {"y": 3}, given), mapping="rows", **CHIP).chosen


@pytest.mark.parametrize(("reader", "wanted"), [("function", True), ("layer", False)])
def test_views_that_functions_alone_read_can_have_cores(reader: str, wanted: bool):
    """A layer makes the parts of a view that it needs; a function runs where its operand is, on one core for a view."""
    graph, arch = tokens(reader), passes(spectrum(), mapping="rows", **CHIP).arch
    parts, readers = line_channel_ranges(graph, arch), graph.readers()
    views = find_views(graph, parts)
    (move,) = [each for each in graph.nodes if each.output in views]
    assert any(isinstance(each.operator, Filter) for each in readers[move.output]) != wanted
    assert can_spread(graph, move, parts, views, readers[move.output]) == wanted


def masks(reader: str) -> ModelProto:
    """Queries are multiplied with the pixels of an image; the masks are an image again, and enlarged or pooled."""
    last = {
        "resize": node("Resize", "m - scales", "y", name="last", mode="linear"),
        "pool": node("MaxPool", "m", "y", name="last", kernel_shape=[3, 3], pads=[1] * 4),
    }
    nodes = [
        node("Conv", "x v", "p", name="pixels"),
        node("Reshape", "p rows", "r", name="rows"),
        node("MatMul", "q w", "k", name="queries"),
        node("MatMul", "k r", "d", name="product"),
        node("Reshape", "d image", "m", name="masks"),
        last[reader],
    ]
    constants = {"rows": np.array([1, 16, 64]), "image": np.array([1, 6, 8, 8]), "v": random(16, 3, 1, 1)}
    constants |= {"w": random(16, 16), "scales": np.array([1, 1, 4, 4], np.float32)}
    return make_model(nodes, {"x": (1, 3, 8, 8), "q": (1, 6, 16)}, {"y": 4}, constants, opset=13)


@pytest.mark.parametrize("reader", ["resize", "pool"])
def test_masks_are_read_by_windows_on_cores_of_their_own(reader: str):
    done = passes(masks(reader), mapping="rows", knobs={"moves": 1}, **CHIP)
    moved = [name for name in line_flow(done.decision).loaders if name.startswith("m")]
    assert len(moved) == 1
    assert not [*faults(done.decision, done.graph, done.arch)]
    check(masks(reader), mapping="rows", knobs={"moves": 1}, **CHIP)


@pytest.mark.parametrize(("axis", "follows"), [(2, True), (1, False)])
def test_a_view_follows_a_move_whose_pixels_it_keeps(axis: int, follows: bool):
    """Some channels of each token are where the token is; other tokens are not."""
    nodes = [node("MatMul", "x v", "a", name="before"), node("Slice", "a zero end one two", "r"), node("Exp", "r", "e")]
    nodes += [node("Slice", "e one three axis", "c", name="part"), node("Tanh", "c", "y")]
    given = {name: np.array([n]) for name, n in {"zero": 0, "end": 12, "one": 1, "two": 2, "three": 3}.items()}
    model = make_model(nodes, {"x": (1, 12, 4)}, {"y": 3}, given | {"v": random(4, 4), "axis": np.array([axis])})
    done = passes(model, mapping="rows", **CHIP)
    moves = [each.output for each in done.chosen.nodes if isinstance(each.operator, Move)]
    found = find_move_work(done.chosen, line_channel_ranges(done.chosen, done.arch), done.arch).spread(1e-9)
    assert [*found.moves] == (moves[:1] if follows else moves)
    assert found.following == ({*moves[1:]} if follows else set())


def returned() -> ModelProto:
    """A layer of the pixels of an image, in columns as a sequence, which is added to the image."""
    nodes = [
        *(node("Conv", "x v", "a", name="image", pads=[1] * 4), node("Transpose", "a", "t", perm=[3, 2, 0, 1])),
        *(node("Reshape", "t tokens", "s"), node("MatMul", "s w", "m", name="tokens"), node("Tanh", "m", "h")),
        *(
            node("Reshape", "h columns", "c", name="split"),
            node("Transpose", "c", "back", name="turn", perm=[2, 3, 1, 0]),
        ),
        *(node("Add", "a back", "sum"), node("Conv", "sum u", "y", name="after", pads=[1] * 4)),
    ]
    given = {"v": random(6, 2, 3, 3), "w": random(6, 6), "u": random(3, 6, 3, 3)}
    given |= {"tokens": np.array([1, 80, 6]), "columns": np.array([10, 8, 1, 6])}
    return make_model(nodes, {"x": (1, 2, 8, 10)}, {"y": 4}, given)


def test_a_view_with_cores_is_made_there_whatever_its_reader_adds():
    """Without, it was made where the other operand of its reader is, and that core waited for it."""
    found = passes(returned(), mapping="rows", knobs={"moves": 1}, **CHIP)
    graph, loaders = found.chosen, line_flow(found.decision).loaders
    (view,) = find_views(graph, line_channel_ranges(graph, found.arch)) & loaders.keys()
    computes = zip(found.spatial.computes, found.partition.cores, strict=True)
    home = [(made, core) for made, core in computes if not isinstance(made.body[0], Copy)]
    (reader,) = [each.output for each in graph.nodes if view in each.inputs]
    cores = {name: {c for made, c in home if made.results[0].name.startswith(f"{name}.")} for name in (view, reader)}
    assert cores[view] == cores[reader] == {core for _, core in loaders[view]}
    expected, evaluated = sent(found), counted(found)
    assert {pair: count for pair, (count, _) in evaluated.items()} == {p: count for p, (count, _) in expected.items()}
    check(returned(), mapping="rows", knobs={"moves": 1}, **CHIP)
