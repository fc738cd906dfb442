"""Errors of cells on weights, as a parametrisation of PyTorch: drawn anew in each forward pass of a training.

The moments of the errors are those of `validator.crossbar.weight_errors`, from which simulated chips do not differ.
Gradients pass straight through: quantised and disturbed weights have the gradient of the weights themselves.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from validator.crossbar.weight_errors import WeightErrors

torch: Any = import_module("torch")
Tensor = Any
NoiseLevel = float | Literal["device"]
"""Standard deviation as a share of the largest weight of each channel; `device`: by code, as the cells have it."""


@dataclass(frozen=True, slots=True, eq=False)
class CodeNoise:
    """Mean and standard deviation of the error of each code from -m to m, in codes."""

    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]

    @classmethod
    def from_errors(cls, errors: WeightErrors) -> "CodeNoise":
        return cls(errors.mean, errors.total_std)

    @classmethod
    def uniform(cls, weight_bits: int, share: float) -> "CodeNoise":
        """Returns the same noise for all codes: `share` of the largest code."""
        most = (1 << (weight_bits - 1)) - 1
        return cls(np.zeros(2 * most + 1), np.full(2 * most + 1, share * most))


class WeightNoise(torch.nn.Module):  # pyright: ignore[reportUntypedBaseClass] PyTorch is not installed everywhere
    """A parametrisation of a weight. In training mode, it returns the weight with errors; otherwise the weight.

    `axis`: axis of the output channels, each of which has a scale. `clip`: in training, the weight itself is first
    clipped to so many of its standard deviations; None: never. `quantised`: errors are added to the codes of the
    quantised weight; otherwise to the weight.
    """

    def __init__(
        self, noise: CodeNoise, *, axis: int, clip: float | None, quantised: bool, generator: Any = None
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] as above
        self.axis, self.clip, self.quantised, self.generator = axis, clip, quantised, generator
        self.most = len(noise.mean) // 2
        self.register_buffer("mean", torch.tensor(noise.mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(noise.std, dtype=torch.float32), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        if not self.training:
            return weight
        with torch.no_grad():
            if self.clip is not None and weight.numel() > 1:
                bound = self.clip * weight.std()
                weight.clamp_(-bound, bound)
            error = self.draw_error(weight)
        return weight + error

    def draw_error(self, weight: Tensor) -> Tensor:
        """Returns an error of each weight: of the quantisation if `quantised`, and of a chip's cells."""
        others = [axis for axis in range(weight.ndim) if axis != self.axis]
        scale = (weight.abs().amax(others, keepdim=True) / self.most).clamp(min=1e-30)
        codes = torch.round(weight / scale)
        places = torch.nan_to_num(codes).long() + self.most  # weights of a training that diverges; its loss tells it
        normal = torch.randn(weight.shape, generator=self.generator, dtype=weight.dtype)
        error = (self.mean[places] + self.std[places] * normal) * scale
        return error + (codes * scale - weight) if self.quantised else error
