"""Transformers whose chains and attentions have cores of their own: values pass through the cores of attentions."""

from contextlib import suppress
from dataclasses import replace

import pytest
from onnx import ModelProto

import models
import raptor
from raptor.common.errors import CapacityError
from raptor.mapping.decision import DotGrid
from raptor.mapping.transformer.token_choice import APART
from raptor.spatial.ir import Copy
from tests.pipeline import Passes, by_line, check, faults, line_flow, passes
from tests.tiny_models import make_model, node, random

CHIP = {"xbar": 64, "xbars_per_core": 24, "cores": 16}
MODEL = models.build("bert_tiny", seed=0, depth=2, dim=64, heads=2, tokens=8)


@pytest.fixture(scope="module")
def compiled() -> Passes:
    return passes(MODEL, **CHIP, mapping="rows")


def relaying(compiled: Passes) -> list[DotGrid]:
    return [grid for grid in line_flow(compiled.decision).products.values() if grid.relays]


def test_chains_and_attentions_share_no_cores(compiled: Passes):
    attentions = {core for grid in relaying(compiled) for core in grid.cores}
    chains = {core for layer in by_line(compiled.decision).values() for core in layer.cores}
    assert attentions
    assert not attentions & chains


def test_values_pass_through_the_attention_before_their_reader(compiled: Passes):
    """Each copy of such a value to its reader is of a copy on a core of the attention."""
    core_of = {
        op.result.name: core
        for compute, core in zip(compiled.spatial.computes, compiled.partition.cores, strict=True)
        for op in compute.body
    }
    copies = [op for c in compiled.spatial.computes for op in c.body if isinstance(op, Copy)]
    passed = [op for op in copies if ".passed@" in op.result.name]
    attentions = {core for grid in relaying(compiled) for core in grid.cores}
    assert len(passed) >= len(relaying(compiled))
    assert {core_of[op.source.name] for op in passed} <= attentions
    assert all(core_of[op.result.name] not in attentions for op in passed)


def test_the_program_is_right():
    check(MODEL, tolerance=1e-4, **CHIP)


@pytest.mark.parametrize("cores", [2, 4, 8])
def test_a_last_block_of_fewer_tokens_needs_crossbars_too(cores: int):
    """With 5 tokens and blocks of 4, a core that has all tokens has a second matrix: the chip may be too small."""
    model = models.build("bert_tiny", seed=0, depth=1, dim=8, heads=2, tokens=5)
    fitting: set[int] = set()
    for xbars_per_core in (13, 19, 25, 34, 40):
        with suppress(CapacityError):
            raptor.compile(model, xbar=(32, 8), cores=cores, xbars_per_core=xbars_per_core)
            fitting.add(xbars_per_core)
    assert 40 in fitting


def test_an_unknown_value_is_refused(compiled: Passes):
    flow = line_flow(compiled.decision)
    name, grid = next(iter(flow.products.items()))
    products = flow.products | {name: replace(grid, relays=("nothing",))}
    decision = replace(compiled.decision, flow=replace(flow, products=products))
    assert "nothing is no tensor" in next(faults(decision, compiled.graph, compiled.arch))


def transposed_scores(keys: int) -> ModelProto:
    """Scores of 2 queries, turned so that the keys are tokens; a layer is added that was there before the scores."""
    weights = {"w0": random(6, 6, seed=0), "w1": random(6, 6, seed=1), "w2": random(6, 6, seed=2)}
    nodes = [
        node("MatMul", "queries w0", "q", name="q"),
        node("MatMul", "keys w2", "early", name="early"),
        node("MatMul", "early w1", "k", name="k"),
        node("Transpose", "k", "turned", perm=[0, 2, 1], name="turned"),
        node("MatMul", "q turned", "scores", name="scores"),
        node("Transpose", "scores", "of_keys", perm=[0, 2, 1], name="of_keys"),
        node("MatMul", "of_keys w3", "late", name="late"),
        node("Add", "late early", "y", name="y"),
    ]
    inputs = {"queries": [1, 2, 6], "keys": [1, keys, 6]}
    return make_model(nodes, inputs, {"y": 3}, {**weights, "w3": random(2, 6, seed=3)})


@pytest.mark.parametrize(("keys", "passed"), [(2, ("early",)), (3, ())])
def test_an_attention_passes_on_values_of_its_own_tokens(keys: int, passed: tuple[str, ...]):
    """An attention of two queries has no core for a third token."""
    model, chip = transposed_scores(keys), {**CHIP, "cores": 4, "knobs": {"chains": APART}}
    (grid,) = line_flow(passes(model, **chip, mapping="rows").decision).products.values()
    assert grid.relays == passed
    check(model, tolerance=1e-4, **chip)


def test_a_stored_mapping_with_values_of_other_tokens_is_refused():
    found = passes(transposed_scores(3), **CHIP, mapping="rows")
    flow = line_flow(found.decision)
    ((name, grid),) = flow.products.items()
    decision = replace(found.decision, flow=replace(flow, products={name: replace(grid, relays=("early",))}))
    fault = next(faults(decision, found.graph, found.arch))
    assert f"{name}.relays: early has 3 pixels, not 2 as the product" in fault
