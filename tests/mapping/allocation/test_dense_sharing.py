"""Fully connected layers that share cores with the layers by line before them."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from onnx import ModelProto, NodeProto

from raptor.compiler.pipeline import MappedGraph
from raptor.mapping.allocation import dense_sharing
from raptor.mapping.allocation.dense_sharing import LIMIT_COUNT, place_dense_layers
from raptor.mapping.check_decision import decision_faults
from raptor.mapping.decision import Decision, FullyConnected
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.row_mapping import RowMapper
from raptor.options import ChipOptions
from raptor.target.arch import Target, load_chip
from tests.mapping.allocation.test_idle_cores import mapped, used
from tests.mapping.test_decision_search import searched, simulated
from tests.pipeline import by_line, check
from tests.tiny_models import make_model, node, random

SIZE, CHANNELS, CONVOLUTIONS, FEATURES = 12, 8, 3, 64


def network() -> ModelProto:
    """Convolutions of 3x3 with few weights, then fully connected layers with many."""
    nodes, weights, x = list[NodeProto](), dict[str, Any](), "x"
    for i in range(CONVOLUTIONS):
        weights[f"w{i}"] = random(CHANNELS, CHANNELS, 3, 3, seed=i)
        nodes.append(node("Conv", f"{x} w{i}", f"c{i}", name=f"c{i}", pads=[1, 1, 1, 1]))
        x = f"c{i}"
    weights["w"] = random(CHANNELS * SIZE * SIZE, FEATURES, seed=9)
    weights["v"] = random(FEATURES, 10, seed=10)
    nodes += [node("Flatten", x, "flat"), node("MatMul", "flat w", "d", name="d"), node("MatMul", "d v", "y", name="e")]
    return make_model(nodes, {"x": (1, CHANNELS, SIZE, SIZE)}, {"y": 2}, weights)


@cache
def small_chip() -> tuple[MappedGraph, Target]:
    """The network with all rewrites, and a chip of 24 cores."""
    chip = load_chip(ChipOptions(arch="bench", xbar=(16, 16), xbars_per_core=32, cores=24))
    return mapped(network(), chip), chip


def planned(**knobs: float) -> tuple[Decision, float]:
    """The decision by some knobs, and the longest planned work of a layer by line in ns."""
    given, chip = small_chip()
    found = RowMapper(given.graph, chip, PlanCache()).plan(replace(DEFAULT_KNOBS, neighbours=0, **knobs))
    return found.decision, max(found.planned_ns.values())


def test_layers_by_line_get_more_cores_beside_fully_connected_ones():
    """Alone, the fully connected layers take 19 of 24 cores; with crossbars of 23, the longest work is a third."""
    (apart, apart_ns), (shared, shared_ns) = planned(), planned(dense=1.0)
    assert not any(used(apart) & {*layer.cores} for layer in by_line(apart).values())
    assert all(used(shared) & {*layer.cores} for layer in by_line(shared).values())
    assert shared_ns < 0.4 * apart_ns


def test_shared_cores_hold_their_layers():
    """No core has more matrices than crossbars, none computes two layers by line, and none is beyond the chip."""
    (decision, _), (given, chip) = planned(dense=1.0), small_chip()
    assert not [*decision_faults(decision, given.graph, chip)]
    lines = Counter(core for layer in by_line(decision).values() for core in layer.cores)
    assert max(lines.values()) == 1
    assert max(*lines, *used(decision)) < chip.usable_cores


def test_placements_take_fewer_crossbars_of_more_cores():
    given, chip = small_chip()
    keys = [key for key, layer in planned()[0].layers.items() if isinstance(layer, FullyConnected)]
    found = [*place_dense_layers(given.graph, keys, chip)]
    assert 1 < len(found) < LIMIT_COUNT
    assert all(a.limit > b.limit and a.cores <= b.cores for a, b in pairwise(found))
    for each in found:
        held = Counter[int]()
        for layer in each.layers.values():
            for matrix, core in zip(layer.matrices, layer.cores, strict=True):
                held[core] += matrix.xbars
        assert max(held.values()) <= each.limit
        assert len(held) == each.cores <= chip.usable_cores


@pytest.mark.parametrize(("xbars", "limits"), [(1, []), (4, []), (5, [4]), (8, [7, 6, 5, 4])])
def test_each_core_has_crossbars_for_a_whole_tile(xbars: int, limits: list[int]):
    """A tile of 16 outputs, as crossbars have 16 rows, needs four crossbars of four columns."""
    chip = load_chip(ChipOptions(arch="bench", xbar=(16, 4), xbars_per_core=xbars, cores=1000))
    keys = [key for key, layer in planned()[0].layers.items() if isinstance(layer, FullyConnected)]
    assert [each.limit for each in place_dense_layers(small_chip()[0].graph, keys, chip)] == limits


def test_a_search_lets_them_share_where_that_gains(monkeypatch: pytest.MonkeyPatch):
    given, chip = small_chip()
    shared = searched(given, chip)
    monkeypatch.setattr(dense_sharing, "LEAST_SHARE", 2.0)
    apart = searched(given, chip)
    times = [simulated(given, decision, chip) for decision in (shared, apart)]
    after, before = (each.latency_ns * each.interval_ns for each in times)
    assert after < 0.6 * before


def test_layers_with_few_cores_keep_these(monkeypatch: pytest.MonkeyPatch):
    """These layers have 19 of 24 cores, which is less than a share of 0.8."""
    monkeypatch.setattr(dense_sharing, "LEAST_SHARE", 0.8)
    assert planned(dense=1.0) == planned()


def test_programs_with_shared_cores_are_right():
    check(network(), arch="bench", xbar=16, xbars_per_core=32, cores=24)
