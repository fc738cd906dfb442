"""Calibration of converters: their ranges from the sums of sample inputs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from validator.crossbar.programmed_chip import ProgrammedChip
from validator.execution.run import execute_machine, prepare_machine
from validator.program.program import LoadedProgram

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


def calibrate_converters(program: LoadedProgram, inputs: Iterable[Mapping[str, Array]]) -> LoadedProgram:
    """Returns the program with converter ranges that cover the sums of some inputs.

    The sums are computed on this chip, with its noise, before conversion.
    """
    chip = program.crossbars
    assert chip is not None  # the caller has programmed it
    ideal = replace(program, crossbars=chip.with_ideal_converters())
    seen = [_sum_extremes(ideal, one, number) for number, one in enumerate(inputs)]
    lowest, highest = np.min([low for low, _ in seen], axis=0), np.max([high for _, high in seen], axis=0)
    low, high = (np.where(np.isfinite(s), s, 0.0) for s in (lowest, highest))
    return replace(program, crossbars=chip.with_ranges(_by_array(chip, low), _by_array(chip, high)))


def _sum_extremes(program: LoadedProgram, inputs: Mapping[str, Array], number: int) -> tuple[Floats, Floats]:
    """Returns the lowest and the highest sum at each converter for one input."""
    state = prepare_machine(program, inputs, sample=number, watch=True)
    execute_machine(state, engine="numba", schedule="block")
    return state.work[7], state.work[8]


def _by_array(chip: ProgrammedChip, values: Floats) -> list[Floats]:
    ends = np.cumsum([a.factor.size for a in chip.arrays])
    parts = np.split(values, ends[:-1])
    return [part.reshape(a.factor.shape) for part, a in zip(parts, chip.arrays, strict=True)]
