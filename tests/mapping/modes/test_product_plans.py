"""Products of two computed tensors have options from one core to many, and are divided as layers are."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.graph.ir import Dot
from raptor.mapping.decision import DotGrid, record_cores
from raptor.mapping.modes.line_streaming import line_channel_ranges
from raptor.mapping.modes.product_plans import ProductUnit, find_product_units
from tests.pipeline import Passes, check, faults, line_flow, passes
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"cores": 40, "xbar": 32}
TOKENS, WIDTH, HEADS = 12, 16, 2


def attention() -> ModelProto:
    """An attention of two heads: scores, a softmax, means of values."""
    shape = {"heads": np.array([1, TOKENS, HEADS, WIDTH // HEADS]), "whole": np.array([1, TOKENS, WIDTH])}
    nodes = [
        *(node("MatMul", f"x {name}w", f"{name}l", name=name) for name in "qkv"),
        *(node("Reshape", f"{name}l heads", f"{name}r", name=f"split_{name}") for name in "qkv"),
        *(node("Transpose", f"{name}r", f"{name}t", name=f"turn_{name}", perm=[0, 2, 1, 3]) for name in "qv"),
        node("Transpose", "kr", "kt", name="turn_k", perm=[0, 2, 3, 1]),
        node("MatMul", "qt kt", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p vt", "m", name="means"),
        node("Transpose", "m", "t", name="back", perm=[0, 2, 1, 3]),
        node("Reshape", "t whole", "o", name="joined"),
        node("MatMul", "o ow", "y", name="projection"),
    ]
    constants = {f"{name}w": random(WIDTH, WIDTH, seed=i) for i, name in enumerate("qkvo")}
    return make_model(nodes, {"x": (1, TOKENS, WIDTH)}, {"y": 3}, constants | shape, opset=13)


@pytest.fixture(scope="module")
def done() -> Passes:
    return passes(attention(), mapping="rows", knobs={"chains": 0}, **CHIP)


def test_a_product_of_results_of_another_runs_on_its_cores(done: Passes) -> None:
    graph = done.chosen
    units = find_product_units(graph, line_channel_ranges(graph, done.arch), done.arch)
    scores, _ = [each for each in graph.nodes if isinstance(each.operator, Dot)]
    assert [*units] == [scores.output]
    assert (units[scores.output].lines, units[scores.output].pixels) == (HEADS, TOKENS)


def test_more_cores_take_less_time() -> None:
    unit = ProductUnit(lines=3, pixels=8, first_ns=0.0, line_ns=800.0, bringing_ns=10.0)
    front = [*unit.core_options("scores", 20, correction=2.0)]
    assert [option.cores for option in front] == sorted({option.cores for option in front})
    assert [option.core_ns for option in front] == sorted({option.core_ns for option in front}, reverse=True)
    assert front[0].core_ns == 2 * 3 * (800 + 10)
    grid = front[-1].whole["scores"]
    assert isinstance(grid, DotGrid)
    assert front[-1].core_ns == 2 * (800 / 8 * 2 + 10)
    assert (grid.rows[-1][1], grid.cols[-1][1], len(grid.cores)) == (3, 8, 12)


def test_a_product_with_less_work_than_its_operand_has_messages_stays_where_that_is() -> None:
    assert ProductUnit(lines=1, pixels=8, first_ns=50.0, line_ns=60.0).is_worth_cores
    assert not ProductUnit(lines=1, pixels=8, first_ns=50.0, line_ns=40.0).is_worth_cores


def test_a_decision_without_chains_gives_products_cores_of_their_own(done: Passes) -> None:
    (grid,) = line_flow(done.decision).products.values()
    others = {core for layer in done.decision.layers.values() for core in record_cores(layer)}
    assert len(grid.cores) > 1
    assert not others.intersection(grid.cores)
    assert not [*faults(done.decision, done.graph, done.arch)]


def test_a_program_without_chains_is_right() -> None:
    check(attention(), mapping="rows", knobs={"chains": 0}, **CHIP)
