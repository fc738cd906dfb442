"""Small models of kinds that an image network does not have, for `benchmarks/programs/slow_kinds.py`: `KINDS`.

Each was slow once: work that has only one core, or a core that sends to many. Weights are random, and always the same.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from onnx import ModelProto, TensorProto

from benchmarks.programs.block_models import BlockBuilder

Build = Callable[[BlockBuilder], str]
"""Adds a model to a builder. Returns the name of its output."""


def build_model(name: str) -> ModelProto:
    """Returns the model of this name. Raises `KeyError` for another."""
    builder = BlockBuilder()
    return builder.finish(name, MODELS[name](builder))


# Layers ---------------------------------------------------------------------------------------------------------------


def layer(b: BlockBuilder, x: str, inputs: int, outputs: int, *kernel: int, stride: int = 1, dilation: int = 1) -> str:
    """Adds a convolution with a bias, padded so that a stride of 1 keeps the size."""
    around = [(size - 1) * dilation for size in kernel]
    each = len(kernel)
    return b.op(
        "Conv",
        x,
        b.weights(outputs, inputs, *kernel),
        b.weights(outputs),
        kernel_shape=kernel,
        pads=[size // 2 for size in around] + [-(-size // 2) for size in around],
        strides=[stride] * each,
        dilations=[dilation] * each,
    )


def layers(b: BlockBuilder, x: str, channels: Sequence[int], *kernel: int, stride: int = 1, pool: int = 1) -> str:
    """Adds convolutions from channels to channels, each with a ReLU, all but the first behind a pool of this size."""
    for i, (inputs, outputs) in enumerate(pairwise(channels)):
        if i and pool > 1:
            shape = [pool if size > 1 else 1 for size in kernel]
            x = b.op("MaxPool", x, kernel_shape=shape, strides=shape)
        x = b.op("Relu", layer(b, x, inputs, outputs, *kernel, stride=stride))
    return x


def dense(b: BlockBuilder, x: str, inputs: int, outputs: int) -> str:
    """Adds a layer over the last axis with a bias."""
    return b.op("Add", b.linear(x, inputs, outputs), b.weights(outputs))


def cut(b: BlockBuilder, x: str, start: int, stop: int, axis: int, step: int = 1) -> str:
    return b.op("Slice", x, b.ints(start), b.ints(stop), b.ints(axis), b.ints(step))


# Inputs behind a move -------------------------------------------------------------------------------------------------


def classify(b: BlockBuilder, x: str, inputs: int) -> str:
    """Adds a small classifier of images, most of whose time is the input."""
    return b.op("GlobalAveragePool", layers(b, x, (inputs, 16, 32), 3, 3, stride=2))


def image_unsqueezed(b: BlockBuilder, channels: int, side: int) -> str:
    return classify(b, b.op("Unsqueeze", b.input("x", channels, side, side), b.ints(0)), channels)


def image_turned(b: BlockBuilder, shape: Sequence[int], perm: Sequence[int]) -> str:
    turned = b.op("Transpose", b.input("x", *shape), perm=perm)
    return classify(b, turned, shape[perm[1]])


def image_of_a_vector(b: BlockBuilder) -> str:
    """Pixels as a table in a file: a row for each image."""
    return classify(b, b.op("Reshape", b.input("x", 1, 3 * 96 * 96), b.ints(1, 3, 96, 96)), 3)


def spectrogram(b: BlockBuilder) -> str:
    """Frames of a spectrogram, [frames, bands], as an image of bands x frames."""
    turned = b.op("Transpose", b.input("x", 1, 200, 80), perm=[0, 2, 1])
    return classify(b, b.op("Unsqueeze", turned, b.ints(1)), 1)


def signal_unsqueezed(b: BlockBuilder) -> str:
    x = b.op("Unsqueeze", b.input("x", 1, 4096), b.ints(1))
    return layers(b, x, (1, 16, 32, 32), 8, stride=2)


# Work without a layer -------------------------------------------------------------------------------------------------


def frames(b: BlockBuilder, count: int, size: int, hop: int) -> str:
    """An energy of overlapping frames of a signal, by element."""
    index = np.arange(count)[:, None] * hop + np.arange(size)
    x = b.op("Gather", b.input("x", 1, (count - 1) * hop + size), b.const(index), axis=1)
    x = b.op("Mul", x, b.floats(np.hanning(size)))
    x = b.op("Tanh", b.op("Mul", x, x))
    return b.op("Sqrt", b.op("Add", x, b.floats(1)))


def magnitude(b: BlockBuilder, *shape: int) -> str:
    """Real and imaginary parts side by side, [..., 2]."""
    x, axis = b.input("x", *shape, 2), len(shape)
    parts = (b.op("Gather", x, b.const(np.array(i)), axis=axis) for i in (0, 1))
    return b.op("Sqrt", b.op("Add", *(b.op("Mul", part, part) for part in parts)))


def rotated_halves(b: BlockBuilder) -> str:
    """A rotation of the halves of each row by the angles of a second input."""
    x, angle = b.input("x", 1, 128, 64), b.input("angle", 1, 128, 32)
    first, second = (cut(b, x, i, i + 32, 2) for i in (0, 32))
    cosine, sine = b.op("Cos", angle), b.op("Sin", angle)
    turned = b.op("Sub", b.op("Mul", first, cosine), b.op("Mul", second, sine))
    other = b.op("Add", b.op("Mul", first, sine), b.op("Mul", second, cosine))
    return b.op("Concat", turned, other, axis=2)


def signal_cut(b: BlockBuilder) -> str:
    """A part of a signal, and a part of the transposed result."""
    x = b.op("Unsqueeze", cut(b, b.input("x", 1, 5000), 100, 4196, 1), b.ints(1))
    x = layers(b, x, (1, 16, 32, 32), 8, stride=2)
    return cut(b, b.op("Transpose", x, perm=[0, 2, 1]), 3, 500, 1)


def signal_masked(b: BlockBuilder) -> str:
    """A signal times a mask that is made of it."""
    x = b.input("x", 1, 1, 4096)
    mask = b.op("Sigmoid", layer(b, layers(b, x, (1, 16), 16), 16, 1, 16))
    return cut(b, b.op("Squeeze", b.op("Mul", x, mask), b.ints(1)), 48, 4048, 1)


# Signals and sequences ------------------------------------------------------------------------------------------------


def signal(
    b: BlockBuilder, length: int, channels: Sequence[int], kernel: int, *, stride: int = 1, pool: int = 1
) -> str:
    """A signal of any length."""
    return layers(b, b.input("x", 1, channels[0], length), channels, kernel, stride=stride, pool=pool)


def sequence(b: BlockBuilder, length: int, channels: Sequence[int], kernel: int, *, pool: int = 1) -> str:
    """An image of one column: a sequence, as it is written for networks of images."""
    return layers(b, b.input("x", 1, channels[0], length, 1), channels, kernel, 1, pool=pool)


def residual_sequence(b: BlockBuilder) -> str:
    x = layers(b, b.input("x", 1, 1, 512, 1), (1, 32), 9, 1)
    for _ in range(2):
        x = b.op("Relu", b.op("Add", x, layer(b, layers(b, x, (32, 32), 5, 1), 32, 32, 5, 1)))
    return x


def wide_kernel(b: BlockBuilder, size: Sequence[int], kernel: Sequence[int]) -> str:
    """A layer of more kernel positions than a core has room for, 32 to 128 channels, between small ones."""
    small = [3] * len(size)
    x = layers(b, b.input("x", 1, 4, *size), (4, 32), *small)
    return layers(b, layers(b, x, (32, 128), *kernel), (128, 32), *small)


# Attention ------------------------------------------------------------------------------------------------------------


def attention(b: BlockBuilder, queries: int, keys: int, channels: int, heads: int) -> str:
    """Queries of one input to keys and values of another, or of the same if there are as many."""
    given = b.input("x", 1, keys, channels)
    asked = given if queries == keys else b.input("q", 1, queries, channels)
    size = channels // heads
    q = b.heads(dense(b, asked, channels, channels), queries, heads, size, [0, 2, 1, 3])
    k = b.heads(dense(b, given, channels, channels), keys, heads, size, [0, 2, 3, 1])
    v = b.heads(dense(b, given, channels, channels), keys, heads, size, [0, 2, 1, 3])
    scores = b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.floats(size**-0.5)), axis=-1)
    found = b.op("Transpose", b.op("MatMul", scores, v), perm=[0, 2, 1, 3])
    return dense(b, b.op("Reshape", found, b.ints(1, queries, channels)), channels, channels)


def merged_patches(b: BlockBuilder, side: int, channels: int) -> str:
    """Tokens of patches, four of which are merged into one that is normed before its layer, as Swin does."""
    x = b.op("Conv", b.input("x", 1, 3, 4 * side, 4 * side), b.weights(channels, 3, 4, 4), strides=[4, 4])
    x, half = b.norm(b.op("Transpose", x, perm=[0, 2, 3, 1]), channels), side // 2
    for merged in (2 * channels, 4 * channels):
        pairs = b.op("Reshape", x, b.ints(1, half, 2, half, 2, channels))
        fours = b.op("Reshape", b.op("Transpose", pairs, perm=[0, 1, 3, 4, 2, 5]), b.ints(1, half, half, 4 * channels))
        x, channels, half = b.linear(b.norm(fours, 4 * channels), 4 * channels, merged), merged, half // 2
    return b.op("ReduceMean", x, axes=[1, 2], keepdims=0)


def nested_patches(b: BlockBuilder, side: int, inside: int, channels: int) -> str:
    """Pixels of patches through layers of their own. Before and after, all pixels of a patch are one token.

    So has TNT, a transformer in a transformer, its patches.
    """
    x = b.op("Conv", b.input("x", 1, 3, side * inside, side * inside), b.weights(channels, 3, 3, 3), pads=[1] * 4)
    cells = b.op("Reshape", x, b.ints(1, channels, side, inside, side, inside))
    pixels = b.op("Transpose", cells, perm=[0, 2, 4, 3, 5, 1])
    x, wide = b.op("Reshape", pixels, b.ints(side * side, inside * inside, channels)), inside * inside * channels

    def tokens(x: str) -> str:
        return dense(b, b.norm(b.op("Reshape", x, b.ints(1, side * side, wide)), wide), wide, 128)

    hidden = b.op("Relu", dense(b, b.norm(x, channels), channels, 4 * channels))
    inner = b.op("Add", x, dense(b, hidden, 4 * channels, channels))
    return b.op("ReduceMean", b.op("Add", tokens(x), tokens(inner)), axes=[1], keepdims=0)


def attention_of_an_image(b: BlockBuilder, side: int, channels: int) -> str:
    """Channels first, as detectors write it: the values times the transposed scores."""
    x = layers(b, b.input("x", 1, channels, side, side), (channels, channels), 3, 3)
    tokens = b.op("Reshape", layer(b, x, channels, 2 * channels, 1, 1), b.ints(1, 2, channels, side * side))
    q, k, v = b.ops(3, "Split", tokens, b.ints(channels // 4, channels // 4, channels // 2), axis=2)
    scores = b.op("MatMul", b.op("Transpose", q, perm=[0, 1, 3, 2]), k)
    scores = b.op("Softmax", b.op("Mul", scores, b.floats((channels // 4) ** -0.5)), axis=-1)
    y = b.op("MatMul", v, b.op("Transpose", scores, perm=[0, 1, 3, 2]))
    y = layer(b, b.op("Reshape", y, b.ints(1, channels, side, side)), channels, channels, 1, 1)
    return layers(b, b.op("Add", x, y), (channels, channels), 3, 3)


def attention_of_a_signal(b: BlockBuilder, length: int, channels: int) -> str:
    """Channels first, with scores of keys x queries: a softmax over the keys, which are the first axis."""
    x = layers(b, b.input("x", 1, 8, length), (8, channels), 5)
    q, k, v = (layer(b, x, channels, channels, 1) for _ in range(3))
    scores = b.op("MatMul", b.op("Transpose", k, perm=[0, 2, 1]), q)
    scores = b.op("Softmax", b.op("Mul", scores, b.floats(channels**-0.5)), axis=1)
    return b.op("Add", x, layer(b, b.op("MatMul", v, scores), channels, channels, 1))


# Computed tensors behind a move ---------------------------------------------------------------------------------------


def one_hot(b: BlockBuilder, length: int, kinds: int, width: int) -> str:
    """Numbers, each as a row of zeros with a one, through a layer, then as a signal."""
    x, numbers = b.op("Unsqueeze", b.input("x", 1, length), b.ints(2)), np.arange(kinds, dtype=np.float32)
    x = b.op("Cast", b.op("Equal", x, b.const(numbers.reshape(1, 1, -1))), to=TensorProto.FLOAT)
    x = b.op("Transpose", b.op("Relu", dense(b, x, kinds, width)), perm=[0, 2, 1])
    return layers(b, x, (width, 2 * width), 5)


def group_moments(b: BlockBuilder, length: int, groups: int, width: int) -> str:
    """A sequence, normalised over time in groups of channels, then as an image of one column for a layer."""
    x = b.op("Relu", dense(b, b.input("x", 1, groups * length, width), width, width))
    x = b.op("Reshape", x, b.ints(1, length, groups, width))
    away = b.op("Sub", x, b.op("ReduceMean", x, axes=[1]))
    variance = b.op("ReduceMean", b.op("Mul", away, away), axes=[1])
    x = b.op("Mul", away, b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, b.floats(0.001)))))
    x = b.op("Mul", b.op("Reshape", x, b.ints(1, length, 1, groups * width)), b.weights(groups * width))
    return layers(b, b.op("Transpose", x, perm=[0, 3, 1, 2]), (groups * width, width), 5, 1)


def pixel_classes(b: BlockBuilder, side: int, classes: int) -> str:
    """The class of each pixel, as networks for segmentation end."""
    x = layers(b, b.input("x", 1, 3, side, side), (3, classes), 3, 3)
    return b.op("Cast", b.op("ArgMax", x, axis=1), to=TensorProto.FLOAT)


def harmonics(b: BlockBuilder, frames: int, bins: int, shifts: Sequence[int]) -> str:
    """A logarithmic spectrum of a signal between 0 and 1, shifted by the distances of harmonics to be the channels."""
    x = layers(b, b.input("x", 1, 4, frames), (4, bins), 9)
    return shifted_spectrum(b, b.op("Transpose", x, perm=[0, 2, 1]), bins, shifts, 16)


def shifted_spectrum(b: BlockBuilder, x: str, bins: int, shifts: Sequence[int], *channels: int) -> str:
    """Convolves the logarithm of a spectrum [1, frames, bins] between 0 and 1; each channel is shifted by some bins."""
    x = b.op("Log", b.op("Add", x, b.floats(1)))
    low, high = (b.op(reduce, x, axes=[1, 2]) for reduce in ("ReduceMin", "ReduceMax"))
    x = b.op("Div", b.op("Sub", x, low), b.op("Add", b.op("Sub", high, low), b.floats(0.001)))
    x = b.op("Unsqueeze", x, b.ints(3))
    x = b.op("Pad", x, b.ints(0, 0, 0, 0, 0, 0, max(shifts), 0))
    shifted = [cut(b, x, shift, shift + bins, 2) for shift in shifts]
    x = b.op("Transpose", b.op("Concat", *shifted, axis=3), perm=[0, 3, 1, 2])
    return layers(b, x, (len(shifts), *channels), 3, 3)


def octaves(b: BlockBuilder, frames: int, bins: int, count: int, shifts: Sequence[int]) -> str:
    """A spectrum of octaves, each of a signal at half the rate of the one above, without its five lowest bins."""
    hop = 8 << count - 1
    x, found = b.input("x", 1, 1, hop * frames), list[str]()
    for octave in range(count):
        step = hop >> octave
        around = max(0, 64 - step)
        pads = [around // 2, around - around // 2]
        waves = [b.op("Conv", x, b.weights(bins, 1, 64), strides=[step], pads=pads) for _ in range(2)]
        found.insert(0, b.op("Add", *(b.op("Mul", wave, wave) for wave in waves)))
        x = b.op("Conv", x, b.weights(1, 1, 32), strides=[2], pads=[15, 15])
    x = cut(b, b.op("Concat", *found, axis=1), 5, bins * count, 1)
    return shifted_spectrum(b, b.op("Transpose", x, perm=[0, 2, 1]), bins * count - 5, shifts, 16, 1)


def interleaved_signals(b: BlockBuilder, length: int, channels: int, count: int) -> str:
    """A signal whose steps are made in turn by several convolutions, and functions of each of its elements."""
    x = b.input("x", 1, 16, length)
    phases = [b.op("Unsqueeze", layer(b, x, 16, channels, 5), b.ints(3)) for _ in range(count)]
    x = b.op("Reshape", b.op("Concat", *phases, axis=3), b.ints(1, channels, length * count))
    gate = b.op("Sigmoid", b.op("Mul", x, b.floats(1.7)))
    x = b.op("Tanh", b.op("Add", b.op("Mul", x, gate), b.op("Mul", x, x)))
    return b.op("Sqrt", b.op("Add", b.op("Mul", x, x), b.floats(1)))


def detection_head(b: BlockBuilder, side: int, channels: int, classes: int) -> str:
    """Boxes and classes of the pixels of three scales; each distance to an edge is the mean of a distribution."""
    x, found = b.input("x", 1, 3, 2 * side, 2 * side), list[str]()
    for inputs in (3, channels, channels):
        x = b.op("Relu", layer(b, x, inputs, channels, 3, 3, stride=2))
        head = b.op("Concat", *(layer(b, x, channels, outputs, 1, 1) for outputs in (64, classes)), axis=1)
        found.append(b.op("Reshape", head, b.ints(1, 64 + classes, -1)))
    x, pixels = b.op("Concat", *found, axis=2), side**2 * 21 // 16
    distances = b.op("Reshape", cut(b, x, 0, 64, 1), b.ints(1, 4, 16, pixels))
    distances = b.op("Softmax", b.op("Transpose", distances, perm=[0, 2, 1, 3]), axis=1)
    mean = b.floats(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    distances = b.op("Reshape", b.op("Conv", distances, mean), b.ints(1, 4, pixels))
    before, after = (cut(b, distances, 2 * i, 2 * i + 2, 1) for i in range(2))
    low, high = b.op("Sub", b.weights(1, 2, pixels), before), b.op("Add", b.weights(1, 2, pixels), after)
    middle = b.op("Div", b.op("Add", low, high), b.floats(2))
    boxes = b.op("Mul", b.op("Concat", middle, b.op("Sub", high, low), axis=1), b.weights(1, pixels))
    return b.op("Concat", boxes, b.op("Sigmoid", cut(b, x, 64, 64 + classes, 1)), axis=1)


def refined_maxima(b: BlockBuilder, frames: int, bins: int) -> str:
    """The place of the largest value of each frame, averaged with its neighbours, as pitch trackers have it."""
    x = layers(b, b.input("x", 1, 1, bins, frames), (1, 8, 1), 3, 3)
    x = b.op("Transpose", b.op("Squeeze", x, b.ints(1)), perm=[0, 2, 1])
    near = b.op("Add", b.op("ArgMax", x, axis=-1, keepdims=1), b.ints(0, 1, 2))
    x = b.op("Pad", x, b.ints(0, 0, 1, 0, 0, 1), b.floats(-1e9))
    shares = b.op("Softmax", b.op("GatherElements", x, near, axis=-1), axis=-1)
    return b.op("ReduceSum", b.op("Mul", shares, b.op("Cast", near, to=TensorProto.FLOAT)), b.ints(-1), keepdims=0)


def point_neighbours(b: BlockBuilder, points: int, near: int, channels: int) -> str:
    """The largest result of a layer over the nearest of each point of a cloud, as graph networks of points have it."""
    x = b.op("Relu", dense(b, b.input("x", points, 3), 3, channels))
    squares = b.op("ReduceSum", b.op("Mul", x, x), b.ints(1), keepdims=1)
    products = b.op("Mul", b.op("MatMul", x, b.op("Transpose", x, perm=[1, 0])), b.floats(2))
    away = b.op("Sub", b.op("Sub", products, squares), b.op("Transpose", squares, perm=[1, 0]))
    _, ids = b.ops(2, "TopK", away, b.ints(near), axis=1)
    others = b.op("Gather", x, ids, axis=0)
    own = b.op("Expand", b.op("Unsqueeze", x, b.ints(1)), b.ints(points, near, channels))
    edges = b.op("Concat", b.op("Sub", others, own), own, axis=2)
    return b.op("ReduceMax", b.op("Relu", dense(b, edges, 2 * channels, channels)), axes=[1], keepdims=0)


def rotated_points(b: BlockBuilder, points: int, channels: int) -> str:
    """Points that are multiplied by a matrix, which a network computes from all points, as PointNet does."""
    x = b.op("Relu", dense(b, b.input("x", 1, points, 3), 3, channels))
    shape = b.op("ReduceMax", b.op("Relu", dense(b, x, channels, 4 * channels)), axes=[1], keepdims=0)
    matrix = dense(b, b.op("Relu", dense(b, shape, 4 * channels, 2 * channels)), 2 * channels, channels * channels)
    moved = b.op("MatMul", x, b.op("Reshape", matrix, b.ints(1, channels, channels)))
    return dense(b, b.op("Relu", dense(b, moved, channels, 2 * channels)), 2 * channels, channels)


def graph_sums(b: BlockBuilder, nodes: int, edges: int, channels: int) -> str:
    """Messages along the edges of a graph, added up at their ends: Gather and ScatterElements by an input."""
    x = b.op("Relu", dense(b, b.input("x", nodes, 8), 8, channels))
    ids = b.input("edges", 2, edges, element=TensorProto.INT64)
    start, end = (b.op("Gather", ids, b.const(np.int64(i)), axis=0) for i in range(2))
    for _ in range(2):
        ends = (b.op("Gather", x, each, axis=0) for each in (start, end))
        sent = b.op("Relu", dense(b, b.op("Concat", *ends, axis=1), 2 * channels, channels))
        to = b.op("Expand", b.op("Unsqueeze", end, b.ints(1)), b.ints(edges, channels))
        zeros = b.op("ConstantOfShape", b.ints(nodes, channels))
        x = b.op("Add", x, b.op("ScatterElements", zeros, to, sent, axis=0, reduction="add"))
    return x


def neighbour_sums(b: BlockBuilder, nodes: int, edges: int, channels: int) -> str:
    """Sums over the neighbours of each node between layers of the nodes; the edges are an input."""
    x = b.op("Relu", dense(b, b.input("x", nodes, 16), 16, channels))
    ids = b.input("edges", 2, edges, element=TensorProto.INT64)
    start, end = (b.op("Gather", ids, b.const(np.int64(i)), axis=0) for i in range(2))
    to = b.op("Expand", b.op("Unsqueeze", end, b.ints(1)), b.ints(edges, channels))
    for _ in range(2):
        zeros = b.op("ConstantOfShape", b.ints(nodes, channels))
        sent = b.op("Gather", x, start, axis=0)
        x = b.op("Add", x, b.op("ScatterElements", zeros, to, sent, axis=0, reduction="add"))
        x = b.op("Relu", dense(b, x, channels, channels))
    return x


def fixed_graph(b: BlockBuilder, nodes: int, edges: int, channels: int) -> str:
    """Messages along the edges of a graph that is part of the model: GatherND and ScatterND by constants."""
    x = dense(b, b.input("x", nodes, 16), 16, channels)
    start, end = np.random.default_rng(0).integers(0, nodes, (2, edges, 1))
    for _ in range(2):
        sent = b.op("GatherND", x, b.const(start))
        around = b.op("ScatterND", b.floats(np.zeros((nodes, channels))), b.const(end), sent, reduction="add")
        x = b.op("Add", b.op("Mul", x, b.floats(1.1)), around)
        x = b.op("Relu", dense(b, b.op("Relu", dense(b, x, channels, channels)), channels, channels))
    return x


def recommender(b: BlockBuilder, users: int, tables: int, width: int) -> str:
    """Products of all pairs of embeddings of each user, between two perceptrons."""
    ids = b.input("ids", users, tables, element=TensorProto.INT64)
    x = b.op("Relu", dense(b, b.op("Relu", dense(b, b.input("x", users, 13), 13, 64)), 64, width))
    rows = [x]
    for i in range(tables):
        rows.append(b.op("Gather", b.weights(100, width), b.op("Gather", ids, b.const(np.int64(i)), axis=1), axis=0))
    stack = b.op("Concat", *(b.op("Unsqueeze", row, b.ints(1)) for row in rows), axis=1)
    pairs = b.op("MatMul", stack, b.op("Transpose", stack, perm=[0, 2, 1]))
    lower = np.flatnonzero(np.tri(tables + 1, k=-1))
    chosen = b.op("Gather", b.op("Reshape", pairs, b.ints(users, (tables + 1) ** 2)), b.const(lower), axis=1)
    joined = b.op("Concat", x, chosen, axis=1)
    return dense(b, b.op("Relu", dense(b, joined, width + len(lower), 64)), 64, 1)


def summed_bags(b: BlockBuilder, users: int, tables: int, width: int) -> str:
    """Products of all pairs of embeddings, each the sum of three rows, made one by one in a list, as loops are."""
    ids = b.input("ids", users, tables, 3, element=TensorProto.INT64)
    x = b.op("Relu", dense(b, b.input("x", users, 13), 13, width))
    rows = [b.op("Unsqueeze", x, b.ints(1))]
    for i in range(tables):
        chosen = b.op("Reshape", b.op("Gather", ids, b.const(np.int64(i)), axis=1), b.ints(-1))
        bags = b.op("SplitToSequence", b.op("Gather", b.weights(50, width), chosen), b.const(np.int64(3)))
        each = (b.op("SequenceAt", bags, b.const(np.int64(k))) for k in range(users))
        sums = b.op("SequenceConstruct", *(b.op("ReduceSum", bag, b.ints(0), keepdims=0) for bag in each))
        rows.append(b.op("Unsqueeze", b.op("ConcatFromSequence", sums, axis=0, new_axis=1), b.ints(1)))
    stack = b.op("Concat", *rows, axis=1)
    pairs = b.op("MatMul", stack, b.op("Transpose", stack, perm=[0, 2, 1]))
    joined = b.op("Concat", x, b.op("Reshape", pairs, b.ints(users, (tables + 1) ** 2)), axis=1)
    return dense(b, joined, width + (tables + 1) ** 2, 1)


# Reductions over pixels, and values that wait -------------------------------------------------------------------------


def spectrum_bands(b: BlockBuilder, frames: int, bins: int, bands: int) -> str:
    """A Fourier transform by two convolutions, and the energy of bands that read less than half of its bins."""
    x = b.input("x", 1, 1, 160 * (frames - 1) + 2 * (bins - 1))
    angles = np.pi * np.outer(np.arange(bins), np.arange(2 * (bins - 1))) / (bins - 1)
    waves = (b.floats(wave(angles).astype(np.float32)[:, None]) for wave in (np.cos, np.sin))
    parts = [b.op("Transpose", b.op("Conv", x, wave, strides=[160]), perm=[0, 2, 1]) for wave in waves]
    energy = b.op("Add", *(b.op("Mul", part, part) for part in parts))
    read = np.arange(bins)[:, None] * 2 * bands // bins == np.arange(bands)
    return b.op("Log", b.op("Add", b.op("MatMul", energy, b.floats(read.astype(np.float32))), b.floats(1)))


def restored_image(b: BlockBuilder, side: int, channels: int) -> str:
    """An image at half its size and back, added to what it was before, and a norm of the channels of each pixel."""
    first = layers(b, b.input("x", 1, 3, side, side), (3, channels), 3, 3)
    x = b.op("Relu", layer(b, first, channels, 2 * channels, 3, 3, stride=2))
    x = b.op("DepthToSpace", layer(b, x, 2 * channels, 4 * channels, 1, 1), blocksize=2, mode="CRD")
    x = b.op("Add", x, first)
    away = b.op("Sub", x, b.op("ReduceMean", x, axes=[1]))
    variance = b.op("ReduceMean", b.op("Mul", away, away), axes=[1])
    x = b.op("Div", away, b.op("Sqrt", b.op("Add", variance, b.floats(0.001))))
    x = b.op("Mul", x, b.weights(channels, 1, 1))
    return layer(b, layers(b, x, (channels, channels), 1, 1), channels, 3, 3, 3)


def frame_layers(b: BlockBuilder, frames: int, bands: int) -> str:
    """A dense layer for each frame of what convolutions make of a spectrogram, as readers of notes end."""
    x = layers(b, b.input("x", 1, 1, frames, bands), (1, 16, 16), 3, 3)
    x = b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 1, 3]), b.ints(frames, 16 * bands))
    return b.op("Sigmoid", dense(b, b.op("Relu", dense(b, x, 16 * bands, 128)), 128, 88))


def largest_of_several(b: BlockBuilder, length: int, channels: int) -> str:
    """The largest of three tensors that are stacked along a new axis."""
    x = b.input("x", 1, 16, length)
    stacked = [b.op("Unsqueeze", layer(b, x, 16, channels, size), b.ints(3)) for size in (1, 3, 5)]
    x = b.op("ReduceMax", b.op("Concat", *stacked, axis=3), axes=[3], keepdims=0)
    return layers(b, x, (channels, 16), 3)


def softmax_pixels(b: BlockBuilder, side: int, channels: int) -> str:
    """A softmax of each channel over all pixels, between two layers."""
    x = layers(b, b.input("x", 1, 3, side, side), (3, channels), 3, 3)
    x = b.op("Softmax", b.op("Reshape", x, b.ints(1, channels, side * side)), axis=2)
    return layers(b, b.op("Reshape", x, b.ints(1, channels, side, side)), (channels, channels), 3, 3)


def class_margins(b: BlockBuilder, length: int, channels: int) -> str:
    """Distances of each class of a signal from the largest one, which is the maximum of the channels of a sample."""
    x = layers(b, b.input("x", 1, channels // 2, length), (channels // 2, channels), 3)
    return b.op("Sub", x, b.op("ReduceMax", x, axes=[1]))


def log_shares(b: BlockBuilder, length: int, channels: int) -> str:
    """The logarithms of the shares of classes, which are the channels of a signal, as readers of speech end."""
    x = layers(b, b.input("x", 1, channels // 2, length), (channels // 2, channels // 2, channels), 3)
    return b.op("LogSoftmax", x, axis=1)


def key_points(b: BlockBuilder, side: int, points: int) -> str:
    """The expected place of each key point of an image: a soft argmax along both axes."""
    x = layer(b, layers(b, b.input("x", 1, 3, side, side), (3, 16), 3, 3), 16, points, 1, 1)
    x = b.op("Softmax", b.op("Reshape", x, b.ints(1, points, side * side)), axis=2)
    x, place = b.op("Reshape", x, b.ints(1, points, side, side)), np.arange(side, dtype=np.float32)
    sums = (b.op("Mul", x, b.floats(place.reshape(shape))) for shape in ((1, 1, 1, side), (1, 1, side, 1)))
    return b.op("Concat", *(b.op("ReduceSum", s, b.ints(2, 3), keepdims=0) for s in sums), axis=1)


def attentive_pool(b: BlockBuilder, length: int, channels: int) -> str:
    """A mean of a signal with a weight for each of its times, as networks that name speakers and instruments end."""
    x = layers(b, b.input("x", 1, 8, length), (8, channels), 3)
    weight = b.op("Softmax", layer(b, x, channels, 1, 1), axis=2)
    return dense(b, b.op("ReduceSum", b.op("Mul", x, weight), b.ints(2), keepdims=0), channels, 32)


def repeated_vector(b: BlockBuilder, side: int, channels: int) -> str:
    """A vector that is repeated for all pixels of an image, as decoders begin."""
    x = b.op("Relu", dense(b, b.input("x", 1, 64), 64, channels))
    x = b.op("Expand", b.op("Reshape", x, b.ints(1, channels, 1, 1)), b.ints(1, channels, side, side))
    return layers(b, x, (channels, 16), 3, 3)


def points(b: BlockBuilder, count: int) -> str:
    """Points with their largest features beside them, as PointNet cuts clouds into parts."""
    x = layers(b, b.op("Transpose", b.input("x", 1, count, 3), perm=[0, 2, 1]), (3, 32, 64), 1)
    largest = b.op("Expand", b.op("ReduceMax", x, axes=[2]), b.ints(1, 64, count))
    return layers(b, b.op("Concat", x, largest, axis=1), (128, 64, 16), 1)


def coordinates(b: BlockBuilder, count: int, octaves: int) -> str:
    """Sines and cosines of coordinates beside them, then dense layers: a radiance field."""
    x = b.input("x", count, 3)
    scaled = [b.op("Mul", x, b.floats(2.0**k)) for k in range(octaves)]
    joined = b.op("Concat", x, *(b.op(f, s) for s in scaled for f in ("Sin", "Cos")), axis=1)
    y = b.op("Relu", dense(b, joined, 3 + 6 * octaves, 64))
    return b.op("Sigmoid", dense(b, b.op("Relu", dense(b, y, 64, 64)), 64, 4))


def skipped_signal(b: BlockBuilder, length: int, *, normed: bool = False) -> str:
    """A U-Net of a signal: what it makes first is read last. `normed`: by norms of each skip and what it joins."""
    half = {"kernel_shape": [2], "strides": [2]}
    first = layers(b, b.input("x", 1, 4, length), (4, 16), 5)
    second = layers(b, b.op("MaxPool", first, **half), (16, 32), 5)
    x = layers(b, b.op("MaxPool", second, **half), (32, 64), 5)
    for skip, inputs in ((second, 64), (first, 32)):
        x = b.op("ConvTranspose", x, b.weights(inputs, inputs // 2, 2), **half)
        x = b.op("Concat", x, skip, axis=1)
        x = b.op("InstanceNormalization", x, b.weights(inputs), b.weights(inputs)) if normed else x
        x = layers(b, x, (inputs, inputs // 2), 5)
    return x


def gated_signal(b: BlockBuilder, length: int, channels: int) -> str:
    """Dilated layers with gates whose results are all added at the end, as WaveNet has them."""
    x = layer(b, b.input("x", 1, 1, length), 1, channels, 1)
    total = None
    for dilation in (1, 2, 4, 8):
        y = layer(b, x, channels, 2 * channels, 3, dilation=dilation)
        value, gate = (cut(b, y, i, i + channels, 1) for i in (0, channels))
        y = b.op("Mul", b.op("Tanh", value), b.op("Sigmoid", gate))
        skip = layer(b, y, channels, channels, 1)
        total = skip if total is None else b.op("Add", total, skip)
        x = b.op("Add", x, layer(b, y, channels, channels, 1))
    assert total is not None
    return layer(b, b.op("Relu", total), channels, 64, 1)


# Vectors --------------------------------------------------------------------------------------------------------------


def vector_chain(b: BlockBuilder, *shape: int) -> str:
    x, y = b.input("x", *shape), b.input("y", *shape)
    for _ in range(4):
        x = b.op("Tanh", b.op("Add", b.op("Mul", x, y), b.op("Sub", y, x)))
    return x


def vector_gates(b: BlockBuilder) -> str:
    """Halves of a vector, one of which opens the other, again and again."""
    x = b.input("x", 1, 16384)
    for length in (16384, 8192, 4096):
        value, gate = (cut(b, x, i, i + length // 2, 1) for i in (0, length // 2))
        x = b.op("Mul", b.op("Tanh", value), b.op("Sigmoid", gate))
    return x


def power_flow(b: BlockBuilder, buses: int, branches: int, inputs: int = 0) -> str:
    """Flows on the branches of a grid from voltages and angles of its buses, and what they sum to at each bus.

    inputs: number of inputs of a layer that estimates voltages and angles; 0: they are the inputs.
    """
    ends = np.random.default_rng(0).integers(0, buses, (2, branches))
    x = dense(b, b.input("x", 1, inputs), inputs, 2 * buses) if inputs else b.input("x", 1, 2 * buses)
    voltage, angle = (cut(b, x, i * buses, (i + 1) * buses, 1) for i in (0, 1))
    v_from, v_to, a_from, a_to = (
        b.op("Gather", each, b.const(index), axis=1) for each in (voltage, angle) for index in ends
    )
    turn = b.op("Sub", a_from, a_to)
    product = b.op("Mul", v_from, v_to)
    waves = (b.op("Mul", b.weights(1, branches), b.op(wave, turn)) for wave in ("Cos", "Sin"))
    flow = b.op("Mul", product, b.op("Add", *waves))
    incidence = (ends[0][:, None] == np.arange(buses)).astype(np.float32) - (ends[1][:, None] == np.arange(buses))
    return b.op("Tanh", b.op("MatMul", flow, b.floats(incidence)))


def dense_chain(b: BlockBuilder) -> str:
    """Layers of a vector with element-wise functions between them."""
    x = b.input("x", 1, 512)
    for _ in range(3):
        x = b.op("Add", x, b.op("Mul", b.op("Tanh", dense(b, x, 512, 512)), b.op("Sigmoid", x)))
    return x


def perceptron(b: BlockBuilder, *widths: int) -> str:
    """Layers of a vector, each but the last with a ReLU: tables of numbers, and wake words."""
    x = b.input("x", 1, widths[0])
    for inputs, outputs in pairwise(widths):
        x = dense(b, x, inputs, outputs)
        x = x if outputs == widths[-1] else b.op("Relu", x)
    return x


def dense_rows(b: BlockBuilder, rows: int, width: int) -> str:
    """Rows of a table through small layers, with products between elements."""
    x = b.input("x", rows, 16)
    first, second = (b.op("Relu", dense(b, x, 16, width)) for _ in range(2))
    for _ in range(3):
        y = b.op("Mul", b.op("Tanh", first), b.op("Sigmoid", second))
        first, second = b.op("Relu", dense(b, y, width, width)), b.op("Add", second, b.op("Mul", y, y))
    return b.op("Sub", first, second)


# Recurrent layers beside convolutions ---------------------------------------------------------------------------------


def recurrent(b: BlockBuilder, x: str, kind: str, inputs: int, width: int, directions: int = 1) -> str:
    """Adds a recurrent layer over [steps, batch, inputs]. Returns [steps, batch, directions x width]."""
    gates = {"LSTM": 4, "GRU": 3}[kind] * width
    weights = b.weights(directions, gates, inputs), b.weights(directions, gates, width)
    direction = "bidirectional" if directions == 2 else "forward"
    y, *_ = b.ops(1, kind, x, *weights, b.weights(directions, 2 * gates), hidden_size=width, direction=direction)
    return b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3]), b.ints(0, 0, directions * width))


def recurrent_signal(b: BlockBuilder, kind: str, steps: int, width: int, *, directions: int = 1, count: int = 1) -> str:
    """Two convolutions with strides, recurrent layers, a layer for each step."""
    x, inputs = layers(b, b.input("x", 1, 8, 4 * steps), (8, 32, 64), 9, stride=2), 64
    x = b.op("Transpose", x, perm=[2, 0, 1])
    for _ in range(count):
        x, inputs = recurrent(b, x, kind, inputs, width, directions), directions * width
    return dense(b, x, inputs, 16)


def recurrent_image(b: BlockBuilder, steps: int, width: int) -> str:
    """A reader of text: columns of an image as steps, in two directions."""
    x = layers(b, b.input("x", 1, 1, 16, 4 * steps), (1, 16, 32), 3, 3, stride=2)
    x = b.op("Conv", x, b.weights(64, 32, 4, 1))
    x = b.op("Transpose", b.op("Squeeze", x, b.ints(2)), perm=[2, 0, 1])
    return dense(b, recurrent(b, x, "LSTM", 64, width, 2), 2 * width, 32)


def dual_path(b: BlockBuilder, frames: int, bands: int, width: int) -> str:
    """A spectrogram whose bands are the steps of one recurrent layer, and whose frames are those of the next.

    Each layer has the other axis as its batch, as networks that separate voices or remove noise have it.
    """
    x, channels = layers(b, b.input("x", 1, 1, frames, bands), (1, 16), 3, 3), 16
    for kind, perm, back in ("GRU", [3, 2, 0, 1], [2, 3, 1, 0]), ("LSTM", [2, 3, 0, 1], [2, 3, 0, 1]):
        first, second = (bands, frames) if kind == "GRU" else (frames, bands)
        steps = b.op("Reshape", b.op("Transpose", x, perm=perm), b.ints(first, second, channels))
        made = dense(b, recurrent(b, steps, kind, channels, width), width, channels)
        image = b.op("Transpose", b.op("Reshape", made, b.ints(first, second, 1, channels)), perm=back)
        x = b.op("Add", x, image)
    return layers(b, x, (channels, 2), 3, 3)


def unrolled_loop(b: BlockBuilder, steps: int, width: int) -> str:
    """Columns of an image as the steps of a loop in PyTorch: each adds a layer of the column and one of the state."""
    x = layers(b, b.input("x", 1, 1, 16, 4 * steps), (1, 16, 64), 3, 3, stride=2)
    columns = b.op("Reshape", x, b.ints(1, 64 * 4, steps))
    reads, keeps = b.weights(64 * 4, width), b.weights(width, width)
    state = ""
    for step in range(steps):
        read = b.op("MatMul", b.op("Gather", columns, b.const(np.array(step)), axis=2), reads)
        state = b.op("Tanh", b.op("Add", read, b.op("MatMul", state, keeps)) if state else read)
    return dense(b, state, width, 32)


def state_space(b: BlockBuilder, steps: int, width: int, states: int) -> str:
    """A selective state space whose loop over the tokens is unrolled, as exporters write Mamba.

    Each step scales all states, adds the token's share, and multiplies the states of each channel by a computed vector.
    """
    x = dense(b, b.input("x", 1, steps, width), width, width)
    pace = b.op("Transpose", b.op("Softplus", dense(b, x, width, width)), perm=[0, 2, 1])
    kept = b.op("Exp", b.op("Mul", b.op("Unsqueeze", pace, b.ints(3)), b.weights(1, width, 1, states)))
    given, read = (dense(b, x, width, states) for _ in range(2))
    scaled = b.op("Mul", pace, b.op("Transpose", x, perm=[0, 2, 1]))
    added = b.op("Mul", b.op("Unsqueeze", scaled, b.ints(3)), b.op("Unsqueeze", given, b.ints(1)))
    found, state = list[str](), ""
    for step in range(steps):
        decay, share = (b.op("Gather", each, b.const(np.array(step)), axis=2) for each in (kept, added))
        asked = b.op("Unsqueeze", b.op("Gather", read, b.const(np.array(step)), axis=1), b.ints(2))
        state = b.op("Add", b.op("Mul", decay, state), share) if state else share
        found.append(b.op("MatMul", state, asked))
    return dense(b, b.op("Transpose", b.op("Concat", *found, axis=2), perm=[0, 2, 1]), width, width)


def attending_decoder(b: BlockBuilder, length: int, width: int, steps: int) -> str:
    """A sequence read in two directions, then a loop whose steps score all of it by a small network: unrolled.

    Each step adds its query to the keys of the sequence, averages the sequence by the scores, and updates its state.
    """
    memory = recurrent(b, b.input("x", length, 1, width), "GRU", width, width, 2)
    memory = b.op("Transpose", memory, perm=[1, 0, 2])
    keys, both = dense(b, memory, 2 * width, width), 2 * width
    asks, scores = b.weights(width, width), b.weights(width, 1)
    weights = {gate: (b.weights(both, width), b.weights(width, width)) for gate in ("Sigmoid", "Tanh")}
    state = b.op("Tanh", b.linear(b.op("ReduceMean", memory, axes=[1], keepdims=0), both, width))
    found = list[str]()
    for _ in range(steps):
        query = b.op("Unsqueeze", b.op("MatMul", state, asks), b.ints(1))
        score = b.op("MatMul", b.op("Tanh", b.op("Add", keys, query)), scores)
        share = b.op("Transpose", b.op("Softmax", score, axis=1), perm=[0, 2, 1])
        read = b.op("Reshape", b.op("MatMul", share, memory), b.ints(1, both))
        kept, new = (
            b.op(gate, b.op("Add", b.op("MatMul", read, given), b.op("MatMul", state, own)))
            for gate, (given, own) in weights.items()
        )
        state = b.op("Add", new, b.op("Mul", kept, b.op("Sub", state, new)))
        found.append(dense(b, state, width, 32))
    return b.op("Concat", *found, axis=0)


def attending_sequences(b: BlockBuilder, length: int, steps: int, width: int) -> str:
    """A recurrent layer that goes on where one over another sequence ends, and reads its steps by their products."""
    memory, first = recurrent_states(b, b.input("x", length, 1, width), width)
    asked, _ = recurrent_states(b, b.input("y", steps, 1, width), width, first)
    memory, asked = (b.op("Transpose", x, perm=[1, 0, 2]) for x in (memory, asked))
    share = b.op("Softmax", b.op("MatMul", asked, b.op("Transpose", memory, perm=[0, 2, 1])), axis=2)
    read = b.op("Tanh", b.op("MatMul", share, memory))
    return dense(b, b.op("Concat", read, asked, axis=2), 2 * width, width)


def recurrent_states(b: BlockBuilder, x: str, width: int, first: str = "") -> tuple[str, str]:
    """Adds a GRU over [steps, batch, width]. Returns its states, [steps, batch, width], and the last one.

    first: the state before the first step; zeros without one.
    """
    weights = (b.weights(1, 3 * width, width) for _ in range(2))
    states, last = b.ops(2, "GRU", x, *weights, b.weights(1, 6 * width), "", first, hidden_size=width)
    return b.op("Squeeze", states, b.ints(1)), last


# One source with many readers -----------------------------------------------------------------------------------------


def characters(b: BlockBuilder, length: int, kernels: Sequence[int], outputs: int = 64) -> str:
    """Rows of a table by index, read by convolutions of several widths side by side."""
    rows = b.op("Gather", b.weights(180, 32), b.input("ids", 1, length, element=TensorProto.INT64))
    x = b.op("Transpose", rows, perm=[0, 2, 1])
    found = b.op("Concat", *(b.op("Relu", layer(b, x, 32, outputs, kernel)) for kernel in kernels), axis=1)
    return dense(b, b.op("Flatten", found), outputs * len(kernels) * length, 32)


def sentence(b: BlockBuilder) -> str:
    """Words by index, convolutions of three widths, the largest value of each channel."""
    rows = b.op("Gather", b.weights(500, 48), b.input("ids", 1, 64, element=TensorProto.INT64))
    x = b.op("Transpose", rows, perm=[0, 2, 1])
    found = [b.op("GlobalMaxPool", b.op("Relu", layer(b, x, 48, 100, kernel))) for kernel in (3, 4, 5)]
    return dense(b, b.op("Flatten", b.op("Concat", *found, axis=1)), 300, 8)


def branches_of_an_image(b: BlockBuilder) -> str:
    """A small convolution read by eight larger ones."""
    x = layers(b, b.input("x", 1, 3, 24, 48), (3, 16), 3, 3)
    found = [b.op("Relu", layer(b, x, 16, 32, size, size)) for size in (1, 3, 5, 3, 1, 5, 3, 7)]
    return b.op("GlobalAveragePool", b.op("Concat", *found, axis=1))


def small_then_large(b: BlockBuilder, lines: int, columns: int, outputs: int, kernel: int) -> str:
    """A layer with one input channel feeds a layer with far more work."""
    x = layers(b, b.input("x", 1, 1, lines, columns), (1, 32), 5, 5)
    return b.op("GlobalAveragePool", layers(b, x, (32, outputs), kernel, kernel))


def narrowing_signal(b: BlockBuilder, length: int, channels: Sequence[int]) -> str:
    """More channels and fewer pixels in each layer: each core sends to more of the next."""
    return b.op("GlobalAveragePool", signal(b, length, channels, 9, stride=2))


def staged_signal(b: BlockBuilder) -> str:
    """Eleven layers in five stages, pooled between them."""
    x = layers(b, b.input("x", 1, 1, 4000), (1, 32), 9, stride=2)
    for channels in ((32, 64, 64), (64, 64, 64), (64, 128, 128, 128), (128, 256, 256, 256)):
        x = layers(b, b.op("MaxPool", x, kernel_shape=[4], strides=[4]), channels, 9)
    return b.op("GlobalAveragePool", x)


def dilated_signal(b: BlockBuilder, length: int) -> str:
    """Dilations from 1 to 128: each core sends to many of the next layer."""
    x, inputs = b.input("x", 1, 16, length), 16
    for i in range(8):
        x, inputs = b.op("Relu", layer(b, x, inputs, 32, 9, dilation=2**i)), 32
    return b.op("GlobalAveragePool", x)


# Other operators ------------------------------------------------------------------------------------------------------


def strided_slices(b: BlockBuilder, side: int, axes: Sequence[int]) -> str:
    """Pairs of neighbours inside a network, by slices with a step of 2."""
    x = layers(b, b.input("x", 1, 8, side, side), (8, 16), 3, 3)
    for axis in axes:
        parts = (cut(b, x, i, side, axis, 2) for i in (0, 1))
        x = b.op("Add", *(b.op("Mul", part, part) for part in parts))
    return layer(b, x, 16, 16, 3, 3)


def fourier(b: BlockBuilder, images: int, side: int) -> str:
    """The power of a Fourier transform of rows and columns, as products with matrices."""
    turn = 2 * np.pi * np.outer(np.arange(side), np.arange(side)) / side
    cosine, sine = b.floats(np.cos(turn)), b.floats(-np.sin(turn))
    x = b.input("x", images, side, side)
    re, im = (b.op("Transpose", b.op("MatMul", x, wave), perm=[0, 2, 1]) for wave in (cosine, sine))
    real = b.op("Sub", b.op("MatMul", re, cosine), b.op("MatMul", im, sine))
    imaginary = b.op("Add", b.op("MatMul", re, sine), b.op("MatMul", im, cosine))
    return b.op("Add", b.op("Mul", real, real), b.op("Mul", imaginary, imaginary))


def fourier_steps(b: BlockBuilder, frames: int, size: int, bands: int) -> str:
    """Bands of the energy of frames, whose Fourier transform of size x size has two steps with a rotation between."""
    angles = 2 * np.pi * np.outer(np.arange(size), np.arange(size)) / size
    waves = [b.floats(wave(angles).astype(np.float32)) for wave in (np.cos, np.sin)]
    rotation = [b.floats(wave(angles / size).astype(np.float32)) for wave in (np.cos, np.sin)]
    x = b.op("Reshape", b.input("x", frames, size**2), b.ints(frames, size, size))
    re, im = (b.op("MatMul", wave, x) for wave in waves)
    for product, (cosine, sine) in (("Mul", rotation), ("MatMul", waves)):
        real = b.op("Sub", b.op(product, re, cosine), b.op(product, im, sine))
        re, im = real, b.op("Add", b.op(product, re, sine), b.op(product, im, cosine))
    energy = b.op("Transpose", b.op("Add", b.op("Mul", re, re), b.op("Mul", im, im)), perm=[0, 2, 1])
    x = cut(b, b.op("Reshape", energy, b.ints(frames, size**2)), 0, size**2 // 2 + 1, 1)
    return b.linear(x, size**2 // 2 + 1, bands)


def instance_norms(b: BlockBuilder, size: Sequence[int], channels: Sequence[int]) -> str:
    """Convolutions, each but the last with an instance norm."""
    kernel, x = [3] * len(size), b.input("x", 1, channels[0], *size)
    for inputs, outputs in pairwise(channels):
        x = layer(b, x, inputs, outputs, *kernel)
        x = b.op("Relu", b.op("InstanceNormalization", x, b.weights(outputs), b.weights(outputs)))
    return layer(b, x, channels[-1], 3, *kernel)


def binarised(b: BlockBuilder, side: int, channels: int, count: int) -> str:
    """Layers that see only the signs of their inputs, with a way around each."""
    x = b.input("x", 1, channels, side, side)
    for _ in range(count):
        x = b.op("Add", layer(b, b.op("Sign", x), channels, channels, 3, 3), x)
    return x


def joined_zeros(b: BlockBuilder, side: int, stages: int) -> str:
    """Residual blocks whose way around gets channels of zeros, as ResNets for small images have them."""
    x, channels = layers(b, b.input("x", 1, 3, side, side), (3, 16), 3, 3), 16
    for _ in range(stages):
        y = b.op("Relu", layer(b, x, channels, 2 * channels, 3, 3, stride=2))
        y = layer(b, y, 2 * channels, 2 * channels, 3, 3)
        x = b.op("AveragePool", x, kernel_shape=[1, 1], strides=[2, 2])
        x = b.op("Relu", b.op("Add", y, b.op("Concat", x, b.op("Mul", x, b.floats(0)), axis=1)))
        channels *= 2
    return x


KINDS: Mapping[str, Mapping[str, Build]] = {
    "input behind a move": {
        "image_unsqueezed": partial(image_unsqueezed, channels=3, side=128),
        "image_grey": partial(image_unsqueezed, channels=1, side=112),
        "image_last_axis": partial(image_turned, shape=(1, 128, 128, 1), perm=(0, 3, 1, 2)),
        "image_turned": partial(image_turned, shape=(1, 3, 128, 128), perm=(0, 1, 3, 2)),
        "image_rotated": partial(image_turned, shape=(1, 64, 96, 3), perm=(0, 3, 2, 1)),
        "image_of_a_vector": image_of_a_vector,
        "spectrogram": spectrogram,
        "signal_unsqueezed": signal_unsqueezed,
    },
    "no layer": {
        "frames": partial(frames, count=126, size=64, hop=32),
        "frames_long": partial(frames, count=40, size=400, hop=160),
        "magnitude": lambda b: magnitude(b, 1, 64, 64),
        "magnitude_bands": lambda b: magnitude(b, 1, 257, 40),
        "rotated_halves": rotated_halves,
        "signal_cut": signal_cut,
        "signal_masked": signal_masked,
    },
    "one column": {
        "sequence": partial(sequence, length=256, channels=(8, 32, 32, 32), kernel=5),
        "sequence_pooled": partial(sequence, length=1024, channels=(1, 16, 32, 64), kernel=9, pool=4),
        "sequence_residual": residual_sequence,
    },
    "long signal, wide kernel": {
        "signal_9000": partial(signal, length=9000, channels=(1, 16, 32, 32, 32), kernel=9),
        "signal_8240": partial(signal, length=8240, channels=(1, 32), kernel=25, stride=4),
        "signal_20000": partial(signal, length=20_000, channels=(1, 8, 16, 32), kernel=16, stride=4),
        "signal_pooled": partial(signal, length=10_000, channels=(2, 16, 32, 64), kernel=7, pool=4),
        "wide_kernel": partial(wide_kernel, size=(1000,), kernel=(80,)),
        "wide_kernel_image": partial(wide_kernel, size=(20, 24), kernel=(11, 11)),
    },
    "attention": {
        "attention": partial(attention, queries=400, keys=400, channels=64, heads=2),
        "attention_heads": partial(attention, queries=96, keys=96, channels=128, heads=16),
        "attention_cross": partial(attention, queries=20, keys=400, channels=64, heads=1),
        "attention_few": partial(attention, queries=4, keys=256, channels=96, heads=4),
        "attention_image": partial(attention_of_an_image, side=20, channels=64),
        "attention_small_image": partial(attention_of_an_image, side=8, channels=128),
        "attention_signal": partial(attention_of_a_signal, length=192, channels=32),
        "merged_patches": partial(merged_patches, side=24, channels=32),
        "nested_patches": partial(nested_patches, side=8, inside=4, channels=24),
    },
    "computed, then moved": {
        "one_hot": partial(one_hot, length=1024, kinds=200, width=32),
        "group_moments": partial(group_moments, length=256, groups=4, width=32),
        "pixel_classes": partial(pixel_classes, side=32, classes=16),
        "harmonics": partial(harmonics, frames=96, bins=160, shifts=(0, 12, 19, 24, 28, 31, 34, 36)),
        "octaves": partial(octaves, frames=96, bins=24, count=5, shifts=(0,)),
        "octaves_harmonics": partial(octaves, frames=96, bins=24, count=5, shifts=(0, 12, 19, 24, 28, 31, 34, 36)),
        "interleaved_signals": partial(interleaved_signals, length=512, channels=16, count=6),
        "spectrum_bands": partial(spectrum_bands, frames=97, bins=257, bands=32),
        "detection_head": partial(detection_head, side=32, channels=32, classes=4),
        "refined_maxima": partial(refined_maxima, frames=62, bins=96),
        "point_neighbours": partial(point_neighbours, points=64, near=8, channels=32),
        "class_margins": partial(class_margins, length=128, channels=64),
        "log_shares": partial(log_shares, length=128, channels=64),
        "rotated_points": partial(rotated_points, points=128, channels=16),
        "graph_sums": partial(graph_sums, nodes=48, edges=120, channels=32),
        "neighbour_sums": partial(neighbour_sums, nodes=32, edges=96, channels=32),
        "fixed_graph": partial(fixed_graph, nodes=32, edges=96, channels=32),
        "recommender": partial(recommender, users=32, tables=8, width=16),
        "summed_bags": partial(summed_bags, users=16, tables=6, width=16),
        "restored_image": partial(restored_image, side=32, channels=16),
        "frame_layers": partial(frame_layers, frames=60, bands=48),
        "largest_of_several": partial(largest_of_several, length=256, channels=64),
    },
    "reduced over pixels": {
        "softmax_pixels": partial(softmax_pixels, side=32, channels=16),
        "key_points": partial(key_points, side=32, points=17),
        "attentive_pool": partial(attentive_pool, length=256, channels=64),
        "repeated_vector": partial(repeated_vector, side=24, channels=32),
        "points": partial(points, count=512),
        "coordinates": partial(coordinates, count=1024, octaves=4),
    },
    "vectors": {
        "vector_chain": lambda b: vector_chain(b, 1, 16384),
        "vector_chain_odd": lambda b: vector_chain(b, 1, 9000),
        "vector_gates": vector_gates,
        "power_flow": partial(power_flow, buses=300, branches=1200),
        "power_flow_small": partial(power_flow, buses=118, branches=500),
        "power_flow_estimated": partial(power_flow, buses=200, branches=800, inputs=128),
        "dense_chain": dense_chain,
        "dense_rows": partial(dense_rows, rows=256, width=32),
        "perceptron": lambda b: perceptron(b, 64, 1024, 1024, 10),
        "perceptron_wide": lambda b: perceptron(b, 100, 2000, 100),
    },
    "recurrent beside convolutions": {
        "conv_gru": partial(recurrent_signal, kind="GRU", steps=50, width=64),
        "conv_lstm": partial(recurrent_signal, kind="LSTM", steps=50, width=64),
        "conv_lstm_twice": partial(recurrent_signal, kind="LSTM", steps=24, width=96, count=2),
        "conv_gru_both": partial(recurrent_signal, kind="GRU", steps=40, width=48, directions=2),
        "conv_lstm_image": partial(recurrent_image, steps=32, width=48),
        "dual_path": partial(dual_path, frames=24, bands=32, width=24),
        "unrolled_loop": partial(unrolled_loop, steps=20, width=64),
        "state_space": partial(state_space, steps=16, width=64, states=8),
        "attending_decoder": partial(attending_decoder, length=20, width=32, steps=6),
        "attending_sequences": partial(attending_sequences, length=16, steps=8, width=32),
    },
    "many readers": {
        "characters_8": partial(characters, length=21, kernels=(1, 2, 3, 4, 5, 6, 8, 12)),
        "characters_12": partial(characters, length=50, kernels=tuple(range(1, 13))),
        "sentence": sentence,
        "branches_image": branches_of_an_image,
        "small_large": partial(small_then_large, lines=24, columns=396, outputs=64, kernel=3),
        "small_large_1x1": partial(small_then_large, lines=60, columns=100, outputs=512, kernel=1),
        "narrowing": partial(narrowing_signal, length=4096, channels=(1, 16, 32, 64, 64, 128, 128, 256, 256)),
        "staged": staged_signal,
        "dilated": partial(dilated_signal, length=1024),
        "skipped_signal": partial(skipped_signal, length=512),
        "skipped_norms": partial(skipped_signal, length=64, normed=True),
        "gated_signal": partial(gated_signal, length=1024, channels=24),
    },
    "other operators": {
        "strided_slice": partial(strided_slices, side=32, axes=(3,)),
        "strided_slice_both": partial(strided_slices, side=48, axes=(3, 2)),
        "fourier": partial(fourier, images=1, side=64),
        "fourier_batch": partial(fourier, images=4, side=32),
        "fourier_steps": partial(fourier_steps, frames=62, size=32, bands=64),
        "instance_norm": partial(instance_norms, size=(64, 64), channels=(3, 16, 16)),
        "instance_norm_signal": partial(instance_norms, size=(2000,), channels=(1, 32, 32)),
        "binarised": partial(binarised, side=32, channels=16, count=3),
        "binarised_wide": partial(binarised, side=14, channels=96, count=2),
        "joined_zeros": partial(joined_zeros, side=32, stages=1),
        "joined_zeros_deep": partial(joined_zeros, side=24, stages=2),
    },
}
"""Kind -> name of a model -> function that adds it to a builder."""

MODELS: Mapping[str, Build] = {name: build for models in KINDS.values() for name, build in models.items()}
