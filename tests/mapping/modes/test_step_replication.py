"""Recurrent layers by line: steps on several cores, each with a copy of the weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.graph.ir import Filter
from raptor.mapping.decision import FullyConnected, LineUnfolding
from raptor.spatial.ir import Copy
from raptor.spatial.operations import ApplyLine, Overlap
from tests.pipeline import Passes, check, faults, passes
from tests.recurrent_models import recurrent
from tests.spatial.verification.test_verify_lines import changed, plus, refused
from tests.tiny_models import make_model, node, random
from tests.values import replace

CHIP = {"xbar": 16, "xbars_per_core": 12, "cores": 60}
MODEL = recurrent("LSTM", sizes=(6, 1, 6, 32), extra="B", outputs="- h_n")
KEY = "h_n.recurrent.0.0"


@pytest.fixture(scope="module")
def compiled() -> Passes:
    return passes(MODEL, **CHIP, mapping="rows")


def recurrent_layer(compiled: Passes) -> FullyConnected:
    layer = compiled.decision.layers[KEY]
    assert isinstance(layer, FullyConnected)
    return layer


def test_each_step_has_cores_of_its_own(compiled: Passes):
    """The first of the six steps has no state to multiply; neighbours share a copy if there are fewer of them."""
    layer = recurrent_layer(compiled)
    cores = [set(layer.step_record(step, 5).cores) for step in range(5)]
    assert len(cores[0]) > 1
    assert sum(map(len, cores)) == len(set().union(*cores))
    two = replace(layer, cores=layer.cores[: 2 * len(layer.matrices)])
    assert [two.step_record(step, 5).cores for step in range(5)] == [
        layer.step_record(step, 5).cores for step in (0, 0, 0, 1, 1)
    ]


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_the_program_is_right_and_copies_make_samples_follow_sooner(op_type: str):
    model = recurrent(op_type, sizes=(6, 1, 6, 32), extra="B", outputs="- h_n")
    times = [interval_ns(raptor.compile(model, **CHIP | {"cores": cores})) for cores in (60, 14)]
    check(model, **CHIP)
    assert times[0] < 0.85 * times[1]


def test_a_state_goes_to_the_cores_of_each_step():
    """Peepholes scale the state before the product of the step is there. On one core, all steps would wait for it."""
    model = recurrent("LSTM", sizes=(12, 1, 6, 16), extra="BP", outputs="- h_n")
    plain = recurrent("LSTM", sizes=(12, 1, 6, 16), extra="B", outputs="- h_n")
    times = [interval_ns(raptor.compile(each, **CHIP)) for each in (model, plain)]
    assert times[0] < 2 * times[1]
    check(model, **CHIP)


def interval_ns(program: raptor.Program) -> float:
    found = program.simulate(mode="throughput", samples=12).interval_ns
    assert found is not None
    return found


MISTAKES: dict[str, tuple[type[Any], Callable[[Any], Any], str]] = {
    "the state of another element": (Copy, lambda op: replace(op, first=op.first + 1), "multiplies|does not have"),
    "another matrix": (ApplyLine, lambda op: replace(op, products=plus(op.products, 0, 0, 1)), "multiplies|no matrix"),
    "a sum left out": (Overlap, lambda op: replace(op, runs=op.runs[1:]), "miss products|without products"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_last_step(compiled: Passes, mistake: str):
    kind, change, message = MISTAKES[mistake]
    refused(changed(compiled.spatial, kind, change, -1), message)


def test_the_state_of_another_step(compiled: Passes):
    """A step that multiplies the state which another step multiplies is refused."""
    graph = compiled.spatial
    copies = [
        (i, op)
        for i, c in enumerate(graph.computes)
        for op in c.body
        if isinstance(op, Copy) and ".in" in op.result.name
    ]
    states = [(i, op) for i, op in copies if op.source.elements == copies[-1][1].source.elements]
    last, first = (
        states[-1],
        next(op for _, op in states if op.first == states[-1][1].first and op.at == states[-1][1].at),
    )
    assert first.source != last[1].source
    computes = list(graph.computes)
    computes[last[0]] = replace(computes[last[0]], body=(replace(last[1], source=first.source),))
    refused(replace(graph, computes=tuple(computes)), "multiplies")


def test_half_a_copy_is_refused(compiled: Passes):
    layer = recurrent_layer(compiled)
    layers = compiled.decision.layers | {KEY: replace(layer, cores=layer.cores[:-1])}
    assert "cores" in next(faults(replace(compiled.decision, layers=layers), compiled.graph, compiled.arch))


def test_a_layer_has_no_more_copies_than_steps():
    """The states of two layers are multiplied 7 times and twice. As neighbours, they are copied together."""
    nodes = [node("RNN", f"x{n} w{n} r{n}", f"y{n}", name=f"steps{n}", hidden_size=1) for n in (8, 3)]
    weights = {f"{name}{n}": random(1, 1, 1, seed=i + n) for n in (8, 3) for i, name in enumerate("wr")}
    model = make_model(nodes, {f"x{n}": (n, 1, 1) for n in (8, 3)}, {"y8": 4, "y3": 4}, weights)
    found = passes(model, **CHIP, mapping="rows")
    layers = {key: layer for key, layer in found.decision.layers.items() if isinstance(layer, FullyConnected)}
    copies = {key.partition(".")[0]: len(layer.cores) // len(layer.matrices) for key, layer in layers.items()}
    assert copies == {"y8": 7, "y3": 2}
    assert not [*faults(found.decision, found.graph, found.arch)]
    check(model, **CHIP, mapping="rows")


@pytest.mark.parametrize("second", ["LSTM", "Conv"])
def test_states_that_are_repeated_along_the_sequence(second: str):
    """Each state is read as several tokens, whose products cannot be told apart if they read the same tile."""
    nodes = [
        node("RNN", "x w r", "s", name="states", hidden_size=4),
        node("Reshape", "s flat", "f", name="flat"),
        node("Tile", "f times", "t", name="tile"),
        node("Reshape", "t tokens", "q", name="tokens"),
    ]
    constants = {
        "w": random(1, 4, 3),
        "r": random(1, 4, 4),
        "flat": np.array([-1]),
        "times": np.array([3]),
        "tokens": np.array([-1, 1, 4] if second == "LSTM" else [1, -1, 4]),
        "v": random(1, 8, 4),
        "u": random(1, 8, 2),
        "k": random(5, 4, 1),
    }
    if second == "LSTM":
        nodes.append(node("LSTM", "q v u", "y", name="reader", hidden_size=2))
    else:
        nodes += [node("Transpose", "q", "c", name="turned", perm=[0, 2, 1]), node("Conv", "c k", "y", name="reader")]
    model = make_model(nodes, {"x": (4, 1, 3)}, {"y": 4 if second == "LSTM" else 3}, constants)
    check(model, **CHIP, mapping="rows")


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_steps_of_a_batch_are_computed_by_line(op_type: str):
    """Each core multiplies some elements of the batch in all steps, with one copy of the weights."""
    model = recurrent(op_type, sizes=(5, 12, 6, 16), extra="B")
    compiled = passes(model, **CHIP, mapping="rows")
    steps = [n.operator for n in compiled.graph.nodes if isinstance(n.operator, Filter) and n.operator.key]
    layers = [compiled.decision.layers[key] for key in dict.fromkeys(step.key for step in steps)]
    assert len(steps) == 4 * len(layers)
    for layer in layers:
        assert isinstance(layer, LineUnfolding)
        assert len(layer.grid.cols) > 1
    check(model, **CHIP)
    alone = recurrent(op_type, sizes=(5, 1, 6, 16), extra="B")
    times = [interval_ns(raptor.compile(each, **CHIP)) for each in (model, alone)]
    assert times[0] < 6 * times[1]
