"""Values of the definition: integers, and exact real numbers between DequantizeLinear and QuantizeLinear."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.model.node import Array
from validator.program.coding import dtype_range

Ints = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
MOST_INT32 = 2**31 - 1
CODE_BITS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32)}
"""Width of each integer type of quantised tensors; int4 and similar types come from ml_dtypes."""


def is_codes(value: object) -> bool:
    """Checks whether a value is an array of integers that can be a quantised tensor."""
    return isinstance(value, np.ndarray) and cast(Array, value).dtype.name in CODE_BITS


def code_limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns the smallest and the largest integer of a type."""
    return dtype_range(dtype.name)


@dataclass(frozen=True, slots=True, eq=False)
class ScaledTerm:
    """Integers times scales: `units` * `scale` / `over`. All three broadcast to the shape of `units`.

    `over`: number of elements of a mean, else 1. `size`: returns for each unit the sum of the absolute values of its
    summands. `steps`: number of additions and products in a unit. Both bound the errors of float arithmetic. `slack`:
    largest error of a unit because a float bias was rounded.
    """

    units: Ints
    scale: Singles
    over: Ints
    size: Callable[[], Ints]
    steps: int = 1
    slack: float = 0.0

    @property
    def is_plain(self) -> bool:
        """True if the units are integers that DequantizeLinear reads, not sums."""
        return self.steps == 1

    def magnitude(self) -> Ints:
        """Returns for each unit the sum of the absolute values of its summands."""
        return np.abs(self.units) if self.is_plain else self.size()

    @property
    def is_uniform(self) -> bool:
        """True if all units have one scale, and `over` is 1."""
        return self.scale.size == 1 and self.over.size == 1 and int(self.over.flat[0]) == 1

    def broadcast_scales(self) -> "ScaledTerm":
        """Returns the term with scales and divisors broadcast to each element, unless there is only one."""
        shape = self.units.shape
        scale = self.scale.reshape(()) if self.scale.size == 1 else np.broadcast_to(self.scale, shape)
        over = self.over.reshape(()) if self.over.size == 1 else np.broadcast_to(self.over, shape)
        return replace(self, scale=scale, over=over)

    def apply_move(self, move: Callable[[Array], Array]) -> "ScaledTerm":
        """Returns the term after a function that only moves elements."""
        term = self.broadcast_scales()
        scale = move(term.scale) if term.scale.size > 1 else term.scale
        over = move(term.over) if term.over.size > 1 else term.over
        return ScaledTerm(move(self.units), scale, over, lambda: move(self.size()), self.steps, self.slack)


UNIT_DIVISOR = np.ones((), np.int64)
RealKind = Literal["plain", "sums", "other"]


