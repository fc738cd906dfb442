"""Matrix products: with constants on crossbars, of two computed tensors on the vector unit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raptor.frontend.constant_pixels import Shape, natural_image
from raptor.frontend.formulas.contraction import Contraction, TensorFactor
from raptor.frontend.formulas.einsum_equation import parse_equation
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import (
    Dot,
    Filter,
    Floats,
    Move,
    Tensor,
)
from raptor.target.tensor_layout import Image


@importer("Gemm", since=7)
def import_gemm(node: NodeView, ctx: ImportContext) -> None:
    """alpha * A * B + beta * C, with A and B optionally transposed; each operand may be constant or computed."""
    left = ("k", "m") if _flag(node, "transA") else ("m", "k")
    right = ("n", "k") if _flag(node, "transB") else ("k", "n")
    contraction = Contraction.from_node(node, ctx, (left, right))
    a, b = _scaled(contraction.read_factor(node.inputs[0], left), contraction.read_factor(node.inputs[1], right), node)
    product = contraction.multiply(a, b, contraction.drop_unit_dims(("m", "n")))
    f, result = _result(node, ctx, _computed(product))
    if not (a.is_constant or b.is_constant):
        result = f.mul(result, node.number("alpha", 1))
    f.finish(_biased(node, f, result))


def _flag(node: NodeView, name: str) -> bool:
    value = node.integer(name, 0)
    if value not in (0, 1):  # onnxruntime looks at the low 32 bits of other values
        raise ImportRefusal(f"{name} is {value}, must be 0 or 1")
    return bool(value)


def _scaled(a: TensorFactor, b: TensorFactor, node: NodeView) -> tuple[TensorFactor, TensorFactor]:
    """Multiplies a constant factor by alpha. No copy if alpha is 1: the matrix can be most of the model."""
    alpha = node.number("alpha", 1)
    if alpha == 1 or not (a.is_constant or b.is_constant):
        return a, b
    if not isinstance(b.value, Tensor):
        return a, TensorFactor(b.names, _times(b.value, alpha))
    assert not isinstance(a.value, Tensor), "one of them is constant"
    return TensorFactor(a.names, _times(a.value, alpha)), b


def _times(values: Floats, factor: float) -> Floats:
    """Returns the scaled array; keeps zero-dimensional arrays arrays."""
    return np.asarray(values * values.dtype.type(factor))


def _biased(node: NodeView, f: FormulaBuilder, result: Value) -> Value:
    name, beta = node.input(2), node.number("beta", 1)
    if name is None or beta == 0:  # 0 times infinity would be NaN
        return result
    if f.ctx.constant(name) is None:
        return f.add(result, f.mul(f.operand(name), beta))
    bias = f.ctx.read_float32(name)
    if not bias.any():
        return result
    return f.add(result, f.constant(bias if beta == 1 else _times(bias, beta)))


@importer("MatMul", since=1)
def import_matmul(node: NodeView, ctx: ImportContext) -> None:
    """Matrix product of any rank, with broadcasting; either operand may be constant."""
    left, right = (_rank(ctx, i) for i in node.inputs)
    batch = tuple(f"b{i}" for i in range(max(left, right) - 2, 0, -1))
    names = (_matmul_names(left, batch, ("m", "k")), _matmul_names(right, batch, ("k", "n")))
    contraction = Contraction.from_node(node, ctx, names)
    a, b = (contraction.read_factor(i, n) for i, n in zip(node.inputs, names, strict=True))
    out = (*batch, *(("m",) if left > 1 else ()), *(("n",) if right > 1 else ()))
    f, result = _result(node, ctx, _computed(contraction.multiply(a, b, contraction.drop_unit_dims(out))))
    f.finish(result)


def _matmul_names(rank: int, batch: Sequence[str], matrix: tuple[str, str]) -> tuple[str, ...]:
    return ("k",) if rank == 1 else (*batch[len(batch) - (rank - 2) :], *matrix)


@importer("Einsum", since=12, limits="one operand computed at least")
def import_einsum(node: NodeView, ctx: ImportContext) -> None:
    """Any contraction, as transposition, product, transposition; with diagonals, sums and broadcasting."""
    names, out = parse_equation(node.string("equation", ""), [_rank(ctx, i) for i in node.inputs])
    contraction = Contraction.from_node(node, ctx, names)
    factors = [contraction.read_factor(i, n) for i, n in zip(node.inputs, names, strict=True)]
    wanted = contraction.drop_unit_dims(out)
    while len(factors) > 1:
        factors = _one_less(contraction, factors, wanted)
    (last,) = factors
    if set(last.names) != set(wanted):
        gone = tuple(n for n in last.names if n not in wanted)
        last = contraction.multiply(last, contraction.ones(gone), wanted)
    f, result = _result(node, ctx, contraction.permute(last.names, _computed(last), wanted))
    f.finish(result)


def _one_less(contraction: Contraction, factors: list[TensorFactor], wanted: tuple[str, ...]) -> list[TensorFactor]:
    """Replaces two factors by their product, preferably of a computed and a constant one that share a sum."""
    pairs = [(i, j) for j in range(len(factors)) for i in range(j)]
    i, j = max(pairs, key=lambda p: _preference(factors[p[0]], factors[p[1]]))
    x, y = factors[i], factors[j]
    others = [f for k, f in enumerate(factors) if k not in (i, j)]
    if not others:
        return [contraction.multiply(x, y, wanted)]
    needed = {n for f in others for n in f.names} | set(wanted)
    if x.is_constant:
        x, y = y, x
    return [contraction.multiply(x, y, _kept(x, y, needed)), *others]


def _preference(x: TensorFactor, y: TensorFactor) -> tuple[bool, bool]:
    share = bool(set(x.names) & set(y.names))
    return share and x.is_constant != y.is_constant, share


def _kept(x: TensorFactor, y: TensorFactor, needed: set[str]) -> tuple[str, ...]:
    """Returns the dimensions of a product that later products need; dimensions of `y` replace the summed ones."""
    added = tuple(n for n in y.names if n in needed and n not in x.names)
    summed = next((i for i, n in enumerate(x.names) if n not in needed), len(x.names))
    kept = tuple(n for n in x.names[summed:] if n in needed)
    return (*x.names[:summed], *added, *kept)


def _computed(factor: TensorFactor) -> Tensor:
    if not isinstance(factor.value, Tensor):
        raise ImportRefusal("all its operands are constants that the optimiser has not folded")
    return factor.value


def _rank(ctx: ImportContext, name: str) -> int:
    constant = ctx.constant(name)
    return len(ctx.tensor(name).shape) if constant is None else constant.ndim


def _result(node: NodeView, ctx: ImportContext, product: Tensor) -> tuple[FormulaBuilder, Tensor]:
    """Returns a formula of the node's output shape, and the product in this shape."""
    shape = ctx.shape(node.output)
    image = _shown(shape, product.image)
    last = ctx.nodes[-1] if ctx.nodes and product.name not in ctx.read_names else None
    if last is not None and last.output == product.name and isinstance(last.operator, Filter | Dot | Move):
        # Their results can have any image with the same pixels and channels.
        shown = ctx.tensors[product.name] = replace(product, shape=shape, image=image)
    else:
        shown = ctx.lay_out(node, product, image)
    return FormulaBuilder(node, ctx, shape, image), shown


def _shown(shape: Shape, image: Image) -> Image:
    """Returns an image with the dimensions `shape` and the same layout as `image`; if there is none, `image`."""
    axes = (natural_image(shape).channel_axis, *reversed(range(len(shape))))
    shown = (Image(shape or (1,), a) for a in axes)
    return next((i for i in shown if i.has_layout_of(image)), image)
