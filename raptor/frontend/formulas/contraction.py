"""Tensor contractions with named dimensions, shared by MatMul, Gemm and Einsum; at least one factor is computed.

A contraction becomes transpose, reshape, product, transpose (TTGT). A transposition only chooses which dimensions are
the pixels and which the channels of an image; it is free where the image has that form already. The dimensions of a
product x * y -> out are

`batch`   in x, y and out
`inner`   in x and y, summed
`rows`    in x and out
`cols`    in y and out

Dimensions of size 1 have no name: they change neither the order of elements nor the product.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas.formula import FormulaBuilder
from raptor.frontend.import_context import ImportContext
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import (
    Dot,
    Filter,
    Floats,
    Indices,
    Operator,
    Tensor,
)
from raptor.graph.rearrangement import c_order, make_move
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorFactor:
    """A tensor, or a constant array, and the names of its dimensions in order."""

    names: Names
    value: Tensor | Floats

    @property
    def is_constant(self) -> bool:
        return isinstance(self.value, np.ndarray)


@dataclass(frozen=True, slots=True)
class Contraction:
    """Adds the products of one node to the Graph. `sizes`: size of every named dimension."""

    node: NodeView
    ctx: ImportContext
    sizes: Mapping[str, int]

    @classmethod
    def from_node(cls, node: NodeView, ctx: ImportContext, names: Sequence[Sequence[str]]) -> "Contraction":
        """Makes a contraction of the node's first inputs; `names`: names of the dimensions of each.

        Size 1 is broadcast.
        """
        sizes: dict[str, int] = {}
        for name, dims in zip(node.inputs, names, strict=False):
            constant = ctx.constant(name)
            shape = ctx.tensor(name).shape if constant is None else constant.shape
            for dim, size in zip(dims, shape, strict=True):
                sizes[dim] = max(sizes.get(dim, 1), size)
        return cls(node, ctx, sizes)

    def read_factor(self, name: str, names: Sequence[str]) -> TensorFactor:
        """Returns a tensor of the model as a factor; a name that occurs twice takes the diagonal."""
        constant = self.ctx.constant(name)
        shape = self.ctx.tensor(name).shape if constant is None else constant.shape
        kept = tuple(n for n, size in zip(names, shape, strict=True) if size > 1)
        if constant is not None:
            values = self.ctx.read_float32(name).reshape([self.sizes[n] for n in kept])
            return self._diagonal_of_constant(kept, values)
        return self._diagonal(kept, self.ctx.tensor(name))

    def _diagonal_of_constant(self, names: Names, values: Floats) -> TensorFactor:
        unique = tuple(dict.fromkeys(names))
        return TensorFactor(unique, values if unique == names else einsum_arrays([(names, values)], unique))

    def _diagonal(self, names: Names, x: Tensor) -> TensorFactor:
        unique = tuple(dict.fromkeys(names))
        if unique == names:
            return TensorFactor(names, x)
        elements = einsum_arrays([(names, c_order(self.dims(names)))], unique)
        image = natural_image(self.dims(unique))
        return TensorFactor(unique, self._inner((x.name,), image, make_move([x.image], elements, image), "diagonal"))

    def drop_unit_dims(self, names: Iterable[str]) -> Names:
        """Returns the names of dimensions larger than 1."""
        return tuple(n for n in names if self.sizes[n] > 1)

    def dims(self, names: Iterable[str]) -> tuple[int, ...]:
        """Returns the sizes of named dimensions."""
        return tuple(self.sizes[n] for n in names)

    def size(self, names: Iterable[str]) -> int:
        """Returns the product of the sizes of named dimensions."""
        return math.prod(self.dims(names))

    def multiply(self, x: TensorFactor, y: TensorFactor, out: Names) -> TensorFactor:
        """Returns the product of two factors, with dimensions `out`."""
        if x.is_constant:
            x, y = y, x
        if isinstance(x.value, np.ndarray) and isinstance(y.value, np.ndarray):
            values = einsum_arrays([(x.names, x.value), (y.names, y.value)], out)
            return TensorFactor(out, np.asarray(values, np.float32))
        assert isinstance(x.value, Tensor), "one of the factors is computed"
        if isinstance(y.value, np.ndarray):
            return TensorFactor(out, self._product_with_constant(x.names, x.value, y.names, y.value, out))
        x, y = self._summed(x, {*y.names, *out}), self._summed(y, {*x.names, *out})
        return TensorFactor(out, self._computed_product(x, y, out))

    def _summed(self, x: TensorFactor, needed: set[str]) -> TensorFactor:
        """Sums the dimensions not in `needed`, by a product with ones."""
        gone = tuple(n for n in x.names if n not in needed)
        if not gone:
            return x
        return self.multiply(x, self.ones(gone), tuple(n for n in x.names if n in needed))

    def ones(self, names: Names) -> TensorFactor:
        """Returns a constant factor of ones."""
        return TensorFactor(names, np.ones(self.dims(names), np.float32))

    def _product_with_constant(self, names: Names, x: Tensor, others: Names, values: Floats, out: Names) -> Tensor:
        """Multiplies on crossbars, with one filter; a batch of matrices becomes the groups of the filter."""
        batch = tuple(n for n in names if n in others and n in out)
        rows = tuple(n for n in names if n not in others and n in out)
        inner = tuple(n for n in names if n not in out)
        cols = tuple(n for n in out if n not in names)
        # A summed dimension that only x has uses one weight for all its elements.
        shape = [self.sizes[n] if n in others else 1 for n in inner]
        shown = tuple(n for n in inner if n in others)
        ordered = einsum_arrays([(others, values)], (*shown, *batch, *cols))
        ordered = ordered.reshape((*shape, *self.dims((*batch, *cols))))
        matrix = np.broadcast_to(ordered, self.dims((*inner, *batch, *cols))).reshape(self.size(inner), -1)
        if batch and not inner:
            return self._multiplied(TensorFactor(names, x), TensorFactor((*batch, *cols), ordered), out)
        groups = self.size(batch)
        covering = None if batch or names != (*rows, *inner) else self._covering_filter(x, matrix, self.size(rows))
        if covering is not None:
            return self._result((x.name,), covering, rows, cols, out)
        left = self._arranged(names, x, rows, (*batch, *inner))
        filter_ = Filter(copy_contiguous(matrix[None]), Window.pointwise((self.size(rows),)), groups)
        return self._result((left.name,), filter_, rows, (*batch, *cols), out)

    def _covering_filter(self, x: Tensor, matrix: Floats, batch: int) -> Filter | None:
        """Returns a convolution whose kernel covers the image, if x is a flattened image (thesis, appendix B).

        Row c * pixels + p of the matrix belongs to channel c at tap p of the image (N, C, spatial...).
        """
        image = x.image
        # With one channel the kernel would need a crossbar per pixel; as channels, the pixels share crossbars.
        if len(image.shape) < 3 or (image.channel_axis, image.shape[0]) != (1, batch) or image.channels == 1:
            return None
        dims = image.shape[2:]
        ones = (1,) * len(dims)
        window = Window(dims, ones, dims, ones, (0,) * len(dims), ones, batch)
        return Filter(copy_contiguous(matrix.reshape(image.channels, window.tap_count, -1).swapaxes(0, 1)), window)

    def _computed_product(self, x: TensorFactor, y: TensorFactor, out: Names) -> Tensor:
        """Multiplies on the vector unit: one dot product per element of the result."""
        if not set(x.names) & set(y.names) - set(out):
            return self._multiplied(x, y, out)
        rows, cols = ((tuple(n for n in out if n in a.names and n not in b.names)) for a, b in ((x, y), (y, x)))
        batch = tuple(n for n in out if n in x.names and n in y.names)
        if _position(out, (*batch, *rows), cols) is None and _position(out, (*batch, *cols), rows) is not None:
            x, y, rows, cols = y, x, cols, rows
        inner = tuple(n for n in x.names if n not in out)
        assert isinstance(x.value, Tensor)
        assert isinstance(y.value, Tensor)
        left = self._arranged(x.names, x.value, (*batch, *rows), inner)
        right = self._arranged(y.names, y.value, (*batch, *cols), inner)
        dot = Dot(self.size(batch), self.size(rows), self.size(cols))
        return self._result((left.name, right.name), dot, (*batch, *rows), cols, out)

    def _multiplied(self, x: TensorFactor, y: TensorFactor, out: Names) -> Tensor:
        """Multiplies element by element, both factors broadcast; there is no sum."""
        shape = self.dims(out)
        operands = [self._aligned(v, out) for v in (x, y)]
        tensors = [o for o in operands if isinstance(o, Tensor)]
        full = [t for t in tensors if t.shape == shape]
        f = FormulaBuilder(self.node, self.ctx, shape, full[0].image if full else natural_image(shape))
        values = [f.broadcast(o) if isinstance(o, Tensor) else f.constant(o) for o in operands]
        result = f.apply("mul", *values)
        assert isinstance(result, Tensor)
        return result

    def _aligned(self, x: TensorFactor, out: Names) -> Tensor | Floats:
        order = tuple(n for n in out if n in x.names)
        shape = tuple(self.sizes[n] if n in x.names else 1 for n in out)
        if isinstance(x.value, np.ndarray):
            return einsum_arrays([(x.names, x.value)], order).reshape(shape)
        turned = self.permute(x.names, x.value, order)
        return replace(turned, shape=shape)

    def permute(self, names: Names, x: Tensor, out: Names) -> Tensor:
        """Permutes the dimensions of a tensor; no element moves if the pixels keep their order."""
        if names == out:
            return x
        shape = self.dims(out)
        image = natural_image(shape)
        if x.image.shape == self.dims(names):
            channel = names[x.image.channel_axis]
            if [n for n in names if n != channel] == [n for n in out if n != channel]:
                image = Image(shape, out.index(channel))
        return self._inner((x.name,), image, make_move([x.image], self._transposed(names, out), image), "turned")

    def _transposed(self, names: Names, out: Names) -> Indices:
        return c_order(self.dims(names)).transpose([names.index(n) for n in out])

    def _arranged(self, names: Names, x: Tensor, pixels: Names, channels: Names) -> Tensor:
        at = _position(names, pixels, channels)
        if at is not None:
            before, behind = self.size(pixels[:at]), self.size(pixels[at:])
            wanted = Image((before, self.size(channels), behind), 1)
            return x if x.image.has_layout_of(wanted) else self.ctx.lay_out(self.node, x, wanted)
        image = Image((self.size(pixels), self.size(channels)), 1)
        wanted = self._transposed(names, (*pixels, *channels))
        return self._inner((x.name,), image, make_move([x.image], wanted, image), "turned")

    def _result(self, inputs: Names, operator: Filter | Dot, pixels: Names, channels: Names, out: Names) -> Tensor:
        """Adds the product, whose pixels and channels have these dimensions; returns it with dimensions `out`."""
        at = _position(out, pixels, channels)
        if at is not None:
            return self._inner(inputs, self._shown(out, channels, at), operator, "products")
        flat = Image((self.size(pixels), self.size(channels)), 1)
        product = self._inner(inputs, flat, operator, "products")
        image = natural_image(self.dims(out))
        wanted = self._transposed((*pixels, *channels), out)
        return self._inner((product.name,), image, make_move([flat], wanted, image), "turned")

    def _shown(self, out: Names, channels: Names, at: int) -> Image:
        """Returns the image of a result of dimensions `out` whose channels are `channels`, from dimension `at` on."""
        shape = self.dims(out)
        last = at + len(channels)
        return Image((*shape[:at], self.size(channels), *shape[last:]), at)

    def _inner(self, inputs: Names, image: Image, operator: Operator, what: str) -> Tensor:
        stem = f"{self.node.output}.{what}"
        return self.ctx.emit_inner(self.node, inputs, image.shape, image, operator, stem)


def einsum_arrays(factors: Sequence[tuple[Names, Array]], out: Names) -> Array:
    """Computes `numpy.einsum` with dimension names of any length; dimensions not in `out` are summed."""
    numbers = {n: i for i, n in enumerate(dict.fromkeys(n for names, _ in factors for n in names))}
    operands = [o for names, values in factors for o in (values, [numbers[n] for n in names])]
    return np.asarray(np.einsum(*operands, [numbers[n] for n in out]))


def _position(names: Names, pixels: Names, channels: Names) -> int | None:
    """Returns the position of `channels` in `names`, if they are adjacent and the pixels in order; else None."""
    at = names.index(channels[0]) if channels else len(names)
    return at if names == (*pixels[:at], *channels, *pixels[at:]) else None
