"""Folds a space-to-depth into the layer after it, which then reads the image with a larger kernel and stride.

A space-to-depth (TResNet, the focus layer of YOLOv5) moves every element. A layer of the image itself reads the same
elements if its kernel and stride are larger by the size of a block; it has the same weights in another order. Patches
that become tokens stay as they are: their moves follow the loads of the image, and a layer over all lines of a patch
would wait for the last line.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.graph.ir import Concat, Filter, Graph, Indices, Move, Node, Rename, Tensor
from raptor.graph.rearrangement import through_move
from raptor.graph.streaming_layout import drop_unused_moves
from raptor.target.tensor_layout import Image


@dataclass(frozen=True, slots=True, eq=False)
class _SpaceToDepth:
    """A space-to-depth: an image cut into blocks, each of which becomes one pixel of the result.

    counts, sizes: number of blocks, and pixels of a block, in each dimension of the image. places: [result channels,
    dimensions], the position in the block that a channel comes from. channels: [result channels], its image channel.
    """

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    places: Indices
    channels: Indices

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions of the image."""
        return _multiply_sizes(self.counts, self.sizes)

    def elements(self, channels: int) -> Indices:
        """Returns [blocks, result channels] -> element of an image of `channels` channels."""
        begins = np.stack(np.unravel_index(np.arange(math.prod(self.counts)), self.counts), axis=-1) * self.sizes
        places = np.moveaxis(begins[:, None] + self.places, -1, 0)
        return np.ravel_multi_index(tuple(places), self.dims) * channels + self.channels


def fold_space_to_depth(graph: Graph) -> Graph:
    """Returns the graph in which layers that read a space-to-depth of an image read the image itself."""
    made = {node.output: node for node in graph.nodes}
    nodes = tuple(_in_place(node, made, graph.tensors) for node in graph.nodes)
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return drop_unused_moves(replace(graph, nodes=nodes))


def _in_place(node: Node, made: Mapping[str, Node], tensors: Mapping[str, Tensor]) -> Node:
    """Returns the node; a layer that reads a space-to-depth becomes a layer of the image."""
    if not isinstance(node.operator, Filter) or not _is_simple(node.operator):
        return node
    source = _only_source(node.inputs[0], made)
    if source is None:
        return node
    image = tensors[source].image
    blocks = _blocks(_taken(node.inputs[0], source, made, tensors), image, node.operator.window.in_dims)
    if blocks is None:
        return node
    return replace(node, operator=_layer(node.operator, blocks, image.channels), inputs=(source,))


def _is_simple(operator: Filter) -> bool:
    """Checks whether a layer has no batch, groups, dilation, shared weights, transposed window or ReLU.

    With more taps, a ReLU in the layer would clip each of several products instead of their sum.
    """
    window = operator.window
    plain = window.batch == 1 and not window.transposed and set(window.dilations) <= {1}
    return plain and operator.groups == 1 and not operator.key and not operator.relu


def _only_source(name: str, made: Mapping[str, Node]) -> str | None:
    """Returns the only tensor whose elements moves put into the tensor `name`; None for several, or without moves."""
    sources, moves, pending = set[str](), False, [name]
    while pending and len(sources) < 2:
        name = pending.pop()
        node = made.get(name)
        if node is None or not isinstance(node.operator, Move | Rename | Concat):
            sources.add(name)
        else:
            moves = moves or isinstance(node.operator, Move)
            pending += node.inputs
    return sources.pop() if moves and len(sources) == 1 else None


def _taken(name: str, source: str, made: Mapping[str, Node], tensors: Mapping[str, Tensor]) -> Indices:
    """Returns [pixels, channels] of a tensor -> element of `source` that is moved there, or -1 for zero."""
    image = tensors[name].image
    if name == source:
        return np.arange(image.elements).reshape(image.pixels, image.channels)
    node = made[name]
    given = [_taken(each, source, made, tensors).reshape(-1) for each in node.inputs]
    match node.operator:
        case Move(sources):
            return through_move(np.concatenate(given), sources)
        case Concat():
            return np.concatenate(given)[Concat.sources([tensors[each].image for each in node.inputs])]
        case _:
            return given[0].reshape(image.pixels, image.channels)


def _blocks(taken: Indices, image: Image, counts: tuple[int, ...]) -> _SpaceToDepth | None:
    """Returns the blocks, `counts` in each dimension, if `taken` [pixels, channels] is a space-to-depth of an image.

    None if it is not, and for blocks of a single pixel or of the whole image.
    """
    dims = image.pixel_dims[-len(counts) :]
    if len(dims) < len(counts) or (math.prod(dims), math.prod(counts)) != (image.pixels, len(taken)):
        return None
    if taken.size != image.elements or len(taken) in (1, image.pixels):
        return None
    if any(size % count for size, count in zip(dims, counts, strict=True)):
        return None
    if taken.min() < 0 or len(np.unique(taken)) < taken.size:
        return None
    first: Indices = taken[0]
    sizes = tuple(d // n for d, n in zip(dims, counts, strict=True))
    places = np.stack(np.unravel_index(first // image.channels, dims), axis=-1)
    blocks = _SpaceToDepth(counts, sizes, places, first % image.channels)
    if (blocks.places >= sizes).any():
        return None
    return blocks if np.array_equal(taken, blocks.elements(image.channels)) else None


def _layer(operator: Filter, blocks: _SpaceToDepth, channels: int) -> Filter:
    """Returns the layer of the image itself, which has `channels` channels."""
    old, weights = operator.window, operator.weights
    kernel, strides, pads = (_multiply_sizes(each, blocks.sizes) for each in (old.kernel, old.strides, old.pads))
    outer = np.stack(np.unravel_index(np.arange(old.tap_count), old.kernel), axis=-1) * blocks.sizes
    places = np.moveaxis(outer[:, None] + blocks.places, -1, 0)
    rows = np.ravel_multi_index(tuple(places), kernel) * channels + blocks.channels
    turned = np.empty((rows.size, weights.shape[2]), weights.dtype)
    turned[rows.reshape(-1)] = weights.reshape(turned.shape)
    window = replace(old, in_dims=blocks.dims, kernel=kernel, strides=strides, pads=pads)
    return replace(operator, window=window, weights=turned.reshape(window.tap_count, channels, -1))


def _multiply_sizes(values: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(value * size for value, size in zip(values, sizes, strict=True))
