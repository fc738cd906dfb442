"""Integer rules (`registry.rule`) for additions, multiplications, means and average pools."""

from dataclasses import replace

import numpy as np

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder, read_constant_ints
from raptor.frontend.formulas.node_windows import read_window
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.integers.affine_values import AffineTerm, AffineView, broadcast_params
from raptor.frontend.integers.lookup_tables import tabulate_node
from raptor.frontend.integers.rule_steps import (
    add_offset,
    emit_integer_map,
    find_affine_view,
    find_single_term,
    materialise_clamp,
    quantise_bias,
    widen_for_range,
)
from raptor.frontend.operators.pooling import Counts, count_taps, require_inferred_shape
from raptor.frontend.operators.quantised.layer_rules import unify_types
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import integer_rule
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.frontend.types.quant_params import Ints, QuantisedConstant
from raptor.graph.ir import Constant, ConstantTensor, Map, Pool, Tensor
from raptor.graph.rearrangement import c_order, make_move

MOST_TERMS = 8
"""Maximum number of terms of one sum; a longer one is computed in floats."""


@integer_rule("Add", "Sum", "Sub")
def add_terms(node: NodeView, ctx: ImportContext) -> bool:
    """Collects the terms of the operands in one view; they are added when the sum is quantised."""
    return _add_constant(node, ctx) or _add_views(node, ctx) or tabulate_node(node, ctx)


def _add_constant(node: NodeView, ctx: ImportContext) -> bool:
    """Adds a bias to the sums of a layer that are not quantised yet."""
    if len(node.inputs) != 2 or node.op_type == "Sub":
        return False
    x, other = node.inputs if node.inputs[0] in ctx.views else node.inputs[::-1]
    view, value = find_affine_view(ctx, x), ctx.quantised_constant(other) or ctx.constant(other)
    if view is None or value is None or not view.takes_bias or view.shape != ctx.shape(node.output):
        return False
    (term,) = view.terms
    offset = term.offset + quantise_bias(value, term.scale)
    ctx.views[node.output] = replace(view, node=node, terms=(replace(term, offset=offset),), takes_bias=False)
    return True


def _add_views(node: NodeView, ctx: ImportContext) -> bool:
    shape = ctx.shape(node.output)
    terms: list[AffineTerm] = []
    for position, name in enumerate(node.inputs):
        found = _terms(node, ctx, name)
        if found is None:
            return False
        negative = node.op_type == "Sub" and position == 1
        terms += [_negated(node, ctx, t) for t in found] if negative else found
    if len(terms) > MOST_TERMS:
        return False
    ctx.views[node.output] = AffineView(node, shape, tuple(_aligned(t, len(shape)) for t in terms))
    return True


def _terms(node: NodeView, ctx: ImportContext, name: str) -> list[AffineTerm] | None:
    value = ctx.quantised_constant(name)
    if value is not None:
        return [_constant_term(node, ctx, value)]
    view = materialise_clamp(node, ctx, name)
    return None if view is None else list(view.terms)


def _constant_term(node: NodeView, ctx: ImportContext, value: QuantisedConstant) -> AffineTerm:
    image = natural_image(value.values.shape)
    pixels = image.to_pixels(value.values)
    small = pixels.astype(np.int16) if abs(pixels).max() < 2**15 else pixels.astype(np.int32)
    operator = ConstantTensor(np.ascontiguousarray(small))
    tensor = ctx.emit_inner(node, (), value.values.shape, image, operator, f"{node.output}.constant")
    return AffineTerm(tensor, value.scale, np.zeros((), np.int64))


def _negated(node: NodeView, ctx: ImportContext, term: AffineTerm) -> AffineTerm:
    """Negates the integers of a term, because multipliers are positive."""
    low, high = ctx.code_range(term.tensor)
    wide = widen_for_range(node, ctx, term.tensor, IntegerInterval(-high, -low))
    return replace(term, tensor=emit_integer_map(node, ctx, "sub", wide, 0), offset=-term.offset)


def _aligned(term: AffineTerm, rank: int) -> AffineTerm:
    """Gives the parameters of a term the rank of the result."""
    return replace(
        term,
        scale=_of_rank(term.scale, rank),
        offset=_of_rank(term.offset, rank),
        count=_of_rank(term.count, rank),
    )


def _of_rank(values: np.ndarray, rank: int) -> np.ndarray:
    return values if values.ndim == 0 else values.reshape((1,) * (rank - values.ndim) + values.shape)


@integer_rule("Mul")
def multiply_codes(node: NodeView, ctx: ImportContext) -> bool:
    """Multiplies integers after adding their offsets, or tabulates the product."""
    return _multiply(node, ctx) or tabulate_node(node, ctx)


