"""Tiles, matrices and cores, as `map_raptor` decides."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

import raptor
from raptor import frontend
from raptor.common.errors import CapacityError
from raptor.graph.layers import tile_channels
from raptor.mapping.decision import Matrix
from raptor.mapping.reference_mapping import map_raptor
from raptor.target.arch import Target
from tests.pipeline import chip, conv_model, in_matrices, passes, thesis_model
from tests.tiny_models import make_model, node, random


@pytest.mark.parametrize(
    ("xbar", "options", "tile"),
    [
        ((3, 3), {}, 3),
        ((128, 128), {}, 128),
        ((128, 64), {}, 128),  # two side by side are as wide as one is high
        ((64, 128), {}, 128),  # one alone is wider than high
        ((128, 48), {}, 96),  # three would be wider than high
        ((128, 128), {"cell_bits": 2}, 128),  # 32 outputs each
        ((128, 128), {"cell_bits": 2, "xbars_per_core": 3}, 96),
        ((128, 128), {"cell_bits": 3}, 96),  # 48 outputs each
        ((128, 128), {"cell_bits": 8, "bits": 16}, 128),
        ((128, 128), {"xbars_per_core": 1}, 128),
        ((128, 64), {"xbars_per_core": 1}, 64),
        ((4, 128), {}, 128),
    ],
)
def test_channels_of_a_tile(xbar: tuple[int, int], options: dict[str, int], tile: int):
    assert tile_channels(chip(xbar, **{"cell_bits": 8, **options})) == tile


SIZES = st.integers(1, 9)


@given(
    rows=st.integers(1, 6),
    cols=st.integers(1, 6),
    per_core=st.integers(1, 5),
    cell_bits=st.sampled_from([4, 8]),
    channels=SIZES,
    filters=SIZES,
    kernel=st.integers(1, 2),
)
def test_matrices_fit_and_cover_the_weights_once(
    rows: int, cols: int, per_core: int, cell_bits: int, channels: int, filters: int, kernel: int
):
    arch = chip((rows, 2 * cols), xbars_per_core=per_core, cores=400, cell_bits=cell_bits)
    graph = frontend.load(conv_model((1, channels, 3, 3), filters, (kernel, kernel))).graph
    (layer,) = in_matrices(map_raptor(graph, arch)).values()
    covered = [(m.tap, row, col) for m in layer.matrices for row in range(*m.rows) for col in range(*m.cols)]
    assert sorted(covered) == [(t, r, c) for t in range(kernel**2) for r in range(channels) for c in range(filters)]
    assert all(_fits(m, arch) for m in layer.matrices)
    assert list(layer.cores) == sorted(layer.cores)
    for core in set(layer.cores):
        held = [m.xbars for m, at in zip(layer.matrices, layer.cores, strict=True) if at == core]
        assert sum(held) <= per_core


def _fits(matrix: Matrix, arch: Target) -> bool:
    """Exactly as many crossbars as the columns need, and a row block within one input tile."""
    rows, cols = (stop - start for start, stop in (matrix.rows, matrix.cols))
    tile = tile_channels(arch)
    one_tile = matrix.rows[0] // tile == (matrix.rows[1] - 1) // tile
    return rows <= arch.xbar_rows and one_tile and matrix.xbars == -(-cols // arch.outputs_per_xbar)


def test_layers_follow_one_another_on_the_same_core():
    model = make_model(
        [node("Conv", "x v", "c", name="one"), node("Conv", "c w", "y", name="two")],
        {"x": (1, 4, 2, 2)},
        ["y"],
        {"v": random(4, 4, 1, 1), "w": random(4, 4, 2, 2)},
    )
    decision = passes(model, xbar=4, xbars_per_core=3, cores=2).decision
    assert str(decision) == (
        "mapping raptor {tile = 4, by tile}\n"
        "  %c: 1 matrices, core 0: 1\n"
        "    core 0: taps 0 of inputs 0:4 x outputs 0:4 on 1 xbars\n"
        "  %y: 4 matrices, core 0: 2, core 1: 2\n"
        "    core 0: taps 0 1 of inputs 0:4 x outputs 0:4 on 1 xbars\n"
        "    core 1: taps 2 3 of inputs 0:4 x outputs 0:4 on 1 xbars\n"
        "  refined: nothing\n"
        "  placed: as numbered\n"
    )  # fmt: skip


TWO_LAYERS = make_model(
    [node("Conv", "x v", "c", name="first"), node("Conv", "c w", "y", name="second")],
    {"x": (1, 6, 4, 4)},
    ["y"],
    {"v": random(6, 6, 3, 3), "w": random(5, 6, 2, 2)},
)
SMALL_CHIPS = [
    (thesis_model(8, 4), {"xbar": 3, "xbars_per_core": 5, "cores": 10}),
    (TWO_LAYERS, {"xbar": 3, "xbars_per_core": 5, "cores": 2}),
    (TWO_LAYERS, {"xbar": 3, "xbars_per_core": 1, "cores": 47}),
    (TWO_LAYERS, {"xbar": (4, 6), "cell_bits": 4, "xbars_per_core": 2, "cores": 1}),
    (TWO_LAYERS, {"xbar": (8, 6), "cell_bits": 4, "xbars_per_core": 2, "cores": 3}),
    (TWO_LAYERS, {"xbar": (12, 6), "cell_bits": 4, "xbars_per_core": 5, "cores": 2}),
]


@pytest.mark.parametrize(("model", "sizes"), SMALL_CHIPS)
def test_a_chip_too_small_names_what_would_do(model: ModelProto, sizes: dict[str, Any]):
    with pytest.raises(CapacityError) as caught:
        raptor.compile(model, **sizes)
    error = caught.value
    assert (error.resource, error.available) == ("cores", sizes["cores"])
    cores, per_core, _ = error.levers
    assert cores == f"cores={error.needed}"
    raptor.compile(model, **{**sizes, "cores": error.needed})
    with pytest.raises(CapacityError):
        raptor.compile(model, **{**sizes, "cores": error.needed - 1})
    (count,) = re.fullmatch(r"xbars_per_core=(\d+)", per_core).groups()
    raptor.compile(model, **{**sizes, "xbars_per_core": int(count)})


def test_the_number_of_crossbars_suggested_is_enough_for_wide_matrices():
    sizes = {"xbar": (20, 4), "xbars_per_core": 5, "cores": 2}
    model = conv_model((1, 20, 2, 2), 60, (1, 1))
    with pytest.raises(CapacityError) as caught:
        raptor.compile(model, **sizes)
    count = int(caught.value.levers[1].removeprefix("xbars_per_core="))
    raptor.compile(model, **{**sizes, "xbars_per_core": count})


def test_a_chip_too_small_names_the_first_layer_that_does_not_fit():
    with pytest.raises(CapacityError, match=r"full at layer first \(Conv\).*need 11, have 2"):
        raptor.compile(TWO_LAYERS, xbar=3, xbars_per_core=5, cores=2)
    with pytest.raises(CapacityError, match=r"full at layer second \(Conv\).*need 11, have 8"):
        raptor.compile(TWO_LAYERS, xbar=3, xbars_per_core=5, cores=8)


def test_the_number_of_crossbars_is_the_number_used():
    with pytest.raises(CapacityError, match=r"^54 crossbars of 3x3, 5 a core") as caught:
        raptor.compile(thesis_model(8, 4), xbar=3, xbars_per_core=5, cores=1)
    assert caught.value.needed == 11
