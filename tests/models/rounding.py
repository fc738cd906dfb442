"""Limits of the error that rounding alone may cause in the output of a model."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.tiny_models import golden

WEIGHT_ERROR = 2.0**-21
"""Four half units in the last place: less than what a float32 sum of a few hundred products is off."""
FLOOR = 2.0**-20
"""Eight units in the last place, for a model of one or two layers, where single roundings count."""


def tolerance(model: onnx.ModelProto, inputs: dict[str, NDArray[np.float32]]) -> float:
    """The change of the outputs, relative to their largest value, when every weight is off by `WEIGHT_ERROR`.

    Backward error: what an algorithm in float32 computes is the exact result for weights that are slightly off. Sums of
    hundreds of products in another order are off by more than this in the worst case, and by about as much as a rule;
    so an output that deviates less has no error but rounding. Weights are off upwards or downwards at random.
    """
    rng = np.random.default_rng(0)
    moved = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in moved.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim and not tensor.name.endswith(".scales"):
            factor = 1 + WEIGHT_ERROR * rng.choice([-1.0, 1.0], array.shape)
            tensor.CopyFrom(numpy_helper.from_array((array * factor).astype(np.float32), tensor.name))
    before, after = golden(model, inputs), golden(moved, inputs)
    changes = (np.abs(after[name] - y).max() / np.abs(y).max() for name, y in before.items())
    return max(FLOOR, *map(float, changes))
