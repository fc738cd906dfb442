"""Rules of `spatial.verify`, each on a program that breaks it."""

from typing import Any

import numpy as np
import pytest

from raptor.common.errors import VerifyError
from raptor.spatial import SpatialGraph, verify_spatial
from raptor.spatial.operations import Move
from tests.pipeline import THESIS_CHIP, Passes, chip, passes, thesis_model
from tests.tiny_models import make_model, node, random
from tests.values import replace

ARCH = chip((3, 3), xbars_per_core=5, cores=16)


@pytest.fixture(scope="module")
def good() -> Passes:
    return passes(thesis_model(4, 8), **THESIS_CHIP)


@pytest.fixture(scope="module")
def gathered() -> SpatialGraph:
    """y = a a b | b of two tiles of one row."""
    model = make_model([node("Concat", "a b", axis=1)], {"a": (1, 2, 1, 1), "b": (1, 2, 1, 1)}, ["y"])
    return passes(model, **THESIS_CHIP).spatial


def with_compute(graph: SpatialGraph, index: int, **changes: Any) -> SpatialGraph:
    computes = list(graph.computes)
    computes[index] = replace(computes[index], **changes)
    return replace(graph, computes=tuple(computes))


def with_op(graph: SpatialGraph, index: int, op_index: int, **changes: Any) -> SpatialGraph:
    body = list(graph.computes[index].body)
    body[op_index] = replace(body[op_index], **changes)
    return with_compute(graph, index, body=tuple(body))


def with_parts(graph: SpatialGraph, name: str, parts: tuple[Any, ...]) -> SpatialGraph:
    return replace(graph, tensors={**graph.tensors, name: replace(graph.tensors[name], parts=parts)})


def test_accepted(good: Passes, gathered: SpatialGraph):
    verify_spatial(good.spatial, ARCH)
    verify_spatial(gathered, ARCH)


def test_a_compute_larger_than_a_core(good: Passes):
    with pytest.raises(VerifyError, match="conv: a compute needs 5 crossbars, a core has 4"):
        verify_spatial(good.spatial, chip((3, 3), xbars_per_core=4, cores=16))


def test_a_matrix_larger_than_its_crossbars(good: Passes):
    with pytest.raises(VerifyError, match="conv: a matrix of 3x3 does not fit 1 crossbars"):
        verify_spatial(good.spatial, chip((3, 2), xbars_per_core=5, cores=16))
    with pytest.raises(VerifyError, match="conv: a matrix of 3x3 does not fit 1 crossbars"):
        verify_spatial(good.spatial, chip((2, 3), xbars_per_core=5, cores=16))


def test_a_tile_read_before_it_is_defined(good: Passes):
    with pytest.raises(VerifyError, match=r"conv: .* reads %y\.\d\.\d before it is defined"):
        verify_spatial(replace(good.spatial, computes=good.spatial.computes[::-1]), ARCH)


def test_a_tile_of_another_size_than_the_one_defined(good: Passes):
    wrong = replace(good.spatial.computes[0].inputs[0], channels=2)
    with pytest.raises(VerifyError, match=r"reads %x\.0 before it is defined"):
        verify_spatial(with_op(good.spatial, 0, 0, input=wrong), ARCH)


def test_a_tile_defined_twice(good: Passes):
    with pytest.raises(VerifyError, match=r"conv: %y\.0\.0 is defined twice"):
        verify_spatial(replace(good.spatial, computes=good.spatial.computes[:1] + good.spatial.computes), ARCH)


@pytest.mark.parametrize("change", [{"target": 1}, {"channels": 1}], ids=["overlap", "hole"])
def test_a_gather_that_does_not_cover_its_result_once(gathered: SpatialGraph, change: dict[str, int]):
    first, second = gathered.computes[0].body[0].pieces
    pieces = (replace(first, **change), second)
    with pytest.raises(VerifyError, match=r"my_concat: %y\.0 is not covered exactly once"):
        verify_spatial(with_op(gathered, 0, 0, pieces=pieces), ARCH)


def test_a_gather_of_channels_that_are_not_there(gathered: SpatialGraph):
    first, second = gathered.computes[0].body[0].pieces
    with pytest.raises(VerifyError, match=r"%y\.0 takes channels that its source does not have"):
        verify_spatial(with_op(gathered, 0, 0, pieces=(first, replace(second, source=2))), ARCH)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([[0, 0, 0, 1, 2]], "is not covered exactly once"),
        ([[0, 0, 0, 1, 2], [1, 0, 0, 1, 2]], "is not covered exactly once"),
        ([[0, 0, 0, 1, 3]], "takes elements that its source does not have"),
        ([[0, 0, 0, 2, 2], [2, -1, 0, 0, 1]], "takes elements that its source does not have"),
    ],
)
def test_a_move_out_of_bounds(gathered: SpatialGraph, runs: list[list[int]], message: str):
    """The first tile of y, three channels of one pixel, moved from the two channels of a."""
    gather = gathered.computes[0].body[0]
    move = Move(gather.result, (gather.pieces[0].value,), np.array(runs))
    with pytest.raises(VerifyError, match=rf"my_concat: %y\.0 {message}"):
        verify_spatial(with_compute(gathered, 0, body=(move,)), ARCH)