def _multiply(node: NodeView, ctx: ImportContext) -> bool:
    if len(node.inputs) != 2:
        return False
    shape = ctx.shape(node.output)
    constants = [ctx.quantised_constant(i) for i in node.inputs]
    terms = [find_single_term(node, ctx, i) for i in node.inputs]
    if any(t is None and c is None for t, c in zip(terms, constants, strict=True)):
        return False
    scales = [v.scale for t, c in zip(terms, constants, strict=True) if (v := c if c is not None else t)]
    scale = _of_rank(np.asarray(scales[0] * scales[1], np.float32), len(shape))
    tensors = [_broadcast(node, ctx, add_offset(node, ctx, t), shape) for t in terms if t is not None]
    image = tensors[0].image
    if len(tensors) == 2:
        left, right = unify_types(node, ctx, [tensors[0], ctx.lay_out(node, tensors[1], image)])
        same = left.name == right.name
        product = _product(node, ctx, (left,) if same else (left, right), Map("mul", (0, 0 if same else 1)), shape)
    else:
        (value,) = (c for c in constants if c is not None)
        wide = widen_for_range(node, ctx, tensors[0], IntegerInterval(int(value.values.min()), int(value.values.max())))
        dtype = np.int16 if wide.element.bits <= 16 else np.int32
        pixels = broadcast_params(value.values.astype(dtype), shape, image)
        product = _product(node, ctx, (wide,), Map("mul", (0, Constant(pixels))), shape)
    ctx.views[node.output] = AffineView(node, shape, (AffineTerm(product, scale, np.zeros((), np.int64)),))
    return True


def _product(
    node: NodeView, ctx: ImportContext, inputs: tuple[Tensor, ...], operator: Map, shape: tuple[int, ...]
) -> Tensor:
    names = [t.name for t in inputs]
    return ctx.emit_inner(node, names, shape, inputs[0].image, operator, f"{node.output}.product")


def _broadcast(node: NodeView, ctx: ImportContext, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tensor.shape == shape:
        return tensor
    image = natural_image(shape)
    wanted = np.broadcast_to(c_order(tensor.shape), shape)
    moved = make_move([tensor.image], wanted, image)
    return ctx.emit_inner(node, (tensor.name,), shape, image, moved, f"{tensor.name}.expanded")


@integer_rule("AveragePool")
def sum_windows(node: NodeView, ctx: ImportContext) -> bool:
    """Sums the integers of a window; they are divided when the mean is quantised."""
    term = find_single_term(node, ctx, node.inputs[0])
    if term is None:
        return False
    build, shape = OperatorBuilder(node, ctx), ctx.shape(node.output)
    image = natural_image(term.tensor.shape)
    padded = read_window(node, image, node.ints("kernel_shape"))
    require_inferred_shape(node, ctx, padded.window)
    counts, inside = count_taps(node, padded)
    x = build.lay_out(_summable(node, ctx, term.tensor, padded.window.tap_count), image)
    total = ctx.emit_inner(
        node, (x.name,), shape, natural_image(shape), Pool("sum", padded.window), f"{node.output}.sums"
    )
    done = AffineTerm(total, term.scale, _smallest(term.offset * inside), _smallest(counts))
    ctx.views[node.output] = AffineView(node, shape, (done,))
    return True


def _smallest(counts: Counts) -> Ints:
    """Returns numbers per output pixel in a shape that broadcasts to (N, C, spatial...)."""
    same = (counts == counts.flat[0]).all()
    return np.asarray(counts.flat[0], np.int64) if same else counts.astype(np.int64)[None, None]


def _summable(node: NodeView, ctx: ImportContext, tensor: Tensor, count: int) -> Tensor:
    low, high = ctx.code_range(tensor)
    return widen_for_range(node, ctx, tensor, IntegerInterval(low * count, high * count).with_zero())


@integer_rule("GlobalAveragePool", "ReduceMean", "ReduceSum")
def sum_axes(node: NodeView, ctx: ImportContext) -> bool:
    """Sums the integers along axes; they are divided when the mean is quantised."""
    term = find_single_term(node, ctx, node.inputs[0])
    if term is None:
        return False
    rank = len(term.tensor.shape)
    chosen = tuple(range(2, rank)) if node.op_type == "GlobalAveragePool" else _axes(node, ctx, rank)
    count = int(np.prod([term.tensor.shape[a] for a in chosen]))
    name, shape = ctx.register_tensor(f"{node.output}.sums", ctx.shape(node.output)), ctx.shape(node.output)
    build = OperatorBuilder(replace(node, outputs=(name,)), ctx)
    seen = reductions.lay_out_reduction(build, _summable(node, ctx, term.tensor, count), chosen)
    build.finish(reductions.emit_reduction(build, seen, "sum"))
    mean = np.asarray(1 if node.op_type == "ReduceSum" else count, np.int64)
    done = AffineTerm(ctx.tensors[name], term.scale, term.offset * count, mean)
    ctx.views[node.output] = AffineView(node, shape, (done,))
    return True


def _axes(node: NodeView, ctx: ImportContext, rank: int) -> tuple[int, ...]:
    given = read_constant_ints(node, ctx, 1, "axes")
    if given is None:
        return () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not -rank <= a < rank for a in given):
        raise ImportRefusal(f"axes {given} of {rank} dimensions")
    return tuple(a % rank for a in given)
