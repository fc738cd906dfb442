"""Kinds of random inputs that resemble real ones: functions of shape and random generator, keyed by name."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from validator.model.index_bounds import IndexBounds
from validator.model.node import Array

Rng = np.random.Generator
_BYTE = IndexBounds(0, 255)
_WAVES = 3
_MASKED = 0.3
_LARGE, _SMALL = 1e4, 1e-6


def draw_values(kind: str, shape: Sequence[int], bounds: IndexBounds | None, rng: Rng) -> Array:
    """Returns numbers of a kind. With `bounds`, they are integers within these bounds, as for ids and codes."""
    if bounds is None:
        return INPUT_KINDS[kind](tuple(shape), rng)
    return _within(kind, tuple(shape), bounds, rng)


def _normal(shape: tuple[int, ...], rng: Rng) -> Array:
    return rng.standard_normal(shape)


def _image(shape: tuple[int, ...], rng: Rng) -> Array:
    """Returns waves of few periods along every axis, from 0 to 255: neighbours are similar, and the mean is large."""
    total = np.zeros(shape)
    for _ in range(_WAVES):
        wave = np.ones(())
        for size in shape:
            places = np.arange(size) * (2 * math.pi * rng.uniform(0.2, 2) / max(size, 1)) + rng.uniform(0, 6)
            wave = np.multiply.outer(wave, np.cos(places))
        total += wave
    return _spread(total, _BYTE)


def _one_hot(shape: tuple[int, ...], rng: Rng) -> Array:
    if not shape:
        return np.ones(())
    return (np.arange(shape[-1]) == rng.integers(0, shape[-1], (*shape[:-1], 1))).astype(np.float64)


def _constant(shape: tuple[int, ...], rng: Rng) -> Array:
    return np.full(shape, rng.uniform(-2, 2))


def _zeros(shape: tuple[int, ...], _: Rng) -> Array:
    return np.zeros(shape)


def _speech(shape: tuple[int, ...], rng: Rng) -> Array:
    """Returns tones that swell and fade along the longest axis, with silence between them, from -1 to 1."""
    axis = int(np.argmax(shape)) if shape else 0
    length = shape[axis] if shape else 1
    at = np.arange(length) / max(length, 1)
    tones = sum(np.sin(2 * math.pi * rng.uniform(5, 60) * at + rng.uniform(0, 6)) / k for k in (1, 2, 3))
    loud = np.maximum(np.sin(2 * math.pi * rng.uniform(1, 4) * at), 0) ** 2
    along = np.asarray(tones * loud / 2).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return along * rng.uniform(0.2, 1, [1 if k == axis else size for k, size in enumerate(shape)])


def _large(shape: tuple[int, ...], rng: Rng) -> Array:
    return _LARGE * _normal(shape, rng)


def _small(shape: tuple[int, ...], rng: Rng) -> Array:
    return _SMALL * _normal(shape, rng)


def _masked(shape: tuple[int, ...], rng: Rng) -> Array:
    """Returns standard normal numbers, some of them replaced by -inf, as in the masks of attention."""
    return np.where(rng.random(shape) < _MASKED, -np.inf, _normal(shape, rng))


INPUT_KINDS: Mapping[str, Callable[[tuple[int, ...], Rng], Array]] = MappingProxyType(
    {
        "normal": _normal,
        "image": _image,
        "one-hot": _one_hot,
        "constant": _constant,
        "zeros": _zeros,
        "speech": _speech,
        "large": _large,
        "small": _small,
        "masked": _masked,
    }
)
"""All kinds of float inputs, keyed by name."""
TRIED_KINDS = ("image", "one-hot", "constant", "large", "small")
"""Kinds that a validation tries besides standard normal numbers."""


def kinds_to_try(samples: int) -> tuple[str, ...]:
    """Returns the kinds to try besides `samples` random inputs: at most half as many, to limit the time."""
    return TRIED_KINDS[: samples // 2]


def _within(kind: str, shape: tuple[int, ...], bounds: IndexBounds, rng: Rng) -> Array:
    low, high = bounds
    match kind:
        case "image" | "speech":
            return np.rint(_spread(_image(shape, rng), bounds.intersect(_BYTE)))
        case "one-hot" | "masked":
            return np.where(_one_hot(shape, rng) > 0, high, low)
        case "constant" | "zeros":
            return np.full(shape, rng.integers(low, high, endpoint=True))
        case "large" | "small":
            return np.where(rng.random(shape) < 0.5, low, high)  # both ends
        case _:
            return rng.integers(low, high, shape, endpoint=True)


def _spread(values: Array, bounds: IndexBounds) -> Array:
    """Scales values so that they reach from one bound to the other."""
    least, most = (values.min(), values.max()) if values.size else (0.0, 0.0)
    share = (values - least) / (most - least) if most > least else np.zeros_like(values)
    return bounds.low + share * (bounds.high - bounds.low)
