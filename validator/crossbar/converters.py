"""Converters: sums of columns as codes. The unit of a sum is one level of its slice times one digit of the input."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target.cell_models import Adc

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CodeRange:
    """The range of codes of all converters of a chip."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class ConverterRanges:
    """Ranges of the converters of an array: code k stands for the sum `base` + k x `step`, each [planes, cols].

    A step of 0 is an ideal converter, which passes on the sum unchanged.
    """

    base: Floats
    step: Floats


def make_code_range(adc: Adc | None, *, signed: bool) -> CodeRange:
    """Returns the codes of a converter. `signed`: it converts differences, with as many codes below 0 as above."""
    if adc is None:
        return CodeRange(-math.inf, math.inf)
    if not signed:
        return CodeRange(0.0, float((1 << adc.bits) - 1))
    half = max(1, (1 << adc.bits - 1) - 1)
    return CodeRange(-float(half), float(half))


def make_fixed_ranges(adc: Adc | None, codes: CodeRange, largest: Floats, shape: tuple[int, int]) -> ConverterRanges:
    """Returns ranges that do not depend on data. `largest` [planes]: upper bound on the sums of any matrix."""
    step = 0.0 if adc is None else 1.0 if adc.range == "unit" else np.maximum(1.0, largest / codes.high)[:, None]
    return ConverterRanges(np.zeros(shape), np.broadcast_to(step, shape).astype(np.float64))


def make_calibrated_ranges(codes: CodeRange, lowest: Floats, highest: Floats) -> ConverterRanges:
    """Returns ranges from the lowest to the highest sum, with steps of at least one level."""
    if codes.low < 0:
        return ConverterRanges(np.zeros_like(lowest), np.maximum(1.0, np.maximum(-lowest, highest) / codes.high))
    return ConverterRanges(np.floor(lowest), np.maximum(1.0, (highest - np.floor(lowest)) / codes.high))


def convert_sums(sums: Floats, ranges: ConverterRanges, codes: CodeRange) -> Floats:
    """Converts sums [planes, cols]: returns the value of the nearest code, clipped to the range."""
    step = np.where(ranges.step == 0, 1.0, ranges.step)
    found = ranges.base + step * np.clip(np.rint((sums - ranges.base) / step), codes.low, codes.high)
    return np.where(ranges.step == 0, sums, found)
