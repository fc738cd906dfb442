"""Executes a compiled model, computes the expected outputs with onnxruntime, and compares.

An error above the tolerance is judged a second time, by the precision of float32 (`rounding`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy.typing as npt

from raptor.common.arguments import (
    by_name,
    fault,
    finite,
    flag,
    path,
    whole,
    whole_or_none,
)
from raptor.common.errors import UserError
from raptor.common.spelling import option
from raptor.output import files
from validator.bit_true import BitTrue, load_bit_true
from validator.coding import holds_floats
from validator.compare import Comparison, Doubles, Rounding, Tally, compare, tally, within
from validator.exact import Exact, UnknownError, load_exact
from validator.golden import load_golden
from validator.load import load
from validator.options import DEFAULT_TOLERANCE, ENGINE, SCHEDULE, Engine, Schedule
from validator.program import Program
from validator.rounding import Doubt, judge, worst
from validator.run import UNLIMITED
from validator.samples import Samples, Shown, quick_count
from validator.validation_report import LayerComparison, ValidationReport, reason

Array = npt.NDArray[Any]
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
    engine: Engine = "numba",
    schedule: Schedule = "block",
    check_hashes: bool = True,
    max_steps: int | None = None,
) -> ValidationReport:
    """Executes a compiled model and compares it with onnxruntime.

    `inputs` are arrays by name, or files, each `FILE` or `NAME=FILE`; without any, standard normal numbers from `seed`,
    then from the next seeds: `samples` times (only without `inputs`), or as often as is quick (`quick_count`).
    `tolerance` is the largest error relative to the values near (`compare.measure`), 1e-4 by default. A larger error is
    right if float32 cannot be more exact, unless the tolerance is 0. A program of integers alone has no tolerance: each
    integer must be that of the model's definition (`validator.definition`). With `layers`, every tensor of layers.json
    is compared as well.
    Raises `UserError` for bad input, or after about `max_steps` instructions, and `DeadlockError`.
    """
    seed = whole("seed", seed, 0, MOST_SEED)
    samples = whole_or_none("samples", samples, 1)
    allowed = DEFAULT_TOLERANCE if tolerance is None else finite("tolerance", tolerance, 0)
    layers = flag("layers", layers)
    engine, schedule = ENGINE.parse(engine), SCHEDULE.parse(schedule)
    limit = whole_or_none("max_steps", max_steps, 1, UNLIMITED) or UNLIMITED
    inputs = _inputs(inputs)
    if inputs and samples is not None:
        raise UserError(f"{option('samples', samples)}: not with {option('inputs')}, which gives the one input to run")
    start = perf_counter()
    program = load(path("out", out), check_hashes=flag("check_hashes", check_hashes))
    layers = layers or program.manifest.numbers == "mixed"
    if layers and program.layers is None:
        raise UserError(f"{option('layers', True)}: {out} has no layers.json")
    loaded = perf_counter()
    numbers = range(seed, seed + (1 if inputs else samples or quick_count(program, engine)))
    shown_seed = None if inputs else seed
    if program.manifest.numbers != "float":
        if program.manifest.numbers == "int":
            _refuse(tolerance)
        options: dict[str, Any] = {"engine": engine, "schedule": schedule, "layers": layers, "max_steps": limit}
        tested = load_bit_true(program, inputs, numbers, tolerance=allowed, **options)
        opened = perf_counter()
        tested.judge()
        return _integer_report(tested, shown_seed, {"load": loaded - start}, opened - loaded)
    golden = load_golden(program, layers=layers)
    opened = perf_counter()
    tried = Samples(program, golden, inputs, numbers, engine, schedule, layers, limit)
    found, unknown = judged(tried, tallied(tried), allowed)
    seconds = {"load": loaded - start, **tried.seconds, "golden": opened - loaded + tried.seconds["golden"]}
    return _report(tried, found, allowed, shown_seed, seconds, unknown)


def _refuse(tolerance: float | None) -> None:
    if tolerance is not None:
        raise UserError(f"{option('tolerance', tolerance)}: not with a program of integers: every one must be equal")


def _integer_report(
    tested: BitTrue, seed: int | None, seconds: Mapping[str, float], opening: float
) -> ValidationReport:
    program, figures = tested.program, tested.figures()
    found = {shown: count.comparison(shown.tensor) for shown, count in tested.counts.items()}
    layers = tuple(LayerComparison(tested.counts[s].node, c) for s, c in found.items() if s.kind == "layer")
    passed = all(c.passed for c in found.values()) and figures.departing == figures.explained
    return ValidationReport(
        verdict="pass" if passed else "mismatch",
        tolerance=tested.tolerance if tested.mixed else 0.0,
        model=program.manifest.model,
        seed=seed,
        samples=len(tested.numbers),
        cores=program.core_count,
        instructions=tested.instructions,
        seconds={k: round(v, 6) for k, v in {**seconds, "open": opening, **tested.seconds}.items()},
        outputs=tuple(c for shown, c in found.items() if shown.kind == "output"),
        layers=layers,
        first_deviation=next((layer.node for layer in layers if not layer.comparison.passed), None),
        integers=figures,
    )


def _inputs(given: object) -> Sequence[str] | Mapping[str, Array]:
    if isinstance(given, Mapping):
        return by_name("inputs", cast(object, given), _INPUTS)
    if not isinstance(given, list | tuple):
        raise fault("inputs", given, _INPUTS)
    return [str(path("inputs", file)) for file in cast(Sequence[object], given)]


def tallied(tried: Samples) -> dict[Shown, Tally]:
    """Runs all samples; returns the errors of each tensor."""
    found: dict[Shown, Tally] = {}
    for number in tried.numbers:
        for shown, (got, want) in tried.run(number).items():
            one = tally(got, want)
            if shown in found:
                found[shown].add(one)
            else:
                found[shown] = one
    return found


def judged(tried: Samples, tallies: Mapping[Shown, Tally], tolerance: float) -> tuple[dict[Shown, Comparison], str]:
    """Judges every tensor, by the tolerance or by float64; also says why float64 could not be used where it was needed.

    A tolerance of 0 demands equal numbers: then rounding is no excuse.
    """
    _check_judged(tallies, len(tried.numbers))
    exact = _whole_numbers(tried.program)
    allowed = {shown: 0.0 if shown.tensor in exact else tolerance for shown in tallies}
    found = {shown: compare(shown.tensor, t, allowed[shown]) for shown, t in tallies.items()}
    if not tolerance or all(c.passed for c in found.values()):
        return found, ""
    return _judged_again(tried, tallies, found, allowed)


def _whole_numbers(program: Program) -> frozenset[str]:
    """Returns the tensors of integers and truth values: they have no tolerance."""
    places = [(place.name, place.coding) for place in program.memory.outputs]
    probes = [(probe.tensor, probe.coding) for probe in (program.layers.probes if program.layers else ())]
    return frozenset(name for name, coding in (*places, *probes) if not holds_floats(coding))


def _check_judged(found: Mapping[Shown, Tally], inputs: int) -> None:
    """Raises `UserError` if an output has no finite number: NaN equals NaN, which proves nothing."""
    for shown, one in found.items():
        if shown.kind == "output" and not one.finite:
            count = f"{inputs} {'input' if inputs == 1 else 'inputs'}"
            raise UserError(
                f"output {shown.tensor!r}: onnxruntime computes no finite number for it from {count}, so nothing can "
                f"be compared; give others with {option('inputs')} or {option('seed')}"
            )


def _judged_again(
    tried: Samples, tallies: Mapping[Shown, Tally], found: Mapping[Shown, Comparison], allowed: Mapping[Shown, float]
) -> tuple[dict[Shown, Comparison], str]:
    """Returns the comparisons after the judgement by float64, and why float64 could not be used, if so."""
    start = perf_counter()
    ran = sum(tried.seconds.values())
    off = {shown: within(tallies[shown], allowed[shown]) for shown, c in found.items() if not c.passed}
    found_again: dict[Shown, list[Rounding]] = {shown: [] for shown in off}
    try:
        exact = load_exact(tried.program.folder / files.MODEL, tried.golden.constants)
        for number in tried.numbers:
            for shown, rounding in _one_judged(tried, number, exact, off).items():
                found_again[shown].append(rounding)
                if not rounding.passed:
                    del off[shown]
    except UnknownError as e:
        return dict(found), str(e)
    finally:
        tried.seconds["float64"] += perf_counter() - start - (sum(tried.seconds.values()) - ran)
    return {shown: _with(c, found_again.get(shown, ())) for shown, c in found.items()}, ""


def _one_judged(tried: Samples, number: int, exact: Exact, off: Mapping[Shown, Doubles]) -> dict[Shown, Rounding]:
    """Judges the tensors of `off` for one input, if they are wrong for it."""
    pairs = tried.run(number) if off else {}
    doubts = {shown: Doubt(*pairs[shown], most) for shown, most in off.items()}
    doubts = {shown: doubt for shown, doubt in doubts.items() if doubt.off.any()}
    return judge(exact, tried.inputs(number), doubts) if doubts else {}


def _with(comparison: Comparison, judged: Sequence[Rounding]) -> Comparison:
    if not judged:
        return comparison
    rounding = worst(judged)
    return replace(comparison, passed=rounding.passed, rounding=rounding)


def _report(
    tried: Samples,
    found: Mapping[Shown, Comparison],
    tolerance: float,
    seed: int | None,
    seconds: Mapping[str, float],
    unknown: str,
) -> ValidationReport:
    program = tried.program
    outputs = tuple(c for shown, c in found.items() if shown.kind == "output")
    nodes = {probe.tensor: probe.node for probe in program.layers.probes} if program.layers else {}
    layers = tuple(LayerComparison(nodes[s.tensor], c) for s, c in found.items() if s.kind == "layer")
    deviating = next((layer.node for layer in layers if not layer.comparison.passed), None)
    return ValidationReport(
        verdict="pass" if all(c.passed for c in found.values()) else "mismatch",
        tolerance=tolerance,
        model=program.manifest.model,
        seed=seed,
        samples=len(tried.numbers),
        cores=program.core_count,
        instructions=tried.instructions,
        seconds={key: round(value, 6) for key, value in seconds.items()},
        outputs=outputs,
        layers=layers,
        first_deviation=deviating,
        reason=reason(found.values(), unknown),
        by_suite=tried.golden.by_suite,
    )
