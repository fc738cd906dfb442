"""Builder of operator chains that together compute the outputs of one ONNX node."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import Shape, broadcast_constant, make_scalar_pixels, natural_image
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.nodes import NodeView
from raptor.graph.constant_arrays import copy_contiguous, drop_repetitions
from raptor.graph.ir import (
    Concat,
    Constant,
    ConstantTensor,
    Filter,
    Floats,
    Indices,
    Map,
    MapFunction,
    Move,
    Operator,
    Rename,
    Softmax,
    Tensor,
)
from raptor.graph.rearrangement import c_order, make_moves
from raptor.graph.window import Window
from raptor.target.chip_elements import MODELLED_FLOAT
from raptor.target.tensor_layout import Image

_BITS = 8
"""Weight bits of the matrices of ones with which channels are summed."""


@dataclass(frozen=True, slots=True)
class OperatorBuilder:
    """Adds operators with results that the ONNX model does not have; `finish` makes the last one a node output."""

    node: NodeView
    ctx: ImportContext

    def operand(self, name: str) -> Tensor:
        """Returns an input of the node as a tensor; a constant input becomes a `ConstantTensor`."""
        value = self.ctx.constant(name)
        if value is None:
            return self.ctx.tensor(name)
        value = self.ctx.read_float32(name)
        image = natural_image(value.shape)
        pixels = copy_contiguous(image.to_pixels(value))
        stem = f"{self.node.output}.{name}"
        return self.ctx.emit_inner(self.node, (), value.shape, image, ConstantTensor(pixels), stem)

    def natural_operand(self, name: str) -> Tensor:
        """Returns an input laid out with its channels on axis 1, as ONNX defines it."""
        tensor = self.ctx.tensor(name)
        return self.lay_out(tensor, natural_image(tensor.shape))

    def lay_out(self, tensor: Tensor, image: Image) -> Tensor:
        """Returns the tensor in the layout `image` (see `ImportContext.lay_out`)."""
        return self.ctx.lay_out(self.node, tensor, image)

    def add(self, operator: Operator, image: Image, *inputs: Tensor) -> Tensor:
        """Adds an operator with a new result, whose shape is the shape of `image`."""
        stem = f"{self.node.output}.{_stem(operator)}"
        return self.ctx.emit_inner(self.node, [i.name for i in inputs], image.shape, image, operator, stem)

    def map(self, function: MapFunction, *operands: Tensor | Constant | float) -> Tensor:
        """Adds an element-wise function of tensors of one image (or one pixel, broadcast), constants and numbers."""
        tensors = list(dict.fromkeys(o for o in operands if isinstance(o, Tensor)))
        image = max((t.image for t in tensors), key=lambda i: i.pixels)
        chosen = (tensors.index(o) if isinstance(o, Tensor) else _constant(o) for o in operands)
        return self.add(Map(function, tuple(chosen)), image, *tensors)

    def absolute(self, x: Tensor) -> Tensor:
        """Emits |x| = max(x, 0 - x)."""
        return self.map("max", x, self.map("sub", 0.0, x))

    def multiply_by_matrix(self, x: Tensor, weights: Floats) -> Tensor:
        """Multiplies every pixel by a constant matrix [channels, new channels], which must not be a view of a file."""
        axis = x.image.channel_axis
        image = Image((*x.image.shape[:axis], weights.shape[1], *x.image.shape[axis + 1 :]), axis)
        bits = _BITS if x.element.kind == "int" else 0
        values = np.asarray(weights, np.int16 if bits else np.float32)[None]
        return self.add(Filter(values, Window.pointwise(x.image.pixel_dims or (1,)), weight_bits=bits), image, x)

    def has_crossbars(self, x: Tensor) -> bool:
        """Checks whether crossbars can multiply this tensor: in an integer model they multiply integers only."""
        return x.element.kind == "int" or x.element == MODELLED_FLOAT

    def constant(self, array: Floats, shape: Shape, image: Image) -> Constant:
        """Returns a constant operand that broadcasts to a result of `shape`, as small as the image allows."""
        return Constant(drop_repetitions(broadcast_constant(array, shape, image)))

    def rearrange(self, wanted: npt.NDArray[np.integer], *sources: Tensor, is_image: bool = False) -> Tensor:
        """Emits a rearrangement: element i of the result is element `wanted[i]` of the sources, 0 where that is -1.

        Elements of the sources are numbered in C order, source after source. The image of the result is the cheapest
        one: a `Rename` if possible, else the layout with the longest runs of consecutive elements. is_image: the
        operator makes images of its operand, so that what follows has its channels on axis 1; no other layout is taken.
        """
        images = [s.image for s in sources]
        if np.array_equal(wanted.reshape(-1), np.arange(images[0].elements)):
            image = natural_image(wanted.shape)
            image = image if image.has_layout_of(images[0]) else images[0]
            return self.add(Rename(), image, sources[0])
        # On ties ONNX's own layout is taken, so that later nodes need not move the channels again.
        natural = natural_image(wanted.shape)
        others = (Image(natural.shape, axis) for axis in range(len(natural.shape)) if axis != natural.channel_axis)
        candidates = [natural] if is_image else [natural, *others]
        moves = make_moves(images, wanted, candidates)
        image, chosen = min(zip(candidates, moves, strict=True), key=lambda c: _breaks(c[1]))
        return self.add(chosen, image, *sources)

    def finish(self, tensor: Tensor, output: str | None = None) -> None:
        """Makes `tensor` an output of the node, by default the first, with that output's shape."""
        ctx, name = self.ctx, output or self.node.output
        operator, inputs = ctx.pop_operator(tensor)
        natural = natural_image(ctx.shape(name))
        counts_pixels = isinstance(operator, Map | Softmax | Concat | ConstantTensor)
        renamable = not counts_pixels and natural.has_layout_of(tensor.image)
        ctx.emit(self.node, inputs, natural if renamable else tensor.image, operator, name)


