"""The mapping by lines: layers stream, slow layers get more cores."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

import models
import raptor
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.common.errors import CapacityError, UserError
from raptor.compiler import pipeline
from raptor.compiler.analysis.unstreamed_tensors import find_unstreamed_tensors
from raptor.compiler.mapping_search import Objective, search_mapping
from raptor.frontend import load
from raptor.graph.ir import Filter
from raptor.graph.window import Window
from raptor.mapping.decide import StoredDecision
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.mapping_file import make_mapping_file
from raptor.mapping.modes.epilogue_cost import find_epilogues
from raptor.mapping.modes.line_plans import load_plans
from raptor.mapping.modes.line_unfolding import (
    LineMatrix,
    block_shape,
    count_blocks,
    count_inside,
    cut_bands,
    cut_line_blocks,
    distinct_segments,
    inside_share,
    outputs_per_block,
)
from raptor.mapping.modes.plan_cache import plan_layers
from raptor.mapping.modes.window_axis import input_lines_read
from raptor.target import arch as architectures
from raptor.target import isa
from raptor.target.tensor_layout import Image
from tests.graphs import models as random_models
from tests.pipeline import (
    arch_file,
    by_line,
    check,
    conv_model,
    count_ops,
    in_matrices,
    line_flow,
    map_by_rows,
    passes,
)
from tests.tiny_models import make_model, node, random
from tests.values import replace

ROWS = {"mapping": "rows"}
CHIP = {"xbar": 16, "xbars_per_core": 40, "cores": 200, **ROWS}


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A window of two or three dimensions, every other one transposed."""
    dims = draw(st.integers(2, 3))
    kernel = (*(draw(st.integers(1, 3)) for _ in range(dims - 1)), draw(st.integers(1, 4)))
    strides = tuple(draw(st.integers(1, 3)) for _ in kernel)
    dilations = tuple(draw(st.integers(1, 3)) for _ in kernel)
    pads = tuple(draw(st.integers(0, (k - 1) * d)) for k, d in zip(kernel, dilations, strict=True))
    largest = (3, 5, 12) if dims == 3 else (12, 12)
    if draw(st.booleans()):
        small = tuple(draw(st.integers(1, min(5, most))) for most in largest)
        reaches = tuple((k - 1) * d for k, d in zip(kernel, dilations, strict=True))
        most = tuple((n - 1) * s + r + 1 - p for n, s, r, p in zip(small, strides, reaches, pads, strict=True))
        out = tuple(max(1, m + draw(st.integers(-1, 2))) for m in most)
        return Window(small, out, kernel, strides, pads, dilations, transposed=True)
    reaches = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    size = tuple(draw(st.integers(reach, max(reach, most))) for reach, most in zip(reaches, largest, strict=True))
    out = tuple(
        (n + p - (k - 1) * d - 1) // s + 1 for n, p, k, d, s in zip(size, pads, kernel, dilations, strides, strict=True)
    )
    return Window(size, out, kernel, strides, pads, dilations)


