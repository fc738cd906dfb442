"""Trains the network of `models.trained` and writes `digits.onnx`, in some minutes:

    OPENBLAS_NUM_THREADS=2 python -m models.trained.train_digits [FILE]

Everything is numpy with fixed seeds, so one machine writes the same bytes again. Another number of threads, processor
or version of numpy changes the order of sums, and training amplifies that: weights differ, and the accuracy may differ
by a few tenths of a per cent. (With one thread, too, 98.50 % of the test images are recognised.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.trained import MODEL, DigitImages, load_images

Array = npt.NDArray[np.float32]

SEED = 7
EPOCHS, BATCH = 80, 64
RATE, DECAY = 3e-3, 1e-4
"""Initial rate of Adam, which decays to 0 as a cosine; decay of the weights per step, relative to the rate."""
WIDTH, WIDE, HIDDEN = 16, 32, 64


class TrainableLayer:
    """A layer of the network. `forward` stores what `backward` needs; `backward` computes `gradients`."""

    op_type = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}

    def forward(self, x: Array) -> Array:
        raise NotImplementedError

    def backward(self, dy: Array) -> Array:
        raise NotImplementedError

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        names = [f"{self.name}.{key}" for key in self.weights]
        yield helper.make_node(self.op_type, [source, *names], [target], self.name, **self.attributes())

    def attributes(self) -> dict[str, Any]:
        return {}

    def all_layers(self) -> Iterator[TrainableLayer]:
        yield self


class Conv(TrainableLayer):
    """A convolution with padding that keeps the size; depthwise if `groups` equals the channels."""

    op_type = "Conv"

    def __init__(self, name: str, rng: np.random.Generator, inputs: int, outputs: int, size: int, groups: int = 1):
        super().__init__(name)
        self.size, self.groups = size, groups
        shape = (outputs, inputs // groups, size, size)
        spread = np.sqrt(2 / (shape[1] * size * size))
        self.weights = {"weight": _normal(rng, shape, spread), "bias": np.zeros(outputs, np.float32)}

    def forward(self, x: Array) -> Array:
        self.patches = self._patches(x)
        return self._product(self.patches, self.weights["weight"]) + self.weights["bias"][:, None, None]

    def backward(self, dy: Array) -> Array:
        depthwise, weight = self.groups > 1, self.weights["weight"]
        rule = "nchw,nchwij->cij" if depthwise else "nohw,nchwij->ocij"
        gradient = np.einsum(rule, dy, self.patches, optimize=True)
        self.gradients = {"weight": gradient.reshape(weight.shape), "bias": dy.sum((0, 2, 3))}
        turned = weight[:, :, ::-1, ::-1]
        return self._product(self._patches(dy), turned if depthwise else turned.transpose(1, 0, 2, 3))

    def _patches(self, x: Array) -> Array:
        pad = self.size // 2
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        return sliding_window_view(padded, (self.size, self.size), axis=(2, 3))  # pyright: ignore[reportCallIssue, reportArgumentType] the stubs want single axes

    def _product(self, patches: Array, weight: Array) -> Array:
        if self.groups > 1:
            return np.einsum("nchwij,cij->nchw", patches, weight[:, 0], optimize=True)
        return np.einsum("nchwij,ocij->nohw", patches, weight, optimize=True)

    def attributes(self) -> dict[str, Any]:
        pads = [self.size // 2] * 4
        return {"kernel_shape": [self.size, self.size], "pads": pads, "group": self.groups}


class Relu(TrainableLayer):
    op_type = "Relu"

    def forward(self, x: Array) -> Array:
        self.positive = x > 0
        return x * self.positive

    def backward(self, dy: Array) -> Array:
        return dy * self.positive


class MaxPool(TrainableLayer):
    """Maximum of 2x2 pixels; the gradient goes to all pixels that equal the maximum."""

    op_type = "MaxPool"

    def forward(self, x: Array) -> Array:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y = blocks.max((3, 5))
        self.chosen = blocks == y[:, :, :, None, :, None]
        return y

    def backward(self, dy: Array) -> Array:
        spread = self.chosen * dy[:, :, :, None, :, None]
        n, c, h, _, w, _ = spread.shape
        return spread.reshape(n, c, 2 * h, 2 * w).astype(np.float32)

    def attributes(self) -> dict[str, Any]:
        return {"kernel_shape": [2, 2], "strides": [2, 2]}


class Flatten(TrainableLayer):
    op_type = "Flatten"

    def forward(self, x: Array) -> Array:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, dy: Array) -> Array:
        return dy.reshape(self.shape)


class Linear(TrainableLayer):
    op_type = "Gemm"

    def __init__(self, name: str, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        super().__init__(name)
        weight = _normal(rng, (outputs, inputs), np.sqrt(2 / inputs))
        self.weights = {"weight": weight, "bias": np.zeros(outputs, np.float32)}

    def forward(self, x: Array) -> Array:
        self.x = x
        return x @ self.weights["weight"].T + self.weights["bias"]

    def backward(self, dy: Array) -> Array:
        self.gradients = {"weight": dy.T @ self.x, "bias": dy.sum(0)}
        return dy @ self.weights["weight"]

    def attributes(self) -> dict[str, Any]:
        return {"transB": 1}


class ResidualBlock(TrainableLayer):
    """The sum of the input and the output of a chain of layers."""

    op_type = "Add"

    def __init__(self, name: str, inner: Sequential) -> None:
        super().__init__(name)
        self.inner = inner

    def forward(self, x: Array) -> Array:
        return x + self.inner.forward(x)

    def backward(self, dy: Array) -> Array:
        return dy + self.inner.backward(dy)

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        yield from self.inner.nodes(source, f"{self.name}.inner")
        yield helper.make_node("Add", [source, f"{self.name}.inner"], [target], self.name)

    def all_layers(self) -> Iterator[TrainableLayer]:
        yield from self.inner.all_layers()


class Sequential(TrainableLayer):
    """Layers that are applied in sequence."""

    def __init__(self, name: str, *layers: TrainableLayer) -> None:
        super().__init__(name)
        self.layers = layers

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, dy: Array) -> Array:
        for layer in reversed(self.layers):
            dy = layer.backward(dy)
        return dy

    def nodes(self, source: str, target: str) -> Iterator[NodeProto]:
        for layer in self.layers:
            result = target if layer is self.layers[-1] else f"{layer.name}.out"
            yield from layer.nodes(source, result)
            source = result

    def all_layers(self) -> Iterator[TrainableLayer]:
        for layer in self.layers:
            yield from layer.all_layers()


def build_network(rng: np.random.Generator) -> Sequential:
    """Returns the network: two convolutions, each followed by a depthwise residual block, and two dense layers."""
    return Sequential(
        "digits",
        Conv("conv1", rng, 1, WIDTH, 3),
        Relu("relu1"),
        _block("block1", rng, WIDTH),
        MaxPool("pool1"),
        Conv("conv2", rng, WIDTH, WIDE, 3),
        Relu("relu2"),
        _block("block2", rng, WIDE),
        MaxPool("pool2"),
        Flatten("flatten"),
        Linear("fc1", rng, WIDE * 4, HIDDEN),
        Relu("relu3"),
        Linear("fc2", rng, HIDDEN, 10),
    )


def _block(name: str, rng: np.random.Generator, channels: int) -> Sequential:
    inner = Sequential(
        f"{name}.inner",
        Conv(f"{name}.depthwise", rng, channels, channels, 3, groups=channels),
        Relu(f"{name}.relu1"),
        Conv(f"{name}.pointwise", rng, channels, channels, 1),
    )
    return Sequential(name, ResidualBlock(f"{name}.add", inner), Relu(f"{name}.relu2"))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> Array:
    return (rng.standard_normal(shape) * spread).astype(np.float32)


@dataclass(slots=True)
class Adam:
    """The optimiser Adam (Kingma and Ba, 2015) with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    steps: int
    step: int = 0
    first: dict[str, Array] = field(default_factory=dict[str, Array])
    second: dict[str, Array] = field(default_factory=dict[str, Array])

    def update(self, layers: list[TrainableLayer]) -> None:
        rate = np.float32(RATE * 0.5 * (1 + np.cos(np.pi * self.step / self.steps)))
        self.step += 1
        for layer in layers:
            for key, gradient in layer.gradients.items():
                layer.weights[key] -= rate * self._direction(f"{layer.name}.{key}", gradient)
                layer.weights[key] -= np.float32(rate * DECAY) * layer.weights[key]

    def _direction(self, name: str, gradient: Array) -> Array:
        zero = np.zeros_like(gradient)
        self.first[name] = np.asarray(0.9 * self.first.get(name, zero) + 0.1 * gradient, np.float32)
        self.second[name] = np.asarray(0.999 * self.second.get(name, zero) + 0.001 * gradient**2, np.float32)
        mean, square = self.first[name] / (1 - 0.9**self.step), self.second[name] / (1 - 0.999**self.step)
        return mean / (np.sqrt(square) + np.float32(1e-8))


