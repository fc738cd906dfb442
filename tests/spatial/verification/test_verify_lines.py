"""`spatial.verify` on layers by line: a mistake in what is multiplied, copied or added is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from raptor.common.errors import VerifyError
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.mapping.refinement import Relay, RelayedTile
from raptor.spatial import SpatialGraph, verify_spatial
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy
from raptor.spatial.operations import ApplyLine, Move, Overlap
from raptor.spatial.refinement.value_relays import relay_values
from tests.pipeline import Passes, chip, conv_model, passes
from tests.recurrent_models import recurrent
from tests.tiny_models import make_model, node, random
from tests.values import replace

CHIP = {"xbar": (16, 16), "xbars_per_core": 40, "cores": 60}
WIDE = conv_model((1, 6, 8, 9), 20, strides=(2, 1), pads=(1, 1, 1, 1))
"""A model whose lines are cut into blocks of several pixels, its outputs into two ranges."""
DEEP = conv_model((1, 40, 4, 5), 20, pads=(1, 1, 1, 1))
"""A model whose input channels are cut into three ranges, on cores that make partial sums."""
NARROW = conv_model((1, 1, 9, 4), 5, pads=(1, 1, 1, 1))
"""A model whose lines are so narrow that several are multiplied together."""
CUT = make_model(
    [
        node("Tanh", "x", "s"),
        node("Transpose", "s", "t", perm=[0, 1, 3, 2]),
        node("Conv", "t w", "y", name="conv", pads=[1, 1, 1, 1]),
    ],
    {"x": (1, 20, 5, 6)},
    ["y"],
    {"w": random(8, 20, 3, 3)},
)
"""A model with a layer whose input is a tensor of all rows that is cut into lines."""
UP = make_model(
    [node("ConvTranspose", "x w", "y", name="conv", strides=[2, 3], pads=[1, 1, 0, 1])],
    {"x": (1, 6, 5, 7)},
    ["y"],
    {"w": random(6, 20, 3, 4)},
)
"""A transposed convolution whose blocks overlap."""
GROUPS = make_model(
    [node("Conv", "x w", "y", name="conv", pads=[1, 1, 1, 1], group=8)],
    {"x": (1, 32, 4, 5)},
    ["y"],
    {"w": random(32, 4, 3, 3)},
)
"""Two ranges of input channels, each for a range of the output."""
VOLUME = make_model(
    [node("Conv", "x w", "y", name="conv", pads=[1, 1, 1, 1, 1, 1], strides=[1, 2, 1])],
    {"x": (1, 2, 3, 5, 4)},
    ["y"],
    {"w": random(20, 2, 2, 3, 3)},
)
"""A layer over slices, rows and columns."""

ATROUS = conv_model((1, 4, 6, 7), 20, dilations=(2, 4), pads=(2, 4, 2, 4))
"""A layer that reads pixels which do not lie side by side; most would lie beyond the image."""
MODELS = {
    "wide": WIDE,
    "deep": DEEP,
    "narrow": NARROW,
    "cut": CUT,
    "up": UP,
    "groups": GROUPS,
    "volume": VOLUME,
    "atrous": ATROUS,
}

Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Passes]:
    alone = {"moves": 1e12}  # no move has cores of its own
    return {name: passes(model, **CHIP, mapping="rows", knobs=alone) for name, model in MODELS.items()}


def changed(graph: SpatialGraph, kind: type[BodyOp], change: Change, at: int = 0) -> SpatialGraph:
    """Changes one operation of a kind; the others stay as they are."""
    found = [i for i, c in enumerate(graph.computes) if c.body and isinstance(c.body[0], kind)]
    computes = list(graph.computes)
    compute = computes[found[at]]
    (op,) = compute.body
    computes[found[at]] = replace(compute, body=(change(op),))
    return replace(graph, computes=tuple(computes))


def refused(graph: SpatialGraph, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_spatial(graph, chip((16, 16), xbars_per_core=40, cores=60))


def plus(table: np.ndarray[Any, Any], row: int, column: int, amount: int) -> np.ndarray[Any, Any]:
    other = table.copy()
    other[row, column] += amount
    return other


@pytest.mark.parametrize("name", [*MODELS])
def test_accepted(compiled: dict[str, Passes], name: str):
    graph = compiled[name].spatial
    assert any(isinstance(op, ApplyLine) for c in graph.computes for op in c.body)
    verify_spatial(graph, compiled[name].arch)


@pytest.mark.parametrize(
    "model",
    [
        conv_model((1, 2, 1, 1), 3, (1, 1), strides=(3, 3), pads=(1, 1, 2, 2)),
        conv_model((1, 2, 3, 5), 3, (2, 1), dilations=(4, 1), pads=(1, 0, 1, 0)),
    ],
    ids=["by its stride", "by its dilation"],
)
def test_a_layer_that_reads_padding_only(model: ModelProto):
    graph = passes(model, **CHIP, mapping="rows")
    verify_spatial(graph.spatial, graph.arch)


@pytest.mark.parametrize("name", [*MODELS])
def test_a_product_that_is_not_added(compiled: dict[str, Passes], name: str):
    broken = changed(compiled[name].spatial, Overlap, lambda op: replace(op, runs=op.runs[1:]))
    refused(broken, r"conv: row \d+ column \d+ of .* of y adds kernel position \d+ of channels \(.*\) 0 times")


@pytest.mark.parametrize("name", [*MODELS])
def test_a_product_that_is_added_twice(compiled: dict[str, Passes], name: str):
    def twice(op: Overlap) -> Overlap:
        return replace(op, runs=np.concatenate([op.runs[:1], op.runs]))

    refused(changed(compiled[name].spatial, Overlap, twice), r"conv: .* adds kernel position \d+ of .* 2 times")


def test_a_partial_sum_that_is_added_twice_or_not(compiled: dict[str, Passes]):
    graph = compiled["deep"].spatial
    made = {op.result.name for c in graph.computes for op in c.body if isinstance(op, Overlap)}
    ops = [op for c in graph.computes for op in c.body if isinstance(op, Overlap)]
    at = next(i for i, op in enumerate(ops) if op.sources[0].name in made)
    first, *_, last = ops[at].sources
    both = tuple(first if tile == last else tile for tile in ops[at].sources)
    message = r"conv: %y.* does not add %y.* whole and once|is no part of y"
    refused(changed(graph, Overlap, lambda op: replace(op, sources=both), at), message)
    refused(changed(graph, Overlap, lambda op: replace(op, runs=op.runs[:-1]), at), message)
    refused(changed(graph, Overlap, lambda op: replace(op, runs=plus(op.runs, 0, 3, -1)), at), message)


def relayed_sums(found: Passes) -> SpatialGraph:
    """Returns the graph in which a free core passes on a partial sum to the core that adds it."""
    partition = found.partition
    assert 59 not in partition.cores
    made = {op.result.name for c in partition.graph.computes for op in c.body if isinstance(op, Overlap)}
    read = ((i, tile.name) for i, c in enumerate(partition.graph.computes) for tile in c.inputs if tile.name in made)
    reader, tile = next((i, name) for i, name in read if partition.graph.computes[i].layer)
    return relay_values(partition, (Relay((59,), (RelayedTile(tile, reader),)),)).graph


def test_a_partial_sum_that_is_relayed(compiled: dict[str, Passes]):
    """Sums add what relays hold; a relay that holds something else is refused."""
    graph = relayed_sums(compiled["deep"])
    verify_spatial(graph, compiled["deep"].arch)
    copies = [(i, op) for i, c in enumerate(graph.computes) for op in c.body if isinstance(op, Copy)]
    i, op = next((i, op) for i, op in copies if ".kept" in op.source.name)
    half = op.elements // 2
    swapped = replace(op, elements=half, at=half), replace(op, elements=half, first=op.first + half)
    computes = list(graph.computes)
    computes[i] = replace(computes[i], body=swapped)
    refused(replace(graph, computes=tuple(computes)), r"conv: %y.* does not add %y.*kept.* whole and once")


@pytest.mark.parametrize("column", [0, 2])
@pytest.mark.parametrize("name", ["wide", "narrow", "cut", "up", "groups", "volume"])
def test_a_sum_shifted_by_a_pixel_or_a_channel(compiled: dict[str, Passes], name: str, column: int):
    graph = compiled[name].spatial
    channels = next(op for c in graph.computes for op in c.body if isinstance(op, Overlap)).result.channels
    for shift in (1, channels):

        def shifted(op: Overlap, shift: int = shift) -> Overlap:
            # Of a shorter run, so that it stays inside of both tiles.
            return replace(op, runs=plus(plus(op.runs, 0, column, shift), 0, 3, -shift))

        refused(changed(graph, Overlap, shifted), "conv: .*(adds at|times)")


def test_a_block_shifted_by_a_pixel_or_a_channel(compiled: dict[str, Passes]):
    graph = compiled["wide"].spatial
    ops = [op for c in graph.computes for op in c.body if isinstance(op, ApplyLine)]
    at = next(i for i, op in enumerate(ops) if op.products[-1, 2] > 0)
    for shift in (1, ops[at].lines[0].channels):

        def shifted(op: ApplyLine, shift: int = shift) -> ApplyLine:
            return replace(op, products=plus(op.products, -1, 2, -shift))

        refused(changed(graph, ApplyLine, shifted, at), "conv: .*(is no block of its matrix|adds at|times)")


@pytest.mark.parametrize("name", [*MODELS])
def test_a_product_with_a_matrix_for_other_pixels(compiled: dict[str, Passes], name: str):
    graph = compiled[name].spatial
    at, compute = next((i, c) for i, c in enumerate(graph.computes) if c.matrices)
    (op,) = compute.body
    assert isinstance(op, ApplyLine)
    used = int(op.products[0, 0])
    matrix = compute.matrices[used]
    assert isinstance(matrix, LineMatrix)
    shift = matrix.band.shift
    moved = [(*shift[:dim], shift[dim] + 1, *shift[dim + 1 :]) for dim in range(len(shift))]
    bands = [replace(matrix, band=replace(matrix.band, shift=other)) for other in moved]
    places = replace(matrix, places=tuple([place + 1 for place in matrix.places]))
    for other in (replace(matrix, shift=matrix.shift + 1), places, *bands):
        matrices = (*compute.matrices[:used], other, *compute.matrices[used + 1 :])
        computes = (*graph.computes[:at], replace(compute, matrices=matrices), *graph.computes[at + 1 :])
        refused(replace(graph, computes=computes), "conv: .*(is no block of its matrix|adds at|times)")


def test_a_product_for_channels_of_other_groups(compiled: dict[str, Passes]):
    graph = compiled["groups"].spatial
    at, compute = next((i, c) for i, c in enumerate(graph.computes) if c.matrices)
    first, *rest = compute.matrices
    assert isinstance(first, LineMatrix)
    assert first.ins == first.outs
    other = replace(first, outs=(16 - first.outs[0], 48 - first.outs[1]))
    computes = (*graph.computes[:at], replace(compute, matrices=(other, *rest)), *graph.computes[at + 1 :])
    refused(replace(graph, computes=computes), "conv: .*(adds at|times)")


def test_a_band_with_a_wrong_line(compiled: dict[str, Passes]):
    graph = compiled["narrow"].spatial
    assert any(op.lines[0].rows > 1 for c in graph.computes for op in c.body if isinstance(op, ApplyLine))
    copies = [op for c in graph.computes for op in c.body if isinstance(op, Copy) and op.result.rows > 1]
    tiles = {op.source for op in copies}
    wrong = next(tile for tile in tiles if tile != copies[0].source)
    at = [op for c in graph.computes for op in c.body if isinstance(op, Copy)].index(copies[0])
    refused(changed(graph, Copy, lambda op: replace(op, source=wrong), at), "conv: .* is no block of its matrix")


def test_pixels_brought_to_a_wrong_place_or_not_at_all(compiled: dict[str, Passes]):
    graph = compiled["wide"].spatial
    channels = 6
    shifted = changed(graph, Copy, lambda op: replace(op, first=op.first + channels, elements=op.elements - channels))
    refused(shifted, "not every pixel of .* is copied once|is no block of its matrix")
    for amount in (1, channels):
        short = changed(graph, Copy, lambda op, n=amount: replace(op, elements=op.elements - n))
        refused(short, "model input: x: not every pixel of .* is copied once")


def test_two_lines_that_are_swapped(compiled: dict[str, Passes]):
    """Two lines of the output are swapped, then two of the input."""
    graph = compiled["wide"].spatial
    first, second, *rest = sorted(graph.tensors["y"].parts, key=lambda p: (p.region.channels, p.region.cols or (0, 0)))
    assert first.tile.type == second.tile.type
    parts = (replace(first, tile=second.tile), replace(second, tile=first.tile), *rest)
    swapped = {**graph.tensors, "y": replace(graph.tensors["y"], parts=parts)}
    refused(replace(graph, tensors=swapped), "conv: .* adds at .* what belongs elsewhere")
    first, second, *rest = graph.tensors["x"].parts
    parts = (replace(first, tile=second.tile), replace(second, tile=first.tile), *rest)
    swapped = {**graph.tensors, "x": replace(graph.tensors["x"], parts=parts)}
    refused(replace(graph, tensors=swapped), "conv: .*(is no block|adds at|times)")


def test_a_line_cut_out_at_another_place(compiled: dict[str, Passes]):
    graph = compiled["cut"].spatial
    cut = [op for c in graph.computes for op in c.body if isinstance(op, Move)]
    at = next(i for i, op in enumerate(cut) if op.result.name.endswith(".cut"))

    def shifted(op: Move) -> Move:
        return replace(op, runs=plus(op.runs, 0, 2, 1))

    refused(changed(graph, Move, shifted, at), "t: .* is not cut out of channels")


def test_a_tile_read_before_all_of_it_is_there(compiled: dict[str, Passes]):
    graph = compiled["narrow"].spatial
    last = max(i for i, c in enumerate(graph.computes) if c.body and isinstance(c.body[0], Copy))
    late: tuple[Compute, ...] = (*graph.computes[:last], *graph.computes[last + 1 :], graph.computes[last])
    refused(replace(graph, computes=late), "read before")


def test_products_of_another_time_step():
    """The steps of a recurrent layer with a batch share matrices. Each adds its own products, and no others."""
    found = passes(recurrent("RNN", sizes=(4, 6, 4, 5)), **CHIP, mapping="rows")
    graph = found.spatial
    steps = [name for name, use in graph.filter_of.items() if use.key != name]
    assert len(steps) == 3
    assert len({graph.filter_of[name].key for name in steps}) == 1
    verify_spatial(graph, found.arch)
    ops = [op for c in graph.computes for op in c.body if isinstance(op, Overlap)]
    at = [next(i for i, op in enumerate(ops) if op.result == graph.tensors[n].parts[0].tile) for n in steps]
    other = changed(graph, Overlap, lambda op: replace(op, sources=ops[at[0]].sources), at[1])
    refused(other, "does not hold channels")
    short = changed(graph, Overlap, lambda op: replace(op, runs=op.runs[1:]), at[1])
    refused(short, r"adds kernel position \d+ of channels .* 0 times")
    sum_of_step = next(c for c in graph.computes if c.body[0] == ops[at[1]])
    unused = replace(ops[at[1]], result=replace(ops[at[1]].result, name="unused"))
    more = replace(sum_of_step, body=(unused,), results=(unused.result,))
    refused(replace(graph, computes=(*graph.computes, more)), "%unused is part of no result")
