"""Validates a compiled model: executes it and compares its outputs with onnxruntime."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import cast

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import (
    argument_error,
    parse_dict,
    parse_finite,
    parse_flag,
    parse_integer,
    parse_optional_integer,
    parse_path,
)
from validator.decoding.judge_decoder import validate_decoder
from validator.execution import input_kinds
from validator.execution.crossbar_selection import is_crossbar_selection
from validator.execution.inputs import read_input_files
from validator.execution.run import UNLIMITED
from validator.hosted.any_program import load_any
from validator.hosted.judge_segments import validate_segmented
from validator.judge.judge_program import validate_program
from validator.judge.sample_runs import count_quick_samples
from validator.judge.validation_report import ValidationReport
from validator.load.segmented_program import SegmentedProgram
from validator.model.node import Array
from validator.options import DEFAULT_TOLERANCE, ENGINE, SCHEDULE, Engine, Schedule, ValidationSettings
from validator.program.program import CrossbarWriter, LoadedProgram
from validator.program.segment_list import require_one_segment

MOST_SEED = 2**62
"""Largest seed; JSON holds no larger numbers."""
_INPUTS = "arrays by name, or a list of files"


def validate(
    out: Path,
    *,
    inputs: Sequence[str] | Mapping[str, Array] = (),
    seed: int = 0,
    samples: int | None = None,
    tolerance: float | None = None,
    layers: bool = False,
    engine: Engine = "auto",
    schedule: Schedule = "block",
    check_hashes: bool = True,
    max_steps: int | None = None,
    write: CrossbarWriter | None = None,
    crossbars: Callable[[LoadedProgram], LoadedProgram] | None = None,
) -> ValidationReport:
    """Executes a compiled model and compares it with onnxruntime; a decoder step by step, until its cache is full.

    `inputs`: arrays by name, or files, each `FILE` or `NAME=FILE`; without any, standard normal numbers from `seed`,
    then from the next seeds: `samples` times (only without `inputs`), or as often as is quick (`count_quick_samples`).
    In addition, one input each of some other kinds is tried (`validator.execution.input_kinds`), at most half as many.
    `tolerance`: largest error relative to the values near (`compare.measure`), 1e-4 by default. A larger error passes
    if float32 cannot be more exact, unless the tolerance is 0. A program of integers alone has no tolerance: each
    integer must equal that of the model's definition (`validator.model.definition`). `layers`: compare every tensor of
    layers.json as well. `write`: puts the matrices of a program into external crossbars; the engine is then the
    reference. `crossbars`: gives an integer program the crossbars of a real chip. Raises `UserError` for bad input, or
    after about `max_steps` instructions, and `DeadlockError`."""
    seed = parse_integer("seed", seed, 0, MOST_SEED)
    samples = parse_optional_integer("samples", samples, 1)
    allowed = DEFAULT_TOLERANCE if tolerance is None else parse_finite("tolerance", tolerance, 0)
    layers = parse_flag("layers", layers)
    engine, schedule = ENGINE.parse(engine if write is None else "python"), SCHEDULE.parse(schedule)
    limit = parse_optional_integer("max_steps", max_steps, 1, UNLIMITED) or UNLIMITED
    inputs = _inputs(inputs)
    if write is not None and not isinstance(write, CrossbarWriter):  # pyright: ignore[reportUnnecessaryIsInstance] of any caller
        raise argument_error("write", write, "a validator.program.program.Writer")
    if inputs and samples is not None:
        raise UserError(
            f"{spell_option('samples', samples)}: not with {spell_option('inputs')}, which gives the one input to run"
        )
    settings = ValidationSettings(allowed, layers, engine, schedule, limit)
    folder, check_hashes, start = parse_path("out", out), parse_flag("check_hashes", check_hashes), perf_counter()
    if crossbars is not None:
        if not is_crossbar_selection(crossbars):
            raise argument_error("crossbars", crossbars, "a choice of validator.execution.crossbar_selection")
        require_one_segment(folder, spell_option("crossbar"))
    numbers_alone = bool(inputs) or write is not None or crossbars is not None
    program = load_any(folder, check_hashes=check_hashes)
    program = program if write is None else program.write_to_device(write)
    loading = perf_counter() - start
    if isinstance(program, SegmentedProgram):
        return validate_segmented(program, inputs, seed, samples, settings, loading, kinds=not numbers_alone)
    if program.decoder is not None and crossbars is None:
        return validate_decoder(program, _arrays(program, inputs), seed, samples, settings, loading)
    _refuse_trimmed(program)
    program = program if crossbars is None else crossbars(program)
    if program.manifest.numbers == "int":
        _refuse(tolerance)
    numbers = range(seed, seed + (1 if inputs else samples or count_quick_samples(program, engine)))
    others = () if numbers_alone else input_kinds.kinds_to_try(len(numbers))
    return validate_program(program, inputs, numbers, settings, None if inputs else seed, loading, others)


def _arrays(program: LoadedProgram, given: Sequence[str] | Mapping[str, Array]) -> Mapping[str, Array]:
    return given if isinstance(given, Mapping) else read_input_files(program.memory.inputs, given)


def _refuse_trimmed(program: LoadedProgram) -> None:
    if program.trim is not None and program.trim.chip is not None:
        raise UserError(
            f"{program.folder}: trimmed for {program.trim.chip}, so exact crossbars give other values; validate the "
            "program as it was compiled, or measure this one with raptor accuracy"
        )


def _refuse(tolerance: float | None) -> None:
    if tolerance is not None:
        raise UserError(
            f"{spell_option('tolerance', tolerance)}: not with a program of integers: every one must be equal"
        )


def _inputs(given: object) -> Sequence[str] | Mapping[str, Array]:
    if isinstance(given, Mapping):
        return parse_dict("inputs", cast(object, given), _INPUTS)
    if not isinstance(given, list | tuple):
        raise argument_error("inputs", given, _INPUTS)
    return [str(parse_path("inputs", file)) for file in cast(Sequence[object], given)]