def train_network(images: DigitImages) -> Sequential:
    """Returns the network, trained on images that are shifted by up to one pixel at random."""
    rng = np.random.default_rng(SEED)
    network = build_network(rng)
    fit_network(network, images, EPOCHS, rng)
    return network


def fit_network(network: Sequential, images: DigitImages, epochs: int, rng: np.random.Generator) -> None:
    """Trains a network on images that are shifted by up to one pixel at random, and prints the loss."""
    layers, count = list(network.all_layers()), len(images.digits)
    optimiser = Adam(epochs * -(-count // BATCH))
    for epoch in range(epochs):
        order, loss = rng.permutation(count), 0.0
        for start in range(0, count, BATCH):
            chosen = order[start : start + BATCH]
            scores = network.forward(shift_images(images.pixels[chosen], rng))
            part, gradient = cross_entropy(scores, images.digits[chosen])
            network.backward(gradient)
            optimiser.update(layers)
            loss += part * len(chosen)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {loss / count:.4f}", flush=True)


def shift_images(pixels: Array, rng: np.random.Generator) -> Array:
    """Returns the images, each shifted by up to one pixel."""
    padded = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)))
    moves = rng.integers(0, 3, (len(pixels), 2))
    return np.stack([p[:, y : y + 8, x : x + 8] for p, (y, x) in zip(padded, moves, strict=True)])


def cross_entropy(scores: Array, digits: npt.NDArray[np.int64]) -> tuple[float, Array]:
    """Returns the mean loss, and its gradient with respect to the scores."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    rows = np.arange(len(digits))
    loss = float(-np.log(shares[rows, digits]).mean())
    shares[rows, digits] -= 1
    return loss, shares / np.float32(len(digits))


def measure_accuracy(network: Sequential, images: DigitImages) -> float:
    return float((network.forward(images.pixels).argmax(1) == images.digits).mean())


def to_onnx(network: Sequential) -> ModelProto:
    weights: Mapping[str, Array] = {
        f"{layer.name}.{key}": value for layer in network.all_layers() for key, value in layer.weights.items()
    }
    graph = helper.make_graph(
        list(network.nodes("image", "scores")),
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def main(target: Path) -> None:
    training, test = load_images()
    network = train_network(training)
    model = to_onnx(network)
    target.write_bytes(model.SerializeToString(deterministic=True))
    print(f"training {measure_accuracy(network, training):.2%}, test {measure_accuracy(network, test):.2%}")
    weights = sum(value.size for layer in network.all_layers() for value in layer.weights.values())
    print(f"{target}: {target.stat().st_size} bytes, {weights} weights")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else MODEL)
