"""Integer rules (`registry.rule`) for convolutions and matrix products."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.integers.affine_values import AffineTerm, AffineView
from raptor.frontend.integers.rule_steps import (
    add_offset,
    call_importer,
    find_single_term,
    import_step,
    quantise_bias,
    widen_to_type,
)
from raptor.frontend.operators.operand_checks import require_bias
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import integer_rule
from raptor.frontend.types.quant_params import Ints, QuantisedConstant, Shape
from raptor.graph.ir import Filter, Floats, Tensor
from raptor.graph.rearrangement import c_order
from raptor.graph.window import cached_input_pixels

MOST_BLOCKS = 8
"""Maximum number of blocks of scales along the summed dimension; each becomes a product of its own."""


@integer_rule("Conv", "ConvTranspose")
def convolve_codes(node: NodeView, ctx: ImportContext) -> bool:
    """Convolves quantised integers with constant ones; the zero point contributes less at the padded border."""
    weights, x = ctx.quantised_constant(node.inputs[1]), find_single_term(node, ctx, node.inputs[0])
    addend = _constant_bias(node, ctx)
    if weights is None or x is None or addend is False:
        return False
    shape = ctx.shape(node.output)
    scales = _output_scales(node, weights, shape)
    if scales is None:
        return False
    scale = np.asarray(x.scale * scales, np.float32)
    sums = _sums(node, ctx, x, weights)
    column = (1, -1, *(1,) * (len(shape) - 2))
    constant = quantise_bias(_in_column(addend, column), scale)
    if x.offset.any():
        constant = constant + x.offset * _sums_of_weights(ctx, sums, shape)
    ctx.views[node.output] = AffineView(node, shape, (AffineTerm(sums, scale, constant),), takes_bias=addend is None)
    return True


def _sums(node: NodeView, ctx: ImportContext, x: AffineTerm, weights: QuantisedConstant) -> Tensor:
    values = ctx.add_constant(f"{node.inputs[1]}.codes", _small(weights.values))
    bare = replace(node, inputs=node.inputs[:2])
    done = call_importer(bare, ctx, {node.inputs[0]: x.tensor.name, node.inputs[1]: values}, suffix="sums")
    return _with_weight_bits(ctx, done[node.output], weights)


def _small(values: np.ndarray) -> np.ndarray:
    fits = values.size == 0 or (values.min() >= -(2**15) and values.max() < 2**15)
    return values.astype(np.int16) if fits else values


def _with_weight_bits(ctx: ImportContext, result: Tensor, weights: QuantisedConstant) -> Tensor:
    """Records the bits of a weight in the filter that was added last."""
    low, high = int(weights.values.min(initial=0)), int(weights.values.max(initial=0))
    needed = max((-low - 1).bit_length() if low < 0 else 0, high.bit_length()) + 1
    at = _filter_position(ctx)
    node = ctx.nodes[at]
    assert isinstance(node.operator, Filter)
    ctx.nodes[at] = replace(node, operator=replace(node.operator, weight_bits=max(weights.bits, needed)))
    return result


def _filter_position(ctx: ImportContext) -> int:
    return max(i for i, n in enumerate(ctx.nodes) if isinstance(n.operator, Filter))


def _output_scales(node: NodeView, weights: QuantisedConstant, shape: Shape) -> Floats | None:
    """Returns the weight scales, broadcast to the output; None if they vary along another axis than its channels."""
    if weights.scale.size == 1:
        return weights.scale
    axis, groups = (0, 1) if node.op_type == "Conv" else (1, node.integer("group", 1))
    if weights.scale.size != weights.scale.shape[axis]:
        return None
    return np.tile(weights.scale.ravel(), groups).reshape(1, -1, *(1,) * (len(shape) - 2))


def _constant_bias(node: NodeView, ctx: ImportContext) -> QuantisedConstant | Floats | bool | None:
    """Returns the bias; None if absent, False if it is computed."""
    name = node.input(2)
    if name is None:
        return None
    found = ctx.quantised_constant(name) or ctx.constant(name)
    if found is None:
        return False
    require_bias(node, (found.values if isinstance(found, QuantisedConstant) else found).shape, ctx.shape(node.output))
    return found


def _in_column(
    addend: QuantisedConstant | Floats | bool | None, shape: tuple[int, ...]
) -> QuantisedConstant | Floats | None:
    if isinstance(addend, QuantisedConstant):
        scale = addend.scale if addend.scale.size == 1 else addend.scale.reshape(shape)
        return QuantisedConstant(addend.values.reshape(shape), scale, addend.bits)
    return addend.reshape(shape) if isinstance(addend, np.ndarray) else None


def _sums_of_weights(ctx: ImportContext, sums: Tensor, shape: Shape) -> Ints:
    """Returns for each output element the sum of the weights whose inputs lie inside the image."""
    operator = ctx.nodes[_filter_position(ctx)].operator
    assert isinstance(operator, Filter)
    by_tap = operator.weights.sum(axis=1, dtype=np.int64)
    inside = cached_input_pixels(operator.window) >= 0
    if inside.all():
        return by_tap.sum(axis=0).reshape(1, -1, *(1,) * (len(shape) - 2))
    # Thousands of pixels share a few padding patterns.
    patterns, which = np.unique(inside, axis=0, return_inverse=True)
    pixels = (patterns.astype(np.int64) @ by_tap)[which.reshape(-1)]
    return sums.image.from_pixels(pixels).reshape(shape)


@integer_rule("MatMul", "Gemm")
def multiply_matrices(node: NodeView, ctx: ImportContext) -> bool:
    """Multiplies quantised integers by a constant matrix, or by each other."""
    addend = _constant_bias(node, ctx)
    if addend is False or not _is_plain(node):
        return False
    constants = [ctx.quantised_constant(i) for i in node.inputs[:2]]
    return _by_constant(node, ctx, constants, addend) if any(constants) else _by_tensor(node, ctx, addend)


def _is_plain(node: NodeView) -> bool:
    return node.number("beta", 1) == 1 or node.input(2) is None


def _by_constant(
    node: NodeView,
    ctx: ImportContext,
    constants: list[QuantisedConstant | None],
    addend: QuantisedConstant | Floats | bool | None,
) -> bool:
    side = 1 if constants[1] is not None else 0
    weights, x = constants[side], find_single_term(node, ctx, node.inputs[1 - side])
    if weights is None or x is None:
        return False
    summed = _summed_axis(node, side, weights.values.ndim)
    if weights.scale.size > 1 and weights.scale.shape[summed] > 1:
        _by_blocks(node, ctx, weights, x)
        return True
    rank = len(ctx.shape(node.output))
    constant_scale = _along_output(side, weights.scale, summed, rank)
    scale = _scale_of_products(node, *((x.scale, constant_scale) if side == 1 else (constant_scale, x.scale)))
    values = ctx.add_constant(f"{node.inputs[side]}.codes", _small(weights.values))
    own = {node.inputs[1 - side]: x.tensor.name, node.inputs[side]: values}
    sums = _with_weight_bits(ctx, call_importer(_bare(node), ctx, own, suffix="sums")[node.output], weights)
    constant = quantise_bias(addend if not isinstance(addend, bool) else None, scale)
    if x.offset.any():
        total = weights.values.sum(axis=summed, keepdims=True, dtype=np.int64)
        constant = constant + x.offset * _along_output(side, total, summed, rank)
    terms = (AffineTerm(sums, scale, constant),)
    ctx.views[node.output] = AffineView(node, ctx.shape(node.output), terms, takes_bias=addend is None)
    return True


def _by_blocks(node: NodeView, ctx: ImportContext, weights: QuantisedConstant, x: AffineTerm) -> None:
    """Multiplies by a matrix whose scales vary along the summed dimension, by one product per block of equal scales."""
    rank = weights.values.ndim
    if node.input(2) or _is_transposed(node, 0) or ctx.quantised_constant(node.inputs[1]) is None or rank != 2:
        raise ImportRefusal(
            "the scales of its weights vary along the summed dimension, beside a bias or a transposition"
        )
    summed = _summed_axis(node, 1, rank)
    scale = np.moveaxis(weights.scale, summed, 0)
    starts = [0, *(np.flatnonzero((scale[1:] != scale[:-1]).any(axis=1)) + 1).tolist(), len(scale)]
    if len(starts) - 1 > MOST_BLOCKS:
        raise ImportRefusal(f"its weights have {len(starts) - 1} blocks of scales, supported are {MOST_BLOCKS}")
    elements, terms = c_order(x.tensor.shape), list[AffineTerm]()
    for start, stop in pairwise(starts):
        part = OperatorBuilder(node, ctx).rearrange(elements.take(range(start, stop), axis=-1), x.tensor)
        part = replace(part, shape=(*x.tensor.shape[:-1], stop - start))
        ctx.tensors[part.name] = part
        inputs = (
            ctx.register_tensor(f"{node.output}.x", part.shape),
            ctx.register_tensor(f"{node.output}.w", weights.values.shape),
        )
        ctx.views[inputs[0]] = AffineView(node, part.shape, (replace(x, tensor=part),))
        values = weights.values.take(range(start, stop), axis=summed)
        ctx.add_quantised(inputs[1], QuantisedConstant(values, weights.scale.take([start], axis=summed), weights.bits))
        done = ctx.views[import_step(node, ctx, node.op_type, inputs, ctx.shape(node.output), node.attributes)]
        assert isinstance(done, AffineView), "the block has one scale along the summed dimension"
        terms += done.terms
    ctx.views[node.output] = AffineView(node, ctx.shape(node.output), tuple(terms))


def _bare(node: NodeView) -> NodeView:
    kept = {k: v for k, v in node.attributes.items() if k not in ("alpha", "beta")}
    return replace(node, inputs=node.inputs[:2], attributes=kept)


def _is_transposed(node: NodeView, side: int) -> bool:
    return node.op_type == "Gemm" and bool(node.integer("transB" if side else "transA", 0))


def _summed_axis(node: NodeView, side: int, rank: int) -> int:
    """Returns the axis of the constant factor over which the product sums."""
    if rank == 1:
        return 0
    first = (side == 1) != _is_transposed(node, side)
    return rank - 2 if first else rank - 1


def _along_output(side: int, values: np.ndarray, summed: int, rank: int) -> np.ndarray:
    """Returns parameters of the constant factor, 1 along its summed axis, so that they broadcast to the product.

    rank: rank of the product, which lacks that axis where the other factor is a vector.
    """
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1:
        return values.reshape(())
    is_last = summed == values.ndim - 1
    wants_last = side == 0
    turned = values if is_last == wants_last else np.swapaxes(values, -1, -2)
    return turned if turned.ndim <= rank else turned.squeeze(-1 if side == 0 else -2)


def _by_tensor(node: NodeView, ctx: ImportContext, addend: QuantisedConstant | Floats | bool | None) -> bool:
    factors_of = [find_single_term(node, ctx, i) for i in node.inputs[:2]]
    found = [t for t in factors_of if t is not None]
    if len(found) < 2:
        return False
    scale = _scale_of_products(node, *(t.scale for t in found))
    factors = unify_types(node, ctx, [add_offset(node, ctx, t) for t in found])
    own = dict(zip(node.inputs[:2], (f.name for f in factors), strict=False))
    sums = call_importer(_bare(node), ctx, own, suffix="sums")[node.output]
    constant = quantise_bias(addend if not isinstance(addend, bool) else None, scale)
    terms = (AffineTerm(sums, scale, constant),)
    ctx.views[node.output] = AffineView(node, ctx.shape(node.output), terms, takes_bias=addend is None)
    return True


def _scale_of_products(node: NodeView, first: Floats, second: Floats) -> Floats:
    """Returns alpha * first * second, rounded to float32 in this order."""
    return np.asarray(np.asarray(np.float32(node.number("alpha", 1)) * first, np.float32) * second, np.float32)


def unify_types(node: NodeView, ctx: ImportContext, tensors: list[Tensor]) -> list[Tensor]:
    """Converts the tensors to the widest of their types."""
    widest = max((t.element for t in tensors), key=lambda e: e.bits)
    return [widen_to_type(node, ctx, t, widest) for t in tensors]
