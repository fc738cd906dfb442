"""Writes the exports beside it, from small modules with seeded weights: python -m tests.integrations.exports.make

Needs PyTorch and onnxscript (`make test-frameworks` installs them). They were written with PyTorch 2.13.0
and onnxscript 0.7.2.
"""

from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

HERE = Path(__file__).parent


class Tagger(nn.Module):
    """A recurrent network with two outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(self, sequence: torch.Tensor) -> dict[str, Any]:
        states, _ = self.recurrent(sequence)
        return {"scores": self.head(states), "last": [states[:, -1].tanh()]}


def modules() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Returns the modules and their example inputs by the name of the file."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return {
        "encoder": (encoder, (torch.randn(1, 6, 16),)),
        "tagger": (Tagger(), (torch.randn(1, 7, 8),)),
    }


def main() -> None:
    import raptor

    for name, (module, inputs) in modules().items():
        model = raptor.torch.export(module, inputs)
        for noted in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
            del noted.metadata_props[:]  # where the module's code is on the disk
        onnx.save(model, HERE / f"{name}.onnx")


if __name__ == "__main__":
    main()
