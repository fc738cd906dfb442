"""Random small ONNX models for hypothesis: branches, merges, several outputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto

from tests.tiny_models import Array, make_model, node, random

T = TypeVar("T")
Shape = tuple[int, ...]
MAX_CHANNELS = 9


@dataclass
class Builder:
    """A model in the making. Weights are scaled so that values keep their size from layer to layer."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    nodes: list[NodeProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def pick(self, values: Sequence[T]) -> T:
        return self.draw(st.sampled_from(list(values)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def images(self) -> list[str]:
        return [name for name, shape in self.shapes.items() if len(shape) == 4]

    def constant(self, *shape: int, fan_in: int = 1) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = random(*shape, seed=len(self.constants)) / math.sqrt(fan_in)
        return name

    def given(self, values: Any) -> str:
        """Adds a constant of these values."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(values)
        return name

    def add(self, op: str, inputs: Sequence[str], shape: Shape, **attributes: Any) -> str:
        output = f"t{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), output, name=f"{op.lower()}_{len(self.nodes)}", **attributes))
        self.shapes[output] = shape
        self.used |= set(inputs)
        return output

    def model(self) -> ModelProto:
        """Outputs: all values that nobody reads, and some that are read as well."""
        made = [f"t{i}" for i in range(len(self.nodes))]
        inner = self.pick(made)
        outputs = {name: len(self.shapes[name]) for name in made if name not in self.used or name == inner}
        inputs = {name: shape for name, shape in self.shapes.items() if name.startswith("x")}
        return make_model(self.nodes, inputs, outputs, self.constants)


def conv(b: Builder) -> None:
    x = b.pick(b.images())
    window = _window(b, b.shapes[x], dilations=True)
    if window is None:
        return
    attributes, (height, width) = window
    channels = b.shapes[x][1]
    groups = b.pick([1, 1, *(g for g in range(1, channels + 1) if channels % g == 0)])
    filters = groups * b.number(1, max(1, MAX_CHANNELS // groups))
    kernel, ins = attributes["kernel_shape"], channels // groups
    inputs = [x, b.constant(filters, ins, *kernel, fan_in=ins * math.prod(kernel))]
    if b.number(0, 1):
        inputs.append(b.constant(filters))
    b.add("Conv", inputs, (1, filters, height, width), group=groups, **attributes)


def transposed_conv(b: Builder) -> None:
    x = b.pick(b.images())
    _, channels, *size = b.shapes[x]
    kernel, strides = ([b.number(1, 3) for _ in size] for _ in range(2))
    pads = [b.number(0, k // 2) for k in kernel * 2]
    sizes = [(n - 1) * s + k - a - z for n, s, k, a, z in zip(size, strides, kernel, pads, pads[2:], strict=False)]
    if min(sizes) < 1 or max(sizes) > 12:
        return
    filters = b.number(1, MAX_CHANNELS)
    inputs = [x, b.constant(channels, filters, *kernel, fan_in=channels * math.prod(kernel))]
    b.add("ConvTranspose", inputs, (1, filters, *sizes), kernel_shape=kernel, strides=strides, pads=pads)


def pool(b: Builder) -> None:
    x = b.pick(b.images())
    window = _window(b, b.shapes[x], dilations=False)
    if window is None:
        return
    attributes, (height, width) = window
    shape = (1, b.shapes[x][1], height, width)
    if b.number(0, 1):
        b.add("AveragePool", [x], shape, count_include_pad=b.number(0, 1), **attributes)
    else:
        b.add("MaxPool", [x], shape, **attributes)


def _window(b: Builder, shape: Shape, *, dilations: bool) -> tuple[dict[str, list[int]], list[int]] | None:
    """Attributes of a window and the size it leaves, or None if it does not fit the image."""
    per_dim: list[tuple[int, ...]] = []
    for size in shape[2:]:
        kernel, stride = b.number(1, 3), b.number(1, 2)
        dilation = b.pick([1, 1, 2, 2, 5]) if dilations else 1
        reach = dilation * (kernel - 1) + 1
        before, behind = b.number(0, reach - 1), b.number(0, reach - 1)
        if size + before + behind < reach:
            return None
        per_dim.append((kernel, stride, before, behind, dilation, (size + before + behind - reach) // stride + 1))
    kernels, strides, before, behind, dilation, sizes = (list(v) for v in zip(*per_dim, strict=True))
    attributes = {"kernel_shape": kernels, "strides": strides, "pads": before + behind}
    return attributes | ({"dilations": dilation} if dilations else {}), sizes


def join(b: Builder) -> None:
    """Add, Sum or Concat of values of one size."""
    x = b.pick(list(b.shapes))
    shape = b.shapes[x]
    op = b.pick(["Add", "Sum", "Concat"])
    if op == "Concat":
        partners = [n for n, s in b.shapes.items() if len(s) == len(shape) and s[:1] + s[2:] == shape[:1] + shape[2:]]
        y = b.pick(partners)
        channels = shape[1] + b.shapes[y][1]
        if channels <= 2 * MAX_CHANNELS:
            b.add(op, [x, y], (1, channels, *shape[2:]), axis=1)
        return
    y = b.pick([n for n, s in b.shapes.items() if s == shape])
    b.add(op, [x, y], shape)


def rearrange(b: Builder) -> None:
    """Some channels, a shuffle of two groups of channels, or a larger image of nearest pixels."""
    x = b.pick(b.images())
    _, channels, height, width = b.shapes[x]
    op = b.pick(["Slice", "Transpose", "Resize"])
    if op == "Slice":
        first, step = b.number(0, channels - 1), b.number(1, 2)
        names = [b.given(value) for value in ([first], [channels], [1], [step])]
        b.add(op, [x, *names], (1, -(-(channels - first) // step), height, width))
    elif op == "Resize" and max(height, width) <= 6:
        down, along = b.number(1, 2), b.number(1, 2)
        scales = b.given(np.array([1, 1, down, along], np.float32))
        b.add(op, [x, "-", scales], (1, channels, height * down, width * along), mode="nearest")
    elif op == "Transpose" and channels % 2 == 0:
        shape = (1, 2, channels // 2, height, width)
        apart = b.add("Reshape", [x, b.given(shape)], shape)
        shape = (1, channels // 2, 2, height, width)
        turned = b.add(op, [apart], shape, perm=[0, 2, 1, 3, 4])
        b.add("Reshape", [turned, b.given(b.shapes[x])], b.shapes[x])


def elementwise(b: Builder) -> None:
    x = b.pick(list(b.shapes))
    shape = b.shapes[x]
    op = b.pick(["Relu", "Clip", "Mul", "Add"])
    if op == "Relu":
        b.add(op, [x], shape)
    elif op == "Clip":
        low, high = b.constant(), b.constant()
        b.constants[low], b.constants[high] = np.array(-0.5, np.float32), np.array(0.75, np.float32)
        b.add(op, [x, low, high], shape)
    else:
        kept = [n if b.number(0, 1) else 1 for n in shape]
        b.add(op, [x, b.constant(*kept)], shape)


def normalise(b: Builder) -> None:
    x = b.pick(b.images())
    channels = b.shapes[x][1]
    inputs = [x, *(b.constant(channels) for _ in range(4))]
    b.constants[inputs[-1]] = abs(b.constants[inputs[-1]]) + 0.5
    b.add("BatchNormalization", inputs, b.shapes[x])


def reduce_pixels(b: Builder) -> None:
    """A softmax over all pixels, a line or a column; or what pixels have in common, beside them or in their place."""
    x = b.pick(b.images())
    shape = b.shapes[x]
    _, channels, height, width = shape
    op = b.pick(["Reshape", "Softmax", "Expand", "Sub"])
    if op == "Reshape":
        flat = (1, channels, height * width)
        x = b.add("Softmax", [b.add(op, [x, b.given(flat)], flat)], flat, axis=2)
        b.add(op, [x, b.given(shape)], shape)
        return
    axes = b.pick([[2], [3], [2, 3]])
    if op == "Softmax":
        b.add(op, [x], shape, axis=axes[0])
        return
    reduced = (1, channels, *(1 if axis in axes else shape[axis] for axis in (2, 3)))
    pooled = b.add(b.pick(["ReduceMax", "ReduceMean"]), [x], reduced, axes=axes)
    if op == "Expand":
        b.add("Concat", [x, b.add(op, [pooled, b.given(shape)], shape)], (1, 2 * channels, height, width), axis=1)
    else:
        b.add(op, [x, pooled], shape)


def head(b: Builder) -> None:
    """Average over the image, flatten, and perhaps a fully connected layer and a softmax."""
    x = b.pick(b.images())
    channels = b.shapes[x][1]
    if b.number(0, 1):
        x = b.add("GlobalAveragePool", [x], (1, channels, 1, 1))
    features = math.prod(b.shapes[x])
    if features > 40:
        return
    pixels = features // channels
    x = b.add("Flatten", [x], (1, features))
    if b.number(0, 1):
        pixels = 1
        outs = b.number(1, 2 * MAX_CHANNELS)
        x = b.add("Gemm", [x, b.constant(features, outs, fan_in=features), b.constant(outs)], (1, outs))
    if pixels == 1 and b.number(0, 1):
        b.add("Softmax", [x], b.shapes[x], axis=1)


STEPS = (
    *(conv, conv, conv, transposed_conv, pool, join, join, rearrange, rearrange),
    *(elementwise, elementwise, normalise, reduce_pixels, head),
)


@st.composite
def models(draw: Callable[[st.SearchStrategy[Any]], Any]) -> ModelProto:
    """Draws one or two inputs of one size, then about twelve nodes at most."""
    b = Builder(draw)
    shape = (1, b.number(1, MAX_CHANNELS), b.number(1, 6), b.number(1, 6))
    b.shapes |= {f"x{i}": shape for i in range(b.number(1, 2))}
    if len(b.shapes) == 2:
        b.add("Add", list(b.shapes), shape)
    for _ in range(b.number(1, 10)):
        b.pick(STEPS)(b)
    if not b.nodes:
        b.add("Relu", ["x0"], shape)
    return b.model()


@st.composite
def chips(draw: Callable[[st.SearchStrategy[Any]], Any]) -> dict[str, Any]:
    """Crossbars of 3 to 16 rows and columns, few in a core; weights in one cell or sliced."""
    bits, cell_bits = draw(st.sampled_from([(8, 8), (8, 8), (8, 4), (16, 16), (16, 8)]))
    cells = bits // cell_bits
    rows, cols = draw(st.integers(3, 16)), draw(st.integers(3, 16))
    return {
        "xbar": (rows, max(cols, cells)),
        "xbars_per_core": draw(st.integers(2, 12)),
        "bits": bits,
        "cell_bits": cell_bits,
    }
