"""Operators that move elements."""

import math
from typing import Any

import numpy as np

from tests.all_graphs.builder import Builder, Shape, step
from tests.tiny_models import Array


@step("movement", 2)
def concat(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4, 5)
    shape = b.shape(x)
    axis = b.axis(len(shape))
    place = axis % len(shape)
    fitting = [n for n in b.pool if b.shape(n)[:place] + b.shape(n)[place + 1 :] == shape[:place] + shape[place + 1 :]]
    fitting = [n for n in fitting if len(b.shape(n)) == len(shape)]
    others: list[str] = []
    for _ in range(b.number(0, 2)):
        size = b.number(1, 5)
        others.append(b.pick(fitting) if b.chance() else b.operand((*shape[:place], size, *shape[place + 1 :])))
    at = b.number(0, len(others))
    b.emit("Concat", [*others[:at], x, *others[at:]], axis=axis)


@step("movement", 2)
def split(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    size = b.shape(x)[axis]
    parts = b.number(1, min(size, 4))
    equal = size % parts == 0 and b.chance()
    attributes: dict[str, Any] = {"axis": axis}
    inputs = [x]
    if equal:
        if b.opset >= 18:
            attributes["num_outputs"] = parts
    else:
        cuts = sorted(b.number(0, size - parts) + i for i in range(parts - 1))
        cuts = [0, *(c + 1 for c in cuts), size]
        sizes = [int(n) for n in np.diff(cuts)]
        b.need(min(sizes) > 0)
        if b.opset >= 13:
            inputs.append(b.ints(sizes))
        else:
            attributes["split"] = sizes
    b.emit("Split", inputs, [True] * parts, **attributes)


@step("movement", 2)
def slice_(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    axes = b.axes(len(shape), at_least=1)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        first = b.number(0, size - 1)
        last = b.number(first, size - 1)
        if b.opset >= 10 and b.chance(3):
            starts.append(b.pick([last, last - size]))
            ends.append(first - 1 if first else b.pick([-size - 1, -1000]))
            steps.append(-b.number(1, 2))
        else:
            starts.append(b.pick([first, first - size]))
            ends.append(b.pick([last + 1, last + 1 if last + 1 < size else 1000]))
            steps.append(b.number(1, 2) if b.opset >= 10 else 1)
    b.sliced(x, starts, ends, axes, steps)


@step("movement", 2)
def pad(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    mode = b.pick(["constant", "constant", "reflect", "edge", *(["wrap"] if b.opset >= 19 else [])])
    axes = list(range(len(shape)))
    if b.opset >= 18 and b.chance(3):
        axes = b.axes(len(shape), at_least=1)
    low = -1 if mode == "constant" else 0
    pads = [b.number(low if shape[a] > 2 else 0, min(2, shape[a] - 1) if mode != "constant" else 2) for a in axes * 2]
    value = b.pick([0.0, 0.5, -2.0])
    if b.opset < 11:
        b.emit("Pad", [x], pads=pads, mode=mode, **({"value": value} if mode == "constant" else {}))
        return
    inputs = [x, b.ints(pads), b.given(value) if mode == "constant" and b.chance() else ""]
    if len(axes) < len(shape) or (b.opset >= 18 and axes != list(range(len(shape)))):
        inputs.append(b.ints(axes))
    while not inputs[-1]:
        inputs.pop()
    b.emit("Pad", inputs, mode=mode)


@step("movement", 3)
def reshape(b: Builder) -> None:
    x = b.tensor()
    shape = b.factors(math.prod(b.shape(x)), b.number(1, 5))
    if b.chance(4):
        at = b.number(0, len(shape) - 1)
        shape = (*shape[:at], -1, *shape[at + 1 :])
    b.emit("Reshape", [x, b.ints(shape)])


@step("movement")
def flatten(b: Builder) -> None:
    x = b.tensor()
    b.emit("Flatten", [x], axis=b.number(0, len(b.shape(x))))


@step("movement", 3)
def transpose(b: Builder) -> None:
    x = b.tensor(2, 3, 4, 5)
    left = list(range(len(b.shape(x))))
    order = [left.pop(b.number(0, len(left) - 1)) for _ in b.shape(x)]
    b.emit("Transpose", [x], **({} if b.chance(6) else {"perm": order}))


def _with_axes(b: Builder, op: str, x: str, axes: list[int]) -> None:
    if b.opset >= 13:
        b.emit(op, [x, b.ints(axes)])
    else:
        b.emit(op, [x], axes=axes)


@step("movement")
def squeeze(b: Builder) -> None:
    single = [n for n in b.pool if 1 in b.shape(n)]
    b.need(bool(single))
    x = b.pick(single)
    if b.chance(4):
        b.emit("Squeeze", [x])
        return
    axes = b.subset([a for a, n in enumerate(b.shape(x)) if n == 1])
    b.need(bool(axes))
    _with_axes(b, "Squeeze", x, axes)


@step("movement")
def unsqueeze(b: Builder) -> None:
    x = b.tensor()
    rank = len(b.shape(x)) + b.number(1, 2)
    b.need(rank <= 5)
    axes = sorted({b.number(0, rank - 1) for _ in range(rank - len(b.shape(x)))})
    b.need(len(axes) == rank - len(b.shape(x)))
    _with_axes(b, "Unsqueeze", x, axes)


@step("movement")
def repeated(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    if b.opset >= 8 and b.chance():
        b.emit("Expand", [x, b.ints(b.partner(shape))])
    else:
        b.emit("Tile", [x, b.ints([b.number(1, 2) if n < 8 else 1 for n in shape])])


def _indices(b: Builder, shape: Shape, size: int) -> Array:
    """Positions below `size`, some counted from the end."""
    low = -size if b.opset >= 11 else 0
    return np.random.default_rng((len(b.nodes), *shape)).integers(low, size, shape)


@step("movement", 2)
def gather(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    shape = tuple(b.number(1, 4) for _ in range(b.number(0, 2)))
    b.emit("Gather", [x, b.ints(_indices(b, shape, b.shape(x)[axis]))], axis=axis)


@step("movement")
def gather_elements(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    shape = tuple(b.number(1, n) for n in b.shape(x))
    inputs = [x, b.ints(_indices(b, shape, b.shape(x)[axis]))]
    b.emit("GatherElements", inputs, axis=axis)


def _tuples(b: Builder, shape: Shape, outer: int) -> Array:
    """[n, k] different indices into the first k dimensions after the `outer` ones."""
    depth = b.number(1, len(shape) - outer)
    dims = shape[outer : outer + depth]
    count = b.number(1, min(5, math.prod(dims)))
    flat = np.random.default_rng((len(b.nodes), *shape)).permutation(math.prod(dims))[:count]
    return np.stack(np.unravel_index(flat, dims), axis=-1)


@step("movement")
def gather_nd(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    outer = 1 if b.opset >= 12 and len(shape) > 1 and b.chance(3) else 0
    indices = _tuples(b, shape, outer)
    if outer:
        indices = np.stack([np.roll(indices, i, axis=0) for i in range(shape[0])])
    b.emit("GatherND", [x, b.ints(indices)], **({"batch_dims": outer} if outer else {}))


@step("movement")
def scatter_nd(b: Builder) -> None:
    b.need(b.opset >= 11)
    x = b.tensor(1, 2, 3, 4)
    shape = b.shape(x)
    indices = _tuples(b, shape, 0)
    updates = b.operand((len(indices), *shape[indices.shape[1] :]))
    b.emit("ScatterND", [x, b.ints(indices), updates])


@step("movement")
def scatter_elements(b: Builder) -> None:
    b.need(b.opset >= 9)
    x = b.tensor(1, 2, 3, 4)
    axis = b.axis(len(b.shape(x)))
    shape = tuple(b.number(1, n) for n in b.shape(x))
    # Different along the axis: what comes last is not defined.
    along = np.random.default_rng(len(b.nodes)).permutation(b.shape(x)[axis])[: shape[axis]]
    column = along.reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))])
    op = "ScatterElements" if b.opset >= 11 else "Scatter"
    reduction = {"reduction": b.pick(["none", "add", "max", "mul", "min"])} if b.opset >= 18 else {}
    b.emit(op, [x, b.ints(np.broadcast_to(column, shape)), b.operand(shape)], axis=axis, **reduction)


@step("movement")
def tensor_scatter(b: Builder) -> None:
    b.need(b.opset >= 24)
    x = b.tensor(3, 4)
    shape = b.shape(x)
    count = b.number(1, shape[-2])
    first = [b.number(0, shape[-2] - count) for _ in range(shape[0])]
    b.emit("TensorScatter", [x, b.operand((*shape[:-2], count, shape[-1])), b.ints(first)], axis=-2)


@step("movement")
def max_unpool(b: Builder) -> None:
    b.need(b.opset >= 9)
    x = b.tensor(4)
    n, c, h, w = b.shape(x)
    rng = np.random.default_rng(len(b.nodes))
    inside = rng.integers(0, 2, (2, n, c, h, w))
    row, col = 2 * np.arange(h)[:, None] + inside[0], 2 * np.arange(w) + inside[1]
    plane = np.arange(n * c).reshape(n, c, 1, 1)
    b.emit("MaxUnpool", [x, b.ints((plane * 2 * h + row) * 2 * w + col)], kernel_shape=[2, 2], strides=[2, 2])


@step("movement")
def eye_like(b: Builder) -> None:
    b.need(b.opset >= 9)
    x = b.tensor(2)
    b.emit("Add", [x, b.emit("EyeLike", [x], k=b.number(-1, 2))])


@step("movement", 2)
def blocks(b: Builder) -> None:
    size = b.number(1, 2)
    n, c, h, w = (b.number(1, 2), b.number(1, 4), b.number(1, 3), b.number(1, 3))
    if b.chance():
        x = b.computed((n, c, h * size, w * size))
        b.emit("SpaceToDepth", [x], blocksize=size)
        return
    x = b.computed((n, c * size * size, h, w))
    b.emit("DepthToSpace", [x], blocksize=size, **({"mode": b.pick(["DCR", "CRD"])} if b.opset >= 11 else {}))


@step("movement")
def reverse_sequence(b: Builder) -> None:
    b.need(b.opset >= 10)
    x = b.tensor(2, 3, 4)
    batch = b.number(0, 1)
    time, count = b.shape(x)[1 - batch], b.shape(x)[batch]
    lengths = [b.number(1, time) for _ in range(count)]
    b.emit("ReverseSequence", [x, b.ints(lengths)], batch_axis=batch, time_axis=1 - batch)


@step("movement")
def trilu(b: Builder) -> None:
    b.need(b.opset >= 14)
    inputs = [b.tensor(2, 3, 4)]
    if b.chance():
        inputs.append(b.ints(b.number(-2, 2)))
    b.emit("Trilu", inputs, upper=b.number(0, 1))
