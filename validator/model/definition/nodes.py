"""Nodes of a model as the operators see them: attributes, operands, and checks of scales and zero points."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from validator.model.definition.exact_rounding import QuantizeTarget
from validator.model.definition.exact_values import (
    CODE_BITS,
    UNIT_DIVISOR,
    Array,
    ExactReal,
    Ints,
    RoundedCodes,
    ScaledTerm,
    Singles,
    Value,
    along,
    first_index,
    is_codes,
)
from validator.model.node import ModelNode

OperatorResult = Sequence[Value | RoundedCodes] | None


@dataclass(frozen=True, slots=True, eq=False)
class OperatorNode(ModelNode):
    """A node with the values of its operands (None: absent or in a float section). `fixed`: which are constants."""

    operands: Sequence[Value | None]
    constant_operands: Sequence[bool]

    @classmethod
    def applied(cls, node: ModelNode, operands: Sequence[Value | None], fixed: Sequence[bool]) -> "OperatorNode":
        """Returns a node of the model with its operands."""
        return cls(node.proto, node.opsets, node.reads, node.writes, operands, fixed)

    def operand(self, index: int) -> Value | None:
        return self.operands[index] if index < len(self.operands) else None

    def array_operand(self, index: int, what: str) -> Array:
        """Returns an operand that must be an array. Raises `UserError` if it is missing or not an array."""
        value = self.operand(index)
        if not isinstance(value, np.ndarray):
            raise UserError(f"{self.where}: {what} is {'missing' if value is None else 'not an array of the model'}")
        return value

    def code_operand(self, index: int, what: str) -> Array:
        """Returns an operand that must be a quantised tensor. Raises `UserError` for other types."""
        array = self.array_operand(index, what)
        if not is_codes(array):
            raise UserError(f"{self.where}: {what} is {array.dtype.name}, expected integers of 2 to 32 bits")
        return array

    def array_parameters(self) -> Mapping[str, Array]:
        """Returns all array operands after the first, keyed by name."""
        pairs = zip(self.proto.input[1:], self.operands[1:], strict=False)
        return {name: value for name, value in pairs if name and isinstance(value, np.ndarray)}


def read_scale(node: OperatorNode, index: int, what: str) -> Singles:
    """Returns a scale as float32. Raises `UserError` unless it is positive and finite."""
    scale = node.array_operand(index, f"the scale of {what}")
    if scale.dtype.kind != "f" and scale.dtype.name != "bfloat16":
        raise UserError(f"{node.where}: the scale of {what} is {scale.dtype.name}, expected a float")
    numbers = scale.astype(np.float32)
    wrong = ~(np.isfinite(numbers) & (numbers > 0))
    if wrong.any():
        at = first_index(wrong)
        entry = f" at {list(at)}" if numbers.size > 1 else ""
        raise UserError(f"{node.where}: the scale of {what} is {numbers[at]:g}{entry}, expected a number above 0")
    return numbers


def read_zero_point(node: OperatorNode, index: int, what: str, dtype: "np.dtype[Any] | None", scale: Singles) -> Array:
    """Returns a zero point in its own type, or zeros if it is left out. Raises `UserError` for another type or size."""
    zero = node.operand(index)
    if zero is None:
        return np.zeros(scale.shape, dtype or np.uint8)
    if not is_codes(zero):
        raise UserError(f"{node.where}: the zero point of {what} is not an integer of 2 to 32 bits")
    assert isinstance(zero, np.ndarray)
    if dtype is not None and zero.dtype != dtype:
        raise UserError(f"{node.where}: the zero point of {what} is {zero.dtype.name}, but {what} is {dtype.name}")
    if zero.size != scale.size:
        raise UserError(f"{node.where}: {what} has {scale.size} scales and {zero.size} zero points")
    if zero.dtype.name == "int32" and zero.astype(np.int64).any():
        raise UserError(f"{node.where}: the zero point of {what} is {int(zero.flat[0])}, expected 0 for int32")
    return zero


def read_single_zero_point(node: OperatorNode, index: int, what: str, dtype: "np.dtype[Any]", scale: Singles) -> Array:
    """Returns a zero point. Raises `UserError` if it has several entries that differ."""
    zero = read_zero_point(node, index, what, dtype, scale)
    numbers = zero.astype(np.int64).ravel()
    if numbers.size and (numbers != numbers[0]).any():
        other = int(numbers[(numbers != numbers[0]).argmax()])
        raise UserError(f"{node.where}: the zero points of {what} are {int(numbers[0])} and {other}, expected one")
    return zero


def broadcast_parameter(node: OperatorNode, parameter: Array, shape: Sequence[int], what: str) -> Array:
    """Reshapes a scale or zero point to broadcast to a tensor: one entry, one for each index of `axis`, or blocks."""
    if parameter.size == 1:
        return parameter.reshape(())
    axis, block = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
    if not -len(shape) <= axis < len(shape):
        raise UserError(f"{node.where}: axis {axis} of {what}, which has {len(shape)} dimensions")
    axis %= len(shape)
    if parameter.ndim == 1 and not block:
        if parameter.size != shape[axis]:
            raise UserError(
                f"{node.where}: {parameter.size} scales for axis {axis} of {what}, whose size is {shape[axis]}"
            )
        return along(parameter, axis, len(shape))
    if parameter.ndim == len(shape) and block > 0:
        blocks = np.repeat(parameter, block, axis)
        blocks = blocks[tuple(slice(0, n) if a == axis else slice(None) for a, n in enumerate(shape))]
        if blocks.shape == tuple(shape):
            return blocks
    raise UserError(f"{node.where}: scales of shape {list(parameter.shape)} do not fit {what} of shape {list(shape)}")


def dequantize_exactly(codes: Array, scale: Singles, zero: Array, *, raw: bool = False) -> ExactReal:
    """Returns (codes - zero) * scale. `raw`: onnxruntime multiplies codes and zero points separately."""
    units = codes.astype(np.int64) - zero.astype(np.int64)
    apart = np.abs(zero.astype(np.int64))

    def size() -> Ints:
        return np.abs(codes.astype(np.int64)) + apart if raw else np.abs(units)

    return ExactReal((ScaledTerm(units, scale, UNIT_DIVISOR, size),), "plain")


def make_output_target(node: OperatorNode, scale: int, zero: int, dtype: "np.dtype[Any]", steps: int) -> QuantizeTarget:
    """Returns the target of a QLinear operator. `scale`, `zero`: operand indices; `dtype`: type without zero point."""
    factor = read_scale(node, scale, "the output")
    point = (
        read_zero_point(node, zero, "the output", None, factor)
        if node.operand(zero) is not None
        else np.zeros((), dtype)
    )
    if point.size != 1 or factor.size != 1:
        raise UserError(f"{node.where}: the output has {max(point.size, factor.size)} scales, expected one")
    if CODE_BITS[point.dtype.name] == 32:
        raise UserError(f"{node.where}: the output is {point.dtype.name}, expected 2 to 16 bits")
    return QuantizeTarget(
        factor.reshape(()), point.reshape(()).astype(np.int64), point.dtype, node.where, steps, with_zero=True
    )


ExactOperator = Callable[[OperatorNode], OperatorResult]
