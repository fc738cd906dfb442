"""Operators on turned images, whose rows are the columns of the image before."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Filter,
    Graph,
    Indices,
    Map,
    Move,
    Node,
    Numbers,
    Operator,
    Pool,
    Rename,
    Stencil,
)
from raptor.graph.requantise.definition import Requantise
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.graph.window import Window, WindowTable
from raptor.target.tensor_layout import Image

Array = npt.NDArray[Any]

_WINDOW_FIELDS = ("in_dims", "out_dims", "kernel", "strides", "pads", "dilations")


def find_turnable_sets(
    graph: Graph, images: Collection[str], can_turn: Callable[[Node], bool], kept: Iterable[str] = ()
) -> list[list[str]]:
    """Returns the sets of `images` that can be turned together, because their nodes join them to one another.

    can_turn: checks whether a node can compute with turned images. Sets with one of the tensors `kept` are left out.
    """
    alike, kept = DisjointSets(), {*kept}
    for node in graph.nodes if images else ():
        names = [name for name in (*node.inputs, node.output) if name in images]
        for name in names[1:]:
            alike.union(names[0], name)
        if not can_turn(node):
            kept.update(names)
    groups: dict[str, list[str]] = {}
    for name in images:
        groups.setdefault(alike.find(name), []).append(name)
    return [names for names in groups.values() if kept.isdisjoint(names)]


def turn_tensors(graph: Graph, images: Mapping[str, Image]) -> Graph:
    """Returns a graph in which some tensors have turned images. `images`: by name."""
    tensors = {n: replace(t, image=images[n]) if n in images else t for n, t in graph.tensors.items()}

    def turned(node: Node) -> Node:
        names = *node.inputs, node.output
        before, after = ([tensors_of[name].image for name in names] for tensors_of in (graph.tensors, tensors))
        operator = turn_operator(node.operator, before, after)
        return node if operator is node.operator else replace(node, operator=operator)

    nodes = (turned(node) if images.keys() & {*node.inputs, node.output} else node for node in graph.nodes)
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def turn_operator(operator: Operator, before: Sequence[Image], after: Sequence[Image]) -> Operator:
    """Returns an operator for turned images.

    before, after: the images of its operands and, last, of its result. Those that differ are turned. A `Rename` becomes
    a `Move` if the order of the pixels changes.
    """
    match operator:
        case Filter() | Pool() | Stencil():
            return _turn_window_of(operator, before, after)
        case ConstantTensor(pixels=pixels):
            return ConstantTensor(_turn_pixels(pixels, before[-1], after[-1]))
        case Requantise():
            return _turn_requantise(operator, before[-1], after[-1])
        case Map(operands=operands):
            constants = {o: _turn_pixels(o.pixels, before[-1], after[-1]) for o in operands if isinstance(o, Constant)}
            return replace(
                operator, operands=tuple(o if isinstance(o, int) else Constant(constants[o]) for o in operands)
            )
        case Move(sources=sources):
            return Move(_turn_sources(sources, before, after))
        case Rename():
            (given, made), channels = before, before[-1].channels
            sources = _turn_sources(np.arange(given.elements).reshape(made.pixels, channels), before, after)
            in_place = np.array_equal(sources.reshape(-1), np.arange(given.elements))
            return operator if in_place else Move(sources)
        case _:
            return operator


def _turn_window_of(operator: Filter | Pool | Stencil, before: Sequence[Image], after: Sequence[Image]) -> Operator:
    """Returns an operator with a turned window, and with weights in its order."""
    if isinstance(operator, Stencil):
        varies = operator.weights.shape[0] > 1
        weights = operator.weights[_old_pixels(before[-1], after[-1])] if varies else operator.weights
        if isinstance(operator.window, WindowTable):
            return Stencil(weights, _turn_table(operator.window, before, after))
        return Stencil(_turn_taps(weights, 1, operator.window), _turn_window(operator.window))
    window = _turn_window(operator.window)
    if isinstance(operator, Pool):
        return replace(operator, window=window)
    return replace(operator, weights=_turn_taps(operator.weights, 0, operator.window), window=window)


def _renumber(before: Image, after: Image) -> Indices:
    """Returns the number after, pixel by pixel, of each element by its number before."""
    elements = np.arange(before.elements)
    numbers = np.empty_like(elements)
    numbers[after.to_pixels(elements).reshape(-1)] = elements
    return numbers[before.to_pixels(elements).reshape(-1)]


def _old_pixels(before: Image, after: Image) -> Indices:
    """Returns the number before of each pixel after."""
    return np.argsort(_renumber(before, after)[:: before.channels])


def _turn_sources(sources: Indices, before: Sequence[Image], after: Sequence[Image]) -> Indices:
    """Returns the sources of a `Move` between images of which some have other layouts after than before."""
    numbers, first = list[Indices](), 0
    for old, new in zip(before[:-1], after[:-1], strict=True):
        numbers.append(_renumber(old, new) + first)
        first += old.elements
    turned = np.empty(after[-1].elements, np.int64)
    turned[_renumber(before[-1], after[-1])] = np.concatenate([*numbers, [-1]])[sources.reshape(-1)]
    return turned.reshape(after[-1].pixels, after[-1].channels)


def _turn_table(table: WindowTable, before: Sequence[Image], after: Sequence[Image]) -> WindowTable:
    """Returns the table of pixels that each turned pixel reads."""
    place = np.empty(before[0].pixels + 1, np.int64)
    place[_old_pixels(before[0], after[0])] = np.arange(before[0].pixels)
    place[-1] = -1
    pixels = place[table.pixels[_old_pixels(before[1], after[1])]]
    return WindowTable(pixels.astype(table.pixels.dtype), table.in_pixels)


def _turn_pixels(pixels: Array, before: Image, after: Image) -> Array:
    """Returns values [rows or 1, width or 1, ...] of an image for the turned image.

    Only the last two dimensions of the pixels are exchanged: rows of several images stay apart.
    """
    rows, width, *rest = pixels.shape
    images = after.rows // before.width if rows > 1 else 1
    split = pixels.reshape(images, -1, width, *rest).swapaxes(1, 2)
    return np.ascontiguousarray(split).reshape(images * width, -1, *rest)


def _turn_requantise(operator: Requantise, before: Image, after: Image) -> Requantise:
    """Returns a requantisation whose parameters differ by column where they did by row, and by row if by column."""

    def turned(constants: Array) -> Array:
        constants = constants if len(constants) == 1 else constants[operator.row_class]
        return _turn_pixels(constants, before, after)

    terms = [replace(t, multiplier=turned(t.multiplier), offset=turned(t.offset)) for t in operator.terms]
    recipe = operator.recipe
    if isinstance(recipe, RequantiseRecipe):
        steps = (s if isinstance(s.right, int) else replace(s, right=turned(s.right)) for s in recipe.steps)
        recipe = replace(recipe, steps=tuple(steps))
    elif recipe is not None:
        recipe = replace(recipe, bias=turned(recipe.bias), factor=turned(recipe.factor), shift=turned(recipe.shift))
    return replace(operator, terms=tuple(terms), row_class=np.arange(after.rows), recipe=recipe)


def _turn_window(window: Window) -> Window:
    """Returns the window with its last two dimensions exchanged."""
    fields = {name: getattr(window, name) for name in _WINDOW_FIELDS}
    return replace(window, **{name: (*sizes[:-2], sizes[-1], sizes[-2]) for name, sizes in fields.items()})


def _turn_taps(weights: Numbers, axis: int, window: Window) -> Numbers:
    """Returns weights whose kernel positions, along `axis`, are in the order of the turned window."""
    split = weights.reshape(*weights.shape[:axis], *window.kernel, *weights.shape[axis + 1 :])
    last = axis + len(window.kernel) - 1
    return np.ascontiguousarray(split.swapaxes(last - 1, last)).reshape(weights.shape)
