"""Decoders: each core keeps its part of a cache; wrong parts, heads and rows are refused or give other values."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.common.errors import VerifyError
from raptor.mapping.check_decision import decision_faults
from raptor.mapping.decision import Decision, FullyConnected, SharedDot
from raptor.spatial import SpatialGraph, verify_spatial
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.ir import Copy
from raptor.spatial.operations import Dot
from tests import decoder_models as decoders
from tests import values
from tests.pipeline import Passes, line_flow, passes

CAPACITY = 12
CHIP: Mapping[str, Any] = MappingProxyType({"states": "auto", "cores": 48, "mapping": "rows"})
LARGER_CHIP: Mapping[str, Any] = MappingProxyType({**CHIP, "cores": 80})
FORMS: Mapping[str, Callable[..., ModelProto]] = {
    "plain": decoders.plain_decoder,
    "grouped": decoders.grouped_decoder,
    "separate": partial(decoders.grouped_decoder, packed=False),
    "repeated": partial(decoders.plain_decoder, heads=4, groups=2),
    "rotated": partial(decoders.plain_decoder, heads=4, groups=2, size=16, rotated=True),
    "one group": partial(decoders.plain_decoder, heads=4, groups=1),
}


def compiled(form: str = "grouped", capacity: int = CAPACITY) -> Passes:
    return passes(FORMS[form](), capacity=capacity, **CHIP)


@pytest.fixture(scope="module")
def grouped() -> Passes:
    return compiled()


def shared(decision: Decision) -> dict[str, SharedDot]:
    return {name: grid for name, grid in line_flow(decision).products.items() if isinstance(grid, SharedDot)}


@pytest.mark.parametrize("form", FORMS)
def test_no_core_keeps_a_whole_cache(form: str) -> None:
    found = compiled(form)
    assert len(shared(found.decision)) == 4
    for name in found.spatial.residency.state_inputs:
        tensor = found.spatial.tensors[name]
        held = [0] * found.arch.core_count
        tiles = {part.tile.name: part.tile.elements for part in tensor.parts}
        for core in found.program.cores.values():
            kept = {core.steps.buffers.name(k) for k in core.states.tolist()}
            held[core.core] = sum(elements for tile, elements in tiles.items() if tile in kept)
        assert sum(held) == tensor.image.elements
        assert max(held) <= tensor.image.elements // 2


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_onnxruntime(form: str) -> None:
    verdict = raptor.compile(FORMS[form](), capacity=CAPACITY, **CHIP).validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert verdict.decoding.equal == CAPACITY


def test_a_larger_capacity_gives_the_same_logits() -> None:
    found: list[Any] = []
    for capacity in (8, 16, 32):
        session = raptor.Session(raptor.compile(FORMS["grouped"](), capacity=capacity, **CHIP))
        found.append(np.stack([session.step(token)["logits"] for token in (3, 1, 7, 7, 0, 11, 5, 2)]))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=1e-6)


def interval_ns(form: str, layers: int) -> float:
    """Returns the interval of steps of many sessions."""
    found = raptor.compile(FORMS[form](layers=layers), capacity=CAPACITY, **LARGER_CHIP)
    return found.simulate(mode="throughput").interval_ns or 0


@pytest.mark.parametrize("form", ["plain", "grouped", "separate", "rotated"])
def test_more_layers_do_not_slow_the_stream_of_steps(form: str) -> None:
    """Masks and angles depend on the position only, so each layer takes them from their table where it needs them."""
    assert 0 < interval_ns(form, 4) <= 1.2 * interval_ns(form, 2)


def test_steps_with_separate_projections_stream_like_those_with_one() -> None:
    """Rotations read the position only, so each is computed where its queries or keys are made."""
    assert 0 < interval_ns("separate", 4) <= 1.3 * interval_ns("grouped", 4)


def test_layers_that_follow_one_another_share_cores(grouped: Passes) -> None:
    cores = {k: {*layer.cores} for k, layer in grouped.decision.layers.items() if isinstance(layer, FullyConnected)}
    assert cores["layer.0.g"].isdisjoint(cores["layer.0.u"])
    assert cores["layer.0.mlp"] <= cores["layer.0.u"]
    kept = {core for grid in shared(grouped.decision).values() for core in grid.cores}
    assert all(kept.isdisjoint(own) for own in cores.values())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"cores": (0, 1)}, "cores: 2 for"),
        ({"parts": ((0, 5), (6, CAPACITY))}, "parts: .*follow each other"),
        ({"rows": ((0, 1),)}, "rows: .*from 0 to 2"),
    ],
)
def test_wrong_cores_of_a_product_are_told(grouped: Passes, change: dict[str, Any], fault: str) -> None:
    name, grid = next(iter(shared(grouped.decision).items()))
    flow = line_flow(grouped.decision)
    wrong = replace(flow, products={**flow.products, name: replace(grid, **change)})
    told = next(decision_faults(replace(grouped.decision, flow=wrong), grouped.chosen, grouped.arch))
    assert re.search(rf"flow.products.{re.escape(name)}.{fault}", told), told


def changed(graph: SpatialGraph, wanted: Callable[[BodyOp], bool], change: Callable[[Any], Any]) -> SpatialGraph:
    """Changes the first operation that is wanted."""
    computes = list(graph.computes)
    at, k, op = next((i, k, op) for i, c in enumerate(computes) for k, op in enumerate(c.body) if wanted(op))
    body = computes[at].body
    computes[at] = values.replace(computes[at], body=(*body[:k], change(op), *body[k + 1 :]))
    return values.replace(graph, computes=tuple(computes))


def products(graph: SpatialGraph, name: str) -> list[Dot[Any]]:
    """Returns the products of the scores or means of an attention, in order: lines one after another."""
    return [op for c in graph.computes for op in c.body if isinstance(op, Dot) and c.node == name]


def test_swapped_heads_are_refused(grouped: Passes) -> None:
    name = next(iter(shared(grouped.decision)))
    ops = products(grouped.spatial, grouped.spatial.tensors[name].node)
    first, last = ops[0], next(op for op in reversed(ops) if op.right.elements == ops[0].right.elements)
    broken = changed(grouped.spatial, lambda op: op is last, lambda op: values.replace(op, right=first.right))
    with pytest.raises(VerifyError, match="which does not hold"):
        verify_spatial(broken, grouped.arch)


def is_collecting(graph: SpatialGraph, name: str) -> Callable[[BodyOp], bool]:
    tiles = {part.tile.name for part in graph.tensors[name].parts}
    return lambda op: isinstance(op, Copy) and op.result.name in tiles


@pytest.mark.parametrize(
    ("field", "more", "message"),
    [
        ("at", 1, "no place|which does not hold|no product makes"),
        ("elements", -1, "channels that no product makes"),
    ],
)
def test_scores_in_another_place_are_refused(grouped: Passes, field: str, more: int, message: str) -> None:
    def moved(op: Any) -> Any:
        return values.replace(op, **{field: getattr(op, field) + more})

    name = next(iter(shared(grouped.decision)))
    broken = changed(grouped.spatial, is_collecting(grouped.spatial, name), moved)
    with pytest.raises(VerifyError, match=message):
        verify_spatial(broken, grouped.arch)
