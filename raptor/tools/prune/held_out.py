"""Samples that no weight is fitted to: how far the outputs of a changed model are from those of the model as given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from raptor.tools.quantise.calibration_data import Sample
from raptor.tools.quantise.ort_quantizer import OrtSession

_EACH = 5
"""One sample of so many is held out, at most `_MOST`."""
_MOST = 300


def split_samples(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Returns samples to fit weights to, and samples that are held out. With fewer than five, both are all samples."""
    if len(samples) < _EACH:
        return list(samples), list(samples)
    step = max(_EACH, -(-len(samples) // _MOST))
    return [x for n, x in enumerate(samples) if n % step], list(samples[::step])


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutSamples:
    """Samples, and the outputs that a model has for them, keyed by name: [samples, elements]."""

    samples: Sequence[Sample]
    outputs: dict[str, npt.NDArray[Any]]

    @classmethod
    def make(cls, model: ModelProto, samples: Sequence[Sample]) -> "HeldOutSamples":
        return cls(samples, _run(model, samples))

    def find_error(self, model: ModelProto) -> float:
        """Returns the mean over the outputs of their squared error, relative to how much they vary.

        For outputs of integers, such as classes, it is the share of elements that differ.
        """
        found = _run(model, self.samples)
        return float(np.mean([_compare(wanted, found[name]) for name, wanted in self.outputs.items()]))


def _run(model: ModelProto, samples: Sequence[Sample]) -> dict[str, npt.NDArray[Any]]:
    session = OrtSession(model)
    made = [session.run(sample) for sample in samples]
    return {o.name: np.stack([values[o.name].reshape(-1) for values in made]) for o in model.graph.output}


def _compare(wanted: npt.NDArray[Any], found: npt.NDArray[Any]) -> float:
    if wanted.dtype.kind != "f":
        return float((wanted != found).mean())
    exact = wanted.astype(np.float64)
    return float(((found - exact) ** 2).sum() / max(((exact - exact.mean()) ** 2).sum(), 1e-30))
