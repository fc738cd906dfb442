"""Compares tensors of any type: floats within a tolerance, all other types exactly.

An integer or a boolean may depend on which of two floats is larger. So one that differs is judged by float64, like a
float.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from validator.hosted.border_values import as_array, flatten_value
from validator.judge.comparison import TensorComparison, compare_tensor, tally_errors
from validator.judge.judge_program import judge_tensors, tally_samples
from validator.judge.sample_runs import ComparedTensor
from validator.judge.validation_report import explain_verdict
from validator.model.node import Array
from validator.options import ValidationSettings

Values = Mapping[str, Any]

MOST_EXACT_INTEGER = 2**24
"""Largest integer up to which float32 represents every integer."""

MOST_INTEGER_DEVIATION = 4
"""Largest accepted error of an integer, in standard deviations (1/4 if one of 16 draws is off by 1)."""


@dataclass(slots=True, eq=False)
class HostedRuns:
    """Two computations of the tensors `names`, sample by sample. Numbers of known shape are judged as in any program.

    `run_both`: returns computed and wanted tensors by name, for the number of a sample. `fed`: returns the inputs of
    the ONNX model at `model`, some inputs of which are `constants`. `open_shapes`: tensors whose shapes may differ
    between samples. `runtime_nodes`: nodes on the host, which onnxruntime computes. `exact`: tensors that must be
    equal, unless float64 says otherwise; `run` finds them."""

    names: Sequence[str]
    numbers: Sequence[int]
    run_both: Callable[[int], tuple[Values, Values]]
    feed_inputs: Callable[[int], Values]
    model: Path
    constants: Mapping[str, Any]
    open_shapes: frozenset[str]
    runtime_nodes: frozenset[str] = frozenset()
    seconds: dict[str, float] = field(default_factory=lambda: {"float64": 0.0})
    exact_tensors: frozenset[str] = frozenset()

    def inputs(self, number: int) -> dict[str, Any]:
        return dict(self.feed_inputs(number))

    def run(self, number: int) -> dict[ComparedTensor, tuple[Any, Any]]:
        """Returns computed and wanted numbers of known shape, as float32. Adds integer tensors to `exact`."""
        got, want = self.run_both(number)
        pairs = {n: (got[n], want[n]) for n in self.names if self._has_known_shape(n, got[n], want[n])}
        self.exact_tensors |= {n for n, (_, w) in pairs.items() if not is_float_tensor(w)}
        return {ComparedTensor("layer", n): (g.astype(np.float32), w.astype(np.float32)) for n, (g, w) in pairs.items()}

    def _has_known_shape(self, name: str, got: Any, want: Any) -> bool:
        alike = (is_float_tensor(got) and is_float_tensor(want)) or (
            _is_exact(got) and _is_exact(want) and got.dtype == want.dtype
        )
        return name not in self.open_shapes and alike and got.shape == want.shape

    def _check_integer(self, one: TensorComparison) -> TensorComparison:
        """Fails an integer tensor that is farther from float64 than rounding moves it in some draws."""
        rounding = one.rounding
        if one.name not in self.exact_tensors or rounding is None:
            return one
        return replace(one, passed=one.passed and rounding.error <= MOST_INTEGER_DEVIATION * rounding.deviation)

    def compare_all(self, settings: ValidationSettings) -> tuple[tuple[TensorComparison, ...], str | None]:
        """Compares all samples. Returns a comparison for each name, and the reason of a judgement by float64."""
        numbers, unknown = judge_tensors(self, tally_samples(self), settings.tolerance)
        found = {shown.tensor: self._check_integer(one) for shown, one in numbers.items()}
        for number in self.numbers:
            got, want = self.run_both(number)
            for name in self.names:
                if not self._has_known_shape(name, got[name], want[name]):
                    one = compare_value(name, got[name], want[name], settings.tolerance)
                    found[name] = one if name not in found or found[name].passed else found[name]
        return tuple(found[name] for name in self.names), explain_verdict(numbers.values(), unknown)


def is_float_tensor(value: Any) -> bool:
    """Checks whether a value is a non-empty tensor of floats."""
    array = as_array(value)
    return array is not None and array.size > 0 and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _is_exact(value: Any) -> bool:
    """Checks whether a value is a non-empty tensor of integers or booleans that float32 represents exactly."""
    array = as_array(value)
    if array is None or array.size == 0 or array.dtype.kind not in "biu":
        return False
    return -MOST_EXACT_INTEGER <= int(array.min()) <= int(array.max()) <= MOST_EXACT_INTEGER


def compare_value(name: str, computed: Any, wanted: Any, tolerance: float) -> TensorComparison:
    """Compares one value: floats within the tolerance; all others, types and shapes must be equal.

    Sequences and maps must have the same parts; the worst part is returned.
    """
    got, want = as_array(computed), as_array(wanted)
    if got is not None and want is not None:
        return _of_arrays(name, got, want, tolerance)
    got, want = flatten_value(name, computed), flatten_value(name, wanted)
    if got.keys() != want.keys() or (computed is None) != (wanted is None):
        return _unequal(name, ())
    parts = [_of_arrays(name, got[part], want[part], tolerance) for part in got]
    return max(parts, key=lambda part: (not part.passed, part.max_relative), default=_equal(name, ()))


def _of_arrays(name: str, got: Array, want: Array, tolerance: float) -> TensorComparison:
    if got.shape != want.shape or got.dtype != want.dtype:
        return _unequal(name, want.shape)
    if is_float_tensor(want):
        return compare_tensor(name, tally_errors(got.astype(np.float32), want.astype(np.float32)), tolerance)
    wrong = np.argwhere(got != want)
    return _first_wrong(name, got, want, tuple(map(int, wrong[0]))) if len(wrong) else _equal(name, want.shape)


def _equal(name: str, shape: tuple[int, ...]) -> TensorComparison:
    return TensorComparison(name, shape, 0.0, 0.0, (), 0.0, 0.0, passed=True)


def _unequal(name: str, shape: tuple[int, ...], at: tuple[int, ...] = ()) -> TensorComparison:
    """Returns the failed comparison of values that are no numbers, or of different shapes or types."""
    return TensorComparison(name, shape, np.inf, np.inf, at, np.nan, np.nan, passed=False)


def _first_wrong(name: str, got: Array, want: Array, at: tuple[int, ...]) -> TensorComparison:
    if want.dtype.kind in "OU":
        return _unequal(name, want.shape, at)
    apart = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
    relative = apart / max(abs(float(want[at])), 1.0)
    return TensorComparison(name, want.shape, apart, relative, at, float(got[at]), float(want[at]), passed=False)
