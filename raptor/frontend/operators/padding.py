"""Padding with a constant or with elements of the input."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.frontend.formulas.builder import OperatorBuilder, read_constant_ints
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import ConstantTensor, Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.tensor_layout import Image

Pads = list[tuple[int, int]]
_MODES: dict[str, Literal["reflect", "edge", "wrap"]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@importer("Pad", since=2)
def import_pad(node: NodeView, ctx: ImportContext) -> None:
    """Padding by a constant, reflection, edge or wrap, amounts given by attributes; negative amounts crop."""
    _lower(node, ctx, node.ints("pads"), None, node.number("value", 0.0))


@importer("Pad", since=11, limits="constant pads and value")
def import_pad_of_inputs(node: NodeView, ctx: ImportContext) -> None:
    """Padding by a constant, reflection, edge or wrap, amounts given by inputs; negative amounts crop."""
    value = node.input(2)
    number = 0.0 if value is None else _number(ctx, value)
    _lower(node, ctx, read_constant_ints(node, ctx, 1) or (), read_constant_ints(node, ctx, 3), number)


def _lower(
    node: NodeView, ctx: ImportContext, given: tuple[int, ...], axes: tuple[int, ...] | None, value: float
) -> None:
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    pads = _pads(given, axes, len(x.shape))
    mode = node.string("mode", "constant")
    inner = _cropped(c_order(x.shape), pads)
    around = [(max(a, 0), max(b, 0)) for a, b in pads]
    wanted = _padded(inner, around, mode)
    if x.element.kind == "int":
        build.finish(_filled(build, x, wanted, int(value) - (x.coding.offset if x.coding else 0)))
        return
    result = build.rearrange(wanted, x)
    if value != 0 and (wanted < 0).any():
        # An element plus -0 is the element, also if it is -0.
        outside = np.where(wanted < 0, np.float32(value), np.float32(-0.0))
        result = build.map("add", result, build.constant(outside, wanted.shape, result.image))
    build.finish(result)


def _number(ctx: ImportContext, name: str) -> float:
    value = ctx.constant(name)
    whole = value is not None and value.dtype.kind in "iu"
    return float(value.item() if whole and value is not None else ctx.read_float32(name).item())


def _filled(build: OperatorBuilder, x: Tensor, wanted: npt.NDArray[np.int64], value: int) -> Tensor:
    if value == 0 or (wanted >= 0).all():
        return build.rearrange(wanted, x)
    one = Image((1,), 0)
    constant = ConstantTensor(np.full((1, 1, 1), value, np.int16))
    stem = f"{build.node.output}.filling"
    filling = build.ctx.emit_inner(build.node, (), (1,), one, constant, stem, x.element, IntegerInterval(value, value))
    return build.rearrange(np.where(wanted < 0, x.image.elements, wanted), x, filling)


def _pads(given: tuple[int, ...], axes: tuple[int, ...] | None, rank: int) -> Pads:
    pads: Pads = [(0, 0)] * rank
    half = len(given) // 2
    for axis, before, behind in zip(axes or range(rank), given[:half], given[half:], strict=True):
        pads[axis] = before, behind
    return pads


def _cropped(array: npt.NDArray[np.int64], pads: Pads) -> npt.NDArray[np.int64]:
    return array[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(array.shape, pads, strict=True))]


def _padded(inner: npt.NDArray[np.int64], around: Pads, mode: str) -> npt.NDArray[np.int64]:
    if mode == "constant":
        return np.pad(inner, around, constant_values=-1)
    if mode not in _MODES:
        raise ImportRefusal(f"mode {mode} is unknown")
    if math.prod(inner.shape) == 0:
        raise ImportRefusal("negative pads leave nothing to repeat")
    return np.pad(inner, around, _MODES[mode])
