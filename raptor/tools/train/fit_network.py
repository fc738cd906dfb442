"""The training loop: Adam with a cosine, images shifted at random, errors of cells drawn anew for each batch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from raptor.tools.train.input_codes import measure_input_codes
from raptor.tools.train.torch_graph import InputQuantisers, TorchGraph
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
    """The noise of weights, keyed by the name of the constant, and bits of inputs, keyed by the name of the layer."""

    noises: Mapping[str, WeightNoise]
    input_bits: Mapping[str, int]

    def disturb(self, network: TorchGraph) -> dict[str, Tensor]:
        """Returns the weights with errors of cells."""
        return {name: noise(network.parameter(name)) for name, noise in self.noises.items()}

    def draw_chip(self, network: TorchGraph) -> dict[str, Tensor]:
        """Returns the weights as a chip holds them."""
        with torch.no_grad():
            return {
                name: network.parameter(name) + noise.draw_error(network.parameter(name))
                for name, noise in self.noises.items()
            }

    def measure_inputs(self, network: TorchGraph, inputs: Mapping[str, Tensor]) -> InputQuantisers:
        """Returns the quantisers of layers with inputs of few bits; the first samples give their ranges."""
        first = {name: values[:_EVALUATED] for name, values in inputs.items()}
        return measure_input_codes(network, self.input_bits, first)


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
    """Trains the weights of a network in place. `tick` gets the number of each epoch, and its mean loss: NaN if a
    weight is no finite number after it.

    `has_probabilities`: the outputs are those of a Softmax, otherwise scores. `generator`: of the order and of shifts.
    """
    assert data.labels is not None, "checked when the data were read"
    labels = torch.from_numpy(data.labels)
    inputs = to_tensors(data)
    optimiser = torch.optim.AdamW(network.parameters(), lr=schedule.rate, weight_decay=1e-4)
    steps = schedule.epochs * -(-data.count // _BATCH)

    def share_of_rate(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * step / steps))

    cosine = torch.optim.lr_scheduler.LambdaLR(optimiser, share_of_rate)
    for epoch in range(schedule.epochs):
        order, total = torch.randperm(data.count, generator=generator), 0.0
        quantisers = layers.measure_inputs(network, inputs)
        for start in range(0, data.count, _BATCH):
            chosen = order[start : start + _BATCH]
            batch = {name: shift_samples(values[chosen], schedule.shift, generator) for name, values in inputs.items()}
            optimiser.zero_grad()
            scores = _scores(network(batch, layers.disturb(network), quantisers)[0])
            loss = functional.nll_loss(log_probabilities(scores, has_probabilities), labels[chosen])
            loss.backward()
            optimiser.step()
            cosine.step()
            total += float(loss.detach()) * len(chosen)
        is_finite = all(bool(torch.isfinite(weight).all()) for weight in network.parameters())
        tick(epoch + 1, total / data.count if is_finite else math.nan)


def to_tensors(data: LabelledData) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in data.inputs.items()}


def compute_scores(
    network: TorchGraph,
    inputs: Mapping[str, Tensor],
    changed: Mapping[str, Tensor] | None = None,
    quantisers: InputQuantisers | None = None,
) -> Tensor:
    """Returns scores [samples, classes]. `changed`: other weights, keyed by the name of the constant."""
    count = len(next(iter(inputs.values())))
    with torch.no_grad():
        parts = (
            {name: values[start : start + _EVALUATED] for name, values in inputs.items()}
            for start in range(0, count, _EVALUATED)
        )
        return torch.cat([_scores(network(part, changed, quantisers)[0]) for part in parts])


def log_probabilities(scores: Tensor, has_probabilities: bool) -> Tensor:
    """Returns logarithms of the probabilities [samples, classes] that the outputs of a network stand for."""
    return torch.log(scores.clamp(min=1e-12)) if has_probabilities else functional.log_softmax(scores, 1)


def _scores(output: Tensor) -> Tensor:
    """Returns scores [samples, classes] of the first output, whose other axes have one element."""
    return output.reshape(len(output), -1)


def shift_samples(values: Tensor, most: int, generator: Any) -> Tensor:
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
