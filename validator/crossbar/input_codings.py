"""Input codings: how signed inputs become steps of digits, which DACs put on the rows one after another.

A step is a digit of a non-negative number: (source >> shift) & mask. Its product is multiplied by `factor`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from raptor.target.cell_models import INPUT_CODINGS

Ints = npt.NDArray[np.int64]
MOST_INPUT_BITS = 32


class DigitSource(IntEnum):
    """Source of the digits: x in two's complement, x + 2^(bits - 1), or the part of x of one sign as a magnitude."""

    BITS = 0
    RAISED = 1
    POSITIVE = 2
    NEGATIVE = 3


@dataclass(frozen=True, slots=True)
class InputStep:
    """A step of the input. `most`: the largest digit that occurs in it."""

    source: DigitSource
    shift: int
    mask: int
    factor: int
    most: int


SIGN_STEPS = (InputStep(DigitSource.POSITIVE, 0, 1, 1, 1),)
"""The only step of an encoding with doubled rows."""


def make_input_steps(coding: str, bits: int, dac_bits: int) -> tuple[InputStep, ...]:
    """Returns the steps of an input of `bits` bits."""
    return _CODINGS[coding](bits, dac_bits)


def input_offset(coding: str, bits: int) -> int:
    """Returns the number that is added to each input; its product with the weights is subtracted afterwards."""
    return 1 << bits - 1 if coding == "offset" else 0


def extract_digits(x: Ints, step: InputStep, bits: int) -> Ints:
    """Returns the digits of inputs in one step."""
    source = {
        DigitSource.BITS: x,
        DigitSource.RAISED: x + (1 << bits - 1),
        DigitSource.POSITIVE: np.maximum(x, 0),
        DigitSource.NEGATIVE: np.maximum(-x, 0),
    }[step.source]
    return (source >> step.shift) & step.mask


def _twos_complement(bits: int, dac_bits: int) -> tuple[InputStep, ...]:
    """The sign bit is a step of its own, which is subtracted."""
    magnitude = _cut(DigitSource.BITS, bits - 1, dac_bits, (1 << bits - 1) - 1, 1)
    return (*magnitude, InputStep(DigitSource.BITS, bits - 1, 1, -(1 << bits - 1), 1))


def _offset(bits: int, dac_bits: int) -> tuple[InputStep, ...]:
    """Half of the range is added to each input."""
    return _cut(DigitSource.RAISED, bits, dac_bits, (1 << bits) - 1, 1)


def _two_passes(bits: int, dac_bits: int) -> tuple[InputStep, ...]:
    """Positive inputs come first, then the magnitudes of negative ones."""
    positive = _cut(DigitSource.POSITIVE, bits - 1, dac_bits, (1 << bits - 1) - 1, 1)
    return (*positive, *_cut(DigitSource.NEGATIVE, bits, dac_bits, 1 << bits - 1, -1))


def _cut(source: DigitSource, bits: int, dac_bits: int, highest: int, sign: int) -> tuple[InputStep, ...]:
    """Cuts numbers of `bits` bits, up to `highest`, into digits of `dac_bits` bits."""
    found: list[InputStep] = []
    for shift in range(0, bits, dac_bits):
        mask = (1 << min(dac_bits, bits - shift)) - 1
        found.append(InputStep(source, shift, mask, sign << shift, min(mask, highest >> shift)))
    return tuple(found)


_CODINGS: dict[str, Callable[[int, int], tuple[InputStep, ...]]] = {
    "twos_complement": _twos_complement,
    "offset": _offset,
    "two_passes": _two_passes,
}
assert tuple(_CODINGS) == INPUT_CODINGS
