"""Element-wise functions, with broadcasting."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.all_graphs.builder import Builder, step

UNARY: Mapping[str, tuple[int, dict[str, Sequence[Any]]]] = {
    "Relu": (1, {}),
    "Tanh": (1, {}),
    "Sigmoid": (1, {}),
    "Erf": (9, {}),
    "Exp": (1, {}),
    "Neg": (1, {}),
    "Abs": (1, {}),
    "HardSwish": (14, {}),
    "Softplus": (1, {}),
    "Softsign": (1, {}),
    "Mish": (18, {}),
    "LeakyRelu": (1, {"alpha": [0.01, 0.3, 1.5, 0.0, -0.5]}),
    "ThresholdedRelu": (10, {"alpha": [1.0, 0.25, 0.0, -0.5]}),
    "Elu": (1, {"alpha": [1.0, 0.5, 2.0]}),
    "Selu": (1, {"alpha": [1.0, 1.6], "gamma": [0.5, 1.05]}),
    "Celu": (12, {"alpha": [1.0, 0.5, 2.0]}),
    "HardSigmoid": (1, {"alpha": [0.2, 0.5], "beta": [0.5, 0.3]}),
    "Swish": (24, {"alpha": [1.0, 0.5, 2.0]}),
    "Gelu": (20, {"approximate": ["none", "tanh"]}),
    "Sin": (7, {}),
    "Cos": (7, {}),
    "Tan": (7, {}),
    "Atan": (7, {}),
    "Sinh": (9, {}),
    "Cosh": (9, {}),
    "Asinh": (9, {}),
    "Floor": (1, {}),
    "Ceil": (1, {}),
    "Round": (11, {}),
    "Sign": (9, {}),
    "Dropout": (7, {}),
    "Identity": (1, {}),
    "Cast": (1, {"to": [TensorProto.FLOAT]}),
}
REQUIRED = frozenset({"to"})


@step("elementwise", 8)
def unary(b: Builder) -> None:
    op = b.pick([op for op, (since, _) in UNARY.items() if b.opset >= since])
    choices = UNARY[op][1]
    b.emit(op, [b.tensor()], **{key: b.pick(c) for key, c in choices.items() if key in REQUIRED or b.chance()})


@step("elementwise")
def of_positive(b: Builder) -> None:
    op = b.pick(["Log", "Sqrt", "Reciprocal"])
    b.emit(op, [b.positive(b.tensor())])


@step("elementwise")
def of_small(b: Builder) -> None:
    """Functions of numbers between -1 and 1, or of those above 1."""
    small = b.emit("Mul", [b.emit("Tanh", [b.tensor()]), b.given(0.9)])
    op = b.pick(["Asin", "Acos", "Atanh", "Acosh"] if b.opset >= 9 else ["Asin", "Acos"])
    b.emit(op, [b.emit("Add", [small, b.given(2)]) if op == "Acosh" else small])


@step("elementwise")
def power(b: Builder) -> None:
    x = b.tensor()
    if b.chance(4):
        base = b.constant(*b.broadcast(b.shape(x)), low=0.3)
        b.emit("Pow", [base, x])
        return
    exponent = b.pick([2, 3, 0, 1, 4, 0.5, 1.5, 0.3, -1, -2, -0.5, 2.7])
    if exponent != int(exponent) or exponent < 0:
        x = b.positive(x)
    shape = b.pick([(), (1,), (1,) * len(b.shape(x))])
    whole = b.opset >= 12 and exponent == int(exponent) and b.chance(3)
    b.emit("Pow", [x, b.given(np.full(shape, exponent), np.int64 if whole else np.float32)])


@step("elementwise", 4)
def binary(b: Builder) -> None:
    op = b.pick(["Add", "Sub", "Mul", "Div"])
    x = b.tensor()
    y = b.operand(b.partner(b.shape(x)))
    if b.chance(3):
        x, y = y, x
    if op == "Div":
        y = b.given(abs(b.constants[y]) + 0.3) if y in b.constants else b.positive(y)
    b.emit(op, [x, y])


@step("elementwise", 2)
def variadic(b: Builder) -> None:
    op = b.pick(["Sum", "Mean", "Max", "Min"])
    x = b.tensor()
    shape = b.shape(x)
    others = [b.operand(b.broadcast(shape) if b.opset >= 8 else shape) for _ in range(b.number(0, 3))]
    at = b.number(0, len(others))
    b.emit(op, [*others[:at], x, *others[at:]])


@step("elementwise")
def clip(b: Builder) -> None:
    x = b.tensor()
    bounds = {"min": b.pick([None, -0.5, 0.0, -1.5]), "max": b.pick([None, 0.75, 0.25, 1.5, 6.0])}
    if b.opset < 11:
        b.emit("Clip", [x], **{key: value for key, value in bounds.items() if value is not None})
        return
    inputs = [x, *("" if value is None else b.given(value) for value in bounds.values())]
    if inputs[1] and b.chance(4):
        inputs[1] = b.computed(())
        b.need(inputs[2] == "" or float(b.values[inputs[1]].exact) < 0.2)
    while not inputs[-1]:
        inputs.pop()
    b.emit("Clip", inputs)


@step("elementwise")
def prelu(b: Builder) -> None:
    x = b.tensor()
    shape = b.shape(x)
    b.emit("PRelu", [x, b.operand(b.broadcast(shape))])


@step("elementwise")
def where(b: Builder) -> None:
    b.need(b.opset >= 9)
    x = b.tensor()
    shape = b.shape(x)
    mask = np.random.default_rng(len(b.nodes)).random(b.broadcast(shape)) < 0.5
    choices = [x, b.operand(b.partner(shape))]
    b.emit("Where", [b.given(mask, np.bool_), *(reversed(choices) if b.chance() else choices)])
