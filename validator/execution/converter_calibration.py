"""Calibration of converters: their ranges from the sums of sample inputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.crossbar.programmed_chip import ProgrammedChip
from validator.execution.resident_memory import resident_content
from validator.execution.run import execute_machine, prepare_machine
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


def calibrate_converters(program: LoadedProgram, samples: Iterable[Sequence[Mapping[str, Array]]]) -> LoadedProgram:
    """Returns the program with converter ranges that cover the sums of some samples. `samples`: inputs of their steps.

    The sums are computed on this chip, with its noise, before conversion.
    """
    chip = program.crossbars
    assert chip is not None  # the caller has programmed it
    ideal = replace(program, crossbars=chip.with_ideal_converters())
    seen = [_sum_extremes(ideal, steps, number) for number, steps in enumerate(samples)]
    lowest, highest = np.min([low for low, _ in seen], axis=0), np.max([high for _, high in seen], axis=0)
    low, high = (np.where(np.isfinite(s), s, 0.0) for s in (lowest, highest))
    return replace(program, crossbars=chip.with_ranges(_by_array(chip, low), _by_array(chip, high)))


def _sum_extremes(program: LoadedProgram, steps: Sequence[Mapping[str, Array]], number: int) -> tuple[Floats, Floats]:
    """Returns the lowest and the highest sum at each converter for the steps of one sample."""
    content, low, high = None, list[Floats](), list[Floats]()
    for k, inputs in enumerate(steps):
        state = prepare_machine(program, inputs, sample=number * len(steps) + k, watch=True, before=content)
        execute_machine(state, engine="numba", schedule="block")
        content = resident_content(program, state)
        low.append(state.work[7])
        high.append(state.work[8])
    return np.min(low, axis=0), np.max(high, axis=0)


def _by_array(chip: ProgrammedChip, values: Floats) -> list[Floats]:
    ends = np.cumsum([a.factor.size for a in chip.arrays])
    parts = np.split(values, ends[:-1])
    return [part.reshape(a.factor.shape) for part, a in zip(parts, chip.arrays, strict=True)]
