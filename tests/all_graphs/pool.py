"""Pools and reductions."""

from collections.abc import Mapping
from typing import Any

from tests.all_graphs.builder import Builder, Shape, step
from tests.all_graphs.convolution import image, sliding


@step("pool", 3)
def pool(b: Builder) -> None:
    x = image(b)
    dims = b.shape(x)[2:]
    op = b.pick(["MaxPool", "AveragePool", "LpPool"])
    dilated = b.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    attributes = sliding(b, dims, dilated=dilated)
    if op == "AveragePool":
        attributes["count_include_pad"] = b.number(0, 1)
    if op == "LpPool":
        attributes["p"] = b.number(1, 4)
    # Before opset 22 onnx infers one output too many in some cases.
    if b.opset >= 22 and b.chance(3) and "auto_pad" not in attributes:
        attributes["ceil_mode"] = 1
    b.need(_all_windows_inside(dims, attributes))
    b.emit(op, [x], **attributes)


def _all_windows_inside(dims: Shape, attributes: Mapping[str, Any]) -> bool:
    """Tells whether every window has an element of the image (a limit of docs/reference/operators.md)."""
    rank = len(dims)
    if attributes.get("auto_pad", "").startswith("SAME"):
        # onnxruntime counts on a kernel that is not dilated and not smaller than the stride.
        strides = attributes.get("strides", [1] * rank)
        sizes = zip(dims, attributes["kernel_shape"], strides, strict=True)
        return "dilations" not in attributes and all((-(-n // s) - 1) * s + k >= n for n, k, s in sizes)
    ones = [1] * rank
    pads = attributes.get("pads", [0] * 2 * rank)
    axes = zip(
        dims,
        attributes["kernel_shape"],
        attributes.get("strides", ones),
        attributes.get("dilations", ones),
        pads[:rank],
        pads[rank:],
        strict=True,
    )
    return all(_axis_inside(*axis, ceil=bool(attributes.get("ceil_mode"))) for axis in axes)


def _axis_inside(size: int, kernel: int, stride: int, dilation: int, before: int, behind: int, *, ceil: bool) -> bool:
    span = (kernel - 1) * dilation + 1
    steps = size + before + behind - span
    if steps < 0:
        return False
    count = (-(-steps // stride) if ceil else steps // stride) + 1
    starts = [i * stride - before for i in range(count) if not ceil or i * stride < size + before]
    return all(any(0 <= start + k * dilation < size for k in range(kernel)) for start in starts)


@step("pool")
def global_pool(b: Builder) -> None:
    x = b.tensor(3, 4, 5)
    op = b.pick(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    b.emit(op, [x], **({"p": b.number(1, 3)} if op == "GlobalLpPool" else {}))


REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceProd",
)  # fmt: skip


@step("pool", 3)
def reduction(b: Builder) -> None:
    op = b.pick(REDUCTIONS)
    x = b.tensor()
    rank = len(b.shape(x))
    axes = b.axes(rank)
    if op == "ReduceLogSum":
        x = b.positive(x)
    attributes: dict[str, Any] = {"keepdims": b.number(0, 1)}
    inputs = [x]
    if b.opset >= (13 if op == "ReduceSum" else 18):
        if not axes:
            attributes["noop_with_empty_axes"] = b.number(0, 1)
        if axes or b.chance():
            inputs.append(b.ints(axes))
    elif axes:
        attributes["axes"] = axes
    b.emit(op, inputs, **attributes)
