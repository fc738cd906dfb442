"""Crossbar models that users select: ideal, integer, sliced or noisy, with a device file and settings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.arch import read_stored_target
from raptor.target.device_file import load_device
from validator.crossbar.chip_programming import program_crossbars
from validator.crossbar.chip_settings import make_setup, parse_settings
from validator.execution.converter_calibration import calibrate_converters
from validator.execution.inputs import random_inputs
from validator.options import CrossbarKind
from validator.program.program import LoadedProgram

_CALIBRATION = 8
"""Number of random inputs with which converter ranges are calibrated."""


def resolve_kind(program: LoadedProgram, crossbar: CrossbarKind | None) -> CrossbarKind:
    """Returns the kind of crossbars, exact by default. Raises `UserError` for `ideal` integers or `integer` floats."""
    exact: CrossbarKind = "integer" if program.has_integers else "ideal"
    if crossbar in ("ideal", "integer") and crossbar != exact:
        numbers = "integers" if program.has_integers else "float32 numbers"
        raise UserError(f"--crossbar {crossbar}: the program has {numbers}; take {exact}")
    return crossbar or exact


def select_crossbars(
    crossbar: CrossbarKind, cells: str | None, settings: Sequence[str]
) -> Callable[[LoadedProgram], LoadedProgram]:
    """Returns a function that installs these crossbars in a program. Raises `UserError` for unknown settings."""
    return partial(
        _install, crossbar, None if cells is None else load_device(cells), parse_settings("--with", settings)
    )


def is_crossbar_selection(value: object) -> bool:
    """Checks whether a value was returned by `chosen`."""
    return isinstance(value, partial) and value.func is _install


def _install(crossbar: CrossbarKind, device: Any, settings: Mapping[str, str], program: LoadedProgram) -> LoadedProgram:
    kind = resolve_kind(program, crossbar)
    if kind in ("ideal", "integer"):
        return program
    setup = make_setup(kind, read_stored_target(program.folder, files.ARCH), device, settings)
    made = program_crossbars(program, setup)
    if setup.adc is None or setup.adc.range != "calibrated":
        return made
    return calibrate_converters(made, [[random_inputs(program.memory.inputs, seed)] for seed in range(_CALIBRATION)])
