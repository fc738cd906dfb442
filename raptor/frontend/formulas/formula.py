"""Builder of element-wise formulas as chains of `Map`s, with numpy broadcasting of computed and constant operands."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import Shape, broadcast_constant, make_scalar_pixels, natural_image
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.types.float32_integers import BoundRefusal, find_type_limits, is_integer_type, is_within
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.constant_arrays import copy_contiguous, drop_repetitions
from raptor.graph.evaluate import MAP_FUNCTIONS
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Floats,
    Map,
    MapFunction,
    Move,
    Numbers,
    Tensor,
)
from raptor.graph.rearrangement import c_order, make_move
from raptor.target.tensor_layout import Image

_NO_FRACTION = 1.5 * 2.0**23
"""Floats near it are integers; adding and subtracting it rounds a small number of either sign."""
_QUOTIENTS = IntegerInterval(-(2**22), 2**22)
"""Integers whose quotients, plus half a unit, float32 holds."""
Value = Tensor | Constant
"""An operand, computed or constant, that broadcasts to the image of the result."""
Operand = Value | float


@dataclass(slots=True)
class FormulaBuilder:
    """Builds the formula of one node. Its methods emit at most a few maps and return the result.

    Results have `shape` and `image`; one whose pixels are all equal has a single pixel (`apply`). Operations on
    constants only are folded.
    """

    node: NodeView
    ctx: ImportContext
    shape: Shape
    image: Image

    @classmethod
    def for_node(cls, node: NodeView, ctx: ImportContext, names: Iterable[str]) -> "FormulaBuilder":
        """Starts the formula of a node.

        Its image is the image of the first tensor among `names` that has the result's shape.
        """
        shape = ctx.shape(node.output)
        return cls(
            node, ctx, shape, choose_result_image([ctx.tensor(n) for n in names if ctx.constant(n) is None], shape)
        )

    def operand(self, name: str) -> Value:
        """Returns a tensor or constant of the model, broadcast to the result."""
        if self.ctx.constant(name) is None:
            return self.broadcast(self.ctx.tensor(name))
        return self.constant(self.ctx.read_float32(name))

    def constant(self, values: Numbers) -> Constant:
        """Returns an array, broadcast to the result."""
        self._require_broadcast(values.shape)
        return Constant(drop_repetitions(broadcast_constant(values, self.shape, self.image)))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Returns the tensor in the image of the result, or as one pixel, which operators broadcast."""
        self._require_broadcast(tensor.shape)
        if tensor.shape == self.shape:
            return self.ctx.lay_out(self.node, tensor, self.image)
        wanted = self._pixels_of(np.broadcast_to(c_order(tensor.shape), self.shape))
        if (wanted != wanted[0]).any():
            return self._moved(tensor, np.broadcast_to(c_order(tensor.shape), self.shape), self.shape, self.image)
        pixel = Image((self.image.channels,), 0)
        if np.array_equal(wanted[0], c_order(tensor.shape).reshape(-1)):
            return self.ctx.lay_out(self.node, tensor, pixel)
        return self._moved(tensor, wanted[0], pixel.shape, pixel)

    def _require_broadcast(self, shape: Shape) -> None:
        aligned = zip(reversed(shape), reversed(self.shape), strict=False)
        if len(shape) > len(self.shape) or any(size not in (1, wanted) for size, wanted in aligned):
            raise ImportRefusal(f"an operand {shape} cannot be broadcast to {self.shape}")

    def _pixels_of(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.moveaxis(values.reshape(self.image.shape), self.image.channel_axis, -1).reshape(
            -1, self.image.channels
        )

    def _moved(self, tensor: Tensor, wanted: npt.NDArray[np.int64], shape: Shape, image: Image) -> Tensor:
        operator: Move = make_move([tensor.image], wanted, image)
        return self.ctx.emit_inner(self.node, (tensor.name,), shape, image, operator, stem=f"{self._stem}.expanded")

    @property
    def _stem(self) -> str:
        return next((o for o in self.node.outputs if o), self.node.name)

    def apply(self, function: MapFunction, *operands: Operand) -> Value:
        """Adds one map; if all operands are constant, returns its value as a constant.

        If all pixels of each operand are equal, so are those of the result: it has one, which operators broadcast.
        """
        values = [Constant(make_scalar_pixels(o)) if isinstance(o, int | float) else o for o in operands]
        constants = [v for v in values if isinstance(v, Constant)]
        if len(constants) == len(values):
            with np.errstate(all="ignore"):
                return Constant(np.asarray(MAP_FUNCTIONS[function](*(c.pixels for c in constants)), np.float32))
        names = tuple(dict.fromkeys(v.name for v in values if isinstance(v, Tensor)))
        operator = Map(function, tuple(v if isinstance(v, Constant) else names.index(v.name) for v in values))
        pixel = Image((self.image.channels,), 0)
        alike = self.image.pixels > 1 and all(_is_pixel(v) for v in values)
        shape, image = (pixel.shape, pixel) if alike else (self.shape, self.image)
        return self.ctx.emit_inner(self.node, names, shape, image, operator, f"{self._stem}.{function}")

    def add(self, x: Operand, y: Operand) -> Value:
        return self.apply("add", x, y)

    def sub(self, x: Operand, y: Operand) -> Value:
        return self.apply("sub", x, y)

    def mul(self, x: Operand, y: Operand) -> Value:
        """Emits x * y; a factor y of 1 emits nothing."""
        if isinstance(y, int | float) and y == 1 and not isinstance(x, int | float):
            return x
        return self.apply("mul", x, y)

    def div(self, x: Operand, y: Operand) -> Value:
        return self.apply("div", x, y)

    def max(self, x: Operand, y: Operand) -> Value:
        return self.apply("max", x, y)

    def neg(self, x: Operand) -> Value:
        """Emits -x; exact, also for zero."""
        return self.apply("mul", x, -1)

    def min(self, x: Operand, y: Operand) -> Value:
        """Emits min(x, y) = -max(-x, -y); exact, as negation does not round."""
        return self.neg(self.max(self.neg(x), -y if isinstance(y, int | float) else self.neg(y)))

    def abs(self, x: Operand) -> Value:
        return self.max(x, self.neg(x))

    def relu(self, x: Operand) -> Value:
        return self.apply("relu", x)

    def floor(self, x: Operand, step: float | Floats) -> Value:
        """Emits floor(x * step), for integers x of at most 2^22 in absolute value.

        step: 1, 1/2, 1/4, ..., a number or an array. x * step minus almost one half lies nearest to the floor, and the
        adder rounds to it where floats have no fraction.
        """
        steps = np.asarray(step, np.float32)
        below = self.constant(((1 - steps) / 2).astype(np.float32))
        shifted = self.sub(self.apply("mul", x, self.constant(steps)), below)
        return self.sub(self.add(shifted, _NO_FRACTION), _NO_FRACTION)

    def wrap_around(self, x: Value, limits: IntegerInterval) -> Value:
        """Emits the integer within `limits` that is congruent to x modulo their count, which is a power of 2.

        Raises `BoundRefusal` if |x| may exceed 2^22, where float32 does not hold the quotient exactly enough.
        """
        found = None if isinstance(x, Constant) else self.ctx.integer_range(x)
        if found is None or is_within(found, limits) or not isinstance(x, Tensor):
            return x
        if not is_within(found, _QUOTIENTS):
            raise BoundRefusal(found, _QUOTIENTS if is_within(limits, _QUOTIENTS) else limits)
        count = limits.high - limits.low + 1
        periods = self.floor(self.sub(x, limits.low) if limits.low else x, 1 / count)
        result = self.sub(x, self.mul(periods, count))
        assert isinstance(result, Tensor)
        self.ctx.declare_range(result.name, limits)
        return result

    def finish(self, result: Value, output: str | None = None) -> None:
        """Makes the result an output of the node, by default the first. Integers wrap around as their type demands."""
        kind = self.ctx.numpy_dtype(output or self.node.output)
        if is_integer_type(kind) and kind != np.bool_:
            result = self.wrap_around(result, find_type_limits(kind))
        if isinstance(result, Constant):
            pixels = np.broadcast_to(result.pixels, (self.image.rows, self.image.width, self.image.channels))
            self.ctx.emit(self.node, (), self.image, ConstantTensor(copy_contiguous(pixels)), output)
            return
        known = self.ctx.integer_range(result) if is_integer_type(kind) else None
        operator, inputs = self.ctx.pop_operator(result)
        image = self.image if isinstance(operator, Map) else result.image  # a map broadcasts pixels
        self.ctx.emit(self.node, inputs, image, operator, output)
        if known is not None:
            self.ctx.declare_range(output or self.node.output, known)


def _is_pixel(value: Value) -> bool:
    """True if all pixels of a value are equal, and it has one for all."""
    return (value.pixels.shape[:2] == (1, 1)) if isinstance(value, Constant) else value.image.pixels == 1


def choose_result_image(tensors: Iterable[Tensor], shape: Shape) -> Image:
    """Returns the image of an element-wise result: the image of the first operand that is not broadcast.

    Prefers an operand whose image has its own shape, because constants are smaller there.
    """
    full = [t for t in tensors if t.shape == shape]
    shown = [t for t in full if t.image.shape == shape]
    return next((t.image for t in (*shown, *full)), natural_image(shape))
