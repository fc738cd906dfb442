"""Turns images of one column into images of one line: [N, C, H, 1] has the pixels of [N, C, 1, H] in the same order.

Networks for images also compute sequences, as images of width 1. Cores share the columns of a line, so such an image
would be work for one core, line after line. No element moves.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import (
    Bound,
    ChannelSum,
    Concat,
    Constant,
    Filter,
    Graph,
    Lookup,
    Map,
    Move,
    Node,
    Numbers,
    Operator,
    Pool,
    Rename,
    Softmax,
    Stencil,
)
from raptor.graph.requantise.definition import Requantise
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.graph.streaming_layout import MOST_LINES, is_token_layout
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image

Array = npt.NDArray[Any]

_WINDOW_FIELDS = ("in_dims", "out_dims", "kernel", "strides", "pads", "dilations")


def turn_columns(graph: Graph) -> Graph:
    """Returns the graph with its images of one column as images of one line, each with all that must be like it."""
    columns = {name for name, tensor in graph.tensors.items() if _is_column(tensor.image)}
    alike, kept = DisjointSets(), set[str]()
    for node in graph.nodes if columns else ():
        names = [name for name in (*node.inputs, node.output) if name in columns]
        for name in names[1:]:
            alike.union(names[0], name)
        if not _can_turn(node, graph, columns):
            kept.update(names)
    kept = {alike.find(name) for name in kept}
    turned = {name for name in columns if alike.find(name) not in kept}
    if not turned:
        return graph
    tensors = {n: replace(t, image=_turned(t.image)) if n in turned else t for n, t in graph.tensors.items()}
    nodes = (
        replace(node, operator=_turned_operator(node.operator, tensors[node.output].image))
        if turned & {*node.inputs, node.output}
        else node
        for node in graph.nodes
    )
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def _is_column(image: Image) -> bool:
    """Checks whether an image, channels first or of tokens, has several lines of one pixel."""
    if is_token_layout(image):
        return image.rows > 1 and image.width == 1
    behind = image.shape[image.channel_axis + 1 :]
    return image.channel_axis <= 1 and len(behind) > 1 and behind[-1] == 1 and behind[-2] > 1


def _turned(image: Image) -> Image:
    if is_token_layout(image):
        return Image((image.width, image.rows, image.channels), image.channel_axis)
    *before, height, width = image.shape
    return Image((*before, width, height), image.channel_axis)


def _can_turn(node: Node, graph: Graph, columns: Container[str]) -> bool:
    """Checks whether a node can compute with turned `columns`: its other tensors have one pixel, or need no layout.

    A line that is made of many lines of another tensor could not stream.
    """
    operator, images = node.operator, {n: graph.tensors[n].image for n in (*node.inputs, node.output)}
    others = [image for name, image in images.items() if name not in columns and image.pixels > 1]
    match operator:
        case Filter(window=window) | Pool(window=window) | Stencil(window=window):
            varies = isinstance(operator, Stencil) and operator.weights.shape[0] > 1
            return isinstance(window, Window) and len(window.kernel) > 1 and not others and not varies
        case Map() | Requantise() | Bound() | Lookup() | Concat() | Softmax() | ChannelSum():
            return not others
        case Move() | Rename():
            return all(image.rows <= MOST_LINES for image in others)
        case _:
            return False


def _turned_operator(operator: Operator, image: Image) -> Operator:
    """Returns the operator for turned images. `image`: of its result."""
    match operator:
        case Filter(weights=weights, window=Window() as window):
            return replace(operator, weights=_turned_taps(weights, 0, window), window=_turned_window(window))
        case Stencil(weights=weights, window=Window() as window):
            return replace(operator, weights=_turned_taps(weights, 1, window), window=_turned_window(window))
        case Pool(window=window):
            return replace(operator, window=_turned_window(window))
        case Requantise():
            return _turned_requantise(operator, image)
        case Map(operands=operands):
            changed = (o if isinstance(o, int) else Constant(_turned_constants(o.pixels, image)) for o in operands)
            return replace(operator, operands=tuple(changed))
        case _:
            return operator


def _turned_constants(pixels: Array, image: Image) -> Array:
    """Returns constants [rows or 1, 1, channels or 1] for the turned image."""
    return pixels if len(pixels) == 1 else pixels.reshape(image.rows, image.width, -1)


def _turned_requantise(operator: Requantise, image: Image) -> Requantise:
    """Returns a requantisation whose parameters differ by column instead of by row."""

    def turned(constants: Array) -> Array:
        return constants if len(constants) == 1 else _turned_constants(constants[operator.row_class], image)

    terms = [replace(t, multiplier=turned(t.multiplier), offset=turned(t.offset)) for t in operator.terms]
    recipe = operator.recipe
    if isinstance(recipe, RequantiseRecipe):
        steps = (s if isinstance(s.right, int) else replace(s, right=turned(s.right)) for s in recipe.steps)
        recipe = replace(recipe, steps=tuple(steps))
    elif recipe is not None:
        recipe = replace(recipe, bias=turned(recipe.bias), factor=turned(recipe.factor), shift=turned(recipe.shift))
    return replace(operator, terms=tuple(terms), row_class=np.arange(image.rows), recipe=recipe)


def _turned_window(window: Window) -> Window:
    """Returns the window with its last two dimensions exchanged."""
    fields = {name: getattr(window, name) for name in _WINDOW_FIELDS}
    return replace(window, **{name: (*sizes[:-2], sizes[-1], sizes[-2]) for name, sizes in fields.items()})


def _turned_taps(weights: Numbers, axis: int, window: Window) -> Numbers:
    """Returns weights whose kernel positions, along `axis`, are in the order of the turned window."""
    split = weights.reshape(*weights.shape[:axis], *window.kernel, *weights.shape[axis + 1 :])
    last = axis + len(window.kernel) - 1
    return np.ascontiguousarray(split.swapaxes(last - 1, last)).reshape(weights.shape)
