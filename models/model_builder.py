"""Builds an ONNX model node by node, and runs each added node once on a calibration batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.node_evaluation import (
    IR_VERSION,
    OPSET,
    Attribute,
    FloatArray,
    IntArray,
    Shape,
    infer_shape,
    make_node,
    run_node,
)

_CALIBRATION_PIXELS = 4 * 224 * 224
_CALIBRATION_IMAGES = 64
_CENTRING = 0.5
_FEWEST_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model under construction. The first dimension of `shape` is 1, the batch.

    value: the weight, or the activation for the calibration batch; None in a dry run. constant: a value that determines
    shapes (sizes, axes, scales), which is also known in a dry run.
    """

    name: str
    shape: Shape
    value: FloatArray | None = field(repr=False)
    constant: FloatArray | IntArray | None = field(default=None, repr=False)


ABSENT = Tensor("", (), None)
"""An omitted optional input."""


def scale_channels(channels: int, width: float) -> int:
    """Returns `channels` times `width`, but at least 8 (or all), so that some channels stay nonzero after each Relu."""
    return max(min(channels, _FEWEST_CHANNELS), round(channels * width))


def _calibrate(
    node: onnx.NodeProto, x: FloatArray, weight: FloatArray, bias: FloatArray, *, rms: float, centring: float
) -> None:
    """Subtracts `centring` times each channel's mean by the bias, then scales both to root mean square `rms`."""
    y = run_node(node, [x, weight])
    mean: FloatArray = centring * y.mean(axis=(0, *range(2, y.ndim)))
    y -= mean.reshape(-1, *[1] * (y.ndim - 2))
    scale = rms / math.sqrt(float(np.mean(np.square(y))))
    weight *= scale
    bias -= scale * mean


