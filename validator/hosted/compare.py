"""Compares tensors of any type: floats with a tolerance, everything else must be equal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from validator.compare import Comparison, compare, tally
from validator.hosted.values import array_of
from validator.judging import Settings, judged, tallied
from validator.samples import Shown
from validator.validation_report import reason

Values = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Sides:
    """Two computations of the tensors `names`, sample by sample. Floats of known shape are judged as in any program.

    `run_both`: returns what was computed and what was wanted, by name, for the number of a sample. `fed`: returns the
    inputs of the ONNX model at `model`, in which some inputs are `constants`. `open_shapes`: tensors whose shapes may
    differ from sample to sample.
    """

    names: Sequence[str]
    numbers: Sequence[int]
    run_both: Callable[[int], tuple[Values, Values]]
    fed: Callable[[int], Values]
    model: Path
    constants: Mapping[str, Any]
    open_shapes: frozenset[str]
    seconds: dict[str, float] = field(default_factory=lambda: {"float64": 0.0})
    exact: frozenset[str] = frozenset()

    def inputs(self, number: int) -> dict[str, Any]:
        return dict(self.fed(number))

    def run(self, number: int) -> dict[Shown, tuple[Any, Any]]:
        """Returns the floats of known shape, as float32."""
        got, want = self.run_both(number)
        pairs = {n: (got[n], want[n]) for n in self.names if self._is_usual(n, got[n], want[n])}
        return {Shown("layer", n): (g.astype(np.float32), w.astype(np.float32)) for n, (g, w) in pairs.items()}

    def _is_usual(self, name: str, got: Any, want: Any) -> bool:
        return name not in self.open_shapes and is_floats(got) and is_floats(want) and got.shape == want.shape

    def compared(self, settings: Settings) -> tuple[tuple[Comparison, ...], str | None]:
        """Compares all samples. Returns a comparison for each name, and the reason of a judgement by float64."""
        floats, unknown = judged(self, tallied(self), settings.tolerance)
        found = {shown.tensor: one for shown, one in floats.items()}
        for number in self.numbers:
            got, want = self.run_both(number)
            for name in self.names:
                if not self._is_usual(name, got[name], want[name]):
                    one = difference(name, got[name], want[name], settings.tolerance)
                    found[name] = one if name not in found or found[name].passed else found[name]
        return tuple(found[name] for name in self.names), reason(floats.values(), unknown)


def is_floats(value: Any) -> bool:
    """Tells whether a value is a tensor of floats that is not empty."""
    array = array_of(value)
    return array is not None and array.size > 0 and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def difference(name: str, computed: Any, wanted: Any, tolerance: float) -> Comparison:
    """Compares one value: floats by the tolerance alone, all others must be equal, in type and shape, too."""
    if isinstance(computed, list) and isinstance(wanted, list):
        return _of_lists(name, cast(list[Any], computed), cast(list[Any], wanted), tolerance)
    if computed is None and wanted is None:
        return _equal(name, ())
    got, want = array_of(computed), array_of(wanted)
    if got is None or want is None:
        return _unlike(name, ())
    if got.shape != want.shape or got.dtype != want.dtype:
        return _unlike(name, want.shape)
    if is_floats(want):
        return compare(name, tally(got.astype(np.float32), want.astype(np.float32)), tolerance)
    wrong = np.argwhere(got != want)
    return _first_wrong(name, got, want, tuple(map(int, wrong[0]))) if len(wrong) else _equal(name, want.shape)


def _of_lists(name: str, got: list[Any], want: list[Any], tolerance: float) -> Comparison:
    if len(got) != len(want):
        return _unlike(name, ())
    parts = [difference(name, g, w, tolerance) for g, w in zip(got, want, strict=True)]
    return next((part for part in parts if not part.passed), _equal(name, ()))


def _equal(name: str, shape: tuple[int, ...]) -> Comparison:
    return Comparison(name, shape, 0.0, 0.0, (), 0.0, 0.0, passed=True)


def _unlike(name: str, shape: tuple[int, ...]) -> Comparison:
    """Returns the comparison of values of other shapes or types."""
    return Comparison(name, shape, np.inf, np.inf, (), np.nan, np.nan, passed=False)


def _first_wrong(name: str, got: npt.NDArray[Any], want: npt.NDArray[Any], at: tuple[int, ...]) -> Comparison:
    if want.dtype.kind == "O":
        return Comparison(name, want.shape, np.inf, np.inf, at, np.nan, np.nan, passed=False)
    apart = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
    relative = apart / max(abs(float(want[at])), 1.0)
    return Comparison(name, want.shape, apart, relative, at, float(got[at]), float(want[at]), passed=False)
