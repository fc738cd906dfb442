"""Operators that find positions, sum along an axis, or sample an image at given places."""

import math

import numpy as np
from onnx import TensorProto, helper

from tests.all_graphs.builder import Builder, Value, run_node, step


@step("elementwise")
def cumulative_sum(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor()
    b.need(len(b.shape(x)) > 0)
    axis = b.given(b.axis(len(b.shape(x))), np.int64)
    b.emit("CumSum", [x, axis], exclusive=b.number(0, 1), reverse=b.number(0, 1))


@step("movement")
def position(b: Builder) -> None:
    """An axis of few elements: the position of the extreme does not depend on rounding then."""
    x = b.tensor(1, 2, 3, 4)
    attributes = {"axis": b.axis(len(b.shape(x))), "keepdims": b.number(0, 1)}
    if b.opset >= 12:
        attributes["select_last_index"] = b.number(0, 1)
    (found,) = _placed(b, b.pick(["ArgMax", "ArgMin"]), [x], 1, **attributes)
    b.emit("Cast", [found], to=TensorProto.FLOAT)


@step("movement")
def hardmax(b: Builder) -> None:
    b.need(b.opset >= 13)
    x = b.tensor(1, 2, 3, 4)
    b.emit("Hardmax", [x], axis=b.axis(len(b.shape(x))))


@step("movement")
def largest(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    count = b.number(1, min(b.shape(x)[axis], 3))
    values, places = _placed(b, "TopK", [x, b.ints([count])], 2, axis=axis, largest=b.number(0, 1))
    b.scaled(values)
    b.emit("Cast", [places], to=TensorProto.FLOAT)


@step("movement", 2)
def one_hot(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3)
    depth = b.number(2, 5)
    ids = b.emit("Floor", [b.emit("Mul", [x, b.given(depth)])])
    b.emit("OneHot", [ids, b.given(depth), b.given([0.25, 1.5])], axis=b.axis(len(b.shape(x)) + 1))


@step("resize")
def grid_sample(b: Builder) -> None:
    b.need(b.opset >= 16)
    x = b.tensor(4)
    n, _, h, w = b.shape(x)
    grid = b.given(1.3 * np.random.default_rng(h * w).uniform(-1, 1, (n, b.number(1, 4), b.number(1, 4), 2)))
    modes = ["linear", "nearest", "cubic"] if b.opset >= 20 else ["bilinear", "nearest", "bicubic"]
    attributes = {"mode": b.pick(modes), "padding_mode": b.pick(["zeros", "border", "reflection"])}
    b.emit("GridSample", [x, grid], align_corners=b.number(0, 1), **attributes)


@step("resize")
def blocks_to_image(b: Builder) -> None:
    b.need(b.opset >= 18)
    dims = (b.number(2, 5), b.number(2, 5))
    block = tuple(b.number(1, n) for n in dims)
    count = math.prod(n - k + 1 for n, k in zip(dims, block, strict=True))
    x = b.computed((1, b.number(1, 2) * math.prod(block), count))
    b.emit("Col2Im", [x, b.ints(dims), b.ints(block)])


@step("resize")
def affine_grid(b: Builder) -> None:
    b.need(b.opset >= 20)
    size = (b.number(1, 2), 1, *(b.number(1, 4) for _ in range(b.number(2, 3))))
    theta = b.computed((size[0], len(size) - 2, len(size) - 1))
    b.emit("AffineGrid", [theta, b.ints(size)], align_corners=b.number(0, 1))


@step("product")
def determinant(b: Builder) -> None:
    b.need(b.opset >= 11)
    size = b.number(1, 4)
    b.emit("Det", [b.computed((b.number(1, 4), size, size))])


@step("product")
def fourier(b: Builder) -> None:
    b.need(b.opset >= 17)
    x = b.computed((b.number(1, 2), b.number(2, 8), b.pick([1, 2])))
    if b.opset >= 20:
        b.emit("DFT", [x, b.given(b.number(1, 9), np.int64), b.given(1, np.int64)])
    else:
        b.emit("DFT", [x, b.given(b.number(1, 9), np.int64)], axis=1)


@step("product")
def frames(b: Builder) -> None:
    b.need(b.opset >= 17)
    x = b.computed((1, b.number(6, 20), 1))
    size = b.number(2, 6)
    b.emit("STFT", [x, b.given(b.number(1, 4), np.int64), b.constant(size, low=0.1), b.given(size, np.int64)])


def _placed(b: Builder, op: str, inputs: list[str], count: int, **attributes: int) -> list[str]:
    """Adds an operator with positions among its outputs, if they do not depend on rounding."""
    names = [f"t{b.made + i}" for i in range(count)]
    node = helper.make_node(op, inputs, names, name=f"{op.lower()}_{len(b.nodes)}", **attributes)
    rng = np.random.default_rng(len(b.values))
    constants = {n: b.constants[n] for n in inputs if n in b.constants}
    read = {n: b.values[n] for n in inputs if n in b.values}
    exact = run_node(node, b.opset, constants | {n: v.exact for n, v in read.items()})
    rounded = run_node(node, b.opset, constants | {n: v.disturbed(1e-6, rng) for n, v in read.items()})
    b.need(np.array_equal(exact[names[-1]], rounded[names[-1]]))
    b.nodes.append(node)
    b.made += count
    b.values |= {n: Value(exact[n], rounded[n]) for n in names}
    return names
