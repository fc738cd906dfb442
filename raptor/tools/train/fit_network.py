"""The training loop: Adam with a cosine, images shifted at random, errors of cells drawn anew for each batch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.tools.train.torch_graph import TorchGraph
from raptor.tools.train.weight_noise import WeightNoise
from validator.accuracy.labelled_data import LabelledData

torch: Any = import_module("torch")
functional: Any = import_module("torch.nn.functional")
Tensor = Any
_BATCH = 64
_EVALUATED = 500
"""Samples that are evaluated at the same time."""


@dataclass(frozen=True, slots=True)
class TrainingSchedule:
    """`epochs`: passes over the samples. `rate`: of Adam in the first step; it decays to 0 as a cosine.

    `shift`: largest shift of an image or a signal, in elements of each spatial axis. `seed`: of the order of the
    samples, of shifts, and of errors.
    """

    epochs: int
    rate: float
    shift: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class NoisyLayers:
    """The noise of each weight on crossbars, keyed by the name of the constant."""

    noises: Mapping[str, WeightNoise]

    def disturb(self, network: TorchGraph) -> dict[str, Tensor]:
        """Returns the weights on crossbars with errors of cells."""
        return {name: noise(network.parameter(name)) for name, noise in self.noises.items()}

    def draw_chip(self, network: TorchGraph) -> dict[str, Tensor]:
        """Returns the weights on crossbars as a chip holds them."""
        with torch.no_grad():
            return {
                name: network.parameter(name) + noise.draw_error(network.parameter(name))
                for name, noise in self.noises.items()
            }


def fit_network(
    network: TorchGraph,
    data: LabelledData,
    layers: NoisyLayers,
    schedule: TrainingSchedule,
    generator: Any,
    *,
    has_probabilities: bool,
    tick: Callable[[int, float], None],
) -> None:
    """Trains the weights of a network in place. `tick` gets the number of each epoch, and its mean loss.

    `has_probabilities`: the outputs are those of a Softmax, otherwise scores. `generator`: of the order and of shifts.
    """
    assert data.labels is not None, "checked when the data were read"
    labels = torch.from_numpy(data.labels)
    inputs = {name: torch.from_numpy(np.array(values)) for name, values in data.inputs.items()}
    optimiser = torch.optim.AdamW(network.parameters(), lr=schedule.rate, weight_decay=1e-4)
    steps = schedule.epochs * -(-data.count // _BATCH)

    def share_of_rate(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * step / steps))

    cosine = torch.optim.lr_scheduler.LambdaLR(optimiser, share_of_rate)
    for epoch in range(schedule.epochs):
        order, total = torch.randperm(data.count, generator=generator), 0.0
        for start in range(0, data.count, _BATCH):
            chosen = order[start : start + _BATCH]
            batch = {name: _shift(values[chosen], schedule.shift, generator) for name, values in inputs.items()}
            optimiser.zero_grad()
            scores = _scores(network(batch, layers.disturb(network))[0])
            if has_probabilities:
                loss = functional.nll_loss(torch.log(scores.clamp(min=1e-12)), labels[chosen])
            else:
                loss = functional.cross_entropy(scores, labels[chosen])
            loss.backward()
            optimiser.step()
            cosine.step()
            total += float(loss.detach()) * len(chosen)
        tick(epoch + 1, total / data.count)


def classify(
    network: TorchGraph, inputs: Mapping[str, npt.NDArray[Any]], changed: Mapping[str, Tensor] | None = None
) -> npt.NDArray[np.int64]:
    """Returns the class of each sample. `changed`: other weights, keyed by the name of the constant."""
    count = len(next(iter(inputs.values())))
    found: list[Any] = []
    with torch.no_grad():
        for start in range(0, count, _EVALUATED):
            part = {name: torch.from_numpy(np.array(v[start : start + _EVALUATED])) for name, v in inputs.items()}
            found.append(_scores(network(part, changed)[0]).argmax(1).numpy())
    return np.concatenate(found)


def _scores(output: Tensor) -> Tensor:
    """Returns scores [samples, classes] of the first output, whose other axes have one element."""
    return output.reshape(len(output), -1)


def _shift(values: Tensor, most: int, generator: Any) -> Tensor:
    """Returns samples [n, 1, channels, ...], each shifted by up to `most` elements in its spatial axes."""
    if not most or values.ndim < 4:
        return values
    rank = values.ndim - 3
    padded = functional.pad(values, [most] * (2 * rank))
    moves = torch.randint(0, 2 * most + 1, (len(values), rank), generator=generator).tolist()
    sizes = values.shape[3:]
    return torch.stack(
        [
            sample[(..., *(slice(at, at + size) for at, size in zip(move, sizes, strict=True)))]
            for sample, move in zip(padded, moves, strict=True)
        ]
    )
