"""Residency: the core of a tile, the tile that was made last, copies of pixels of a line."""

import numpy as np
import pytest

from raptor.mapping.decision import Matrix
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Copy
from raptor.spatial.lowering.cell_grid import LineCell
from raptor.spatial.lowering.tile_residency import TileResidency
from raptor.spatial.operations import Move
from raptor.spatial.tiles import Tile
from tests.pipeline import passes
from tests.tiny_models import make_model, node, random


def tile(name: str) -> Tile:
    return Tile(name, 1, 4, 8)


def making(*tiles: Tile) -> Compute:
    return Compute("node", "Op", "", (), tuple(Copy(tile, tile, 0, 0, 1) for tile in tiles), tiles)


def test_the_last_operand_is_found_after_each_addition():
    residency, (a, b, c) = TileResidency(), map(tile, "abc")
    residency.add(making(a), 1)
    residency.add(making(b), 2)
    assert residency.core_of_last([b, a]) == 2
    residency.add(making(c), 3)
    assert residency.core_of_last([c, a]) == 3
    assert residency.core_of_last([tile("input")]) == 0


@pytest.mark.parametrize("sources", [("cosines", "product"), ("product", "cosines")])
def test_what_depends_on_model_inputs_only_is_never_the_last(sources: tuple[str, str]):
    residency, product, cosines, added = TileResidency(), *map(tile, ("product", "cosines", "added"))
    matrix, given = Matrix(0, (0, 8), (0, 8), 1), tile("input")
    residency.add(Compute("layer", "MatMul", "", (matrix,), (Copy(product, given, 0, 0, 8),), (product,)), 1)
    residency.add(Compute("lookup", "Gather", "", (), (Copy(cosines, given, 0, 0, 8),), (cosines,)), 2)
    assert residency.core_of_last([product, cosines]) == 1
    body = tuple(Copy(added, tile(source), 4 * k, 4 * k, 4) for k, source in enumerate(sources))
    residency.add(Compute("sum", "Add", "", (), body, (added,)), 3)
    assert residency.core_of_last([product, added]) == 3


def test_a_tile_that_is_filled_again_is_later_than_those_before():
    residency, (a, b) = TileResidency(), map(tile, "ab")
    residency.add(making(a), 1)
    residency.add(making(b), 2)
    residency.add(making(a), 1)
    assert residency.core_of_last([b, a]) == 1


def test_a_copy_is_found_once_it_is_made():
    residency, cells = TileResidency(), [LineCell((0, 4), tile("left")), LineCell((4, 8), tile("right"))]
    residency.add(making(*(cell.tile for cell in cells)), 1)
    place = "x", 0, 0, 2
    assert residency.find_cell(place, cells, (1, 3), exact=False) is None
    wide = residency.record_copy(place, LineCell((0, 4), tile("copy")))
    assert residency.find_cell(place, cells, (1, 3), exact=False) is wide
    assert residency.find_cell(place, cells, (1, 3), exact=True) is None
    exact = residency.record_copy(place, LineCell((1, 3), tile("exact")))
    assert residency.find_cell(place, cells, (1, 3), exact=True) is exact
    assert residency.find_cell(place, cells, (1, 3), exact=False) is wide, "the first that holds them, as before"


def test_cells_of_the_line_come_before_copies():
    residency, cells = TileResidency(), [LineCell((0, 4), tile("left")), LineCell((4, 8), tile("right"))]
    residency.add(making(cells[0].tile), 1)
    residency.add(making(cells[1].tile), 2)
    residency.record_copy(("x", 0, 0, 1), LineCell((0, 8), tile("copy")))
    assert residency.find_cell(("x", 0, 0, 1), cells, (2, 3), exact=False) is cells[0]
    assert residency.find_cell(("x", 0, 0, 2), cells, (5, 8), exact=False) is cells[1]
    assert residency.find_cell(("x", 0, 0, 2), cells, (5, 8), exact=True) is None


def test_states_of_all_steps_come_together_where_the_last_one_is():
    """A GRU of both directions: the states of the first token are the first and the last of their directions."""
    steps, hidden = 12, 24
    nodes = [
        node("GRU", "x w r", "h", direction="bidirectional", hidden_size=hidden, name="gru"),
        node("Transpose", "h", "t", perm=[2, 0, 1, 3], name="batch_first"),
        node("Reshape", "t tokens", "m", name="join"),
        node("Mul", "m mask", "p", name="masked"),
        node("ReduceSum", "p axes", "y", keepdims=0, name="summed"),
    ]
    weights = {"w": random(2, 3 * hidden, 8), "r": random(2, 3 * hidden, hidden), "mask": random(1, steps, 1)}
    weights |= {"tokens": np.array([1, steps, 2 * hidden]), "axes": np.array([1])}
    model = make_model(nodes, {"x": (steps, 1, 8)}, {"y": 2}, weights)
    done = passes(model, arch="bench", cores=64, mapping="rows")
    placed = [*zip(done.spatial.computes, done.partition.cores, strict=True)]
    home = {tile.name: core for compute, core in placed for tile in compute.results}
    ((core, states),) = [
        (core, compute.inputs)
        for compute, core in placed
        if isinstance(compute.body[0], Move) and len(compute.inputs) == 2 * steps
    ]
    assert core == home[states[1].name]  # the last step of the second direction
