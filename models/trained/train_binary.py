"""Trains a binary network on the digits of `models.trained` and writes `digits-binary.onnx`, in a few minutes:

    OPENBLAS_NUM_THREADS=2 python -m models.trained.train_binary [FILE]

Weights and activations are 1 and -1. The file is QONNX (`BipolarQuant`, `Quant` for the image), as Brevitas writes such
networks. It is reproducible under the same conditions as the one of `train_digits`.

Gradients pass a sign as if it were the identity between -1 and 1 (Hubara et al., Binarized Neural Networks, 2016).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.trained import BINARY_MODEL, DigitImages, load_images
from models.trained.train_digits import (
    Array,
    Flatten,
    MaxPool,
    Sequential,
    TrainableLayer,
    fit_network,
    measure_accuracy,
)

SEED, EPOCHS = 11, 100
WIDTH, WIDE, HIDDEN = 32, 64, 128
SPREAD = 0.1
"""Initial range of the real numbers whose signs are the weights: small, so that signs can still change."""
KERNEL_SIZE = 3
"""Rows and columns of a kernel."""
DOMAIN = "qonnx.custom_op.general"


class BinaryLinear(TrainableLayer):
    """A dense layer with weights 1 and -1, the signs of the trained real numbers `weight` [inputs, outputs]."""

    def __init__(self, name: str, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        super().__init__(name)
        self.weights = {"weight": rng.uniform(-SPREAD, SPREAD, (inputs, outputs)).astype(np.float32)}

    @property
    def binary_weights(self) -> Array:
        return np.where(self.weights["weight"] >= 0, 1, -1).astype(np.float32)

    def forward(self, x: Array) -> Array:
        self.x = x
        return x @ self.binary_weights

    def backward(self, dy: Array) -> Array:
        self.weights["weight"] = np.clip(self.weights["weight"], -1, 1)
        flat = self.x.reshape(-1, self.x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        self.gradients = {"weight": flat[0].T @ flat[1]}
        return dy @ self.binary_weights.T

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        yield from _weights(self.name)
        yield helper.make_node("MatMul", [source, f"{self.name}.binary"], [target], self.name)


class BinaryConv(BinaryLinear):
    """A convolution with binary weights [inputs * 9, outputs], without padding, which would need a third value."""

    def __init__(self, name: str, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        super().__init__(name, rng, inputs * KERNEL_SIZE * KERNEL_SIZE, outputs)
        self.inputs = inputs

    def forward(self, x: Array) -> Array:
        self.shape = x.shape
        windows = np.lib.stride_tricks.sliding_window_view(x, (KERNEL_SIZE, KERNEL_SIZE), axis=(2, 3))  # pyright: ignore[reportCallIssue, reportArgumentType] the stubs want single axes
        patches = np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5)).reshape(
            *windows.shape[:1], *windows.shape[2:4], -1
        )
        return np.ascontiguousarray(super().forward(patches).transpose(0, 3, 1, 2))

    def backward(self, dy: Array) -> Array:
        patches = super().backward(np.ascontiguousarray(dy.transpose(0, 2, 3, 1)))
        n, h, w, _ = patches.shape
        taps = patches.reshape(n, h, w, self.inputs, KERNEL_SIZE, KERNEL_SIZE)
        dx = np.zeros(self.shape, np.float32)
        for i in range(KERNEL_SIZE):
            for j in range(KERNEL_SIZE):
                dx[:, :, i : i + h, j : j + w] += taps[..., i, j].transpose(0, 3, 1, 2)
        return dx

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        yield from _weights(self.name)
        yield helper.make_node(
            "Conv", [source, f"{self.name}.binary"], [target], self.name, kernel_shape=[KERNEL_SIZE, KERNEL_SIZE]
        )

    def onnx_weights(self) -> Array:
        """Returns the weights in ONNX's layout: [outputs, inputs, rows, columns]."""
        return self.weights["weight"].T.reshape(-1, self.inputs, KERNEL_SIZE, KERNEL_SIZE)


class BatchNorm(TrainableLayer):
    """Batch normalisation along axis 1, with a learned scale and bias.

    Inference uses the running mean and variance of training.
    """

    op_type = "BatchNormalization"

    def __init__(self, name: str, channels: int) -> None:
        super().__init__(name)
        self.weights = {"scale": np.ones(channels, np.float32), "bias": np.zeros(channels, np.float32)}
        self.mean, self.variance = np.zeros(channels, np.float32), np.ones(channels, np.float32)
        self.training = True

    def forward(self, x: Array) -> Array:
        self.axes = (0, *range(2, x.ndim))
        mean, variance = (x.mean(self.axes), x.var(self.axes)) if self.training else (self.mean, self.variance)
        if self.training:
            self.mean = np.asarray(0.9 * self.mean + 0.1 * mean, np.float32)
            self.variance = np.asarray(0.9 * self.variance + 0.1 * variance, np.float32)
        self.factor = self._along(np.asarray(1 / np.sqrt(variance + 1e-5), np.float32), x)
        self.x = (x - self._along(mean, x)) * self.factor
        return np.asarray(
            self.x * self._along(self.weights["scale"], x) + self._along(self.weights["bias"], x), np.float32
        )

    def backward(self, dy: Array) -> Array:
        self.gradients = {"scale": (dy * self.x).sum(self.axes), "bias": dy.sum(self.axes)}
        dx = dy * self._along(self.weights["scale"], dy)
        means = [self._along(v.mean(self.axes), dy) for v in (dx, dx * self.x)]
        return np.asarray((dx - means[0] - self.x * means[1]) * self.factor, np.float32)

    @staticmethod
    def _along(values: Array, x: Array) -> Array:
        return values.reshape(1, -1, *(1,) * (x.ndim - 2))

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        names = [f"{self.name}.{key}" for key in ("scale", "bias", "mean", "variance")]
        yield helper.make_node(self.op_type, [source, *names], [target], self.name, epsilon=1e-5)


