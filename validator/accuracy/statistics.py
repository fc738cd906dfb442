"""Confidence intervals (95 %) of shares and means, and signal-to-noise ratios."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z = 1.959964
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_MORE = (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
"""Quantiles of Student's distribution for 1 to 30 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """Bounds of a confidence interval."""

    low: float
    high: float


def wilson_interval(right: int, count: int) -> ConfidenceInterval:
    """Returns the Wilson interval of the share `right` / `count`, for the random choice of samples."""
    share, z2 = right / count, _Z * _Z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return ConfidenceInterval(max(0.0, centre - half), min(1.0, centre + half))


def student_interval(values: Sequence[float]) -> ConfidenceInterval | None:
    """Returns the Student interval of a mean of shares, for the random choice of chips; None for a single value."""
    if len(values) < 2:
        return None
    quantile = (*_T, *_T_MORE)[len(values) - 2] if len(values) <= 31 else _Z
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean = float(np.mean(values))
    return ConfidenceInterval(max(0.0, mean - half), min(1.0, mean + half))


def snr_db(signal: float, noise: float) -> float:
    """Returns the ratio of two sums of squares in dB; infinite without noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
