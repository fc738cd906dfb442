"""Proves which converters lose exactness, from the weights alone, before a run.

The largest sum of a column is reached if all its rows get the largest digit, so the bound is tight: if a converter is
said to lose something, there is an input for which it does. The proof holds for cells without errors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.crossbar.programmed_chip import CellArray, ProgrammedChip

Floats = npt.NDArray[np.float64]
_NEAR = 1e-9
"""Share of a step below which the difference from a multiple of the step is ignored."""


@dataclass(frozen=True, slots=True)
class LayerProof:
    """Losses of the converters of a layer.

    `columns`: columns of cells; `losing`: columns for which some input is not converted exactly. `largest`: largest sum
    of a column. `needed_bits`: bits of a lossless converter with one code per level. `conversions`: conversions of one
    product with all matrices of the layer. `parts`: groups of rows that are driven one after another.
    """

    layer: str
    matrices: int
    rows_at_once: int
    parts: int
    columns: int
    losing: int
    largest: int
    needed_bits: int
    conversions: int

    @property
    def is_lossless(self) -> bool:
        return self.losing == 0


def bound_sums(array: CellArray, most_digit: int) -> tuple[Floats, Floats]:
    """Returns the lowest and the highest sum at each converter, [parts, planes, cols]."""
    found = [_sum_extremes(part, start, doubled=array.planes.doubled) for start, part in _parts(array)]
    low, high = zip(*found, strict=True)
    return np.stack(low) * float(most_digit), np.stack(high) * float(most_digit)


def find_lossy_converters(chip: ProgrammedChip, array: CellArray) -> npt.NDArray[np.bool_]:
    """Returns the converters [parts, planes, cols] that cannot convert every sum exactly.

    A sum is exact if it is in the range and a multiple of the step. So each level must be a multiple of the step,
    because a row may be driven alone.
    """
    low, high = bound_sums(array, _most_digit(chip, array))
    base, step = array.ranges.base, np.where(array.ranges.step == 0, 1.0, array.ranges.step)
    is_cut = (low < base + chip.codes.low * step) | (high > base + chip.codes.high * step)
    between = np.stack([_is_off_grid(part, step[:, None]).any(axis=1) for _, part in _parts(array)])
    return (is_cut | between | _is_off_grid(base, step)) & (array.ranges.step != 0) & ((low < high) | (base != 0))


def _parts(array: CellArray) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yields the first row of each part that is driven at once, and the levels of its rows, pairs subtracted."""
    planes = array.planes
    net = planes.plus.astype(np.int64) - (0 if planes.minus is None else planes.minus)
    for start in range(0, array.driven_rows, array.rows_at_once):
        yield start, net[:, start : start + array.rows_at_once]


def _is_off_grid(sums: npt.NDArray[Any], step: Floats) -> npt.NDArray[np.bool_]:
    """Marks the sums that are not multiples of the step."""
    return np.abs(sums / step - np.rint(sums / step)) > _NEAR


def _sum_extremes(net: npt.NDArray[np.int64], start: int, *, doubled: bool) -> tuple[Floats, Floats]:
    """Returns the lowest and highest sums if each row may be driven; of a pair of doubled rows, at most one is."""
    if doubled:
        cut = start % 2
        pairs = net[:, cut : cut + (net.shape[1] - cut) // 2 * 2]
        rest = [net[:, :cut], net[:, cut + pairs.shape[1] :]]
        total = np.maximum(pairs[:, 0::2], pairs[:, 1::2]).sum(axis=1) + sum(r.sum(axis=1) for r in rest)
        highest: Floats = total.astype(np.float64)
        return np.zeros_like(highest), highest
    low, high = np.minimum(net, 0).sum(axis=1), np.maximum(net, 0).sum(axis=1)
    return low.astype(np.float64), high.astype(np.float64)


def _most_digit(chip: ProgrammedChip, array: CellArray) -> int:
    return max(step.most for step in array.input_steps(chip.setup, array.use.input_bits))


def prove_layers(chip: ProgrammedChip) -> tuple[LayerProof, ...]:
    """Returns the proof for each layer, in the order of the array groups."""
    layers = dict.fromkeys(a.use.layer for a in chip.arrays)
    return tuple(_proof(chip, layer, [a for a in chip.arrays if a.use.layer == layer]) for layer in layers)


def _proof(chip: ProgrammedChip, layer: str, arrays: Sequence[CellArray]) -> LayerProof:
    lost = [find_lossy_converters(chip, a) for a in arrays]
    extremes = [bound_sums(a, _most_digit(chip, a)) for a in arrays]
    largest = int(max(max(high.max(), -low.min()) for low, high in extremes))
    return LayerProof(
        layer=layer,
        matrices=len(arrays),
        rows_at_once=max(a.rows_at_once for a in arrays),
        parts=max(a.row_parts for a in arrays),
        columns=sum(one.shape[1] * one.shape[2] for one in lost),
        losing=sum(int(one.any(axis=0).sum()) for one in lost),
        largest=largest,
        needed_bits=largest.bit_length() + (1 if chip.setup.is_signed else 0),
        conversions=sum(a.count_conversions(chip.setup) for a in arrays),
    )


def with_lossless_rows(chip: ProgrammedChip) -> ProgrammedChip:
    """Returns the chip with fewer rows driven at once in the layers whose converters lose something.

    Rows are halved until nothing is lost, or only one row is driven at once.
    """
    for layer in dict.fromkeys(a.use.layer for a in chip.arrays):
        rows = chip.setup.rows_at_once
        while rows > 1 and any(find_lossy_converters(chip, a).any() for a in chip.arrays if a.use.layer == layer):
            rows = -(-rows // 2)
            chip = chip.with_rows(layer, rows)
    return chip
