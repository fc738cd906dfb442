"""Trains a pruned model to make the outputs of the model as given, without labels (Ba and Caruana, NeurIPS 2014).

Import it only where it runs: importing PyTorch takes seconds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from raptor.tools.prune.choose_tiles import Bools
from raptor.tools.quantise.calibration_data import Sample
from raptor.tools.train.torch_graph import TorchGraph

torch: Any = import_module("torch")
Tensor = Any
_BATCH = 64


@dataclass(frozen=True, slots=True)
class DistillationSchedule:
    """`epochs`: passes over the samples. `rate`: of Adam in the first step; it decays to 0 as a cosine.

    `seed`: of the order of the samples.
    """

    epochs: int
    rate: float = 0.003
    seed: int = 0


def distil_model(
    teacher: ModelProto,
    pruned: ModelProto,
    masks: Mapping[str, Bools],
    samples: Sequence[Sample],
    *,
    schedule: DistillationSchedule,
    tick: Callable[[int, float], None] = lambda epoch, loss: None,
) -> ModelProto:
    """Returns a pruned model whose outputs are nearer to those of `teacher`; weights that `masks` leaves out stay 0.

    The loss is the squared error of the outputs, relative to how much they vary. `tick` gets the number of each epoch,
    and its mean loss. Raises `UserError` for operators that cannot be differentiated.
    """
    generator = torch.Generator().manual_seed(schedule.seed)
    network = TorchGraph(pruned)
    inputs = {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in network.inputs}
    wanted = _run_teacher(TorchGraph(teacher), inputs, len(samples))
    spread = [float(values.var().clamp(min=1e-12)) for values in wanted]
    weights = network.list_weights()
    kept = {name: torch.from_numpy(np.ascontiguousarray(mask)) for name, mask in masks.items()}
    optimiser = torch.optim.Adam(network.parameters(), lr=schedule.rate)
    steps = schedule.epochs * -(-len(samples) // _BATCH)

    def share_of_rate(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * step / steps))

    cosine = torch.optim.lr_scheduler.LambdaLR(optimiser, share_of_rate)
    for epoch in range(schedule.epochs):
        total = 0.0
        for chosen in torch.randperm(len(samples), generator=generator).split(_BATCH):
            found = network({name: values[chosen] for name, values in inputs.items()}, {})
            parts = zip(found, wanted, spread, strict=True)
            loss: Tensor = sum(((made - exact[chosen]) ** 2).mean() / scale for made, exact, scale in parts)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            cosine.step()
            with torch.no_grad():
                for name, mask in kept.items():
                    weights[name].mul_(mask)
            total += float(loss.detach()) * len(chosen)
        tick(epoch + 1, total / len(samples))
    return _with_weights(pruned, weights)


def _run_teacher(teacher: TorchGraph, inputs: Mapping[str, Tensor], count: int) -> list[Tensor]:
    with torch.no_grad():
        parts = [teacher({k: v[at : at + _BATCH] for k, v in inputs.items()}, {}) for at in range(0, count, _BATCH)]
    return [torch.cat(values) for values in zip(*parts, strict=True)]


def _with_weights(model: ModelProto, weights: Mapping[str, Tensor]) -> ModelProto:
    trained = ModelProto()
    trained.CopyFrom(model)
    for tensor in trained.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name].detach().numpy(), tensor.name))
    return trained
