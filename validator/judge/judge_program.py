"""Validates a program of one segment against onnxruntime, sample by sample.

An error above the tolerance is judged a second time, by the precision of float32 (`rounding`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from validator.execution.inputs import GivenInputs
from validator.judge.bit_true import BitTrueJudge, load_bit_true_judge
from validator.judge.comparison import (
    Doubles,
    ErrorTally,
    RoundingVerdict,
    TensorComparison,
    add_tally,
    allowed_errors,
    compare_tensor,
    tally_errors,
)
from validator.judge.float64_judge import DoubtfulTensor, judge_by_float64, worst_verdict
from validator.judge.judge_repair import judge_repair
from validator.judge.sample_runs import ComparedTensor, PairedRuns, SampleRuns
from validator.judge.validation_report import KindVerdict, LayerComparison, ValidationReport, explain_verdict
from validator.model.float64 import Float64Model, NoFloat64Error, load_float64
from validator.model.golden import load_golden_model
from validator.model.node import Array
from validator.model.ort_session import create_optimised_session
from validator.options import ValidationSettings
from validator.program.program import LoadedProgram

_SAME_SIZE = 4
"""Factor within which two errors count as equally large."""


def validate_program(
    program: LoadedProgram,
    given: GivenInputs,
    numbers: Sequence[int],
    settings: ValidationSettings,
    seed: int | None,
    loading: float = 0.0,
    kinds: Sequence[str] = (),
) -> ValidationReport:
    """Validates a loaded program of one segment on the samples `numbers`, and on one input of each of the `kinds`.

    `seed`: shown in the report; `loading`: seconds. Integer programs ignore `kinds`: their inputs use all codes.
    """
    settings = replace(settings, layers=settings.layers or program.manifest.numbers == "mixed")
    if settings.layers and program.layers is None:
        raise UserError(f"{spell_option('layers', True)}: {program.folder} has no layers.json")
    loaded = perf_counter()
    if program.manifest.numbers != "float":
        is_repaired = program.crossbars is not None and program.crossbars.setup.kind == "whole"
        streams = replace(program, crossbars=None) if is_repaired else program
        tested = load_bit_true_judge(streams, given, numbers, settings)
        opened = perf_counter()
        tested.judge()
        report = _integer_report(tested, seed, {"load": loading}, opened - loaded)
        return _with_repair(report, program, map(tested.make_inputs, numbers)) if is_repaired else report
    golden = load_golden_model(program, layers=settings.layers)
    opened = perf_counter()
    tried = SampleRuns(program, golden, given, numbers, settings).with_runnable_bounds()
    found, unknown = judge_tensors(tried, tally_samples(tried), settings.tolerance)
    excuse = _optimisation_note(tried, found) if settings.tolerance else ""
    seconds = {"load": loading, **tried.seconds, "golden": opened - loaded + tried.seconds["golden"]}
    report = _explained(_report(tried, found, settings.tolerance, seed, seconds, unknown), excuse)
    return add_kind_verdicts(report, kinds, lambda kind: _judge_kind(tried.with_kind(kind), settings.tolerance, seed))


def _with_repair(
    report: ValidationReport, program: LoadedProgram, samples: Iterable[Mapping[str, Array]]
) -> ValidationReport:
    """Returns the report with the verdict on the cells of a repaired program, which must pass, too."""
    start = perf_counter()
    found = judge_repair(program, samples)
    seconds = {**report.seconds, "repair": round(perf_counter() - start, 6)}
    verdict = report.verdict if found.passed else "mismatch"
    return replace(report, verdict=verdict, repair=found, seconds=seconds)


def add_kind_verdicts(
    report: ValidationReport, kinds: Sequence[str], judge: Callable[[str], ValidationReport | None]
) -> ValidationReport:
    """Returns the report with the verdicts on other kinds of inputs; the first one that fails is the verdict.

    `judge` returns None for inputs from which onnxruntime computes no finite numbers.
    """
    start = perf_counter()
    judged_kinds = {kind: judge(kind) for kind in kinds}
    verdicts = tuple(KindVerdict(kind, _kind_verdict(one)) for kind, one in judged_kinds.items())
    failed = next(((kind, one) for kind, one in judged_kinds.items() if one is not None and not one.passed), None)
    if failed is not None and report.passed:
        kind, one = failed
        reason = f"inputs of kind {kind}: {one.reason or 'off by more than the tolerance'}"
        report = replace(one, seconds=report.seconds, samples=report.samples, reason=reason)
    spent = {"kinds": round(perf_counter() - start, 6)} if kinds else {}
    return replace(report, kinds=verdicts, seconds={**report.seconds, **spent})


def _kind_verdict(report: ValidationReport | None) -> Literal["pass", "mismatch", "no finite numbers"]:
    if report is None:
        return "no finite numbers"
    return "pass" if report.passed else "mismatch"


def _judge_kind(tried: SampleRuns, tolerance: float, seed: int | None) -> ValidationReport | None:
    if not tried.has_finite_outputs():
        return None
    found, unknown = judge_tensors(tried, tally_samples(tried), tolerance)
    report = _report(tried, found, tolerance, seed, {}, unknown)
    if not report.passed and tried.has_infinite_tensors():
        return None
    return _explained(report, _optimisation_note(tried, found) if tolerance else "")


def _optimisation_note(tried: SampleRuns, found: Mapping[ComparedTensor, TensorComparison]) -> str:
    """Returns a note if onnxruntime's own results, with and without optimisations, differ about as much; else ""."""
    wrong = {shown.tensor: c for shown, c in found.items() if shown.kind == "output" and not c.passed}
    if not wrong:
        return ""
    try:
        other = replace(tried.golden, session=create_optimised_session(tried.model))
        apart: dict[str, ErrorTally] = {}
        for number in tried.numbers:
            inputs = tried.inputs(number)
            ends = (golden.run(inputs, list(wrong)) for golden in (other, tried.golden))
            for name, pair in zip(wrong, zip(*(end.values() for end in ends), strict=True), strict=True):
                add_tally(apart, name, tally_errors(*pair))
    except UserError:
        return ""
    own = {name: compare_tensor(name, one, 0.0).max_relative for name, one in apart.items()}
    alike = [name for name, c in wrong.items() if own[name] * _SAME_SIZE >= c.max_relative]
    if not alike:
        return ""
    name = alike[0]
    return (
        f"output {name!r}: onnxruntime's own results, with and without its optimisations, are rel {own[name]:.3g} "
        f"apart, the program is rel {wrong[name].max_relative:.3g} off: float32 tells no more about this model"
    )


