"""Integers that layers read, in training: ranges are measured as `quantize` does, gradients pass straight through."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from raptor.tools.train.torch_graph import TorchGraph

torch: Any = import_module("torch")
Tensor = Any


@dataclass(frozen=True, slots=True)
class InputCodes:
    """Quantises values from -largest to largest to integers from -most to most, and returns the values of these."""

    largest: float
    most: int

    def __call__(self, values: Tensor) -> Tensor:
        scale = max(self.largest, 1e-30) / self.most
        clipped = values.clamp(-self.largest, self.largest)
        return clipped + (torch.round(clipped / scale) * scale - clipped).detach()


def measure_input_codes(
    network: TorchGraph, bits: Mapping[str, int], samples: Mapping[str, Tensor]
) -> dict[str, InputCodes]:
    """Returns the integers of the first inputs of nodes; their range is that of the floats over `samples`.

    `bits`: of the integers, keyed by the name of the node.
    """
    tensors = {node.name: node.inputs[0] for node in network.nodes if node.name in bits}
    if not tensors:
        return {}
    with torch.no_grad():
        found = network(samples, tensors=list(tensors.values()))
    return {
        name: InputCodes(float(values.abs().max()), (1 << (bits[name] - 1)) - 1)
        for name, values in zip(tensors, found, strict=True)
    }
