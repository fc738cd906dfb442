"""Truth values and integers: comparisons, logic, choice, arithmetic, and rows of a table."""

import math
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.all_graphs.builder import Builder, Shape, step

INTEGERS = (np.int64, np.int32)
FEW = 6
"""Largest size of integers in inputs and constants."""


def flags(b: Builder, shape: Shape) -> str:
    """Truth values of this shape: known ones, a new input, or the signs of floats."""
    known = [n for n in b.wholes if b.shape(n) == shape and b.values[n].exact.dtype == np.bool_]
    if known and not b.chance(3):
        return b.pick(known)
    if len(b.inputs) < 4 and b.chance(3):
        return b.whole_input(shape, np.bool_, 0, 1)
    return b.emit("Greater", [b.computed(shape), b.given(b.pick([0.1, -0.3]))])


def integers(b: Builder, shape: Shape, kind: Any) -> str:
    """Integers of this shape and type: known ones, a new input, or the whole parts of floats."""
    known = [n for n in b.wholes if b.shape(n) == shape and b.values[n].exact.dtype == kind]
    if known and not b.chance(3):
        return b.pick(known)
    if len(b.inputs) < 4 and b.chance():
        return b.whole_input(shape, kind, -FEW, FEW)
    parts = b.emit("Mul", [b.emit("Tanh", [b.computed(shape)]), b.given(FEW + 0.9)])
    return b.emit("Cast", [b.emit("Cast", [parts], to=TensorProto.INT8)], to=_type(kind))


def of_any(b: Builder) -> tuple[str, Any]:
    """A tensor of integers, and its type."""
    known = [n for n in b.wholes if b.values[n].exact.dtype in INTEGERS]
    if known and not b.chance(3):
        name = b.pick(known)
        return name, b.values[name].exact.dtype
    kind = b.pick(INTEGERS)
    return integers(b, b.shape(b.tensor()), kind), kind


def partner(b: Builder, shape: Shape, kind: Any, low: int = -FEW) -> str:
    """Integers to combine with those of this shape: computed, or a constant."""
    wanted = b.broadcast(shape)
    if b.chance():
        return integers(b, wanted, kind)
    return b.given(np.random.default_rng(len(b.nodes)).integers(low, FEW + 1, wanted), kind)


def to_floats(b: Builder, name: str) -> str:
    return b.emit("Cast", [name], to=TensorProto.FLOAT)


def _type(kind: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(kind))


@step("truth", 3)
def comparison(b: Builder) -> None:
    b.need(b.opset >= 9)
    op = b.pick(["Greater", "Less", "Equal", *(["GreaterOrEqual", "LessOrEqual"] if b.opset >= 12 else [])])
    if op == "Equal" or b.chance():
        x, kind = of_any(b)
        other = partner(b, b.shape(x), kind)
    else:
        x = b.tensor()
        other = b.operand(b.broadcast(b.shape(x)))
    found = b.emit(op, [other, x] if b.chance() else [x, other])
    if b.chance():
        to_floats(b, found)


@step("truth")
def numbers(b: Builder) -> None:
    b.need(b.opset >= 20)
    x = b.tensor()
    to_floats(b, b.emit(b.pick(["IsNaN", "IsInf"]), [x]))


@step("truth", 3)
def logic(b: Builder) -> None:
    x = flags(b, b.shape(b.tensor()))
    op = b.pick(["And", "Or", "Xor", "Not"])
    found = b.emit(op, [x] if op == "Not" else [x, flags(b, b.broadcast(b.shape(x)))])
    if b.chance():
        to_floats(b, found)


@step("truth", 3)
def choice(b: Builder) -> None:
    b.need(b.opset >= 9)
    x = b.tensor()
    choices = [x, b.operand(b.broadcast(b.shape(x)))]
    b.emit("Where", [flags(b, b.broadcast(b.shape(x))), *(reversed(choices) if b.chance() else choices)])


@step("truth")
def choice_of_integers(b: Builder) -> None:
    b.need(b.opset >= 9)
    x, kind = of_any(b)
    found = b.emit("Where", [flags(b, b.shape(x)), x, partner(b, b.shape(x), kind)])
    to_floats(b, found)