@dataclass(frozen=True, slots=True, eq=False)
class ExactReal:
    """Exact real numbers: a sum of terms, bounded by `low` and `high` (float32, by Relu and Clip).

    `kind`: `plain` numbers come from DequantizeLinear, perhaps moved or selected; `sums` are sums of products, which
    may still take a bias.
    """

    terms: tuple[ScaledTerm, ...]
    kind: RealKind
    low: float = -np.inf
    high: float = np.inf

    @property
    def is_bounded(self) -> bool:
        return self.low != -np.inf or self.high != np.inf

    @property
    def single_term(self) -> ScaledTerm | None:
        """The only term of a number without bounds; None if there are more terms, or bounds."""
        return self.terms[0] if len(self.terms) == 1 and not self.is_bounded else None

    @property
    def integer_term(self) -> ScaledTerm | None:
        """The only term, with bounds applied to its integers; None if there are more, a divisor, or fractional bounds.

        Operators can compute with its integers as with those that DequantizeLinear reads.
        """
        if len(self.terms) != 1 or (self.terms[0].over != 1).any():
            return None
        term = replace(self.terms[0], over=UNIT_DIVISOR)
        if not self.is_bounded:
            return term
        if term.scale.size != 1:
            return None
        ends = [np.float64(bound) / np.float64(term.scale.reshape(())) for bound in (self.low, self.high)]
        if any(np.isfinite(end) and (end != np.rint(end) or abs(end) > MOST_INT32) for end in ends):
            return None
        low, high = (int(np.clip(end, -(2**62), 2**62)) for end in ends)
        return replace(term, units=np.clip(term.units, low, high))

    def clamp(self, low: float, high: float) -> "ExactReal":
        """Applies min(max(x, low), high)."""
        first, last = (float(min(max(bound, low), high)) for bound in (self.low, self.high))
        return replace(self, low=first, high=last, kind="other")

    def apply_move(self, move: Callable[[Array], Array]) -> "ExactReal":
        kind: RealKind = "plain" if self.kind == "plain" else "other"
        return replace(self, terms=tuple(term.apply_move(move) for term in self.terms), kind=kind)

    def to_floats(self) -> Singles:
        """Returns plain numbers as float32, as DequantizeLinear computes them."""
        assert self.kind == "plain"
        term = self.terms[0]
        return np.asarray(term.units.astype(np.float32) * term.scale, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ConcatReal:
    """Real numbers of several tensors concatenated along an axis, which are quantised part by part.

    parts: exact numbers, nested `ConcatReal` values, or names of float tensors. `low`, `high`: bounds of all parts.
    """

    parts: "tuple[ExactReal | ConcatReal | str, ...]"
    axis: int
    low: float = -np.inf
    high: float = np.inf

    def clamp(self, low: float, high: float) -> "ConcatReal":
        """Applies min(max(x, low), high)."""
        first, last = (float(min(max(bound, low), high)) for bound in (self.low, self.high))
        return replace(self, low=first, high=last)


@dataclass(frozen=True, slots=True, eq=False)
class RoundedCodes:
    """A quantised tensor with its values before rounding.

    `near` returns the exact values in units of the scale, without the zero point, and a bound on the error of
    onnxruntime's arithmetic: 0 where it is exact, so that onnxruntime must find the same integer.
    """

    codes: Array
    zero: Ints
    exact_values: Callable[[], tuple[Doubles, Doubles]]

    def explains(self, got: Array, at: npt.NDArray[np.bool_], allowed: Doubles | None = None) -> npt.NDArray[np.bool_]:
        """Marks the elements of `at` where the error of onnxruntime's arithmetic explains its codes `got`.

        `allowed` replaces the bound on this error.
        """
        exact, doubt = self.exact_values()
        doubt = doubt if allowed is None else allowed
        exact, doubt = (np.broadcast_to(a, self.codes.shape)[at] for a in (exact, doubt))
        zero = np.broadcast_to(self.zero, self.codes.shape)[at]
        low, high = code_limits(self.codes.dtype)
        apart = np.abs(got[at].astype(np.int64) - zero - np.clip(exact, low - zero, high - zero))
        return (apart <= 0.5 + doubt) & (doubt != 0)

    @property
    def is_certain(self) -> bool:
        """True if onnxruntime must find the same integers, because its arithmetic is exact."""
        return not self.exact_values()[1].any()


Value = Array | ExactReal


def shape_of(value: Value) -> tuple[int, ...]:
    return value.terms[0].units.shape if isinstance(value, ExactReal) else value.shape


def largest(values: Array) -> int:
    """Returns the largest absolute value; 0 if there is none."""
    return int(np.abs(values).max(initial=0))


def along(parameter: Array, axis: int | None, rank: int) -> Array:
    """Reshapes a parameter of one entry, or of one for each index of `axis`, to broadcast to `rank` dimensions."""
    if axis is None or parameter.size == 1:
        return parameter.reshape(-1)[:1].reshape(())
    return parameter.reshape([-1 if a == axis % rank else 1 for a in range(rank)])


def first_index(wrong: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """Returns the index of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def check_int32(total: Ints, where: str) -> Ints:
    """Returns the sums unchanged. Raises `UserError` for the first one that does not fit 32 bits."""
    if total.size and (int(total.max()) > MOST_INT32 or int(total.min()) < -MOST_INT32 - 1):
        at = first_index((total > MOST_INT32) | (total < -MOST_INT32 - 1))
        raise UserError(f"{where}: the sum at {list(at)} is {int(total[at])}, which does not fit 32 bits; {_SMALLER}")
    return total


_SMALLER = "onnxruntime would wrap it around; use fewer or smaller weights"