def read_constant_ints(node: NodeView, ctx: ImportContext, position: int, name: str = "") -> tuple[int, ...] | None:
    """Returns integers given by an input or, in older versions, by attribute `name`; None if absent.

    Raises `NeedsConstantError` if the input is computed.
    """
    given = node.input(position)
    if given is None:
        return node.ints(name) if name in node.attributes else None
    value = ctx.constant(given)
    if value is None:
        raise NeedsConstantError(given)
    return tuple(map(int, value.ravel()))


def read_axis(node: NodeView, rank: int, default: int) -> int:
    """Returns the attribute `axis` as a non-negative number. Raises `ImportRefusal` if it is out of range."""
    axis = node.integer("axis", default)
    if not -rank <= axis < rank:
        raise ImportRefusal(f"axis {axis} of {rank} dimensions")
    return axis % rank


def number_elements(tensors: list[Tensor]) -> list[Indices]:
    """Returns for each tensor an array of its shape with the numbers of its elements, counted over all tensors."""
    firsts = np.cumsum([0, *(math.prod(t.shape) for t in tensors)])
    return [c_order(t.shape, int(first)) for t, first in zip(tensors, firsts, strict=False)]


def _breaks(operator: Move) -> int:
    """Counts the places where consecutive elements of the result are not consecutive in a source.

    Elements a fixed stride apart would be one instruction, too, but lead to images of few channels.
    """
    flat = operator.sources.reshape(-1)
    together = (np.diff(flat) == 1) | ((flat[1:] == -1) & (flat[:-1] == -1))
    return int(np.count_nonzero(~together))


def _constant(value: Constant | float) -> Constant:
    return value if isinstance(value, Constant) else Constant(make_scalar_pixels(value))


def _stem(operator: Operator) -> str:
    if isinstance(operator, Map):
        return operator.function
    return {"Filter": "products", "Pool": "pooled"}.get(type(operator).__name__, type(operator).__name__.lower())
