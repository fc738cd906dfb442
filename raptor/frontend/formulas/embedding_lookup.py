"""Embedding lookup: Gather of a constant table by computed indices."""

import math

import numpy as np

from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import Map, Numbers, Take, Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.chip_elements import FLOAT32, integer_type
from raptor.target.tensor_layout import Image


def read_table(node: NodeView, ctx: ImportContext) -> Numbers:
    """Returns the table of a Gather as float32, or as stored integers in an integer program."""
    code, values = ctx.code_types.get(node.output), ctx.constant(node.inputs[0])
    if code is None or values is None:
        return ctx.read_float32(node.inputs[0])
    return values.astype(np.int32) - np.int32(code.offset)


def emit_lookup(build: OperatorBuilder, table: Numbers, ids: Tensor, axis: int) -> Tensor:
    """Emits the slices of a table that computed indices select along an axis, as ONNX's Gather does."""
    before, rows, after = table.shape[:axis], table.shape[axis], table.shape[axis + 1 :]
    by_row = copy_contiguous(np.moveaxis(table, axis, 0).reshape(rows, -1))
    image = Image((*(ids.shape or (1,)), by_row.shape[1]), max(len(ids.shape), 1))
    found = build.add(Take(by_row), image, _row_numbers(build, ids, rows))
    if not before:
        return found
    # Each row holds the dimensions before and after the axis; the indices go between these.
    wanted = c_order((math.prod(ids.shape), math.prod(before), math.prod(after))).swapaxes(0, 1)
    return build.rearrange(wanted.reshape(*before, *ids.shape, *after), found)


def count_from_start(build: OperatorBuilder, ids: Tensor, rows: int, reach: IntegerInterval | None) -> Tensor:
    """Returns indices of `rows` rows, integers, in which negative ones no longer count from the end.

    reach: the range of the indices; None if it is not known.
    """
    if reach is not None and reach.low >= 0:
        return ids
    negative = build.map("sub", 0.0, ids)
    is_negative = build.map("sub", build.map("relu", negative), build.map("relu", build.map("sub", negative, 1.0)))
    return build.map("add", ids, build.map("mul", is_negative, float(rows)))


def _row_numbers(build: OperatorBuilder, ids: Tensor, rows: int) -> Tensor:
    """Returns the indices as numbers from 0 to rows - 1, one per pixel in C order.

    The host rejects other values in a model input. Computed indices that may be negative count from the end.
    """
    found = build.ctx.restrict_input(ids, IntegerInterval(0, rows - 1))
    if ids.element.kind == "float":
        ids = count_from_start(build, ids, rows, found)
    return _in_order(build, _as_words(build, ids))


def _as_words(build: OperatorBuilder, ids: Tensor) -> Tensor:
    """Returns indices in a type that a register can be loaded from. Raises `ImportRefusal` for narrow integers."""
    if ids.element == FLOAT32:
        word = integer_type(32)
        stem = f"{build.node.output}.ids"
        to_word = Map("round", (0,))
        return build.ctx.emit_inner(
            build.node, (ids.name,), ids.image.shape, ids.image, to_word, stem, word, IntegerInterval.from_element(word)
        )
    if ids.element.kind == "int" and ids.element.bits < 32:
        raise ImportRefusal(f"ids of {ids.element.bits} bits; in a model with integers they must be int32 or int64")
    return ids


def _in_order(build: OperatorBuilder, x: Tensor) -> Tensor:
    """Returns a tensor whose elements, counted pixel by pixel, are in C order."""
    if np.array_equal(x.image.to_pixels(c_order(x.shape)).reshape(-1), np.arange(x.image.elements)):
        return x
    return build.lay_out(x, Image(x.shape, len(x.shape) - 1))
