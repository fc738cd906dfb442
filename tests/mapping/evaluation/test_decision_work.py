"""The work of a decision, counted before anything is lowered, is that of the lowered program."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

import models
from benchmarks.programs.slow_models import MODELS, build_model
from raptor.common.errors import RaptorError
from raptor.compiler import pipeline
from raptor.frontend import load
from raptor.graph.ir import Move
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.modes.sum_trees import MOST_POOLED_IN_CHAIN
from raptor.mapping.strategies import STRATEGIES
from raptor.options import ChipOptions
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operation_costs import CostModel
from raptor.spatial.scheduling.alap_schedule import partition_work
from raptor.target.arch import load_chip
from raptor.target.timing import ISSUE_NS, typical_message_times
from tests.all_graphs.builder import FAMILIES
from tests.all_graphs.cases import make_case
from tests.pipeline import Passes, passes
from tests.tiny_models import make_model, node, random


def chain(*kernels: int, width: int = 32, channels: int = 16, strides: tuple[int, ...] = ()) -> ModelProto:
    """Convolutions one after another, on an image of `width` x `width` pixels."""
    nodes, weights, name, given = [], {}, "x", 3
    for i, kernel in enumerate(kernels):
        weights[f"w{i}"] = random(channels, given, kernel, kernel, seed=i)
        stride, pad = strides[i] if strides else 1, kernel // 2
        nodes.append(node("Conv", f"{name} w{i}", f"t{i}", name=f"conv{i}", pads=[pad] * 4, strides=[stride] * 2))
        name, given = f"t{i}", channels
    nodes[-1].output[0] = "y"
    return make_model(nodes, {"x": (1, 3, width, width)}, ["y"], weights)


Sums = dict[tuple[int, int], tuple[int, float]]
"""Number of messages, and ns of their receivers, by sender and receiver."""


def sent(done: Passes) -> Sums:
    """The messages of the lowered graph."""
    cores = done.partition.cores
    placed = [(op, core) for c, core in zip(done.spatial.computes, cores, strict=True) for op in c.body]
    home, found = {op.result.name: core for op, core in placed}, defaultdict[tuple[int, int], list[float]](list)
    fetched: set[tuple[str, int]] = set()
    for op, core in placed:
        for tile in op.operands:
            source, elements = home.get(tile.name, core), op.elements if isinstance(op, Copy) else tile.elements
            if source == core or (not isinstance(op, Copy) and (tile.name, core) in fetched):
                continue
            fetched.add((tile.name, core))
            found[source, core].append(typical_message_times(done.arch, elements)[2] + ISSUE_NS)
    return {pair: (len(times), sum(times)) for pair, times in found.items()}


def counted(done: Passes) -> Sums:
    """The messages that the evaluation counts."""
    found: Sums = {}
    for work in decision_work(done.chosen, done.decision, done.arch):
        for pair, message in work.messages.items():
            count, ns = found.get(pair, (0, 0.0))
            found[pair] = count + round(message.count), ns + message.receiver_ns
    return found


@pytest.mark.parametrize(
    "model",
    [chain(3, 3), chain(5, 3, 1), chain(1, 1), chain(3, 3, 3, strides=(1, 2, 1)), chain(1, 1, width=8, channels=300)],
    ids=["3x3", "wide kernel", "1x1", "strided", "partial sums"],
)
@pytest.mark.parametrize("cores", [12, 40])
def test_messages_are_counted_between_the_cores_that_exchange_them(model: ModelProto, cores: int) -> None:
    done = passes(model, mapping="rows", cores=cores)
    expected, found = sent(done), counted(done)
    assert len(expected) >= 8
    assert {pair: count for pair, (count, _) in found.items()} == {p: count for p, (count, _) in expected.items()}
    assert all(abs(found[pair][1] / ns - 1) < 1e-6 for pair, (_, ns) in expected.items())


def pooled(height: int, width: int) -> ModelProto:
    """A convolution of an image, and its mean and its largest pixel."""
    nodes = [
        node("Conv", "x w", "t", name="conv", pads=[1] * 4),
        node("GlobalAveragePool", "t", "y", name="mean"),
        node("GlobalMaxPool", "t", "z", name="largest"),
    ]
    return make_model(nodes, {"x": (1, 3, height, width)}, ["y", "z"], {"w": random(40, 3, 3, 3)})


@pytest.mark.parametrize("image", [(20, 40), (2, 40), (6, 4)])
def test_results_of_many_cores_are_pooled_in_a_tree(image: tuple[int, int]) -> None:
    """A core receives results of at most one core for each level of the tree; one of a few cores, all others."""
    done = passes(pooled(*image), mapping="rows", cores=60)
    placed = [*zip(done.spatial.computes, done.partition.cores, strict=True)]
    home = {op.result.name: core for compute, core in placed for op in compute.body}
    received: defaultdict[str, Counter[int]] = defaultdict(Counter[int])
    for compute, core in placed:
        if compute.node in ("mean", "largest"):
            received[compute.node][core] += sum(
                home.get(t.name, core) != core for op in compute.body for t in op.operands
            )
    assert {*received} == {"mean", "largest"}
    for counts in received.values():
        assert 0 < max(counts.values()) <= max(len(counts).bit_length(), MOST_POOLED_IN_CHAIN - 1)
    assert image != (20, 40) or min(map(len, received.values())) > 2 * MOST_POOLED_IN_CHAIN
    expected, found = sent(done), counted(done)
    assert {pair: count for pair, (count, _) in found.items()} == {p: count for p, (count, _) in expected.items()}


def test_constants_of_pixels_are_loaded_once_a_core() -> None:
    """One that is equal for all lines, one of each line; equal parts are one constant."""
    nodes = [
        node("Conv", "x w", "t", name="conv"),
        node("Mul", "t columns", "u", name="weighed_columns"),
        node("Mul", "u rows", "y", name="weighed_rows"),
    ]
    rows = np.repeat(random(1, 1, 5, 1), 2, axis=2)
    constants = {"w": random(5, 3, 1, 1), "columns": random(1, 1, 1, 12), "rows": rows}
    chip = {"cores": 30, "xbars_per_core": 1}  # no crossbar is left to make constants
    done = passes(make_model(nodes, {"x": (1, 3, 10, 12)}, ["y"], constants), mapping="rows", **chip)
    lowered = partition_work(done.partition, done.arch).memory_ns.sum()
    works = decision_work(done.chosen, done.decision, done.arch)
    assert sum(m.port_ns for work in works for m in work.memory.values()) == pytest.approx(lowered, rel=0.05)


def computed_ns(done: Passes) -> dict[int, float]:
    """Time of the operations of each core in the lowered graph, without the loads of embedding lookups."""
    costs, busy = CostModel(done.arch, done.spatial.filters), defaultdict[int, float](float)
    for compute, core in zip(done.spatial.computes, done.partition.cores, strict=True):
        busy[core] += sum(costs.op_ns(op, compute) for op in compute.body if not isinstance(op, TakeRows))
    return busy


def evaluated_ns(done: Passes) -> dict[int, float]:
    """Time of the operations of each core that the evaluation counts."""
    found = defaultdict[int, float](float)
    for work in decision_work(done.chosen, done.decision, done.arch):
        for core, ns in work.compute_ns.items():
            found[core] += ns
    return found


SMALL = load_chip(ChipOptions(arch="bench", cores=24))
SAMPLE = {
    "resnet18": {"image_size": 64},
    "mobilenet_v2": {"image_size": 64},
    "squeezenet": {"image_size": 64},
    "bert_tiny": {"tokens": 32},
    "lstm": {},
}


@pytest.mark.parametrize("name", SAMPLE)
def test_work_is_that_of_the_lowered_graph(name: str) -> None:
    done = passes(models.build(name, **SAMPLE[name]), mapping="rows", cores=120)
    expected, found = computed_ns(done), evaluated_ns(done)
    cores = sorted({*expected, *found})
    a, b = (np.array([times.get(core, 0.0) for core in cores]) for times in (expected, found))
    # On half of the cores of the LSTM, a product makes constants as fast as they are loaded, so either may be chosen.
    assert abs(b.sum() / a.sum() - 1) < (0.2 if name == "lstm" else 0.1)
    assert abs(b.max() / a.max() - 1) < 0.17
    assert np.abs(a - b).sum() < 0.25 * a.sum()


def between_layers(*nodes: NodeProto, joined: int = 1) -> ModelProto:
    """Nodes from `t` to `s`, of `joined` times as many channels, between two convolutions of 24 x 24 pixels."""
    layers = [node("Conv", "x w", "t", name="first", pads=[1] * 4), node("Conv", "s v", "y", name="last", pads=[1] * 4)]
    values = {"begin": 0, "end": 20, "start": 2, "stop": 22, "axis": 3}
    ints = {name: np.array([value]) for name, value in values.items()}
    weights = {"w": random(8, 3, 3, 3), "v": random(4, 8 * joined, 3, 3)}
    return make_model([layers[0], *nodes, layers[1]], {"x": (1, 3, 24, 24)}, ["y"], weights | ints, opset=13)


MOVED = {
    "shifted columns": between_layers(
        node("Slice", "t begin end axis", "a", name="move"),
        node("Slice", "t start stop axis", "b", name="other"),
        node("Concat", "a b", "s", name="both", axis=1),
        joined=2,
    ),
    "turned image": between_layers(node("Transpose", "t", "s", name="move", perm=[0, 1, 3, 2])),
    "turned input": make_model(
        [node("Transpose", "x", "t", name="move", perm=[0, 1, 3, 2]), node("Conv", "t w", "y", name="conv")],
        {"x": (1, 3, 24, 24)},
        ["y"],
        {"w": random(8, 3, 3, 3)},
    ),
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("cores", [8, 24])
def test_the_work_of_moves_is_that_of_the_lowered_graph(name: str, cores: int) -> None:
    """Lines of which all elements are on one core are copied, too, and a gatherer loads a line of an input once."""
    done = passes(MOVED[name], mapping="rows", cores=cores)
    costs, works = CostModel(done.arch, done.spatial.filters), decision_work(done.chosen, done.decision, done.arch)
    moved = {each.output: each.name for each in done.chosen.nodes if isinstance(each.operator, Move)}
    expected, found = Counter[str](), Counter[str]()
    for compute in done.spatial.computes:
        expected[compute.node] += sum(costs.op_ns(op, compute) for op in compute.body)
    for work in works:
        found[moved.get(work.name, "")] += sum(work.compute_ns.values())
    assert {each: found[each] for each in moved.values()} == pytest.approx({n: expected[n] for n in moved.values()})
    port_ns = sum(memory.port_ns for work in works for memory in work.memory.values())
    assert port_ns == pytest.approx(partition_work(done.partition, done.arch).memory_ns.sum(), rel=0.02)


FIRST_SAMPLES = 1.002
"""The interval is a mean from the first sample on, which may wait for the port of global memory for longer."""


def random_graphs(seeds: range) -> Iterator[tuple[str, pipeline.MappedGraph]]:
    for seed in seeds:
        for family in (*FAMILIES, "all"):
            try:
                graph = load(make_case(Random(seed), family).model).graph
                yield f"{family} {seed}", pipeline.rewrite_and_map(graph, SMALL, STRATEGIES["rows"])
            except RaptorError:
                continue


@pytest.mark.parametrize("name", MODELS)
def test_models_of_unusual_kinds_are_evaluated(name: str) -> None:
    graph = pipeline.prepare_graph(load(build_model(name)).graph, SMALL)
    mapped = pipeline.rewrite_and_map(graph, SMALL, STRATEGIES["rows"])
    times = evaluate(mapped.graph, mapped.decision, SMALL)
    assert 0 < times.bounds.least_interval_ns <= times.interval_ns * FIRST_SAMPLES + 1


def test_every_random_graph_is_evaluated() -> None:
    found = {name: evaluate(mapped.graph, mapped.decision, SMALL) for name, mapped in random_graphs(range(4))}
    assert len(found) > 20
    for name, times in found.items():
        assert 0 <= times.bounds.least_interval_ns <= times.interval_ns * FIRST_SAMPLES + 1, name
        assert times.interval_ns <= times.latency_ns * 1.5 + 1, name
