"""Operands that are shorter than their operation needs them: their core fills rows with copies of them, once."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raptor.common.sorted_sets import distinct_rows
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.dataflow import Dataflow, GroupedLists
from raptor.spatial.integer_operations import Requantise, RequantiseAtOnce
from raptor.spatial.operations import Stencil, Vector
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.arch import Target
from raptor.target.timing import repeat_ns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_Shape = tuple[int, int, int]
"""Rows, width and channels."""

_Uses = tuple[Ints, Ints, Ints, Floats]
"""Uses of repeated operands as columns: compute, value, number of the shape, time in ns."""


def repeated_shape(op: BodyOp, tile: Tile) -> _Shape | None:
    """Returns the shape that an operation needs of an operand if it is larger than the operand; else None.

    Each pixel of the weights of a stencil fills a row. An operand of an element-wise function fills a row of the
    result; parameters of a requantisation have more than one element for each of the result.
    """
    if isinstance(op, Stencil) and tile is op.vectors:
        shape = tile.pixels, op.together, tile.channels
    elif isinstance(op, Vector | Requantise | RequantiseAtOnce):
        shape = 1, op.result.width, max(op.result.channels, tile.channels)
    else:
        return None
    rows, width, channels = shape
    return shape if tile.elements < rows * width * channels else None


def repetition_ns(flow: Dataflow, core: Ints, there: Ints, arch: Target) -> Floats:
    """Returns the ns in which each compute repeats operands that no compute before it has repeated on its core.

    core: of each compute. there: a number for each tile and, after these, for each constant, equal for equal contents;
    -1 for values whose copies stay on their cores between samples.
    """
    found = [*_repeated_uses(flow, arch)]
    if not found:
        return np.zeros(len(core))
    compute, value, shape, cost = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(compute, kind="stable")
    order = order[there[value[order]] >= 0]
    first = order[distinct_rows(there[value[order]], shape[order], core[compute[order]])[0]]
    return np.bincount(compute[first], cost[first], len(core)).astype(np.float64)


def _repeated_uses(flow: Dataflow, arch: Target) -> Iterator[_Uses]:
    """Yields, for each form and operand that its operations repeat, one row of columns for each such operation."""
    ops = GroupedLists.group_by(flow.op_form, np.arange(len(flow.op_form)), len(flow.forms))
    shapes: dict[_Shape, int] = {}
    for number, (op, _) in enumerate(flow.forms):
        own = ops.values[ops.first[number] : ops.first[number + 1]]
        constants = [tile for tile in op.operands if isinstance(tile, ConstantTile)]
        for tile in dict.fromkeys(op.operands):
            shape = repeated_shape(op, tile)
            if shape is None:
                continue
            if isinstance(tile, ConstantTile):
                value = len(flow.tiles) + flow.use_constant[np.searchsorted(flow.use_op, own) + constants.index(tile)]
            else:
                value = flow.read_tile[np.searchsorted(flow.read_op, own) + op.reads.index(tile)]
            rows, width, channels = shape
            ns = rows * repeat_ns(arch.with_element(tile.element), tile.elements // rows, width * channels)
            number_of_shape = np.full(len(own), shapes.setdefault(shape, len(shapes)))
            yield flow.op_compute[own], value, number_of_shape, np.full(len(own), ns)