def _explained(report: ValidationReport, excuse: str) -> ValidationReport:
    return replace(report, reason="; ".join(filter(None, (report.reason, excuse)))) if excuse else report


def _integer_report(
    tested: BitTrueJudge, seed: int | None, seconds: Mapping[str, float], opening: float
) -> ValidationReport:
    figures = tested.integer_figures()
    found = {shown: count.to_comparison(shown.tensor) for shown, count in tested.counts.items()}
    return _report_of(
        tested.program,
        found,
        {shown.tensor: count.node for shown, count in tested.counts.items()},
        {**seconds, "open": opening, **tested.seconds},
        passed=all(c.passed for c in found.values()) and figures.departing == figures.explained,
        tolerance=tested.settings.tolerance if tested.is_mixed else 0.0,
        seed=seed,
        samples=len(tested.numbers),
        instructions=tested.instructions,
        integers=figures,
    )


def _report_of(
    program: LoadedProgram,
    found: Mapping[ComparedTensor, TensorComparison],
    nodes: Mapping[str, str],
    seconds: Mapping[str, float],
    *,
    passed: bool,
    **more: Any,
) -> ValidationReport:
    """Returns the report on a program. `nodes`: names of the nodes that compute inner tensors, keyed by tensor."""
    layers = tuple(LayerComparison(nodes[s.tensor], c) for s, c in found.items() if s.kind == "layer")
    return ValidationReport(
        verdict="pass" if passed else "mismatch",
        model=program.manifest.model,
        cores=program.core_count,
        seconds={key: round(value, 6) for key, value in seconds.items()},
        outputs=tuple(c for shown, c in found.items() if shown.kind == "output"),
        layers=layers,
        first_deviation=next((layer.node for layer in layers if not layer.comparison.passed), None),
        **more,
    )


def tally_samples(tried: PairedRuns) -> dict[ComparedTensor, ErrorTally]:
    """Runs all samples; returns the errors of each tensor over all of them."""
    found: dict[ComparedTensor, ErrorTally] = {}
    for number in tried.numbers:
        for shown, (got, want) in tried.run(number).items():
            add_tally(found, shown, tally_errors(got, want))
    return found