def test_kernel_positions_that_are_not_those_of_the_matrices(good: Passes):
    with pytest.raises(VerifyError, match=r"%y\.0\.0: kernel positions and matrices disagree"):
        verify_spatial(with_op(good.spatial, 0, 0, taps=(1, 0, 2, 3, 4)), ARCH)


def test_a_product_added_twice(good: Passes):
    (op,) = good.spatial.computes[0].body
    broken = with_op(good.spatial, 0, 0, weights=(*op.weights, 0), taps=(*op.taps, 0))
    with pytest.raises(VerifyError, match=r"conv: %y\.0 adds tap 0 rows \(0, 3\) 2 times"):
        verify_spatial(broken, ARCH)


def test_a_product_left_out(good: Passes):
    with pytest.raises(VerifyError, match=r"conv: %y\.0 misses products of tap 4: \[\(3, 4\)\]"):
        verify_spatial(with_op(good.spatial, 0, 0, weights=(0, 1, 2, 3), taps=(0, 1, 2, 3)), ARCH)


def test_a_partial_sum_left_out(good: Passes):
    add = good.spatial.computes[1].body[1]
    broken = with_op(good.spatial, 1, 1, sources=(add.operands[1], add.operands[1]))
    with pytest.raises(VerifyError, match=r"conv: %y\.0 adds tap 5 rows \(0, 3\) 2 times"):
        verify_spatial(broken, ARCH)


def test_channels_that_no_tile_holds(good: Passes):
    parts = good.spatial.tensors["y"].parts
    for missing in range(3):
        kept = tuple(p for i, p in enumerate(parts) if i != missing)
        with pytest.raises(VerifyError, match=r"y: channels \[.*\] are not covered exactly once"):
            verify_spatial(with_parts(good.spatial, "y", kept), ARCH)


def test_a_tile_that_holds_only_some_rows(good: Passes):
    first, *rest = good.spatial.tensors["y"].parts
    short = replace(first, region=replace(first.region, rows=(0, 3)))
    with pytest.raises(VerifyError, match=r"y: row 3 column 0 of .* is not covered exactly once"):
        verify_spatial(with_parts(good.spatial, "y", (short, *rest)), ARCH)
    twice = replace(first, region=replace(first.region, rows=(1, 4)))
    with pytest.raises(VerifyError, match=r"y: row 1 column 0 of .* is not covered exactly once"):
        verify_spatial(with_parts(good.spatial, "y", (first, twice, *rest)), ARCH)


def test_a_tensor_whose_tile_is_never_defined(good: Passes):
    first, *rest = good.spatial.tensors["y"].parts
    lost = replace(first, tile=replace(first.tile, name="lost"))
    with pytest.raises(VerifyError, match="conv: %lost of y is never defined"):
        verify_spatial(with_parts(good.spatial, "y", (lost, *rest)), ARCH)


@pytest.mark.parametrize(
    ("change", "fault"), [("input", r"%x\.1 from channel 0 on"), ("channel", r"%x\.0 from channel 1 on")]
)
def test_a_product_with_the_wrong_input_channels(change: str, fault: str):
    graph = passes(thesis_model(6, 3), **THESIS_CHIP).spatial
    other = graph.tensors["x"].parts[1].tile
    broken = with_op(graph, 0, 0, input=other) if change == "input" else with_op(graph, 0, 0, channel=1)
    with pytest.raises(VerifyError, match=rf"conv: %y\.0\.0: {fault} is not \[\(0, 3\)\]"):
        verify_spatial(broken, ARCH)


def test_repeated_elements_are_one_tile_under_two_names():
    """A layer reads channels 0 to 3 and 3 to 6 from the same tile."""
    nodes = [node("Tile", "x n", "t"), node("MatMul", "t w")]
    model = make_model(nodes, {"x": (1, 3)}, {"y": 2}, {"n": np.array([1, 2]), "w": random(6, 4)})
    parts = passes(model, **THESIS_CHIP).spatial.tensors["t"].parts
    assert len(parts) == 2
    assert parts[0].tile == parts[1].tile
