"""Long work without matrices moves from the busiest core to others, and the program stays right."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.compiler.analysis.explain import explain
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.load_balancing import _LoadState, _Moves, balance_load
from raptor.spatial.refinement.move_computes import move_computes
from tests.pipeline import Passes, check, line_flow, passes
from tests.tiny_models import add_layer, make_model, node, random

CHIP = {"xbar": 16, "xbars_per_core": 16, "cores": 10}


def detector():
    """A convolution, and behind it moves and softmax of whole tensors, one after another."""
    constants = {"w": random(16, 4, 3, 3), "four": np.array([1, 4, 4, 256]), "flat": np.array([1, 4, 1024])}
    nodes = [
        node("Conv", "x w", "c", name="conv", pads=[1] * 4),
        node("Reshape", "c four", "r", name="boxes"),
        node("Transpose", "r", "t", name="turn", perm=[0, 2, 1, 3]),
        node("Softmax", "t", "s", name="softmax", axis=1),
        node("Transpose", "s", "u", name="back", perm=[0, 3, 2, 1]),
        node("Reshape", "u flat", "y", name="rows"),
    ]
    return make_model(nodes, {"x": (1, 4, 16, 16)}, ["y"], constants)


def all_on_one(found: Passes) -> Partition:
    """The partition with all that needs no matrices on the core of the first matrix."""
    home = next(core for core, c in zip(found.partition.cores, found.spatial.computes, strict=True) if c.matrices)
    pairs = zip(found.partition.cores, found.spatial.computes, strict=True)
    return Partition(found.spatial, tuple(core if c.matrices else home for core, c in pairs), found.partition.positions)


def changed(before: Partition, after: Partition) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(before.cores, after.cores, strict=True)) if a != b]


def test_long_work_leaves_the_busiest_core():
    found = passes(detector(), **CHIP, mapping="rows")
    before = all_on_one(found)
    after = move_computes(before, balance_load(before, line_flow(found.decision), found.arch))
    moved = changed(before, after)
    assert moved
    assert not any(before.graph.computes[i].matrices for i in moved)
    assert len({after.cores[i] for i in moved}) > 1


@pytest.mark.parametrize("best", [0, 1])
def test_work_moves_only_if_a_schedule_finds_that_better(best: int, monkeypatch: pytest.MonkeyPatch):
    """Choices come with the one without moves first; the cost of one of them is made the least."""
    found = passes(detector(), **CHIP, mapping="rows")
    before, costs = all_on_one(found), iter(float(k != best) for k in range(3))
    monkeypatch.setattr(
        "raptor.spatial.refinement.load_balancing.balanced_cost", lambda _work, _patience_ns: next(costs)
    )
    assert bool(balance_load(before, line_flow(found.decision), found.arch)) == bool(best)


def test_the_program_is_right():
    check(detector(), **CHIP)


def depthwise_blocks():
    """A layer of patches, then blocks: a wide depthwise layer, two layers of 1x1, a shortcut. Images shrink twice."""
    constants: dict[str, np.ndarray] = {}
    nodes = []
    conv = partial(add_layer, nodes, constants, "Conv")
    x = conv("x", "stem", (8, 3, 4, 4), strides=[4, 4])
    for stage in range(3):
        if stage:
            x = conv(x, f"down{stage}", (8, 8, 2, 2), strides=[2, 2])
        for block in (f"{stage}.0", f"{stage}.1"):
            y = conv(x, f"{block}.depthwise", (8, 1, 7, 7), pads=[3] * 4, group=8)
            y = conv(conv(y, f"{block}.expand", (32, 8, 1, 1)), f"{block}.project", (8, 32, 1, 1))
            nodes.append(node("Add", f"{x} {y}", f"{block}.sum", name=f"{block}.sum"))
            x = f"{block}.sum"
    return make_model(nodes, {"x": (1, 3, 32, 32)}, [x], constants)


def test_early_work_does_not_occupy_the_cores_of_late_layers(tmp_path):
    program = raptor.compile(depthwise_blocks(), xbar=64, cores=40)
    found = explain(program.save(tmp_path / "out", weight_format="npz"))
    assert found.interval_ns is not None
    assert found.interval_ns < 4 * found.bounds.average
    assert found.interval_ns < 0.5 * found.latency_ns
    assert program.validate().passed


def test_the_least_limit_occupies_cores_for_less_time():
    """Core 0 has two computes of 10 ns at the beginning. Core 1 works at the end of 100 ns, core 2 at the beginning."""
    times: Any = SimpleNamespace(at_ns=np.array([0.0, 0.0]), end_ns=np.array([10.0, 10.0]))
    long, work_ns, nothing_ns = np.arange(2), np.full(2, 10.0), np.zeros(2)
    moves = _Moves(times, long, work_ns, nothing_ns, 0.0, np.zeros(3, np.int64))
    first_ns, last_ns = np.array([0.0, 90.0, 0.0]), np.array([100.0, 100.0, 10.0])
    before = _LoadState(np.zeros(2, np.int64), np.array([20.0, 1.0, 1.0]), first_ns, last_ns)
    stay, longest, least = moves.choices(before)
    assert stay.cores.tolist() == [0, 0]
    assert longest.cores.tolist() == [1, 0]
    assert least.cores.tolist() == [2, 0]
    assert least.busiest_ns == longest.busiest_ns == 11.0
