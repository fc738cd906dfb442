"""Validates a program in segments: as a whole against onnxruntime, and each segment alone, to locate an error.

1. The cut: each segment's ONNX model in onnxruntime, on the tensors of the whole model, against the whole model.
2. Each program of the chip, on the same tensors, against its ONNX model.
3. All segments one after another, against the whole model.

A host segment may turn a rounding error into another value, such as the other one of two classes, and so may rounding
to integers near a tie. So if the third comparison fails and the first two pass, the programs are validated again on the
tensors of the third. If all of them pass, each step of the computation is right, and the verdict says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.files import SegmentFile
from validator.execution.input_kinds import kinds_to_try
from validator.execution.inputs import GivenInputs
from validator.hosted.border_values import flatten_value
from validator.hosted.compare_values import HostedRuns
from validator.hosted.golden_run import WholeModel, load_whole_model, make_kind_inputs, make_sample_inputs
from validator.hosted.run_segments import SegmentedResult, run_segment_session, run_segmented, select_border_values
from validator.judge.comparison import TensorComparison
from validator.judge.judge_program import add_kind_verdicts, validate_program
from validator.judge.sample_runs import count_quick_samples
from validator.judge.validation_report import SegmentVerdict, ValidationReport
from validator.load.segmented_program import SegmentedProgram
from validator.model.golden import GoldenModel, load_golden_model
from validator.model.ort_session import create_session
from validator.options import FEWEST_SAMPLES, ValidationSettings

TensorPairs = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Computed and wanted tensors, keyed by name."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceValues:
    """Reference values of a sample: `inputs` and `wanted` tensors of the whole model, and the tensors at `borders`.

    `made`: for each segment, the results of its ONNX model in onnxruntime, computed from the tensors at its borders.
    """

    inputs: dict[str, Any]
    wanted: dict[str, Any]
    borders: dict[str, Any]
    made: dict[str, dict[str, Any]]


@dataclass(slots=True, eq=False)
class SegmentJudge:
    """Validates a program in segments against its whole model, on the samples `numbers`."""

    hosted: SegmentedProgram
    whole: WholeModel
    given: GivenInputs
    numbers: Sequence[int]
    settings: ValidationSettings
    seconds: dict[str, float] = field(default_factory=lambda: {"golden": 0.0, "run": 0.0})
    _goldens: dict[str, Any] = field(default_factory=dict[str, Any])
    _known: dict[int, ReferenceValues] = field(default_factory=dict[int, ReferenceValues])
    _runs: dict[int, SegmentedResult] = field(default_factory=dict[int, SegmentedResult])

    def find_reference(self, number: int) -> ReferenceValues:
        """Returns the reference values of a sample; each is computed once."""
        if number not in self._known:
            start = perf_counter()
            self._known[number] = self._compute(number)
            self.seconds["golden"] += perf_counter() - start
        return self._known[number]

    def _compute(self, number: int) -> ReferenceValues:
        inputs = make_sample_inputs(self.hosted, self.whole, self.given, number)
        wanted = self.whole.run(inputs)
        borders, made = select_border_values(self.hosted, inputs), dict[str, dict[str, Any]]()
        there = select_border_values(self.hosted, wanted)
        for segment in self.hosted.segments.segments:
            made[segment.path] = self._in_onnxruntime(segment, borders)
            # Segments make the tensors that the original model does not name: inner tensors of functions and loops.
            borders |= made[segment.path] | {n: there[n] for n in segment.makes if n in there}
        return ReferenceValues(inputs, wanted, borders, made)

    def _in_onnxruntime(self, segment: SegmentFile, borders: Mapping[str, Any]) -> dict[str, Any]:
        if segment.kind == "host":
            return run_segment_session(self.hosted.sessions[segment.path], segment, borders)
        program = self.hosted.programs[segment.path]
        if segment.path not in self._goldens:
            path = program.folder / files.MODEL
            floats = program.manifest.numbers == "float"
            self._goldens[segment.path] = load_golden_model(program) if floats else create_session(str(path), path)
        golden = self._goldens[segment.path]
        if isinstance(golden, GoldenModel):
            found = golden.run({name: borders[name] for name in segment.reads}, list(segment.makes))
            return select_border_values(self.hosted, found)
        return run_segment_session(golden, segment, borders)

    def run_sample(self, number: int) -> SegmentedResult:
        """Returns the run of all segments one after another; each sample is run once."""
        if number not in self._runs:
            inputs, start = self.find_reference(number).inputs, perf_counter()
            self._runs[number] = run_segmented(self.hosted, inputs, **self.settings.run_options)
            self.seconds["run"] += perf_counter() - start
        return self._runs[number]

    def make_report(self, seed: int | None, loading: float) -> ValidationReport:
        segments = tuple(map(self._segment, self.hosted.segments.segments))
        names = [o.name for o in self.hosted.segments.outputs]
        outputs, why = self._sides(names, self._whole_pair).compare_all(self.settings)
        right = all(s.passed for s in segments)
        if right and not all(o.passed for o in outputs) and self._is_right_in_sequence():
            outputs, why = tuple(map(_excused, outputs)), _excuse(outputs, "the host" if self._has_host else "a tie")
        programs = self.hosted.programs.values()
        return ValidationReport(
            verdict="pass" if right and all(o.passed for o in outputs) else "mismatch",
            tolerance=self.settings.tolerance,
            model=self.hosted.segments.model,
            seed=seed,
            samples=len(self.numbers),
            cores=self.hosted.core_count,
            instructions=sum(program.instruction_count for program in programs),
            seconds={k: round(v, 6) for k, v in {"load": loading, **self.seconds}.items()},
            outputs=outputs,
            first_deviation=next((s.first_deviation or s.path for s in segments if not s.passed), None),
            reason=why,
            by_suite=self.whole.by_suite,
            segments=segments,
        )

    def judge_kind(self, seed: int, kind: str) -> ValidationReport | None:
        """Validates one input of another kind; None if onnxruntime computes no finite outputs from it."""

        def given(number: int) -> dict[str, Any]:
            return make_kind_inputs(self.hosted, self.whole, kind, number)

        other = SegmentJudge(self.hosted, self.whole, given, [seed], self.settings, _goldens=self._goldens)
        try:
            wanted = other.find_reference(seed).wanted
        except UserError:
            return None
        floats = [
            array for o in self.hosted.segments.outputs for array in flatten_value(o.name, wanted[o.name]).values()
        ]
        if not all(np.isfinite(array).all() for array in floats if array.dtype.kind == "f"):
            return None
        return other.make_report(seed, 0.0)

    def _sides(self, names: Sequence[str], run_both: Callable[[int], TensorPairs]) -> HostedRuns:
        """Returns the two computations of `run_both`, whose float64 reference is the whole model."""
        whole, on_host = self.whole, frozenset(n.node for n in self.hosted.segments.host_nodes)
        listed = self.hosted.segments
        shapes = frozenset(c.name for c in (*listed.crossings, *listed.outputs) if None in c.shape)

        def inputs(number: int) -> dict[str, Any]:
            return self.find_reference(number).inputs

        return HostedRuns(names, self.numbers, run_both, inputs, whole.path, whole.constants, shapes, on_host)

    def _whole_pair(self, number: int) -> TensorPairs:
        return self.run_sample(number).outputs, self.find_reference(number).wanted

    def _cut_pair(self, segment: SegmentFile, number: int) -> TensorPairs:
        known = self.find_reference(number)
        return known.made[segment.path], select_border_values(self.hosted, known.wanted)

    def _segment(self, segment: SegmentFile) -> SegmentVerdict:
        names = [name for name in segment.makes if name in self.whole.names]
        cut, why = self._sides(names, partial(self._cut_pair, segment)).compare_all(self.settings)
        verdict = SegmentVerdict(segment.path, segment.kind, all(c.passed for c in cut), cut, reason=why)
        if segment.kind == "host":
            return verdict
        found = self._program(segment, lambda number: self.find_reference(number).borders)
        return replace(
            verdict,
            passed=verdict.passed and found.passed,
            outputs=found.outputs,
            layers=found.layers,
            first_deviation=found.first_deviation,
            integers=found.integers,
            reason=verdict.reason or found.reason,
        )

    def _program(self, segment: SegmentFile, values: Callable[[int], dict[str, Any]]) -> ValidationReport:
        """Validates a program of the chip on tensors at its borders; `values` returns these for a sample's number."""

        def fed(number: int) -> dict[str, Any]:
            found = values(number)
            return {name: found[name] for name in segment.reads}

        return validate_program(self.hosted.programs[segment.path], fed, self.numbers, self.settings, None)

    def _is_right_in_sequence(self) -> bool:
        """Checks whether every program is right on the tensors that it gets when all segments run one after another.

        False without a host and without integers: nothing else turns a difference within rounding into another value.
        """
        chips = (s for s in self.hosted.segments.segments if s.kind == "chip")
        turns = self._has_host or any(p.has_integers for p in self.hosted.programs.values())
        return turns and all(
            self._program(s, lambda number: self.run_sample(number).border_values).passed for s in chips
        )

    @property
    def _has_host(self) -> bool:
        return any(s.kind == "host" for s in self.hosted.segments.segments)


