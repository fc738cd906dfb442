"""Outcomes of trials: the figures of all models together, or the reason why there are none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from raptor.explore.jobs import Job, Record, State
from raptor.explore.metrics import METRICS, WITHOUT, Limit
from raptor.explore.points import Value
from raptor.explore.study import Study

Note = bool | int | float | str


class Trial(msgspec.Struct, frozen=True):
    """A point that was tried. `digests`: of the result of each model. `notes`: what the sampler keeps about it."""

    number: int
    point: dict[str, Value]
    digests: list[str]
    notes: dict[str, Note] = {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a trial.

    `figures`: of all models together. `jobs`, `records`: what was asked of each model, and the result. `excess`: by how
    much each limit is broken, at most 0 if it holds. Without figures, `state` and `reason` say why.
    """

    trial: Trial
    state: State
    reason: str
    figures: Mapping[str, float]
    jobs: tuple[Job, ...]
    records: tuple[Record, ...]
    excess: Mapping[str, float]

    @property
    def has_figures(self) -> bool:
        return self.state == "ok"

    @property
    def is_feasible(self) -> bool:
        """Tells whether there are figures and every limit holds."""
        return self.has_figures and all(value <= 0 for value in self.excess.values())


def outcome(study: Study, trial: Trial, jobs: Sequence[Job], records: Sequence[Record]) -> Outcome:
    """Joins the results of the models of a trial."""

    def without(state: State, reason: str) -> Outcome:
        return Outcome(trial, state, reason, {}, tuple(jobs), tuple(records), {})

    for record, model in zip(records, study.models, strict=True):
        if record.state != "ok":
            return without(record.state, f"{model.name}: {record.reason}")
    known = [name for name in METRICS if all(name in r.figures for r in records)]
    missing = [name for name in (*study.objectives, *study.file.constraints) if name not in known]
    if missing:
        return without("infeasible", f"{missing[0]}: {WITHOUT[METRICS[missing[0]].needs]}")
    figures = {name: METRICS[name].joined([r.figures[name] for r in records]) for name in known}
    wrong = [name for name, value in figures.items() if not math.isfinite(value)]
    if wrong:
        return without("error", f"{wrong[0]} is {figures[wrong[0]]}")
    excess = {limit.metric: _worst(limit, records) for limit in study.limits}
    return Outcome(trial, "ok", "", figures, tuple(jobs), tuple(records), excess)


def _worst(limit: Limit, records: Sequence[Record]) -> float:
    """Returns the excess of the model that breaks the limit most."""
    return max(limit.excess(record.figures[limit.metric]) for record in records)
