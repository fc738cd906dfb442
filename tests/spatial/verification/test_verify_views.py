"""`spatial.verify` on sequences: an operand of an attention or a view with other elements is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import models
import raptor
from raptor.common.errors import VerifyError
from raptor.mapping.decision import DotGrid
from raptor.spatial import SpatialGraph, verify_spatial
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.operations import Dot, Move
from tests.pipeline import Passes, by_line, check, line_flow, passes
from tests.tiny_models import make_model, node
from tests.values import replace

SIZES: dict[str, int] = {"tokens": 10, "depth": 1, "dim": 24, "heads": 2}
CHIP: dict[str, Any] = {"xbar": (16, 16), "xbars_per_core": 40, "cores": 20, "mapping": "rows"}

Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def compiled() -> Passes:
    return passes(models.build("bert_tiny", **SIZES), **CHIP)


def changed(graph: SpatialGraph, wanted: Callable[[BodyOp], bool], change: Change) -> SpatialGraph:
    """Changes the first operation that is wanted."""
    computes = list(graph.computes)
    at, k, op = next((i, k, op) for i, c in enumerate(computes) for k, op in enumerate(c.body) if wanted(op))
    body = computes[at].body
    computes[at] = replace(computes[at], body=(*body[:k], change(op), *body[k + 1 :]))
    return replace(graph, computes=tuple(computes))


def refused(graph: SpatialGraph, message: str, result: Passes) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_spatial(graph, result.arch)


def test_attention_runs_on_several_cores(compiled: Passes):
    grids = line_flow(compiled.decision).products
    assert grids
    assert all(isinstance(grid, DotGrid) and len(set(grid.cores)) > 1 for grid in grids.values())
    verify_spatial(compiled.spatial, compiled.arch)


def is_product(op: BodyOp) -> bool:
    return isinstance(op, Dot) and op.result.channels == SIZES["tokens"]


def test_a_key_too_many_is_refused(compiled: Passes):
    broken = changed(compiled.spatial, is_product, lambda op: replace(op, first=1))
    refused(broken, "is not one product of all channels with its columns", compiled)


def test_queries_of_another_token_are_refused(compiled: Passes):
    queries = [op.left for c in compiled.spatial.computes for op in c.body if isinstance(op, Dot) and is_product(op)]
    other = next(q for q in queries[1:] if (q.width, q.channels) == (queries[0].width, queries[0].channels))
    broken = changed(compiled.spatial, is_product, lambda op: replace(op, left=other))
    refused(broken, "does not hold|before it is defined", compiled)


def test_keys_in_place_of_values_are_refused(compiled: Passes):
    keys = next(op.right for c in compiled.spatial.computes for op in c.body if isinstance(op, Dot) and is_product(op))

    def is_mean(op: BodyOp) -> bool:
        return isinstance(op, Dot) and not is_product(op)

    broken = changed(compiled.spatial, is_mean, lambda op: replace(op, right=replace(keys)))
    refused(broken, "does not hold", compiled)


def test_a_value_at_another_place_is_refused(compiled: Passes):
    def turns(op: BodyOp) -> bool:
        return isinstance(op, Move) and bool((op.runs[:, 3] > 1).any())

    def shifted(op: Move[Any]) -> Move[Any]:
        runs = op.runs.copy()
        runs[[0, 1], 2] = runs[[1, 0], 2]
        return replace(op, runs=runs)

    refused(changed(compiled.spatial, turns, shifted), "does not hold", compiled)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_sequence_by_token_is_right(heads: int):
    check(models.build("bert_tiny", tokens=7, depth=2, dim=24, heads=heads), **CHIP, tolerance=1e-4)


def test_a_chain_on_several_cores_is_right():
    """A core of 12 crossbars holds a part of the output channels of a chain."""
    model = models.build("bert_tiny", tokens=5, depth=1, dim=32, heads=2)
    small: dict[str, Any] = CHIP | {"xbars_per_core": 12, "cores": 40}
    check(model, **small, tolerance=1e-4)
    shared = by_line(passes(model, **small).decision).values()
    assert any(len(layer.grid.outs) > 1 for layer in shared)


def test_the_rows_of_a_product_may_be_a_view_that_is_no_stream():
    """Its places are those of the elements that it takes."""
    rng = np.random.default_rng(0)
    shapes = {"c": (24,), "v": (2, 4), "w": (4, 7)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"s": np.array([4, 24]), "r": np.array([2, 2])}
    nodes = [
        node("Reshape", "x s", "t"),
        node("Gemm", "t z", "g", transA=1, name="turned"),
        node("MatMul", "c g", "h", name="row"),
        node("MatMul", "h z", "p", name="product"),
        node("Gemm", "z w", "o", name="lines"),
        node("Reshape", "p r", "u", name="square"),
        node("Gemm", "u v", "q", name="last"),
        node("MatMul", "x x", "k", name="other"),
    ]
    model = make_model(nodes, {"x": [3, 2, 4, 4], "z": [4, 4]}, {"o": 2, "q": 2, "k": 4}, constants)
    program = raptor.compile(model, xbar=(237, 209), xbars_per_core=1, cores=4, bits=16, cell_bits=16)
    assert program.validate(samples=2).passed