@step("truth", 4)
def arithmetic(b: Builder) -> None:
    x, kind = of_any(b)
    op = b.pick(["Add", "Sub", "Mul", "Div", *(["Max", "Min"] if b.opset >= 12 else []), *(["Mod"] * (b.opset >= 10))])
    if op in ("Div", "Mod"):
        shape = b.broadcast(b.shape(x))
        divisor = np.random.default_rng(len(b.nodes)).integers(1, FEW, shape) * b.pick([1, 1, -1])
        more = {"fmod": b.number(0, 1)} if op == "Mod" else {}
        found = b.emit(op, [x, b.given(divisor, kind)], **more)
    else:
        found = b.emit(op, [x, partner(b, b.shape(x), kind)])
    if b.chance():
        to_floats(b, found)


@step("truth", 2)
def unary(b: Builder) -> None:
    x, _ = of_any(b)
    found = b.emit(b.pick(["Neg", "Abs", *(["Sign"] * (b.opset >= 9)), "ReduceSum", "ReduceMax", "Identity"]), [x])
    if b.chance():
        to_floats(b, found)


@step("truth")
def remainder(b: Builder) -> None:
    b.need(b.opset >= 10)
    x = b.tensor()
    divisor = b.constant(*b.broadcast(b.shape(x)), low=0.4)
    b.emit("Mod", [x, divisor], fmod=1)


@step("truth", 2)
def cast(b: Builder) -> None:
    x = b.pick(b.wholes) if b.wholes and b.chance() else of_any(b)[0]
    targets = [TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8]
    if b.opset >= 15 and b.chance():
        found = b.emit("CastLike", [x, b.given([0], b.pick(INTEGERS))])
    else:
        found = b.emit("Cast", [x], to=b.pick(targets))
    if b.chance():
        to_floats(b, found)


@step("truth", 2)
def bits(b: Builder) -> None:
    b.need(b.opset >= 18)
    kind = b.pick([np.uint8, np.int8])
    shape = b.shape(b.tensor())
    b.need(len(b.inputs) < 4)
    x = b.whole_input(shape, kind, 0 if kind == np.uint8 else -128, 127)
    other = b.given(np.random.default_rng(len(b.nodes)).integers(0, 128, b.broadcast(shape)), kind)
    op = b.pick(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"])
    if op == "BitShift":
        b.need(kind == np.uint8)
        places = b.given(np.random.default_rng(len(b.nodes)).integers(0, 8, b.broadcast(shape)), kind)
        to_floats(b, b.emit(op, [x, places], direction=b.pick(["LEFT", "RIGHT"])))
        return
    to_floats(b, b.emit(op, [x] if op == "BitwiseNot" else [x, other]))


@step("truth", 2)
def rows(b: Builder) -> None:
    """Rows of a constant table, by computed ids."""
    shape = b.shape(b.tensor(1, 2))
    count, width = b.number(2, 9), b.number(1, 6)
    b.need(math.prod(shape) * width <= 120)
    if len(b.inputs) < 4 and b.chance():
        ids = b.whole_input(shape, b.pick(INTEGERS), 0, count - 1)
    else:
        parts = b.emit("Mul", [b.emit("Sigmoid", [b.computed(shape)]), b.given(count - 0.01)])
        ids = b.emit("Cast", [parts], to=TensorProto.INT64)
    b.emit("Gather", [b.constant(count, width), ids], axis=0)


@step("truth")
def moved(b: Builder) -> None:
    """Integers and truth values that only move."""
    b.need(bool(b.wholes))
    x = b.pick(b.wholes)
    shape = b.shape(x)
    b.need(len(shape) > 0)
    found = b.pick(
        [
            lambda: b.reshape(x, b.factors(math.prod(shape), b.number(1, 3))),
            lambda: b.emit("Transpose", [x], perm=sorted(range(len(shape)), key=lambda _: b.number(0, 99))),
            lambda: b.emit("Concat", [x, x], axis=b.number(0, len(shape) - 1)),
        ]
    )()
    to_floats(b, found)


@step("truth")
def size(b: Builder) -> None:
    x = b.tensor()
    count = to_floats(b, b.emit("Size", [x]))
    b.emit("Mul", [x, count])