@given(windows())
def test_the_lines_that_a_line_reads(window: Window):
    """With the columns that are read, they are the pixels of the definition."""
    pixels = window.input_pixels().reshape(window.out_lines, window.out_dims[-1], -1, window.kernel[-1])
    for y, read in enumerate(input_lines_read(window)):
        found = {(k, p // window.in_dims[-1]) for k in range(pixels.shape[2]) for p in pixels[y, :, k].flat if p >= 0}
        assert found <= {(tap, line) for line, tap in read}
        assert [line for line, _ in read] == sorted({line for line, _ in read})
        if window.in_dims[-1] >= window.kernel[-1] * window.dilations[-1] and not window.transposed:
            assert found == {(tap, line) for line, tap in read}


@given(
    windows(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_blocks_times_their_matrices_are_the_convolution(
    window: Window, ins: int, outs: int, pixels: int, height: int, owning: bool, clipped: bool, data: st.DataObject
):
    """The sum of all blocks' products, for some columns of the output, equals the filter's definition."""
    filter_ = Filter(random(window.tap_count, ins, outs), window)
    image = random(*window.in_dims, ins, seed=1)
    wanted = np.zeros((window.out_pixels, outs), np.float32)
    for tap, sources in enumerate(window.input_pixels().T):
        wanted[sources >= 0] += image.reshape(-1, ins)[sources[sources >= 0]] @ filter_.weights[tap]

    width = window.out_dims[-1]
    first = data.draw(st.integers(0, width - 1))
    cols = (first, data.draw(st.integers(first + 1, width)))
    outputs = outputs_per_block(window, pixels) if owning else 0
    found = np.zeros((window.out_lines, width, outs), np.float32)
    lines = image.reshape(window.in_lines, window.in_dims[-1], ins)
    numbers = {place: y for y, place in enumerate(np.ndindex(window.out_dims[:-1]))}
    for band, shape in cut_bands(window, height, clipped=clipped):
        for block in cut_line_blocks(window, cols, pixels, outputs, clipped=clipped):
            matrix = LineMatrix((0, ins), (0, outs), shape, *block_shape(window, block), 1)
            assert matrix.pixels <= pixels
            if clipped:
                assert all(cols[0] <= x < cols[1] for x in block.outs)
                assert all(place in numbers for place in band.outs)
            given_ = lines[slice(*band.lines), slice(*block.pixels)].reshape(-1)
            product = (given_ @ matrix.values(filter_)).reshape(len(band.outs), len(matrix.places), outs)
            for place, line in zip(band.outs, product, strict=True):
                for x, pixel in zip(block.outs, line, strict=True):
                    if place in numbers and cols[0] <= x < cols[1]:
                        found[numbers[place], x] += pixel
    wanted = wanted.reshape(-1, width, outs)
    np.testing.assert_allclose(found[:, slice(*cols)], wanted[:, slice(*cols)], atol=1e-5)


@st.composite
def long_lines(draw: st.DrawFn) -> Window:
    """Draws a window over one line that is long compared with the kernel."""
    inputs, kernel, stride = draw(st.integers(20, 300)), draw(st.integers(1, 7)), draw(st.integers(1, 5))
    dilation = draw(st.sampled_from((1, 1, 2, 3, 7)))
    reach = (kernel - 1) * dilation
    pad = draw(st.integers(0, reach + 3))
    transposed = draw(st.booleans())
    if transposed:
        outputs = max(1, (inputs - 1) * stride + reach + 1 - pad + draw(st.integers(-5, 5)))
    else:
        outputs = max(1, (inputs + pad + draw(st.integers(-3, reach + 3)) - reach - 1) // stride + 1)
    shape = (1, inputs), (1, outputs), (1, kernel), (1, stride), (0, pad), (1, dilation)
    return Window(*shape, transposed=transposed)


@given(long_lines(), st.integers(1, 40), st.integers(1, 60), st.booleans(), st.booleans())
@settings(max_examples=500)
def test_blocks_are_counted_as_they_are_made(window: Window, pixels: int, pieces: int, owning: bool, clipped: bool):
    """The counts are those of the shapes; the segments that stand for others have every shape; both ends are there."""
    width = window.out_dims[-1]
    cols = tuple((width * i // pieces, width * (i + 1) // pieces) for i in range(min(pieces, width)))
    cols = tuple((a, b) for a, b in cols if a < b)
    outputs = outputs_per_block(window, pixels) if owning else 0
    chosen = distinct_segments(window, cols, pixels)
    shapes: dict[tuple[int, int], frozenset[object]] = {}
    for segment in cols:
        made = cut_line_blocks(window, segment, pixels, outputs, clipped=clipped)
        counted = count_blocks(window, segment, pixels, outputs, clipped=clipped)
        wanted = Counter(block_shape(window, block) for block in made)
        found: Counter[object] = Counter()
        for block, alike in counted:
            found[block_shape(window, block)] += alike
        assert found == wanted
        assert [b for b, _ in counted[:1] + counted[-1:]] == list(made[:1] + made[-1:])
        inside = count_inside(window, segment, pixels, outputs, clipped=clipped)
        own = [sum(segment[0] <= out < segment[1] for out in block.outs) for block in made]
        assert np.array(inside).reshape(-1, 2).sum(axis=0).tolist() == [sum(own), sum(map(bool, own))]
        shapes[segment] = frozenset(wanted.items())
    assert set(shapes.values()) == {shapes[segment] for segment in chosen}


@pytest.mark.parametrize(
    ("pixels", "clipped", "wanted"),
    [
        (1, False, [((4, 5), (-2, 4, 10)), ((5, 6), (-1, 5, 11)), ((10, 11), (4, 10, 16)), ((11, 12), (5, 11, 17))]),
        (1, True, [((4, 5), (4,)), ((5, 6), (5,)), ((10, 11), (4,)), ((11, 12), (5,))]),
        (2, True, [((4, 6), (4, 5)), ((10, 12), (4, 5))]),
        (3, True, [((4, 7), (4, 5)), ((10, 13), (4, 5))]),
    ],
)
def test_blocks_of_a_dilated_line(pixels: int, *, clipped: bool, wanted: list[tuple[tuple[int, int], tuple[int, ...]]]):
    """Pixels and outputs in between take no part: output 5 reads pixels -1, 5 and 11 of 20."""
    window = Window((1, 20), (1, 20), (1, 3), (1, 1), (0, 6), (1, 6))
    assert [(b.pixels, b.outs) for b in cut_line_blocks(window, (4, 6), pixels, 0, clipped=clipped)] == wanted


def test_no_pixel_is_in_the_blocks_of_two_ranges():
    """Outputs 0 and 1 read pixels 0, 1, 4 and 5 of 6: the second range ends the line, and begins behind the first."""
    window = Window((1, 6), (1, 2), (1, 2), (1, 1), (0, 0), (1, 4))
    assert [b.pixels for b in cut_line_blocks(window, (0, 2), 5, 0, clipped=True)] == [(0, 4), (4, 6)]


def test_lines_of_a_dilated_image():
    """The first of 20 lines reaches lines 0 and 6; lines before the image are left out of clipped bands."""
    window = Window((20, 4), (20, 4), (3, 1), (1, 1), (6, 0), (6, 1))
    first, *_ = (band for band, _ in cut_bands(window, 1, clipped=False))
    assert first.outs == ((-6,), (0,), (6,))
    found = [[y for (y,) in band.outs] for band, _ in cut_bands(window, 1, clipped=True)]
    assert [found[y] for y in (0, 7, 19)] == [[0, 6], [1, 7, 13], [13, 19]]
    assert inside_share(window) == pytest.approx((20 + 2 * 14) / 60)


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 3), (5, 4)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("extra", [{}, {"pads": (1, 0, 0, 1)}, {"dilations": (1, 2), "pads": (1, 1, 1, 1)}])
def test_convolutions(kernel: tuple[int, int], strides: tuple[int, int], extra: dict[str, Any]):
    model = conv_model((1, 5, 9, 11), 7, kernel, strides=strides, bias=True, relu=True, **extra)
    check(model, **CHIP)


TRANSPOSED: tuple[dict[str, Any], ...] = (
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 0], "output_padding": [1, 0]},
    {"kernel_shape": [3, 3], "strides": [1, 2], "dilations": [2, 1]},
)
"""Windows: no overlap, overlap, outputs that nothing reaches, dilation."""


@pytest.mark.parametrize("window", TRANSPOSED)
def test_transposed_convolutions_by_line(window: dict[str, Any]):
    model = make_model(
        [node("ConvTranspose", "x w b", "c", name="conv", **window), node("Relu", "c", "y")],
        {"x": (1, 20, 5, 6)},
        ["y"],
        {"w": random(20, 7, *window["kernel_shape"]), "b": random(7, seed=1)},
    )
    assert len(by_line(passes(model, **CHIP).decision)) == 1
    check(model, **CHIP)


@pytest.mark.parametrize(("channels", "filters", "groups"), [(32, 32, 8), (40, 20, 10), (24, 36, 3), (20, 20, 20)])
def test_groups_of_channels_by_line(channels: int, filters: int, groups: int):
    """Ranges of whole groups, ranges that cut groups, groups of several ranges, one channel a group."""
    model = make_model(
        [node("Conv", "x w", "y", name="conv", pads=[1, 1, 1, 1], group=groups)],
        {"x": (1, channels, 5, 6)},
        ["y"],
        {"w": random(filters, channels // groups, 3, 3)},
    )
    chip = {**CHIP, "xbar": (16, 4), "xbars_per_core": 80}
    found = passes(model, **chip)
    if channels == 32:
        ranges = {m.ins: m.outs for c in found.spatial.computes for m in c.matrices if isinstance(m, LineMatrix)}
        assert ranges == {(0, 16): (0, 16), (16, 32): (16, 32)}
    check(model, **chip)


def test_signals_by_line():
    """Convolutions of one dimension, strided, depthwise and transposed, with a pool: columns go to several cores."""
    nodes = [
        node("Conv", "x w b", "c", name="first", pads=[1, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r v", "s", name="second", strides=[2], pads=[2, 2]),
        node("Conv", "s d", "t", name="third", group=20, pads=[1, 1]),
        node("MaxPool", "t", "p", kernel_shape=[2], strides=[2]),
        node("ConvTranspose", "p u", "y", name="last", strides=[3]),
    ]
    weights = {"w": random(12, 6, 3), "b": random(12), "v": random(20, 12, 5), "d": random(20, 1, 3)}
    nodes.append(node("GlobalAveragePool", "t", "z"))
    model = make_model(nodes, {"x": (1, 6, 50)}, ["y", "z"], {**weights, "u": random(20, 7, 3)})
    chip = {**CHIP, "cores": 60}
    found = passes(model, **chip)
    layers = by_line(found.decision).values()
    assert not {t.tensor for t in find_unstreamed_tensors(found.partition.graph, found.arch)} - {"y"}
    assert len(layers) == 3
    assert all(len(layer.grid.cols) > 1 for layer in layers)
    check(model, **chip)


def volumes() -> ModelProto:
    """Three dimensions: padded, strided, dilated, grouped and transposed layers, a shortcut, pools of each kind."""
    nodes = [
        node("Conv", "x w b", "c", name="first", pads=[1, 1, 1, 1, 0, 1]),
        node("Relu", "c", "r"),
        node("Conv", "r v", "s", name="second", strides=[2, 1, 2], pads=[2, 2, 1, 2, 2, 1], dilations=[2, 2, 1]),
        node("Conv", "s p", "q", name="pointwise"),
        node("Conv", "q d", "t", name="depthwise", group=12, pads=[1] * 6),
        node("Conv", "t g", "e", name="grouped", group=3, pads=[0, 1, 1, 0, 1, 1]),
        node("Add", "e q", "a"),
        node("MaxPool", "a", "m", kernel_shape=[2, 3, 2], strides=[1, 2, 2], pads=[1, 1, 0, 0, 1, 0]),
        node("AveragePool", "a", "n", kernel_shape=[2, 1, 2], strides=[2, 1, 1]),
        node("ConvTranspose", "m u", "up", name="up", strides=[2, 1, 3], pads=[1, 0, 1, 0, 1, 1]),
        node("Concat", "q t", "both", axis=1),
        node("GlobalAveragePool", "both", "y"),
    ]
    weights = {"w": random(10, 5, 2, 3, 3), "b": random(10), "v": random(12, 10, 3, 3, 3), "p": random(12, 12, 1, 1, 1)}
    weights |= {"d": random(12, 1, 3, 3, 3), "g": random(12, 4, 1, 3, 3), "u": random(12, 7, 3, 2, 4)}
    return make_model(nodes, {"x": (1, 5, 4, 6, 11)}, ["y", "n", "up"], weights)


@pytest.mark.parametrize("xbar", [16, (32, 64), (8, 12)])
def test_volumes_by_line(xbar: int | tuple[int, int]):
    """Their layers and pools stream, with columns on several cores; only what is stored is put together."""
    chip = {**CHIP, "xbar": xbar, "cores": 120}
    found = passes(volumes(), **chip)
    layers = by_line(found.decision)
    assert {"c.products", "s", "q", "e", "up"} <= set(layers)
    assert any(len(layers[name].grid.cols) > 1 for name in ("c.products", "s", "up"))
    whole = find_unstreamed_tensors(found.partition.graph, found.arch)
    assert {t.tensor for t in whole} <= {"n", "up"}, whole
    check(volumes(), **chip)


BATCHES: tuple[tuple[int, ...], ...] = ((3, 6, 40), (3, 6, 7, 11), (2, 6, 3, 4, 7))
"""Three signals, three images, two volumes."""


@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("xbar", [16, (40, 24)])
def test_batches_by_line(shape: tuple[int, ...], xbar: int | tuple[int, int]):
    """The lines of all images stream one after another, and no window reaches into another image."""
    dims = len(shape) - 2
    nodes = [
        node("Conv", "x w b", "c", name="first", pads=[1] * 2 * dims),
        node("Relu", "c", "r"),
        node("Conv", "r d", "t", name="depthwise", group=20, pads=[1] * 2 * dims),
        node("MaxPool", "t", "p", kernel_shape=[3] * dims, strides=[2] * dims, pads=[1] * 2 * dims),
        node("ConvTranspose", "p u", "up", name="up", strides=[2] * dims),
        node("Conv", "p v", "s", name="second", strides=[2] + [1] * (dims - 1), pads=[1] * 2 * dims),
        node("Concat", "s s", "y", axis=1),
        node("GlobalAveragePool", "y", "z"),
    ]
    weights = {"w": random(20, 6, *[3] * dims), "b": random(20), "d": random(20, 1, *[3] * dims)}
    weights |= {"u": random(20, 5, *[2] * dims), "v": random(9, 20, *[3] * dims)}
    model = make_model(nodes, {"x": shape}, ["y", "z", "up"], weights)
    chip = {**CHIP, "xbar": xbar, "cores": 90}
    found = passes(model, **chip)
    layers = by_line(found.decision)
    assert len(layers) >= 3
    assert all(layer.grid.segment_count > 1 for layer in layers.values())
    assert {t.tensor for t in find_unstreamed_tensors(found.partition.graph, found.arch)} <= {"y", "up"}
    check(model, **chip)


@pytest.mark.parametrize("xbar", [4, 16, (8, 32), (32, 8)])
def test_layers_split_over_cores(xbar: int | tuple[int, int]):
    """Forty crossbars a core are too few for the layer: its channels go to several, partial sums from core to core."""
    model = conv_model((1, 40, 6, 6), 36, (3, 3), pads=(1, 1, 1, 1), bias=True)
    chip = {**CHIP, "xbar": xbar, "xbars_per_core": 40, "cores": 150}
    (layer,) = by_line(passes(model, **chip).decision).values()
    assert len(layer.grid.ins) * len(layer.grid.outs) > 1
    check(model, **chip)


@given(random_models(), st.sampled_from([4, 8, (16, 8)]), st.integers(12, 40))
@settings(max_examples=5)
def test_random_graphs(model: ModelProto, xbar: int, xbars_per_core: int):
    check(model, tolerance=1e-4, xbar=xbar, xbars_per_core=xbars_per_core, cores=300, **ROWS)


@pytest.mark.slow
@given(random_models(), st.sampled_from([4, 8, (16, 8)]), st.integers(12, 40))
@settings(max_examples=500)
def test_many_random_graphs(model: ModelProto, xbar: int, xbars_per_core: int):
    check(model, tolerance=1e-4, xbar=xbar, xbars_per_core=xbars_per_core, cores=300, **ROWS)


@pytest.mark.parametrize(
    "name", ["squeezenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "googlenet"))]
)
def test_small_models(name: str):
    check(models.build(name, seed=0, width=0.125, image_size=64), tolerance=1e-4, **ROWS)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_narrow_lines_are_multiplied_together(channels: int):
    """A layer has as many cores as columns: a block then has as many lines as fill the crossbar's rows."""
    model = conv_model((1, channels, 40, 48), 64, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3), bias=True, relu=True)
    chip = {"xbar": 128, "xbars_per_core": 64, "cores": 16, **ROWS}
    (layer,) = by_line(passes(model, **chip).decision).values()
    assert layer.grid.height > 1
    check(model, **chip)


def test_products_that_can_overlap_use_copies(tmp_path: Path):
    """The chip has a reorder buffer: consecutive products of a core use different crossbars, if it has some."""
    model = conv_model((1, 16, 4, 24), 16, (3, 3), pads=(1, 1, 1, 1), bias=True)
    chip = {"xbar": 16, "xbars_per_core": 40, "cores": 2, **ROWS}
    (layer,) = by_line(passes(model, **chip).decision).values()
    assert layer.grid.copies == 1
    chip["arch"] = arch_file(tmp_path, rob_size=4)
    result = passes(model, **chip)
    (layer,) = by_line(result.decision).values()
    assert layer.grid.copies > 1
    for core, stream in result.streams.cores.items():
        groups = result.program.cores[core].groups
        assert sum(group.matrix.xbars for group in groups) <= 40
        products = stream.records[stream.records["opcode"] == isa.OPCODE["mvmul"]]["c"]
        assert sum(products[1:] == products[:-1]) * 10 < len(products)
    check(model, **chip)


def test_an_input_is_loaded_once_and_passed_on():
    model = models.build("resnet18", seed=0, width=0.125, image_size=64)
    result = passes(model, **ROWS)
    (loaders,) = line_flow(result.decision).loaders.values()
    assert loaders[0][0][0] == 0
    loads = {i: int((s.records["opcode"] == isa.OPCODE["ld"]).sum()) for i, s in result.streams.cores.items()}
    places = dict(zip(result.partition.cores, result.on_chip.cores, strict=True))
    assert all(loads[places[core]] == 64 for _, core in loaders)


@pytest.mark.parametrize(("cores", "most"), [(2, 1), (20, 5), (64, 14), (400, 28)])
def test_loaders_are_no_more_than_the_readers(cores: int, most: int):
    """They are at most a quarter of the cores: 14 loaders of two pixels are the most below 16, 28 of one below 32."""
    target = architectures.load("bench", cores=cores)
    assert max(plan.cores for plan in load_plans(Image((1, 1, 28, 28), 1), target)) == most


def test_a_line_is_in_fewer_pieces_on_a_chip_of_few_cores():
    small, large = (
        {
            plan.cores: plan.core_ns
            for plan in load_plans(Image((1, 1, 28, 28), 1), architectures.load("bench", cores=n))
        }
        for n in (20, 400)
    )
    assert small[1] < large[1] / 4
    found = raptor.compile(models.build("lenet5", seed=0), arch="bench", cores=20).simulate(mode="throughput")
    assert found.interval_ns is not None
    assert found.interval_ns < 35_000


def test_loaders_share_the_port_of_global_memory():
    """A line takes 21 loaders of 10 or 11 pixels 35 beats of 32 bytes, and 23 loaders of at most 10 pixels 23."""
    target = architectures.load("bench", cores=400)
    assert (target.memory.beat_bytes, target.memory.read_cycles * target.memory.period_ns) == (32, 40)
    plans = {plan.cores: plan.core_ns for plan in load_plans(Image((1, 3, 224, 224), 1), target)}
    assert [plans[cores] for cores in (21, 23, 32)] == [224 * 40 * beats for beats in (35, 23, 32)]
    assert plans[1] > 224 * 40 * 21, "one loader also sends all pieces"
    result = passes(conv_model((1, 3, 16, 224), 32, pads=(1, 1, 1, 1)), arch="bench", cores=400, **ROWS)
    (loaders,) = line_flow(result.decision).loaders.values()
    assert sum(-(-3 * (end - begin) // 32) for (begin, end), _ in loaders) <= 23


def test_work_on_an_input_alone_is_done_where_it_is_loaded():
    """A sum with what a layer has made is not: the layer ends last."""
    nodes = [node("Sigmoid", "x", "s"), node("Conv", "s w", "t", name="layer", pads=[1] * 4)]
    nodes.append(node("Add", "x t", "y"))
    model = make_model(nodes, {"x": (1, 4, 6, 8)}, ["y"], {"w": random(4, 4, 3, 3)})
    result = passes(model, **CHIP)
    work = {key: each.elements_ns for key, each in find_epilogues(result.graph, result.arch).items()}
    assert work["x"] == work["t"] > 0
    check(model, **CHIP)


@pytest.mark.parametrize("operands", ["a t", "t a"])
def test_what_follows_a_shortcut_is_counted_where_the_layers_that_it_passes_by_end(operands: str):
    nodes = [node("Conv", "x v", "a", name="a"), node("Conv", "a w", "t", name="t", pads=[1, 1, 1, 1])]
    nodes += [node("Add", operands, "s"), node("Resize", "s - - sizes", "y", mode="linear")]
    constants = {"v": random(6, 3, 1, 1), "w": random(6, 6, 3, 3), "sizes": np.array([1, 6, 18, 18])}
    result = passes(make_model(nodes, {"x": (1, 3, 9, 9)}, ["y"], constants), **CHIP)
    work = find_epilogues(result.graph, result.arch)
    assert work["t"].stencils
    assert "a" not in work or not work["a"].stencils


def test_the_slow_layer_gets_the_cores():
    weights = {"w": random(16, 16, 3, 3), "v": random(16, 16, 1, 1)}
    nodes = [node("Conv", "x w", "t", name="slow", pads=[1, 1, 1, 1]), node("Conv", "t v", "y", name="quick")]
    arch = architectures.load(xbar=16, xbars_per_core=40, cores=8)
    graph = pipeline.prepare_graph(load(make_model(nodes, {"x": (1, 16, 24, 24)}, ["y"], weights)).graph, arch)
    copies = {name: len(layer.cores) for name, layer in by_line(map_by_rows(graph, arch)).items()}
    assert copies["t"] > copies["y"]
    assert sum(copies.values()) <= 8


@pytest.mark.parametrize("operands", ["a t", "t a"])
def test_a_shortcut_is_added_where_the_layers_that_it_passes_by_end(operands: str):
    weights = {"v": random(6, 3, 1, 1), "w": random(6, 6, 3, 3)}
    nodes = [node("Conv", "x v", "a", name="a"), node("Conv", "a w", "t", name="t", pads=[1, 1, 1, 1])]
    nodes.append(node("Add", operands, name="sum"))
    model = make_model(nodes, {"x": (1, 3, 9, 9)}, {"y": 4}, weights)
    found = passes(model, **CHIP)
    computes = zip(found.spatial.computes, found.partition.cores, strict=True)
    assert {core for c, core in computes if c.node == "sum"} <= {*by_line(found.decision)["t"].cores}
    check(model, **CHIP)


@pytest.mark.parametrize("cores", [3, 200])
def test_what_comes_before_a_layer_is_done_on_its_cores_if_others_read_the_image(cores: int):
    """A block of a DenseNet in small. The reader of `beside` alone reads it, so its function stays where `b` is."""
    weights = {"v": random(40, 3, 1, 1), "w": random(20, 40, 1, 1), "u": random(40, 20, 1, 1), "s": random(40, 1, 1)}
    nodes = [
        node("Conv", "x v", "a", name="a"),
        *(node("Mul", "a s", "scaled", name="scaled"), node("Relu", "scaled", "t", name="relu")),
        node("Conv", "t w", "b", name="b"),
        *(node("Tanh", "b", "beside", name="beside"), node("Conv", "beside u", "c", name="c")),
        node("Add", "a c", name="sum"),
    ]
    model = make_model(nodes, {"x": (1, 3, 9, 9)}, {"y": 4}, weights)
    chip = {**CHIP, "cores": cores}
    found = passes(model, **chip)
    layers, computes = by_line(found.decision), zip(found.spatial.computes, found.partition.cores, strict=True)
    on_cores = {(c.node, core) for c, core in computes if c.node in ("scaled", "relu", "beside")}
    for name, layer in (("scaled", "b"), ("relu", "b"), ("beside", "b")):
        assert {core for node, core in on_cores if node == name} <= {*layers[layer].cores}
    check(model, **chip)


def test_far_fewer_instructions_than_the_reference():
    model = models.build("resnet18", seed=0, width=0.25, image_size=64)
    reference, rows = (raptor.compile(model, mapping=name).report for name in ("raptor", "rows"))
    assert rows.instructions["mvmul"] * 5 < reference.instructions["mvmul"]
    assert rows.cores_used > 5 * reference.cores_used
    assert all((layer.unfolding or "").startswith("line") for layer in rows.layers if layer.op_type == "Conv")


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [1, 3], "pads": [0, 0, 1, 1]},
        {"kernel_shape": [1, 3], "strides": [2, 1]},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_pools(kind: str, window: dict[str, Any]):
    """Down the columns, then along the line: as many operations as the kernel is high and wide, less one of each."""
    nodes = [node("Conv", "x w", "t", pads=[1, 1, 1, 1]), node(kind, "t", **window)]
    model = make_model(nodes, {"x": (1, 5, 9, 11)}, {"y": 4}, {"w": random(6, 5, 3, 3)})
    check(model, **CHIP)


@pytest.mark.parametrize("kind", ["GlobalMaxPool", "GlobalAveragePool"])
@pytest.mark.parametrize("cores", [4, 60])
def test_pools_of_a_whole_image_add_up_lines(kind: str, cores: int):
    """Lines are combined as they are made, on all cores that make them: nothing is put together first."""
    nodes = [node("Conv", "x w", "t", pads=[1, 1, 1, 1]), node(kind, "t", "p"), node("Flatten", "p", "f")]
    nodes.append(node("Gemm", "f v"))
    model = make_model(nodes, {"x": (1, 5, 9, 11)}, {"y": 2}, {"w": random(20, 5, 3, 3), "v": random(20, 7)})
    chip = {**CHIP, "cores": cores}
    assert not any(c.op_type == "Move" for c in passes(model, **chip).spatial.computes)
    check(model, tolerance=1e-4, **chip)


def test_a_padded_pool_of_one_pixel_is_not_one_of_the_whole_image():
    nodes = [node("Conv", "x w", "t"), node("MaxPool", "t", kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1])]
    check(make_model(nodes, {"x": (1, 4, 3, 3)}, {"y": 4}, {"w": random(4, 4, 1, 1)}), **CHIP)


def test_a_pool_reads_each_column_once():
    """3x3 maxima with stride 1 of a line of 8 pixels: 2 vector operations down, 2 along; the reference takes 8."""
    nodes = [node("Conv", "x w", "t"), node("MaxPool", "t", kernel_shape=[3, 3])]
    model = make_model(nodes, {"x": (1, 4, 8, 8)}, {"y": 4}, {"w": random(4, 4, 1, 1)})
    streams = passes(model, **{**CHIP, "xbars_per_core": 400, "cores": 1}).streams
    maxima = sum(int((s.records["opcode"] == isa.OPCODE["vvmax"]).sum()) for s in streams.cores.values())
    assert maxima == 6 * (2 + 2)


def test_layers_share_cores_where_each_cannot_have_its_own():
    """Nine layers of 12 crossbars or more on six cores of 40: all stream, and the answers are right."""
    names = [f"t{i}" for i in range(9)]
    nodes = [node("Conv", f"{a} w", b, name=b, pads=[1, 1, 1, 1]) for a, b in pairwise(["x", *names])]
    model = make_model(nodes, {"x": (1, 16, 6, 6)}, {names[-1]: 4}, {"w": random(16, 16, 3, 3)})
    chip = {**CHIP, "cores": 6}
    lines = by_line(passes(model, **chip).decision)
    layers_of = Counter(core for layer in lines.values() for core in layer.cores)
    assert len(lines) == 9
    assert len(layers_of) <= 6
    assert max(layers_of.values()) > 1
    check(model, tolerance=1e-4, **chip)


@pytest.mark.parametrize("cores", [3, 5])
def test_a_fully_connected_layer_takes_wide_products(cores: int):
    """40 inputs of 4 pixels by 70 outputs on crossbars of 16x16 with kernel unfolding: 12 x 5 products at least.

    On a chip with idle cores, they take narrow ones.
    """
    nodes = [node("Conv", "x k", "c"), node("Flatten", "c", "t"), node("Gemm", "t w b")]
    constants = {"k": random(40, 3, 1, 1), "w": random(160, 70), "b": random(70)}
    model = make_model(nodes, {"x": (1, 3, 2, 2)}, {"y": 2}, constants)
    chip = {**CHIP, "cores": cores}
    (layer,) = in_matrices(passes(model, **chip).decision).values()
    assert all(m.xbars > 1 for m in layer.matrices)
    assert sum((m.rows[1] - m.rows[0]) * (m.cols[1] - m.cols[0]) for m in layer.matrices) == 160 * 70
    check(model, tolerance=1e-4, **chip)


def test_a_chip_with_too_few_cores():
    model = models.build("resnet18", seed=0, width=0.25, image_size=64)
    chip = {"xbar": 64, "xbars_per_core": 30, **ROWS}
    with pytest.raises(CapacityError, match=r"full at layer .*: cores: need \d+, have 5; try cores=") as caught:
        raptor.compile(model, cores=5, **chip)
    raptor.compile(model, cores=caught.value.needed, **chip)


def test_layers_that_do_not_fit_line_by_line_are_computed_whole():
    model = models.build("resnet18", seed=0, width=0.25, image_size=64)
    decision = passes(model, cores=8, **ROWS).decision
    assert in_matrices(decision)
    assert by_line(decision)
    check(model, cores=8, tolerance=1e-4, **ROWS)


def test_a_plan_costs_what_its_widest_segment_does():
    """30 columns on 10 cores are 3 for each; of 28 columns, some cores have 3 and some 2, as the one in the middle."""
    costs: list[dict[Any, float]] = []
    for width in (28, 30):
        done = passes(conv_model((1, 16, 6, width), 16, pads=(1, 1, 1, 1)), **CHIP)
        (plans,) = plan_layers(done.graph, done.arch, DEFAULT_KNOBS).values()
        costs.append({replace(p.grid, cols=(), step=1): p.core_ns for p in plans if len(p.grid.cols) == 10})
    assert costs[0]
    assert costs[0] == costs[1]


def test_a_plan_of_a_signal_costs_by_its_length():
    """All blocks of a line are counted, though few are looked at: four times the pixels take four times as long."""
    costs: list[list[float]] = []
    for width in (1024, 4096):
        done = passes(conv_model((1, 4, 1, width), 4, kernel=(1, 5), pads=(0, 2, 0, 2)), **{**CHIP, "cores": 4})
        (plans,) = plan_layers(done.graph, done.arch, DEFAULT_KNOBS).values()
        costs.append([p.core_ns for p in plans])
    np.testing.assert_allclose(costs[1], 4 * np.array(costs[0]), rtol=0.03)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride"), [((8160, 8240), 25, 4), ((8000, 9000), 9, 1), ((16000, 20000), 7, 5)]
)
def test_the_time_of_a_signal_does_not_jump_with_its_length(shape: tuple[int, int], kernel: int, stride: int):
    """A line of any length is cut into segments for all cores (a public report: 8240 samples took 1300 times 8160)."""
    works: list[float] = []
    for samples in shape:
        model = conv_model((1, 1, 1, samples), 8, kernel=(1, kernel), strides=(1, stride), pads=(0, kernel // 2) * 2)
        done = passes(model, xbar=128, cores=64, **ROWS)
        (line,) = by_line(done.decision).values()
        assert len(line.cores) > 24
        works.append(max(len(s.records) for s in done.streams.cores.values()) / samples)
    assert works[1] < 1.5 * works[0]


@pytest.mark.parametrize("axis", [2, 3])
def test_more_tokens_and_lines_than_8192_stream(axis: int):
    shape = [1, 4, 1, 1]
    shape[axis] = 8400
    done = passes(conv_model(tuple(shape), 4, kernel=(1, 1)), xbar=128, cores=64, **ROWS)
    assert len(by_line(done.decision)) == 1


def excited(blocks: int) -> ModelProto:
    """Convolutions of 4 channels, each with squeeze-and-excite after it: two layers that need the whole tensor."""
    nodes = [
        made
        for i in range(blocks)
        for made in (
            node("Conv", f"x{i} w", f"a{i}", name=f"conv{i}", pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", f"a{i}", f"m{i}", name=f"mean{i}"),
            node("Conv", f"m{i} u", f"s{i}", name=f"squeeze{i}"),
            node("Conv", f"s{i} u", f"t{i}", name=f"excite{i}"),
            node("Mul", f"a{i} t{i}", f"x{i + 1}", name=f"scale{i}"),
        )
    ]
    return make_model(nodes, {"x0": (1, 4, 6, 6)}, [f"x{blocks}"], {"w": random(4, 4, 3, 3), "u": random(4, 4, 1, 1)})


def test_a_core_serves_no_distant_layers():
    """Each squeeze-and-excite has a core of its own, as a core that serves two is occupied between them."""
    chip = {**CHIP, "cores": 12}
    layers = in_matrices(passes(excited(3), **chip).decision)
    cores = [layer.cores for layer in layers.values()]
    assert len({core for found in cores for core in found}) == 3
    assert cores[0::2] == cores[1::2]
    check(excited(3), **chip)


def test_distant_layers_share_a_core_on_a_small_chip():
    layers = in_matrices(passes(excited(3), **{**CHIP, "cores": 5}).decision)
    assert len(layers) == 6
    assert len({core for layer in layers.values() for core in layer.cores}) == 1


def test_a_layer_of_more_outputs_than_a_core_has():
    model = make_model([node("MatMul", "x w")], {"x": (1, 4)}, {"y": 2}, {"w": random(4, 12)})
    check(model, xbar=4, cores=8, xbars_per_core=2, **ROWS)


def test_a_stack_under_another_name():
    """Rows of an image become the input of a layer without a move."""
    nodes = [node("Reshape", "x s", "t"), node("RNN", "t w r", hidden_size=2)]
    constants = {"s": np.array([2, 3, 1]), "w": random(1, 2, 1), "r": random(1, 2, 2)}
    check(make_model(nodes, {"x": (1, 1, 3, 2)}, {"y": 4}, constants), **CHIP)


def test_channels_cut_at_different_places_meet():
    """A concatenation keeps the cuts of its operands, 4 and 10 channels; the convolution's are whole tiles."""
    nodes = [
        node("Conv", "x w", "a", name="narrow"),
        node("Conv", "x v", "b", name="wide"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c u", "d", name="mixed"),
        node("Sub", "d c", "y"),
    ]
    constants = {"w": random(4, 2, 1, 1), "v": random(10, 2, 1, 1), "u": random(14, 14, 1, 1)}
    check(make_model(nodes, {"x": (1, 2, 4, 6)}, ["y"], constants), **{**CHIP, "xbar": 8})


@pytest.mark.parametrize("channels", [8, 40])
def test_a_mean_over_channels_is_repeated_at_once(channels: int):
    nodes = [
        node("Conv", "x w", "c", name="conv"),
        node("ReduceMean", "c", "m", name="mean", axes=[1]),
        node("Sub", "c m", "y", name="centre"),
    ]
    model = make_model(nodes, {"x": (1, 3, 4, 6)}, {"y": 4}, {"w": random(channels, 3, 1, 1)})
    check(model, **CHIP)
    pixels, ranges = 4 * 6, -(-channels // 16)
    counts = count_ops(passes(model, **CHIP).streams)
    assert counts["lmv"] <= counts["vmv"] == pixels * ranges


def test_an_input_in_global_memory_meets_a_layer_in_pieces():
    """No core is left to load the input for the others."""
    nodes = [node("Conv", "x w", "a", pads=[2, 2, 2, 2]), node("Add", "x a", "y")]
    model = make_model(nodes, {"x": (1, 12, 8, 9)}, ["y"], {"w": random(12, 12, 5, 5)})
    chip = {"xbar": (16, 24), "xbars_per_core": 30, "cores": 4, **ROWS}
    decision = passes(model, **chip).decision
    (layer,) = by_line(decision).values()
    assert len(layer.grid.cols) > 1
    assert not line_flow(decision).loaders
    check(model, **chip)


def test_equal_inputs_give_equal_decisions():
    model = models.build("squeezenet", seed=0, width=0.25, image_size=64)
    first, second = (passes(model, **ROWS) for _ in range(2))
    assert first.decision == second.decision
    assert [c.results for c in first.spatial.computes] == [c.results for c in second.spatial.computes]


def test_a_stored_mapping_is_replayed(tmp_path: Path):
    model = models.build("squeezenet", seed=0, width=0.25, image_size=64)
    file = tmp_path / "mapping.json"
    first = raptor.compile(model, emit_mapping=file, **ROWS)
    second = raptor.compile(model, mapping=file)
    assert first.artifacts
    assert second.artifacts
    assert first.artifacts.machine.records.keys() == second.artifacts.machine.records.keys()
    for core, records in first.artifacts.machine.records.items():
        np.testing.assert_array_equal(records, second.artifacts.machine.records[core])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda _: b"{", {}, "not a mapping that this version can read"),
        (
            lambda c: c.replace(b'"height"', b'"hight"'),
            {},
            r"layers\.y\.line\.grid: no such field: 'hight'; did you mean height\?",
        ),
        (lambda c: c.replace(b'"cores": 12', b'"cores": 10'), {}, "made for cores 10, compiled with 12"),
        (lambda c: c, {"xbar": 8}, r"made for xbar \(16, 16\), compiled with \(8, 8\)"),
        (lambda c: c.replace(b'"y": {', b'"z": {'), {}, "layer y is not mapped"),
        (lambda c: re.sub(rb'"cores": \[\s*0', b'"cores": [99', c), {}, "core 99 of 12"),
        (
            lambda c: re.sub(rb'"cols": \[\s*\[\s*0,', b'"cols": [[1,', c),
            {},
            "layer y: grid.cols: .*expected ranges that",
        ),
        (
            lambda c: re.sub(rb',\s*8(\s*\]\s*\],\s*"ins")', rb", 9\1", c),
            {},
            "grid.cols: .* from 0 to 8",
        ),
    ],
)
def test_a_mapping_that_does_not_fit(
    change: Callable[[bytes], bytes], options: dict[str, Any], message: str, tmp_path: Path
):
    model = conv_model((1, 4, 8, 8), 4, (3, 3), pads=(1, 1, 1, 1))
    chip = {"xbar": 16, "xbars_per_core": 40, "cores": 12}
    file = tmp_path / "mapping.json"
    raptor.compile(model, emit_mapping=file, **chip, **ROWS)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserError, match=message):
        raptor.compile(model, mapping=file, **{**chip, **options})


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "throughput", "energy"])
def test_the_search_is_never_worse_than_what_it_tried(objective: Objective):
    model = models.build("squeezenet", seed=0, width=0.25, image_size=64)
    result = passes(model)
    found = search_mapping(result.graph, result.arch, PIMSIM_BACKEND, objective, 3)
    for trial in found.trials:
        assert trial.decision
        built = pipeline.run_lowering(
            pipeline.rewrite_and_map(result.graph, result.arch, StoredDecision(trial.decision)), result.arch
        )
        assert trial.cost == simulate_objective(
            objective, built.program, pipeline.generate_code(built, PIMSIM_BACKEND), result.arch
        )
    assert [trial.name for trial in found.trials[:2]] == ["rows", "raptor"]
    assert found.decision is min(found.trials, key=lambda trial: trial.figure).decision
    assert found.decision.strategy != "raptor"


def test_an_input_that_nobody_reads():
    nodes = [node("Conv", "x w", "t"), node("Identity", "u", "y")]
    check(make_model(nodes, {"x": (1, 3, 8, 8), "u": (1, 3, 6, 8)}, ["t", "y"], {"w": random(4, 3, 3, 3)}), **CHIP)


def test_a_model_that_computes_nothing():
    check(make_model([node("Identity", "x", "y")], {"x": (1, 3, 6, 8)}, ["y"]), **CHIP)


def test_layer_by_layer_is_the_same_work_in_another_order(tmp_path: Path):
    """The program validates, takes longer, and has as many products as the streamed one."""
    model = models.build("lenet5")
    streamed = passes(model, mapping=None, cores=60, optimize="latency", effort=1)
    path = tmp_path / "mapping.json"
    flow = replace(line_flow(streamed.decision), streamed=False)
    decision = replace(streamed.decision, flow=flow, refinement=None)
    path.write_bytes(make_mapping_file(decision, streamed.graph, streamed.arch).to_json())
    check(model, mapping=str(path), cores=60)
    by_layer = passes(model, mapping=str(path), cores=60)
    assert count_ops(by_layer.streams)["mvmul"] == count_ops(streamed.streams)["mvmul"]
    costs = [simulate_objective("latency", p.program, p.streams, p.arch).latency_ns for p in (by_layer, streamed)]
    assert costs[0] > costs[1]
    ordered = by_layer.schedule.graph
    layers = [[n for n, _ in groupby(c.node for c in graph.computes)] for graph in (by_layer.spatial, ordered)]
    assert layers[0] == layers[1]


RESAMPLED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("half_pixel", {"mode": "linear"}),
    ("align_corners", {"mode": "linear"}),
    ("asymmetric", {"mode": "cubic"}),
    ("half_pixel", {"mode": "cubic", "exclude_outside": 1}),
)


@pytest.mark.parametrize(("places", "how"), RESAMPLED)
@pytest.mark.parametrize("scales", [(2.0, 2.0), (1.5, 3.0), (0.5, 0.8)])
def test_images_are_resampled_by_line(places: str, how: dict[str, Any], scales: tuple[float, float]):
    """Each line is made of the few that it takes pixels from, on the cores of their columns."""
    nodes = [
        node("Conv", "x w", "c", name="first", pads=[1] * 4),
        node("Resize", "c - scales", "r", coordinate_transformation_mode=places, **how),
        node("Conv", "r v", "d", name="second", pads=[1] * 4),
        node("GlobalAveragePool", "d", "y"),
    ]
    constants = {"w": random(20, 3, 3, 3), "v": random(7, 20, 3, 3), "scales": np.array([1, 1, *scales], np.float32)}
    model = make_model(nodes, {"x": (1, 3, 9, 10)}, ["y", "d"], constants)
    chip = {**CHIP, "cores": 80}
    found = passes(model, **chip)
    assert {t.tensor for t in find_unstreamed_tensors(found.partition.graph, found.arch)} <= {"d"}
    cores = {
        core for c, core in zip(found.spatial.computes, found.partition.cores, strict=True) if c.op_type == "Resize"
    }
    assert len(cores) > 1
    check(model, **chip)


def test_volumes_are_resampled_by_line():
    """Trilinear: along slices and rows a line is made of two, along the columns each pixel of two."""
    nodes = [
        node("Conv", "x w", "c", name="first", pads=[1] * 6),
        node("Resize", "c - scales", "r", mode="linear"),
        node("Conv", "r v", "d", name="second"),
        node("GlobalAveragePool", "d", "y"),
    ]
    constants = {"w": random(6, 2, 3, 3, 3), "v": random(5, 6, 1, 2, 2)}
    constants["scales"] = np.array([1, 1, 2, 1.5, 2], np.float32)
    model = make_model(nodes, {"x": (1, 2, 3, 4, 6)}, ["y"], constants)
    chip = {**CHIP, "cores": 80}
    found = passes(model, **chip)
    assert not find_unstreamed_tensors(found.partition.graph, found.arch)
    check(model, **chip)
