"""Trials and their outcomes: the figures of all models combined, or the reason why there are none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord, RecordState
from raptor.tools.explore.study.metrics import METRICS, MISSING_REASONS, MetricLimit
from raptor.tools.explore.study.search_space import ParameterValue
from raptor.tools.explore.study.study_file import Study

NoteValue = bool | int | float | str


class StudyTrial(msgspec.Struct, frozen=True):
    """A point that was evaluated. `digests`: key of the result of each model. `notes`: state of the sampler."""

    number: int
    point: dict[str, ParameterValue]
    digests: list[str]
    notes: dict[str, NoteValue] = {}


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Outcome of a trial.

    `figures`: metrics of all models combined. `jobs`, `records`: job and result of each model. `excess`: relative
    violation of each limit (0 or less if it holds), by metric. Without figures, `state` and `reason` say why.
    """

    trial: StudyTrial
    state: RecordState
    reason: str
    figures: Mapping[str, float]
    jobs: tuple[EvaluationJob, ...]
    records: tuple[EvaluationRecord, ...]
    excess: Mapping[str, float]

    @property
    def has_figures(self) -> bool:
        return self.state == "ok"

    @property
    def is_feasible(self) -> bool:
        """True if there are figures and every limit holds."""
        return self.has_figures and all(value <= 0 for value in self.excess.values())


def combine_records(
    study: Study, trial: StudyTrial, jobs: Sequence[EvaluationJob], records: Sequence[EvaluationRecord]
) -> TrialOutcome:
    """Combines the results of the models of a trial to its outcome."""

    def without(state: RecordState, reason: str) -> TrialOutcome:
        return TrialOutcome(trial, state, reason, {}, tuple(jobs), tuple(records), {})

    for record, model in zip(records, study.models, strict=True):
        if record.state != "ok":
            return without(record.state, f"{model.name}: {record.reason}")
    known = [name for name in METRICS if all(name in r.figures for r in records)]
    missing = [name for name in (*study.objectives, *study.file.constraints) if name not in known]
    if missing:
        return without("infeasible", f"{missing[0]}: {MISSING_REASONS[METRICS[missing[0]].requires]}")
    figures = {name: METRICS[name].combine([r.figures[name] for r in records]) for name in known}
    wrong = [name for name, value in figures.items() if not math.isfinite(value)]
    if wrong:
        return without("error", f"{wrong[0]} is {figures[wrong[0]]}")
    excess = {limit.metric: _worst(limit, records) for limit in study.limits}
    return TrialOutcome(trial, "ok", "", figures, tuple(jobs), tuple(records), excess)


def _worst(limit: MetricLimit, records: Sequence[EvaluationRecord]) -> float:
    """Returns the largest excess over the models."""
    return max(limit.excess(record.figures[limit.metric]) for record in records)