def judge_tensors(
    tried: PairedRuns, tallies: Mapping[ComparedTensor, ErrorTally], tolerance: float
) -> tuple[dict[ComparedTensor, TensorComparison], str]:
    """Judges every tensor by the tolerance or by float64. Also returns why float64 could not judge, if it had to.

    A tolerance of 0 demands equal numbers: then rounding is no excuse.
    """
    _check_judged(tallies, len(tried.numbers))
    allowed = {shown: 0.0 if shown.tensor in tried.exact_tensors else tolerance for shown in tallies}
    found = {shown: compare_tensor(shown.tensor, t, allowed[shown]) for shown, t in tallies.items()}
    if not tolerance or all(c.passed for c in found.values()):
        return found, ""
    return _judged_again(tried, tallies, found, allowed)


def _check_judged(found: Mapping[ComparedTensor, ErrorTally], inputs: int) -> None:
    """Raises `UserError` if an output has no finite number: NaN equals NaN, which proves nothing."""
    for shown, one in found.items():
        if shown.kind == "output" and not one.finite:
            count = f"{inputs} {'input' if inputs == 1 else 'inputs'}"
            raise UserError(
                f"output {shown.tensor!r}: onnxruntime computes no finite number for it from {count}, so nothing can "
                f"be compared; give others with {spell_option('inputs')} or {spell_option('seed')}"
            )


def _judged_again(
    tried: PairedRuns,
    tallies: Mapping[ComparedTensor, ErrorTally],
    found: Mapping[ComparedTensor, TensorComparison],
    allowed: Mapping[ComparedTensor, float],
) -> tuple[dict[ComparedTensor, TensorComparison], str]:
    """Returns the comparisons after the judgement by float64, and why float64 could not judge, if so."""
    start = perf_counter()
    ran = sum(tried.seconds.values())
    off = {shown: allowed_errors(tallies[shown], allowed[shown]) for shown, c in found.items() if not c.passed}
    found_again: dict[ComparedTensor, list[RoundingVerdict]] = {shown: [] for shown in off}
    try:
        shapes = {name: array.shape for name, array in tried.inputs(tried.numbers[0]).items()}
        exact = load_float64(tried.model, tried.constants, shapes, tried.runtime_nodes)
        for number in tried.numbers:
            for shown, rounding in _judge_sample(tried, number, exact, off).items():
                found_again[shown].append(rounding)
                if not rounding.passed:
                    del off[shown]
    except NoFloat64Error as e:
        return dict(found), str(e)
    finally:
        tried.seconds["float64"] += perf_counter() - start - (sum(tried.seconds.values()) - ran)
    return {shown: _with_rounding(c, found_again.get(shown, ())) for shown, c in found.items()}, ""


def _judge_sample(
    tried: PairedRuns, number: int, exact: Float64Model, off: Mapping[ComparedTensor, Doubles]
) -> dict[ComparedTensor, RoundingVerdict]:
    """Judges by float64 the tensors of `off` that are wrong for one input."""
    pairs = tried.run(number) if off else {}
    doubts = {shown: DoubtfulTensor(*pairs[shown], most) for shown, most in off.items()}
    doubts = {shown: doubt for shown, doubt in doubts.items() if doubt.doubtful_elements.any()}
    return judge_by_float64(exact, tried.inputs(number), doubts) if doubts else {}


def _with_rounding(comparison: TensorComparison, judged: Sequence[RoundingVerdict]) -> TensorComparison:
    if not judged:
        return comparison
    rounding = worst_verdict(judged)
    return replace(comparison, passed=rounding.passed, rounding=rounding)


def _report(
    tried: SampleRuns,
    found: Mapping[ComparedTensor, TensorComparison],
    tolerance: float,
    seed: int | None,
    seconds: Mapping[str, float],
    unknown: str,
) -> ValidationReport:
    probes = tried.program.layers.probes if tried.program.layers else ()
    return _report_of(
        tried.program,
        found,
        {probe.tensor: probe.node for probe in probes},
        seconds,
        passed=all(c.passed for c in found.values()),
        tolerance=tolerance,
        seed=seed,
        samples=len(tried.numbers),
        instructions=tried.instructions,
        reason=explain_verdict(found.values(), unknown),
        by_suite=tried.golden.suite_nodes,
    )
