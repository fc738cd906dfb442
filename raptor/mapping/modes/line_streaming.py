"""Finds the tensors that stream line by line, and cuts their channels into ranges."""

import math
from collections.abc import Container, Mapping, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from raptor.graph.ir import (
    ChannelSum,
    Concat,
    Dot,
    Elementwise,
    Filter,
    Graph,
    Move,
    Node,
    Pool,
    Rename,
    Softmax,
    Stencil,
    Take,
)
from raptor.graph.layers import layer_target
from raptor.graph.rearrangement import MoveOrigins
from raptor.graph.streaming_layout import MOST_LINES, can_stream, is_token_layout
from raptor.graph.window import Window
from raptor.mapping.modes.line_unfolding import pixels_per_block
from raptor.mapping.modes.window_axis import line_axes, window_axis
from raptor.target.arch import Target

Range = tuple[int, int]
ChannelRanges = tuple[Range, ...]


def cut_channels(channels: int, tile: int) -> ChannelRanges:
    """Cuts channels into ranges of at most `tile`."""
    return tuple((first, min(first + tile, channels)) for first in range(0, channels, tile))


def even_ranges(count: int, pieces: int) -> tuple[Range, ...]:
    """Cuts 0 to `count` into ranges of sizes that differ by at most 1."""
    return tuple((count * i // pieces, count * (i + 1) // pieces) for i in range(pieces))


MANY_COPIES = 128
"""Fewest pixels that are made of tensors of one pixel on several cores."""

MANY_RUNS = 4096
"""Fewest runs of a move of computed tensors that is worth cores of its own: their copies take about 0.3 ms on `bench`.
"""

SHARE_OF_COLUMNS = 0.9
"""Share of a core's columns for the blocks inside an image; blocks at its edges have matrices of their own."""


WIDE_XBARS, CORES_PER_RANGE = 20, 32
"""Largest number of crossbars of a block's matrix where ranges are narrower anyway, and cores of the chip for a range.

A product of 20 crossbars takes 1.7 times as long as one of a single crossbar on `bench`. Intervals on 400 cores for 16,
20 and 32 crossbars, and without, in us: 11x11 kernels on 20 x 24 pixels 384, 310, 332, 373; 80 taps of a signal 109,
117, 149, 192. Each core of the layer before sends to all ranges, so there are few on small chips.
"""


def output_ranges(operator: Filter, ins: ChannelRanges, arch: Target) -> ChannelRanges:
    """Cuts the output channels of a layer into ranges of at most the rows of a crossbar.

    A block of input pixels is multiplied for all output pixels that read it: as many columns as these have channels. If
    a core has too few for one pixel and all channels of a range, ranges are narrower, so that it holds full blocks, and
    on a large chip narrower still, so that more cores share the work of a block.
    `ins`: channel ranges of the input. `arch`: the target with the widths of the layer.
    """
    outs, window, rows = operator.weights.shape[2], operator.window, arch.xbar_rows
    columns = arch.xbars_per_core * arch.outputs_per_xbar
    if operator.groups > 1 or window.tap_count == 1 or most_outputs_reading(window, 1) * min(outs, rows) <= columns:
        return cut_channels(outs, rows)
    block = most_outputs_reading(window, max(pixels_per_block(part, rows) for part in ins))
    finer = min(math.ceil(outs * block / (WIDE_XBARS * arch.outputs_per_xbar)), arch.usable_cores // CORES_PER_RANGE)
    count = min(outs, max(-(-outs // rows), math.ceil(outs * block / (SHARE_OF_COLUMNS * columns)), finer))
    return even_ranges(outs, count)


@cache
def most_outputs_reading(window: Window, pixels: int) -> int:
    """Returns the largest number of output pixels that read one of `pixels` neighbouring pixels of a line."""
    along = window_axis(window, -1)
    sizes = [max(len(axis.outputs_reading((i, i + 1))) for i in range(axis.stride)) for axis in line_axes(window)]
    return math.prod(sizes) * max(len(along.outputs_reading((i, i + pixels))) for i in range(along.stride))


def line_channel_ranges(graph: Graph, arch: Target) -> dict[str, ChannelRanges]:
    """Returns the channel ranges of every streamed tensor.

    A concatenation keeps the ranges of its operands, and so does a `Move` of whole channel ranges. Results of products
    of computed tensors and of softmax are one range, since a softmax needs all scores side by side, unless a layer
    reads them, whose crossbars have only so many rows.
    """
    layers, tile = _before_layers(graph), arch.xbar_rows
    parts = {n: cut_channels(graph.tensors[n].image.channels, tile) for n in graph.inputs if _streams(graph, n)}
    for node in graph.nodes:
        if _streams(graph, node.output):
            channels = graph.tensors[node.output].image.channels
            whole = isinstance(node.operator, Dot | Softmax) and node.output not in layers
            kept = ((0, channels),) if whole else _ranges_of_operands(graph, node, parts, arch)
            parts[node.output] = kept or cut_channels(channels, tile)
    return parts


def _before_layers(graph: Graph) -> set[str]:
    """Returns the tensors that a layer reads directly, or through operators that keep their channels."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        keeps = (
            isinstance(node.operator, Concat | Elementwise | Move | Pool | Rename | Stencil) and node.output in found
        )
        if keeps or isinstance(node.operator, Filter):
            found.update(node.inputs)
    return found


def _streams(graph: Graph, name: str) -> bool:
    return can_stream(graph.tensors[name].image)


def find_views(graph: Graph, parts: Mapping[str, ChannelRanges]) -> set[str]:
    """Returns the results of moves that are views: only regions that are read are made.

    `parts`: see `line_channel_ranges`.
    """
    multiplied = {name for node in graph.nodes if isinstance(node.operator, Dot) for name in node.inputs}
    return {node.output for node in graph.nodes if _is_view(graph, node, parts, multiplied)}


def _is_view(graph: Graph, node: Node, parts: Mapping[str, ChannelRanges], multiplied: Container[str]) -> bool:
    """True if a move reads or makes tokens, or makes an operand of a product, and all its operands stream.

    Also true if it makes tokens or many pixels from tensors of one pixel, such as the states of a recurrent layer, and
    if it appends such tensors to a state.
    """
    if not isinstance(node.operator, Move):
        return False
    if all(graph.tensors[name].image.pixels == 1 for name in node.inputs):
        queries = bool(graph.residency.states) and node.output in multiplied
        image = graph.tensors[node.output].image
        return queries or (node.output in parts and (is_token_layout(image) or image.pixels >= MANY_COPIES))
    if node.output in parts and node.output not in multiplied and takes_short_runs(graph, node):
        return False
    tokens = any(is_token_layout(graph.tensors[name].image) for name in (*node.inputs, node.output))
    operand = node.output in multiplied and node.output not in parts
    appends = not {*graph.residency.state_inputs}.isdisjoint(node.inputs)
    return (tokens or operand) and all(
        name in parts or (appends and graph.tensors[name].image.pixels == 1) for name in node.inputs
    )


def readers_are_placed(views: Container[str], readers: Sequence[Node]) -> bool:
    """Checks whether any reader of a view also reads a tensor that is no view, and so has cores.

    Such a reader would make its regions of the view on these cores.
    """
    return any(name not in views for reader in readers for name in reader.inputs)


def find_gathers(graph: Graph, parts: Mapping[str, ChannelRanges]) -> dict[str, Node]:
    """Returns the moves and embedding lookups that get cores of their own, by name of the result.

    Moves that put lines together from many lines of model inputs: these are there from the beginning, so each of some
    cores can load what its columns need. Moves of computed tensors in many short runs, whose copies take far longer
    than the messages that bring the elements. Moves that cut vectors into pixels, and lookups: each of some cores takes
    some pixels. `parts`: see `line_channel_ranges`.
    """
    views, readers = find_views(graph, parts), graph.readers()
    attends = any(isinstance(node.operator, Dot) for node in graph.nodes)
    found: dict[str, Node] = {}
    for node in graph.nodes:
        read = readers.get(node.output, ())
        if isinstance(node.operator, Take):
            # Beside tokens, biases of pairs, and masks and angles of a step are looked up where layers need them.
            image = graph.tensors[node.output].image
            chosen = node.output in parts and (not attends or (is_token_layout(image) and image.pixels > 1))
        elif node.output in views:
            chosen = _cuts_vector(graph, node, read) or _repeats_pixel(graph, node, read)
        else:
            chosen = _is_gather(graph, node, parts)
        if read and chosen:
            found[node.output] = node
    return found


def _cuts_vector(graph: Graph, node: Node, readers: Sequence[Node]) -> bool:
    """True if a move cuts a tensor of one pixel into pixels of one line, for element-wise functions alone."""
    image = graph.tensors[node.output].image
    alone = len(node.inputs) == 1 and graph.tensors[node.inputs[0]].image.pixels == 1
    return alone and image.rows == 1 and all(isinstance(reader.operator, Elementwise) for reader in readers)


def _repeats_pixel(graph: Graph, node: Node, readers: Sequence[Node]) -> bool:
    """True if a move makes many pixels from computed tensors of one pixel, and a window reads several of their lines.

    Other readers gather what they need themselves.
    """
    given, image = [graph.tensors[name].image for name in node.inputs], graph.tensors[node.output].image
    if image.pixels < MANY_COPIES or image.rows == 1 or any(each.pixels > 1 for each in given):
        return False
    return any(isinstance(reader.operator, Filter | Pool | Stencil) for reader in readers)


def _is_gather(graph: Graph, node: Node, parts: Mapping[str, ChannelRanges]) -> bool:
    """True if a move makes lines of many lines of model inputs, or copies many short runs of computed tensors."""
    if not isinstance(node.operator, Move) or not parts.keys() >= {*node.inputs, node.output}:
        return False
    if not set(graph.inputs).issuperset(node.inputs):
        runs, pixels = _count_runs(node.operator), graph.tensors[node.output].image.pixels
        return runs >= MANY_RUNS and runs > 2 * pixels
    images = [graph.tensors[name].image for name in node.inputs]
    places = MoveOrigins.from_sources(node.operator.sources, graph.tensors[node.output].image, images)
    return places.most_lines(node.inputs) > MOST_LINES or takes_short_runs(graph, node)


def takes_short_runs(graph: Graph, node: Node) -> bool:
    """True if a node moves elements of model inputs in runs of, on average, less than half a pixel of the result.

    So does a `Gather` by an index of single elements. Each run is copied, which is far more work than to load them.
    """
    if not isinstance(node.operator, Move) or not set(graph.inputs).issuperset(node.inputs):
        return False
    return _count_runs(node.operator) > 2 * graph.tensors[node.output].image.pixels


def _count_runs(move: Move) -> int:
    """Returns the number of runs of neighbouring elements, or of one element again and again, that a move copies."""
    steps = np.diff(move.sources.reshape(-1))
    return int(np.count_nonzero((steps != 1) & (steps != 0))) + 1


def can_stream_product(graph: Graph, node: Node, parts: Mapping[str, ChannelRanges], views: Container[str]) -> bool:
    """True if a product of two computed tensors can be computed line by line.

    Its operands must stream or be `views`, with a line for each batch index, and pixels for the rows of the left and
    the columns of the right operand.
    """
    operator = node.operator
    if not isinstance(operator, Dot) or node.output not in parts:
        return False
    images = (graph.tensors[name].image for name in (*node.inputs, node.output))
    wanted = [(operator.batch, n) for n in (operator.rows, operator.cols, operator.rows)]
    return [(i.rows, i.width) for i in images] == wanted and all(n in views or n in parts for n in node.inputs)


def fits_rows(parts: ChannelRanges, xbar_rows: int) -> bool:
    """True if the channels of each range fit the rows of a crossbar."""
    return all(stop - start <= xbar_rows for start, stop in parts)


def _ranges_of_operands(
    graph: Graph, node: Node, parts: dict[str, ChannelRanges], arch: Target
) -> ChannelRanges | None:
    """Returns the channel ranges of the result that operator and operands determine, else None.

    A node that keeps the channels in place keeps the ranges of its operand.
    """
    if isinstance(node.operator, Filter) and node.inputs[0] in parts:
        return output_ranges(node.operator, parts[node.inputs[0]], layer_target(graph, node, arch))
    if isinstance(node.operator, Concat) and all(name in parts for name in node.inputs):
        return _concatenated_ranges([parts[name] for name in node.inputs])
    if isinstance(node.operator, Move) and all(name in parts for name in node.inputs):
        return (
            None
            if is_token_layout(graph.tensors[node.output].image)
            else _ranges_of_move(graph, node, node.operator, parts)
        )
    if isinstance(node.operator, ChannelSum | Elementwise | Pool | Rename | Stencil):
        same = (n for n in node.inputs if n in parts and keeps_channels(graph, n, node.output))
        return next((parts[name] for name in same), None)
    return None


def _ranges_of_move(graph: Graph, node: Node, operator: Move, parts: dict[str, ChannelRanges]) -> ChannelRanges | None:
    """Returns the channel ranges of a `Move` that takes whole channel ranges of its operands in order; None for others.

    A channel that is broadcast to all channels, such as a mean, is one move, not a range for each channel.
    """
    pixel = operator.sources[len(operator.sources) // 2]
    if len(pixel) > 1 and (pixel == pixel[0]).all():
        return None
    first, ranges = 0, list[Range]()
    places: list[tuple[int, int]] = []  # for each channel of all operands: number of its range, place in it
    channel = np.full(len(pixel), -1)
    for name in node.inputs:
        image = graph.tensors[name].image
        inside = (pixel >= first) & (pixel < first + image.elements)
        channel[inside] = len(places) + (pixel[inside] - first) % image.channels
        places += ((len(ranges) + i, c) for i, (a, b) in enumerate(parts[name]) for c in range(b - a))
        ranges += parts[name]
        first += image.elements
    if (channel < 0).any():
        return None
    number, place = np.array(places, np.int64)[channel].T
    starts = np.flatnonzero(place == 0)
    sizes = np.array([b - a for a, b in ranges], np.int64)[number[starts]]
    wanted = np.concatenate([np.array([], np.int64), *map(np.arange, sizes)])
    if not np.array_equal(place, wanted) or (number != np.repeat(number[starts], sizes)).any():
        return None
    return tuple(zip(starts.tolist(), (starts + sizes).tolist(), strict=True))


def keeps_channels(graph: Graph, before: str, after: str) -> bool:
    """True if two tensors have the same number of channels."""
    return graph.tensors[before].image.channels == graph.tensors[after].image.channels


def _concatenated_ranges(parts: list[ChannelRanges]) -> ChannelRanges:
    """Returns the ranges of operands that are concatenated along the channels."""
    bases = accumulate((p[-1][1] for p in parts), initial=0)
    return tuple((base + a, base + b) for base, ranges in zip(bases, parts, strict=False) for a, b in ranges)


def can_stream_layer(
    graph: Graph, node: Node, operator: Filter, parts: Mapping[str, ChannelRanges], xbar_rows: int
) -> bool:
    """True if a layer can be computed line by line. `parts`: see `line_channel_ranges`."""
    window, given = operator.window, parts.get(node.inputs[0])
    if given is None or not fits_rows(given, xbar_rows):
        return False
    if operator.key and window.out_pixels == 1:
        return False
    if window.batch != 1:
        return False
    return can_stream(graph.tensors[node.output].image) and slides_over_lines(graph, node, window)


def slides_over_lines(graph: Graph, node: Node, window: Window) -> bool:
    """True if a window of two or more dimensions reads the lines of its operand and makes those of its result.

    A result that loses its last axis, as a sum without `keepdims` does, has other lines than the window makes.
    """
    before, after = (graph.tensors[name].image for name in (node.inputs[0], node.output))
    given, made = (window.in_lines, window.in_dims[-1]), (window.out_lines, window.out_dims[-1])
    fits = (before.rows, before.width) == given and (after.rows, after.width) == made
    return len(window.kernel) >= 2 and fits
