"""Cells of states: a state is cut where another core reads it, so that each core keeps only what it reads."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.graph.ir import Dot, Graph, Move, Node
from raptor.mapping.decision import LineFlow, SharedDot
from raptor.mapping.modes.line_streaming import Range
from raptor.spatial.lowering.cell_grid import CellGrid, LineCell, cell_name

Ints = npt.NDArray[np.int64]
_NOBODY = -1


def cut_state(graph: Graph, name: str, flow: LineFlow, grid: CellGrid) -> CellGrid:
    """Returns the lines of a state, cut where the products that read its next value have other cores.

    A pixel that no product reads, such as the oldest row of a window, belongs to the pixel after it.
    """
    readers = _find_readers(graph, name, flow)
    if (readers == _NOBODY).all():
        return grid
    lines: list[tuple[tuple[LineCell, ...], ...]] = []
    for y, line in enumerate(grid.lines):
        cols = list(_ranges(readers[y]))
        lines.append(tuple(tuple(_cut(name, y, p, cells[0], cols)) for p, cells in enumerate(line)))
    return CellGrid(grid.parts, tuple(lines))


def _cut(name: str, y: int, p: int, whole: LineCell, cols: list[Range]) -> Iterator[LineCell]:
    for own in cols:
        yield LineCell(own, structs.replace(whole.tile, name=cell_name(name, y, p, own), width=own[1] - own[0]))


def _ranges(readers: Ints) -> Iterator[Range]:
    """Yields runs of pixels of a line that one core reads."""
    known = np.flatnonzero(readers != _NOBODY)
    after = np.minimum(np.searchsorted(known, np.arange(len(readers))), max(len(known) - 1, 0))
    filled = readers[known[after]] if len(known) else readers
    ends: list[int] = np.flatnonzero(np.diff(filled)).tolist()
    first = 0
    for end in (*(end + 1 for end in ends), len(readers)):
        yield first, end
        first = end


def _find_readers(graph: Graph, name: str, flow: LineFlow) -> Ints:
    """Returns a number for the place of the product that reads each pixel of a state, [lines, pixels]."""
    image = graph.tensors[name].image
    found = np.full(image.pixels, _NOBODY)
    for node in graph.nodes:
        if isinstance(node.operator, Move) and name in node.inputs:
            places = _product_places(graph, node, flow)
            first = sum(graph.tensors[n].image.elements for n in node.inputs[: node.inputs.index(name)])
            read = node.operator.sources - first
            inside = (read >= 0) & (read < image.elements) & (places >= 0)[:, None]
            pixel = np.nonzero(inside)[0]
            found[read[inside] // image.channels] = places[pixel]
    return found.reshape(image.rows, image.width)


def _product_places(graph: Graph, made: Node, flow: LineFlow) -> Ints:
    """Returns the number of the place of a shared product that multiplies by each pixel of a tensor."""
    image = graph.tensors[made.output].image
    places = np.full((image.rows, image.width), _NOBODY)
    for node in graph.nodes:
        chosen = flow.products.get(node.output)
        if isinstance(node.operator, Dot) and node.inputs[1] == made.output and isinstance(chosen, SharedDot):
            for number, (rows, part) in enumerate((rows, part) for rows in chosen.rows for part in chosen.parts):
                places[slice(*rows), slice(*part)] = number
    return places.reshape(-1)
