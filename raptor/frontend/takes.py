"""Rows of a constant table by computed ids (Gather of an embedding)."""

import math

import numpy as np

from raptor.frontend.building import Builder
from raptor.frontend.constants import owned
from raptor.frontend.moves import c_order
from raptor.frontend.ranges import Range
from raptor.graph.ir import Floats, Take, Tensor
from raptor.target.layout import Image


def take(build: Builder, table: Floats, ids: Tensor, axis: int) -> Tensor:
    """Adds the slices of a table along an axis that the ids choose, in the order of ONNX's Gather."""
    before, rows, after = table.shape[:axis], table.shape[axis], table.shape[axis + 1 :]
    by_row = owned(np.moveaxis(table, axis, 0).reshape(rows, -1))
    image = Image((*(ids.shape or (1,)), by_row.shape[1]), max(len(ids.shape), 1))
    found = build.add(Take(by_row), image, _row_numbers(build, ids, rows))
    if not before:
        return found
    # Each row holds what lies before and after the axis; the ids come between them.
    wanted = c_order((math.prod(ids.shape), math.prod(before), math.prod(after))).swapaxes(0, 1)
    return build.arranged(wanted.reshape(*before, *ids.shape, *after), found)


def _row_numbers(build: Builder, ids: Tensor, rows: int) -> Tensor:
    """Returns the ids as numbers from 0 to rows - 1, one for each pixel in C order.

    The host refuses other ids in an input. Computed ids that may be negative count from the end.
    """
    found = build.ctx.narrowed(ids, Range(0, rows - 1))
    if found is None or found.low < 0:
        negative = build.map("sub", 0.0, ids)
        is_negative = build.map("sub", build.map("relu", negative), build.map("relu", build.map("sub", negative, 1.0)))
        ids = build.map("add", ids, build.map("mul", is_negative, float(rows)))
    return _in_order(build, ids)


def _in_order(build: Builder, x: Tensor) -> Tensor:
    """Returns a tensor whose elements, counted pixel by pixel, are in C order."""
    if np.array_equal(x.image.to_pixels(c_order(x.shape)).reshape(-1), np.arange(x.image.elements)):
        return x
    return build.laid(x, Image(x.shape, len(x.shape) - 1))
