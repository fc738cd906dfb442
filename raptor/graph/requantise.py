"""Requantise: a weighted sum of integers, rounded to an integer of fewer bits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One operand of a `Requantise`.

    multiplier: exact dyadic rationals; offset: added to the element first. Both [classes or 1, width or 1, channels or
    1]. low, high: range of the elements that was proved.
    """

    multiplier: npt.NDArray[np.float32]
    offset: Ints
    low: int
    high: int


@dataclass(frozen=True, slots=True, eq=False)
class Requantise:
    """y = clamp(round(sum of (x_i + offset_i) * multiplier_i) + zero_point, low, high), ties to even.

    row_class: [rows], first index of all parameter arrays for each row of the image.
    """

    terms: tuple[Term, ...]
    row_class: npt.NDArray[np.intp]
    zero_point: int
    low: int
    high: int
    recipe: Any = None
