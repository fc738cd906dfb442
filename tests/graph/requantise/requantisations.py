"""Random requantisations, and their results in exact fractions."""

from fractions import Fraction

import numpy as np

from raptor.graph.requantise.definition import Requantise, RequantiseTerm
from raptor.graph.requantise.vector_program import Ints

INT8 = (-128, 127)
INT16 = (-(2**15), 2**15 - 1)


def term(multiplier: object, offset: object = 0, operand: tuple[int, int] = INT8) -> RequantiseTerm:
    """Makes a term with one number for all elements, or with one per channel."""
    return RequantiseTerm(
        np.asarray(multiplier, np.float32).reshape(1, 1, -1), np.asarray(offset, np.int64).reshape(1, 1, -1), *operand
    )


def requantise(*terms: RequantiseTerm, zero_point: int = 0, clamp: tuple[int, int] = INT8, rows: int = 1) -> Requantise:
    return Requantise(terms, np.zeros(rows, np.int64), zero_point, *clamp)


def accumulator(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def by_fractions(requantise: Requantise, operands: list[int], place: tuple[int, int, int]) -> int:
    """Computes one result: Python's round of a fraction makes ties even."""
    total = Fraction(0)
    for t, x in zip(requantise.terms, operands, strict=True):
        shape = np.broadcast_shapes(t.multiplier.shape, t.offset.shape)
        index = tuple(min(i, n - 1) for i, n in zip(place, shape, strict=True))
        multiplier, offset = (np.broadcast_to(a, shape)[index] for a in (t.multiplier, t.offset))
        total += (x + int(offset)) * Fraction(float(multiplier))
    return min(max(round(total) + requantise.zero_point, requantise.low), requantise.high)


def multipliers(rng: np.random.Generator, channels: int, low: float, high: float) -> Ints:
    """Draws multipliers from 2^low to 2^high: full mantissas, short ones, powers of two."""
    free = np.exp2(rng.uniform(low, high, channels)).astype(np.float32)
    kept = int(rng.choice([0, 1, 3, 7, 23]))
    mantissa, exponent = np.frexp(free)
    return np.ldexp(np.ceil(np.ldexp(mantissa, kept)), exponent - kept).astype(np.float32)


def one_term(rng: np.random.Generator) -> Requantise:
    """Draws a requantisation of an accumulator whose results are neither all equal nor all clamped."""
    channels, bits = int(rng.integers(1, 6)), int(rng.choice([8, 12, 16, 19, 24, 28, 31]))
    operand = accumulator(bits) if rng.random() < 0.5 else (0, accumulator(bits)[1])
    scale = 8 - bits
    low = max(scale - 2, -23)
    drawn = multipliers(rng, channels, low, max(low, min(scale + 6, 8)))
    offset = rng.integers(-(1 << (bits - 3)), 1 << (bits - 3), channels)
    zero_point, clamp = clamps(rng)
    return requantise(term(drawn, offset, operand), zero_point=zero_point, clamp=clamp)


def two_terms(rng: np.random.Generator) -> Requantise:
    drawn = multipliers(rng, 2, -9, 2)
    operands = [INT8, INT8 if rng.random() < 0.8 else INT16]
    terms = [term(m, rng.integers(-255, 256), o) for m, o in zip(drawn, operands, strict=True)]
    zero_point, clamp = clamps(rng)
    return requantise(*terms, zero_point=zero_point, clamp=clamp)


def clamps(rng: np.random.Generator) -> tuple[int, tuple[int, int]]:
    """Draws a zero point and a clamp, often as a Relu6 or the whole range leave it."""
    zero_point = int(rng.choice([-128, 127, 0, int(rng.integers(-128, 128))]))
    ends = [(-128, 127), (zero_point, 127), (zero_point, min(127, zero_point + int(rng.integers(1, 200))))]
    low, high = ends[int(rng.integers(3))]
    return zero_point, (low, max(low + 1, high)) if low < 127 else (-128, 127)


def operands(rng: np.random.Generator, requantise: Requantise, rows: int) -> list[Ints]:
    """Draws images [rows, 1, channels]: both ends, random numbers, and numbers next to where results change."""
    channels = max(t.multiplier.shape[2] for t in requantise.terms)
    images: list[Ints] = []
    for t in requantise.terms:
        image = rng.integers(t.low, t.high + 1, (rows, 1, channels))
        change = (
            rng.integers(requantise.low, requantise.high + 1, (rows // 2, 1, channels)) - requantise.zero_point - 0.5
        )
        near = np.floor(change / t.multiplier - t.offset) + rng.integers(0, 2, change.shape)
        image[: rows // 2] = np.clip(near, t.low, t.high)
        image[-2], image[-1] = t.low, t.high
        images.append(image)
    return images