class ModelBuilder:
    """A model under construction. Weights are drawn from `seed` in construction order; None is a dry run of shapes.

    Layer methods take the input and the node's name `n`, write tensor `n_output` and own weights `n.weight`, `n.bias`.
    """

    def __init__(self, name: str, seed: int | None) -> None:
        graph = onnx.GraphProto(name=name)
        self._model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
        self._seed = seed
        self._rng = np.random.default_rng(seed)
        self._names: set[str] = set()
        self.parameters = 0

    def input(self, *shape: int) -> Tensor:
        """Declares the input; its calibration batch is standard normal: 4 images of 224x224, more if smaller."""
        self._model.graph.input.append(helper.make_tensor_value_info("input", TensorProto.FLOAT, shape))
        if self._seed is None:
            return Tensor("input", shape, None)
        images = min(max(_CALIBRATION_PIXELS // math.prod(shape[2:]), 2), _CALIBRATION_IMAGES)
        rng = np.random.default_rng([self._seed, 1])  # its own stream, so that weights do not depend on the image size
        return Tensor("input", shape, rng.standard_normal((images, *shape[1:]), dtype=np.float32))

    def op(self, op_type: str, name: str, inputs: Sequence[Tensor], **attributes: Attribute) -> Tensor:
        """Adds one node with one output."""
        self._claim(name)
        node = make_node(op_type, name, [x.name for x in inputs], f"{name}_output", attributes)
        self._model.graph.node.append(node)
        constants = {x.name: x.constant for x in inputs if x.constant is not None}
        shape = infer_shape(node, [x.shape for x in inputs], constants)
        if self._seed is None:
            return Tensor(node.output[0], shape, None)
        given = (x.value if x.constant is None else x.constant for x in inputs)
        return Tensor(node.output[0], shape, run_node(node, [value for value in given if value is not None]))

    def constant(self, name: str, values: Sequence[int] | Sequence[float] | float) -> Tensor:
        """Adds a constant that is not a parameter: integers become int64, other numbers float32."""
        given = np.asarray(values)
        array = given.astype(np.int64) if given.dtype.kind == "i" else given.astype(np.float32)
        self._claim(name)
        self._model.graph.initializer.append(numpy_helper.from_array(array, name))
        return Tensor(name, array.shape, None, array)

    def parameter(self, name: str, shape: Shape, *, std: float, mean: float = 0) -> Tensor:
        """Adds a trained tensor of normally distributed numbers."""
        return self._parameter(name, shape, self._normal(shape, std=std, mean=mean))

    def conv(
        self,
        x: Tensor,
        name: str,
        channels: int,
        kernel: int | Sequence[int],
        *,
        stride: int = 1,
        pad: int | Sequence[int] = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
        logits: float = 0,
    ) -> Tensor:
        """Adds a convolution with He-normal weights; with a bias (no BatchNormalization) calibrated as in `gemm`.

        `kernel` is one number for all dimensions, or one for each. `pad` likewise, or the pads at the start of all
        dimensions and then those at the end.
        """
        rank = len(x.shape) - 2
        sizes = [kernel] * rank if isinstance(kernel, int) else list(kernel)
        pads = [pad] * 2 * rank if isinstance(pad, int) else list(pad) * (1 if len(pad) == 2 * rank else 2)
        window: dict[str, Attribute] = {"kernel_shape": sizes, "pads": pads, "strides": [stride] * rank}
        attributes = {"dilations": [dilation] * rank, "group": groups, **window}
        shape = (channels, x.shape[1] // groups, *sizes)
        return self._layer("Conv", x, name, shape, attributes, bias=bias, logits=logits)

    def conv_transpose(self, x: Tensor, name: str, channels: int, kernel: int) -> Tensor:
        """Adds an upsampling by `kernel` without overlap, with a bias."""
        shape = (x.shape[1], channels, kernel, kernel)
        weight = self.parameter(f"{name}.weight", shape, std=math.sqrt(2 / x.shape[1]))
        bias = self.parameter(f"{name}.bias", (channels,), std=0.05)
        return self.op("ConvTranspose", name, [x, weight, bias], kernel_shape=[kernel] * 2, strides=[kernel] * 2)

    def linear(self, x: Tensor, name: str, features: int, *, std: float = 0) -> Tensor:
        """Adds a layer on the last axis, as exporters write it for tokens: product with [inputs, features], then sum.

        The weights have the deviation `std`, by default one that preserves the root mean square.
        """
        inputs = x.shape[-1]
        weight = self.parameter(f"{name}.weight", (inputs, features), std=std or math.sqrt(1 / inputs))
        bias = self.parameter(f"{name}.bias", (features,), std=0.05)
        return self.op("Add", f"{name}.add", [self.op("MatMul", f"{name}.product", [x, weight]), bias])

    def layer_norm(self, x: Tensor, name: str, epsilon: float = 1e-5) -> Tensor:
        """Adds a LayerNormalization over the last axis; scale near 1, bias near 0."""
        scale = self.parameter(f"{name}.weight", x.shape[-1:], mean=1, std=0.1)
        bias = self.parameter(f"{name}.bias", x.shape[-1:], std=0.1)
        return self.op("LayerNormalization", name, [x, scale, bias], axis=-1, epsilon=epsilon)

    def reshape(self, x: Tensor, name: str, *shape: int) -> Tensor:
        """Adds a Reshape; 0 keeps the size of a dimension, for instance of the batch."""
        return self.op("Reshape", name, [x, self.constant(f"{name}.shape", shape)])

    def slice(self, x: Tensor, name: str, axis: int, start: int, stop: int) -> Tensor:
        """Adds a Slice of one axis."""
        limits = (("starts", start), ("ends", stop), ("axes", axis))
        return self.op("Slice", name, [x, *(self.constant(f"{name}.{key}", [value]) for key, value in limits)])

    def mean_pool(self, x: Tensor, name: str) -> Tensor:
        """Adds the mean of each channel, flattened."""
        return self.op("Flatten", f"{name}.flatten", [self.op("GlobalAveragePool", name, [x])], axis=1)

    def gemm(self, x: Tensor, name: str, features: int, *, logits: float = 0) -> Tensor:
        """Adds a calibrated fully connected layer with normal weights [features, inputs], as exporters store them.

        Over the calibration batch the outputs have root mean square 1, and the biases remove half of each channel's
        mean. Otherwise many channels of a deep network without BatchNormalization would have one sign for every input:
        their Relu would be constant zero or linear, and hide errors in the weights after it. The output layer keeps its
        means, and has `logits` as its root mean square.
        """
        return self._layer("Gemm", x, name, (features, x.shape[1]), {"transB": 1}, bias=True, logits=logits)

    def batch_norm(self, x: Tensor, name: str, epsilon: float = 1e-5) -> Tensor:
        """Adds a BatchNormalization with the statistics of the calibration batch; scale near 1, bias near 0."""
        channels = x.shape[1:2]
        mean = var = None
        if x.value is not None:
            rest = (0, *range(2, x.value.ndim))
            mean = x.value.mean(axis=rest, dtype=np.float64).astype(np.float32)
            var = x.value.var(axis=rest, dtype=np.float64).astype(np.float32)
        inputs = [
            self._parameter(f"{name}.weight", channels, self._normal(channels, mean=1, std=0.1)),
            self._parameter(f"{name}.bias", channels, self._normal(channels, std=0.1)),
            self._constant(f"{name}.running_mean", channels, mean),
            self._constant(f"{name}.running_var", channels, var),
        ]
        return self.op("BatchNormalization", name, [x, *inputs], epsilon=epsilon)

    def relu(self, x: Tensor, name: str) -> Tensor:
        return self.op("Relu", name, [x])

    def max_pool(self, x: Tensor, name: str, kernel: int, stride: int, *, pad: int = 0, ceil: bool = False) -> Tensor:
        window: dict[str, Attribute] = {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}
        return self.op("MaxPool", name, [x], ceil_mode=int(ceil), **window)

    def dropout(self, x: Tensor, name: str, ratio: float) -> Tensor:
        """Adds a Dropout as an exporter leaves it in an inference graph: it copies its input."""
        return self.op("Dropout", name, [x, self._constant(f"{name}.ratio", (), np.array(ratio, np.float32))])

    def finish(self, outputs: Tensor | Sequence[Tensor], options: str) -> onnx.ModelProto:
        """Returns the model, whose doc string records how to build it again."""
        model, graph = self._model, self._model.graph
        for output in [outputs] if isinstance(outputs, Tensor) else outputs:
            graph.output.append(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, output.shape))
        model.producer_name = "raptor.models"
        model.doc_string = f"{graph.name} by raptor.models, random weights, seed {self._seed}, {options}"
        return model

    def _layer(
        self,
        op_type: str,
        x: Tensor,
        name: str,
        shape: Shape,
        attributes: Mapping[str, Attribute],
        *,
        bias: bool,
        logits: float,
    ) -> Tensor:
        weight = self._normal(shape, std=math.sqrt(2 / math.prod(shape[1:])))
        offset = self._normal(shape[:1], std=0.05) if bias else None
        if x.value is not None and weight is not None and offset is not None:
            node = make_node(op_type, name, ["x", "w"], "y", attributes)
            _calibrate(node, x.value, weight, offset, rms=logits or 1, centring=0 if logits else _CENTRING)
        inputs = [x, self._parameter(f"{name}.weight", shape, weight)]
        if bias:
            inputs.append(self._parameter(f"{name}.bias", shape[:1], offset))
        return self.op(op_type, name, inputs, **attributes)

    def _normal(self, shape: Shape, *, std: float, mean: float = 0) -> FloatArray | None:
        if self._seed is None:
            return None
        value = self._rng.standard_normal(shape, dtype=np.float32)
        value *= np.float32(std)
        value += np.float32(mean)
        return value

    def _parameter(self, name: str, shape: Shape, value: FloatArray | None) -> Tensor:
        self.parameters += math.prod(shape)
        return self._constant(name, shape, value)

    def _constant(self, name: str, shape: Shape, value: FloatArray | None) -> Tensor:
        self._claim(name)
        if value is not None:
            self._model.graph.initializer.append(numpy_helper.from_array(value, name))
        return Tensor(name, shape, value)

    def _claim(self, name: str) -> None:
        if name in self._names:
            raise ValueError(f"two nodes or weights are named {name}")
        self._names.add(name)
