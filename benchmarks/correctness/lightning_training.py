"""Trains the network of the digits with AIHWKit-Lightning (PyPI: aihwkit-lightning 2.1.0), for comparison.

The same errors of weights, clip, batches, rate, epochs and shifts as in `raptor train`. Its layers take no groups, so
depthwise convolutions are PyTorch's, without errors, as on our chips.
"""

import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

torch: Any = import_module("torch")
nn: Any = torch.nn
Tensor = Any
BATCH, RATE, DECAY, CLIP = 64, 0.003, 1e-4, 2.5


class ResidualBlock(nn.Module):  # pyright: ignore[reportUntypedBaseClass] PyTorch is not installed everywhere
    """Relu(x + pointwise(Relu(depthwise(x)))), then a maximum of 2x2 elements."""

    def __init__(self, channels: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] as above
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.max_pool2d(torch.relu(x + self.pointwise(torch.relu(self.depthwise(x)))), 2)


class DigitsNetwork(nn.Module):  # pyright: ignore[reportUntypedBaseClass] as above
    """The network of `models.trained`. Parameters have the names of the ONNX constants."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] as above
        self.conv1, self.block1 = nn.Conv2d(1, 16, 3, padding=1), ResidualBlock(16)
        self.conv2, self.block2 = nn.Conv2d(16, 32, 3, padding=1), ResidualBlock(32)
        self.fc1, self.fc2 = nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(torch.relu(self.conv1(x)))
        x = self.block2(torch.relu(self.conv2(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def train_lightning(model: Path, data: Path, *, noise: float, epochs: int, seed: int, shift: int) -> onnx.ModelProto:
    """Returns the network of a file with new weights, trained on all samples of `data`. `noise`: as in raptor.train."""
    from raptor.tools.train.fit_network import shift_samples

    torch.manual_seed(seed)
    network = _convert(_draw_weights(DigitsNetwork()), noise)
    with np.load(data) as archive:
        images, labels = torch.from_numpy(archive["x"]), torch.from_numpy(archive["y"])
    optimiser_of: Any = import_module("aihwkit_lightning.optim").AnalogOptimizer
    optimiser = optimiser_of(
        torch.optim.AdamW, network.analog_layers, network.parameters(), lr=RATE, weight_decay=DECAY
    )
    steps, step, generator = epochs * -(-len(labels) // BATCH), 0, torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for start in range(0, len(labels), BATCH):
            chosen = order[start : start + BATCH]
            for group in optimiser.param_groups:
                group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            step += 1
            optimiser.zero_grad()
            batch = shift_samples(images[chosen][:, None], shift, generator)[:, 0]
            nn.functional.cross_entropy(network(batch), labels[chosen]).backward()
            optimiser.step()
    return _write_weights(model, network)


def _draw_weights(network: Any) -> Any:
    """Draws weights with the variance 2 / fan-in; biases become 0. As `raptor train --scratch`."""
    for name, values in network.named_parameters():
        if name.endswith("bias"):
            values.data.zero_()
        else:
            values.data.normal_(0.0, math.sqrt(2 / math.prod(values.shape[1:])))
    return network


def _convert(network: Any, noise: float) -> Any:
    """Returns the network with analog layers; only errors of weights and their clip are on."""
    parameters: Any = import_module("aihwkit_lightning.simulator.parameters")
    configs: Any = import_module("aihwkit_lightning.simulator.configs")
    settings = configs.TorchInferenceRPUConfig()
    settings.modifier.noise_type = parameters.WeightNoiseInjectionType.ADD_NORMAL_PER_CHANNEL
    settings.modifier.std_dev = noise
    settings.clip.type, settings.clip.sigma = parameters.WeightClipType.LAYER_GAUSSIAN, CLIP
    depthwise = ["block1.depthwise", "block2.depthwise"]
    return import_module("aihwkit_lightning.nn.conversion").convert_to_analog(
        network, settings, exclude_modules=depthwise
    )


def _write_weights(model: Path, network: Any) -> onnx.ModelProto:
    proto = onnx.load(model)  # pyright: ignore[reportUnknownMemberType] no types
    trained = {name: values.detach().numpy() for name, values in network.named_parameters()}
    for tensor in proto.graph.initializer:
        values = trained[tensor.name].reshape(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return proto
