"""The thesis's own example: kernel 3x3, image 4x4, crossbars 3x3, 5 in a core (sections 4.3 to 4.7).

Section 4.3 speaks of 8 channels and 4 filters, listing 4.1 of 4 channels and 8 filters; both cut into six groups.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from raptor.spatial.compute_op import Compute
from raptor.spatial.operations import ApplyFilters, Vector
from tests.pipeline import THESIS_CHIP, Passes, check, in_matrices, passes, thesis_model

# Figure 4.8: what each core holds, as (input tile, output tile) and kernel positions.
EIGHT_CHANNELS = """
    0,0: 0-4
    0,0: 5-8; 0,1: 0
    0,1: 1-5
    0,1: 6-8; 1,0: 0-1
    1,0: 2-6
    1,0: 7-8; 1,1: 0-2
    1,1: 3-7
    1,1: 8;   2,0: 0-3
    2,0: 4-8
    2,1: 0-4
    2,1: 5-8
"""
FOUR_CHANNELS = """
    0,0: 0-4
    0,0: 5-8; 0,1: 0
    0,1: 1-5
    0,1: 6-8; 0,2: 0-1
    0,2: 2-6
    0,2: 7-8; 1,0: 0-2
    1,0: 3-7
    1,0: 8;   1,1: 0-3
    1,1: 4-8
    1,2: 0-4
    1,2: 5-8
"""

BOTH = pytest.mark.parametrize(("channels", "filters"), [(8, 4), (4, 8)])

Held = list[tuple[tuple[int, int], list[int]]]


def expected(text: str) -> list[Held]:
    return [[_group(group) for group in line.split(";")] for line in text.strip().splitlines()]


def _group(text: str) -> tuple[tuple[int, int], list[int]]:
    tiles, _, positions = text.partition(":")
    in_tile, out_tile = tiles.split(",")
    first, _, last = positions.strip().partition("-")
    return (int(in_tile), int(out_tile)), list(range(int(first), int(last or first) + 1))


def held(compute: Compute) -> Held:
    """Returns the compute's matrices in order; tiles have three channels."""
    groups: Held = []
    for matrix in compute.matrices:
        tiles = (matrix.rows[0] // 3, matrix.cols[0] // 3)
        if not groups or groups[-1][0] != tiles:
            groups.append((tiles, []))
        groups[-1][1].append(matrix.tap)
    return groups


@cache
def compiled(channels: int, filters: int) -> Passes:
    return passes(thesis_model(channels, filters), **THESIS_CHIP)


def cores_text(program: Passes, level: str, *cores: int) -> str:
    whole = getattr(program, level)
    return str(replace(whole, cores={i: whole.cores[i] for i in cores}))


@pytest.mark.parametrize(
    ("channels", "filters", "table"), [(8, 4, EIGHT_CHANNELS), (4, 8, FOUR_CHANNELS)], ids=["8-4", "4-8"]
)
def test_matrices_are_grouped_as_in_figure_4_8(channels: int, filters: int, table: str):
    computes = compiled(channels, filters).spatial.computes
    assert len(computes) == 11
    assert sum(len(c.matrices) for c in computes) == 54
    assert [held(c) for c in computes] == expected(table)
    assert list(compiled(channels, filters).partition.cores) == list(range(11))


def test_the_dependency_table_is_table_4_1():
    (layer,) = in_matrices(compiled(8, 4).decision).values()
    groups = Counter((m.rows, m.cols) for m in layer.matrices)
    assert groups == {(rows, cols): 9 for rows in [(0, 3), (3, 6), (6, 8)] for cols in [(0, 3), (3, 4)]}


def test_partial_sums_cascade_as_in_listing_4_1():
    computes = compiled(4, 8).spatial.computes
    # By compute: the input tile and weight indices of each applyFilters, then the tiles that are added.
    shown = [
        (
            [(op.input.name, op.weights) for op in c.body if isinstance(op, ApplyFilters)],
            sum(isinstance(op, Vector) for op in c.body),
        )
        for c in computes
    ]
    assert shown[0] == ([("x.0", (0, 1, 2, 3, 4))], 0)
    assert shown[1] == ([("x.0", (0, 1, 2, 3)), ("x.0", (4,))], 1)
    assert shown[7] == ([("x.1", (0,)), ("x.1", (1, 2, 3, 4))], 2)
    assert shown[8] == shown[9] == ([("x.1", (0, 1, 2, 3, 4))], 1)
    assert shown[10] == ([("x.1", (0, 1, 2, 3))], 1)
    made_by = {tile: i for i, c in enumerate(computes) for tile in c.results}
    sources = {i: {made_by[t] for t in c.inputs if t in made_by} for i, c in enumerate(computes)}
    assert sources[7] == {6, 3}
    assert (sources[8], sources[9], sources[10]) == ({7}, {5}, {9})


def test_the_output_is_put_together_as_in_listing_4_1():
    spatial = compiled(4, 8).spatial
    parts = [part.tile for part in spatial.tensors["y"].parts]
    assert parts == [spatial.computes[7].results[0], spatial.computes[8].results[0], spatial.computes[10].results[0]]


@BOTH
def test_spatial_text(channels: int, filters: int, golden: Callable[..., None]):
    golden(str(compiled(channels, filters).spatial))


def test_pim_text_before_allocation(golden: Callable[..., None]):
    """Cores 3 and 4 are those of listing 4.2."""
    golden(cores_text(compiled(4, 8), "placed", 3, 4))


@BOTH
def test_pim_text(channels: int, filters: int, golden: Callable[..., None]):
    golden(str(compiled(channels, filters).program))


def test_stream_text(golden: Callable[..., None]):
    """Core 10 is that of listing 4.3."""
    golden(cores_text(compiled(4, 8), "streams", 10))


@BOTH
def test_values(channels: int, filters: int):
    check(thesis_model(channels, filters), **THESIS_CHIP)