class SignActivation(TrainableLayer):
    """1 where x >= 0, else -1."""

    def forward(self, x: Array) -> Array:
        self.inside = np.abs(x) <= 1
        return np.where(x >= 0, 1, -1).astype(np.float32)

    def backward(self, dy: Array) -> Array:
        return dy * self.inside

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        yield _bipolar(source, target, self.name)


class PixelQuantiser(TrainableLayer):
    """Quantises the image to integers from 0 to 16. This is lossless, because pixels have 17 grey levels."""

    def forward(self, x: Array) -> Array:
        return x

    def backward(self, dy: Array) -> Array:
        return dy

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        inputs = [source, "pixels.scale", "pixels.zero", "pixels.bits"]
        given: dict[str, Any] = {"signed": 0, "narrow": 0, "rounding_mode": "ROUND"}
        yield helper.make_node("Quant", inputs, [target], self.name, domain=DOMAIN, **given)


def _weights(name: str) -> Iterator[NodeProto]:
    """Yields the nodes that make a binary weight from its initializer, which has one byte per number."""
    yield helper.make_node("Cast", [f"{name}.weight"], [f"{name}.float"], f"{name}.float", to=TensorProto.FLOAT)
    yield _bipolar(f"{name}.float", f"{name}.binary")


def _bipolar(source: str, target: str, name: str = "") -> NodeProto:
    return helper.make_node("BipolarQuant", [source, "one"], [target], name or target, domain=DOMAIN)


def build_network(rng: np.random.Generator) -> Sequential:
    """Returns the network: two convolutions and two dense layers, each with a normalisation."""
    return Sequential(
        "digits-binary",
        PixelQuantiser("pixels"),
        BinaryConv("conv1", rng, 1, WIDTH),
        BatchNorm("norm1", WIDTH),
        SignActivation("sign1"),
        BinaryConv("conv2", rng, WIDTH, WIDE),
        BatchNorm("norm2", WIDE),
        SignActivation("sign2"),
        MaxPool("pool"),
        Flatten("flatten"),
        BinaryLinear("fc1", rng, WIDE * 4, HIDDEN),
        BatchNorm("norm3", HIDDEN),
        SignActivation("sign3"),
        BinaryLinear("fc2", rng, HIDDEN, 10),
        BatchNorm("norm4", 10),
    )


def train_network(images: DigitImages, epochs: int = EPOCHS) -> Sequential:
    """Returns the network, trained on images that are shifted by up to one pixel at random."""
    rng = np.random.default_rng(SEED)
    network = build_network(rng)
    fit_network(network, images, epochs, rng)
    for layer in network.all_layers():
        if isinstance(layer, BatchNorm):
            layer.training = False
    return network


def list_constants(network: Sequential) -> Iterator[tuple[str, Any]]:
    """Yields the constants of the file: signs of the weights, and the learned values of the normalisations."""
    yield "one", np.ones((), np.float32)
    for name, value in (("scale", 1 / 16), ("zero", 0), ("bits", 5)):
        yield f"pixels.{name}", np.asarray(value, np.float32)
    for layer in network.all_layers():
        if isinstance(layer, BinaryLinear):
            stored = layer.onnx_weights() if isinstance(layer, BinaryConv) else layer.weights["weight"]
            yield f"{layer.name}.weight", np.where(stored >= 0, 1, -1).astype(np.int8)
        if isinstance(layer, BatchNorm):
            yield from ((f"{layer.name}.{key}", value) for key, value in layer.weights.items())
            yield f"{layer.name}.mean", layer.mean
            yield f"{layer.name}.variance", layer.variance


def to_onnx(network: Sequential) -> ModelProto:
    graph = helper.make_graph(
        list(network.nodes("image", "scores")),
        "digits-binary",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in list_constants(network)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def main(target: Path) -> None:
    training, test = load_images()
    network = train_network(training)
    target.write_bytes(to_onnx(network).SerializeToString(deterministic=True))
    shares = (measure_accuracy(network, images) for images in (training, test))
    print("{}: {:.2%} of the training images, {:.2%} of the others".format(target, *shares))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else BINARY_MODEL)
