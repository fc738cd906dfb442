"""Fits gains and biases of sums to exact sums.

A copy of a channel is what one core computes of it, with cells, and so errors, of its own. Copies are fitted together:
each has a gain and a bias, drawn to those of all copies by as much as its observations leave them uncertain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.output.trim_files import TrimmedLayer
from validator.program.trim_constants import Trim

Floats = npt.NDArray[np.float64]
_GAIN_SPREAD = 0.1
"""Assumed standard deviation of the gains of channels. It says how far few samples can move a gain from 1."""
_COPY_SPREAD = 0.03
"""Assumed standard deviation of the gains of the copies of a channel from their mean.

Of 0.01, 0.03 and 0.1, it leaves errors of sums on other images that are within 1 % of the smallest, for each layer of
the digits network on Wan's cells, and of LeNet-5 on Milo's, with trims of 2, 4 and 20 images.
"""
_FEWEST = 3
"""Fewest degrees of freedom, observations less fitted parameters, from which the variance of noise is estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """Sums of a copy: `found` on a chip and `wanted`, both [samples, pixels, channels]."""

    found: Floats
    wanted: Floats

    @property
    def pixels(self) -> int:
        return self.found.shape[1]

    @property
    def observations(self) -> int:
        return self.found.shape[0] * self.pixels

    def centred(self) -> tuple[Floats, Floats]:
        """Returns found and wanted sums without their means over samples and pixels."""
        return self.found - self.found.mean(axis=(0, 1)), self.wanted - self.wanted.mean(axis=(0, 1))

    def moments(self) -> tuple[Floats, Floats]:
        """Returns the sums of squares of found sums, and of products with wanted sums, [channels]."""
        x, y = self.centred()
        return (x * x).sum(axis=(0, 1)), (x * y).sum(axis=(0, 1))

    def offsets(self, gain: Floats) -> Floats:
        """Returns wanted sums less `gain` times found ones, as means over pixels, [samples, channels]."""
        return (self.wanted - gain * self.found).mean(axis=1)


def fit_trims(layer: TrimmedLayer, found: Sequence[Floats], wanted: Sequence[Floats]) -> list[Trim]:
    """Returns gains and biases for each part of a layer that bring sums `found` near `wanted`.

    Both have an array [samples, pixels, channels] for each part. Parts with the same channels are copies. Equal sums
    give exactly a gain of 1 and a bias of 0.
    """
    trims: dict[int, Trim] = {}
    for channels in dict.fromkeys(part.channels for part in layer.parts):
        numbers = [number for number, part in enumerate(layer.parts) if part.channels == channels]
        copies = [_Copy(found[number], wanted[number]) for number in numbers]
        trims |= zip(numbers, _fit_copies(layer, copies), strict=True)
    return [trims[number] for number in range(len(layer.parts))]


def _fit_copies(layer: TrimmedLayer, copies: Sequence[_Copy]) -> list[Trim]:
    gains = _fit_gains(copies)
    offsets = _fit_offsets(copies, gains)
    unit = 1 << layer.shift
    trims: list[Trim] = []
    for copy, gain, offset in zip(copies, gains, offsets, strict=True):
        whole = np.clip(np.rint(gain * unit), 1, layer.most_gain).astype(np.int64)
        moved = copy.found.mean(axis=(0, 1)) * (whole - gain * unit)
        biases = np.rint(offset * unit - moved) + unit // 2
        trims.append((whole, np.clip(biases, -layer.most_bias, layer.most_bias).astype(np.int64)))
    return trims


def _fit_gains(copies: Sequence[_Copy]) -> list[Floats]:
    """Returns a gain [channels] for each copy: least squares, drawn to that of all copies, which is drawn to 1."""
    moments = [copy.moments() for copy in copies]
    power, both = np.sum(moments, axis=0)
    noise = _find_noise(copies, moments)
    common = _draw(power, both, noise / _GAIN_SPREAD**2, 1.0)
    if len(copies) == 1:
        return [common]
    return [_draw(*own, noise / _COPY_SPREAD**2, common) for own in moments]


def _find_noise(copies: Sequence[_Copy], moments: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Returns the variance [channels] of wanted sums around lines: one for each copy, or one of slope 1 for all.

    So few observations lie near any line that is fitted to them, whatever their noise is.
    """
    observations = sum(copy.observations for copy in copies)
    left = observations - 2 * len(copies)
    if left >= _FEWEST:
        lines = [_draw(*own, np.zeros_like(own[0]), 1.0) for own in moments]
    else:
        lines, left = [np.ones_like(own[0]) for own in moments], observations - len(copies)
    found = (
        ((y - line * x) ** 2).sum(axis=(0, 1)) for line, (x, y) in zip(lines, map(_Copy.centred, copies), strict=True)
    )
    return np.sum([*found], axis=0) / max(1, left)


def _draw(power: Floats, both: Floats, pull: Floats, to: Floats | float) -> Floats:
    """Returns least squares gains that are drawn to others: `to`, as if `pull` more power had been seen there."""
    total = power + pull
    return np.where(total > 0, (both + pull * to) / np.where(total > 0, total, 1.0), to)


def _fit_offsets(copies: Sequence[_Copy], gains: Sequence[Floats]) -> list[Floats]:
    """Returns what is added to the sums of each copy, [channels], in units of the sums.

    The spread of the copies is compared with the one that would be due to few samples alone, of which it takes its
    share. Samples are independent, pixels of one sample are not.
    """
    found = [copy.offsets(gain) for copy, gain in zip(copies, gains, strict=True)]
    samples, own = len(found[0]), [offsets.mean(axis=0) for offsets in found]
    if len(copies) == 1:
        return own
    common = np.average(own, axis=0, weights=[copy.pixels for copy in copies])
    if samples == 1:
        return [common] * len(copies)
    chance = np.mean([offsets.var(axis=0, ddof=1) for offsets in found], axis=0) / samples
    spread = np.var(own, axis=0, ddof=1)
    share = np.where(spread > chance, 1 - chance / np.where(spread > 0, spread, 1.0), 0.0)
    return [common + share * (offset - common) for offset in own]