def _excused(output: TensorComparison) -> TensorComparison:
    return replace(output, passed=True)


def _excuse(outputs: Sequence[TensorComparison], who: str) -> str:
    names = ", ".join(o.name for o in outputs if not o.passed)
    return (
        f"{names}: differs from the whole model, because {who} turns differences within rounding into other values; "
        "every segment is right, on the tensors of the whole model and on its own"
    )


def validate_segmented(
    hosted: SegmentedProgram,
    given: GivenInputs,
    seed: int,
    samples: int | None,
    settings: ValidationSettings,
    loading: float = 0.0,
    *,
    kinds: bool = False,
) -> ValidationReport:
    """Validates a program in segments. `seed`, `samples`: as in `validate`. `loading`: seconds that loading took.

    `kinds`: validate other kinds of inputs than standard normal numbers as well.
    """
    quick = min((count_quick_samples(p, settings.engine) for p in hosted.programs.values()), default=FEWEST_SAMPLES)
    numbers = range(seed, seed + (1 if given else samples or quick))
    judge = SegmentJudge(hosted, load_whole_model(hosted, given, numbers), given, numbers, settings)
    report = judge.make_report(None if given else seed, loading)
    return add_kind_verdicts(report, kinds_to_try(len(numbers)) if kinds else (), partial(judge.judge_kind, seed))
