"""ONNX operators of image and signal networks as differentiable functions of PyTorch, on tensors of the model's shapes.

Each function has the shapes and the meaning of the ONNX operator; `torch.vmap` adds the samples of a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.frontend.proto.nodes import NodeView

Tensor = Any
torch: Any = import_module("torch")
functional: Any = import_module("torch.nn.functional")


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """A node with the tensors of its inputs; None for an absent one. `constants`: values of constant inputs."""

    node: NodeView
    inputs: Sequence[Tensor]
    constants: Sequence[npt.NDArray[Any] | None]

    def input(self, position: int) -> Tensor:
        return self.inputs[position] if position < len(self.inputs) else None

    def list_integers(self, name: str, position: int) -> list[int] | None:
        """Returns integers from an attribute or a constant input, whichever the version of the operator has."""
        if name in self.node.attributes:
            return list(self.node.ints(name))
        values = self.constants[position] if position < len(self.constants) else None
        if values is None and self.input(position) is not None:
            raise unsupported(self.node, f"{name} is not constant")
        return None if values is None else [int(v) for v in values.reshape(-1)]


Operator = Callable[[OperatorCall], Tensor]


def unsupported(node: NodeView, why: str) -> UserError:
    return UserError(f"{node.name} ({node.op_type}): raptor train cannot differentiate it: {why}")


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the spatial axes of a tensor.

    `before`, `after`: padding of each axis. `extra`: what `ceil_mode` adds after it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    extra: tuple[int, ...]

    def pad(self, x: Tensor, value: float, extra_value: float | None = None) -> Tensor:
        """Pads with `value`, and with `extra_value` (None: `value`) where only `ceil_mode` pads."""
        x = _padded(x, self.before, self.after, value)
        return _padded(x, (0,) * len(self.extra), self.extra, value if extra_value is None else extra_value)


def _padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float) -> Tensor:
    pairs = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
    return functional.pad(x, pairs, value=value) if any(pairs) else x


def read_windows(node: NodeView, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Returns the windows of a Conv or a pool over axes of `sizes`."""
    rank = len(sizes)
    strides, dilations = node.ints("strides", [1] * rank), node.ints("dilations", [1] * rank)
    pads, automatic = node.ints("pads", [0] * 2 * rank), node.string("auto_pad", "NOTSET")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before, after, extra = list(pads[:rank]), list(pads[rank:]), [0] * rank
    for axis, (size, stride, span) in enumerate(zip(sizes, strides, spans, strict=True)):
        if automatic.startswith("SAME"):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            low, high = total // 2, -(-total // 2)
            before[axis], after[axis] = (low, high) if automatic == "SAME_UPPER" else (high, low)
        elif node.integer("ceil_mode", 0):
            padded = size + before[axis] + after[axis]
            count = -(-(padded - span) // stride) + 1
            # A window that begins in the padding at the end is dropped, as onnxruntime and PyTorch do.
            count -= (count - 1) * stride >= size + before[axis]
            extra[axis] = max((count - 1) * stride + span - padded, 0)
    return Windows(tuple(kernel), strides, dilations, tuple(before), tuple(after), tuple(extra))


def _conv(call: OperatorCall) -> Tensor:
    x, weight, node = call.inputs[0], call.inputs[1], call.node
    windows = read_windows(node, x.shape[2:], weight.shape[2:])
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[x.ndim - 3]
    padded, groups = windows.pad(x, 0.0), node.integer("group", 1)
    return convolve(padded, weight, call.input(2), windows.strides, 0, windows.dilations, groups)


def _conv_transpose(call: OperatorCall) -> Tensor:
    x, weight, node = call.inputs[0], call.inputs[1], call.node
    if node.string("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
        raise unsupported(node, "auto_pad and output_shape are not implemented")
    rank = x.ndim - 2
    convolve = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    strides, dilations = node.ints("strides", [1] * rank), node.ints("dilations", [1] * rank)
    extra, pads = node.ints("output_padding", [0] * rank), node.ints("pads", [0] * 2 * rank)
    y = convolve(x, weight, None, strides, 0, 0, node.integer("group", 1), dilations)
    # The whole result, longer by output_padding, of which pads cut the ends.
    y = _padded(y, (0,) * rank, extra, 0.0)
    for axis in range(rank):
        y = y.narrow(axis + 2, pads[axis], y.shape[axis + 2] - pads[axis] - pads[rank + axis])
    return y if call.input(2) is None else y + call.input(2).reshape([-1] + [1] * rank)


def _gemm(call: OperatorCall) -> Tensor:
    node, (a, b) = call.node, call.inputs[:2]
    a, b = a.T if node.integer("transA", 0) else a, b.T if node.integer("transB", 0) else b
    y = node.number("alpha", 1.0) * (a @ b)
    return y if call.input(2) is None else y + node.number("beta", 1.0) * call.input(2)


def _max_pool(call: OperatorCall) -> Tensor:
    x, node = call.inputs[0], call.node
    windows = read_windows(node, x.shape[2:], node.ints("kernel_shape"))
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[x.ndim - 3]
    return pool(windows.pad(x, -math.inf), windows.kernel, windows.strides, 0, windows.dilations)


def _average_pool(call: OperatorCall) -> Tensor:
    x, node = call.inputs[0], call.node
    windows = read_windows(node, x.shape[2:], node.ints("kernel_shape"))
    if any(d != 1 for d in windows.dilations):
        raise unsupported(node, "dilations are not implemented")
    pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[x.ndim - 3]
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    counted = windows.pad(counted, float(node.integer("count_include_pad", 0)), 0.0)
    return pool(windows.pad(x, 0.0), windows.kernel, windows.strides) / pool(counted, windows.kernel, windows.strides)


def _batch_normalization(call: OperatorCall) -> Tensor:
    x, scale, bias, mean, variance = call.inputs[:5]
    shape = [1, -1] + [1] * (x.ndim - 2)
    factor = scale / torch.sqrt(variance + call.node.number("epsilon", 1e-5))
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def _clip(call: OperatorCall) -> Tensor:
    def bound(name: str, position: int) -> Tensor:
        found = call.node.attributes.get(name)
        return call.input(position) if found is None else found

    return torch.clamp(call.inputs[0], bound("min", 1), bound("max", 2))


def _prelu(call: OperatorCall) -> Tensor:
    x, slope = call.inputs[:2]
    return torch.where(x > 0, x, x * slope)


def _hard_sigmoid(call: OperatorCall) -> Tensor:
    slope, offset = call.node.number("alpha", 0.2), call.node.number("beta", 0.5)
    return torch.clamp(slope * call.inputs[0] + offset, 0.0, 1.0)


def _softmax(function: Callable[..., Tensor]) -> Operator:
    def compute(call: OperatorCall) -> Tensor:
        x, axis = call.inputs[0], call.node.integer("axis", -1 if call.node.version >= 13 else 1)
        if call.node.version >= 13:
            return function(x, axis)
        flat = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)
        return function(flat, 1).reshape(x.shape)

    return compute


def _flatten(call: OperatorCall) -> Tensor:
    x, axis = call.inputs[0], call.node.integer("axis", 1)
    axis = axis if axis >= 0 else axis + x.ndim
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _reshape(call: OperatorCall) -> Tensor:
    x, wanted = call.inputs[0], call.list_integers("shape", 1) or []
    if not call.node.integer("allowzero", 0):
        wanted = [x.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    return x.reshape(wanted)


def _transpose(call: OperatorCall) -> Tensor:
    x = call.inputs[0]
    return x.permute(call.node.ints("perm", reversed(range(x.ndim))))


def _squeeze(call: OperatorCall) -> Tensor:
    x, axes = call.inputs[0], call.list_integers("axes", 1)
    gone = {a % x.ndim for a in axes} if axes else {a for a, size in enumerate(x.shape) if size == 1}
    return x.reshape([size for a, size in enumerate(x.shape) if a not in gone])


def _unsqueeze(call: OperatorCall) -> Tensor:
    x, axes = call.inputs[0], call.list_integers("axes", 1) or []
    rank = x.ndim + len(axes)
    sizes = iter(x.shape)
    new = {a % rank for a in axes}
    return x.reshape([1 if a in new else next(sizes) for a in range(rank)])


def _split(call: OperatorCall) -> Tensor:
    x, axis, sizes = call.inputs[0], call.node.integer("axis", 0), call.list_integers("split", 1)
    if sizes is None:
        each = -(-x.shape[axis] // len(call.node.outputs))
        sizes = [min(each, x.shape[axis] - k * each) for k in range(len(call.node.outputs))]
    return torch.split(x, sizes, axis)


def _slice(call: OperatorCall) -> Tensor:
    x = call.inputs[0]
    starts, ends = call.list_integers("starts", 1) or [], call.list_integers("ends", 2) or []
    axes = call.list_integers("axes", 3) or list(range(len(starts)))
    steps = call.list_integers("steps", 4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # -2**63 is before the first element, which Python's slices write as None.
        places = np.arange(x.shape[axis], dtype=np.int64)
        chosen = places[slice(start, None if step < 0 and end < -x.shape[axis] else end, step)]
        x = torch.index_select(x, axis, torch.from_numpy(np.ascontiguousarray(chosen)))
    return x


def _pad(call: OperatorCall) -> Tensor:
    pads: list[int] = call.list_integers("pads", 1) or []
    x, node = call.inputs[0], call.node
    if node.string("mode", "constant") != "constant" or call.input(3) is not None:
        raise unsupported(node, "only constant padding of all axes is implemented")
    value = call.constants[2] if len(call.constants) > 2 else node.attributes.get("value")
    rank = int(x.ndim)
    pairs = [p for axis in reversed(range(rank)) for p in (pads[axis], pads[rank + axis])]
    return functional.pad(x, pairs, value=0.0 if value is None else float(value))


def _reduce(function: Callable[..., Tensor]) -> Operator:
    def compute(call: OperatorCall) -> Tensor:
        x, axes = call.inputs[0], call.list_integers("axes", 1)
        if not axes and call.node.integer("noop_with_empty_axes", 0):
            return x
        return function(x, axes or list(range(x.ndim)), bool(call.node.integer("keepdims", 1)))

    return compute


def _spatial(function: Callable[..., Tensor]) -> Operator:
    return lambda call: function(call.inputs[0], list(range(2, call.inputs[0].ndim)), True)


def _unary(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda call: function(call.inputs[0])


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return lambda call: function(call.inputs[0], call.inputs[1])


OPERATORS: dict[str, Operator] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "Concat": lambda call: torch.cat(list(call.inputs), call.node.integer("axis", 0)),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": _binary(torch.div),
    "Dropout": _unary(lambda x: x),
    "Elu": lambda call: torch.where(
        call.inputs[0] > 0, call.inputs[0], call.node.number("alpha", 1.0) * torch.expm1(call.inputs[0].clamp(max=0))
    ),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Flatten": _flatten,
    "Gelu": lambda call: functional.gelu(call.inputs[0], approximate=call.node.string("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": _spatial(torch.mean),
    "GlobalMaxPool": _spatial(torch.amax),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _unary(functional.hardswish),
    "Identity": _unary(lambda x: x),
    "LeakyRelu": lambda call: functional.leaky_relu(call.inputs[0], call.node.number("alpha", 0.01)),
    "Log": _unary(torch.log),
    "LogSoftmax": _softmax(torch.log_softmax),
    "MatMul": _binary(torch.matmul),
    "MaxPool": _max_pool,
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _binary(torch.pow),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Relu": _unary(functional.relu),
    "Reshape": _reshape,
    "Sigmoid": _unary(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax(torch.softmax),
    "Softplus": _unary(functional.softplus),
    "Split": _split,
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(torch.sub),
    "Tanh": _unary(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""Operators of the default operator set that can be differentiated."""
