"""Outcomes of trials: the figures of all models together, or the reason why there are none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from raptor.explore.evaluation import Record, State
from raptor.explore.metrics import METRICS, Limit
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

    `figures`: of all models together. `records`: of each model. `excess`: by how much each limit is broken, at most 0
    if it holds. Without figures, `state` and `reason` say why.
    """

    trial: Trial
    state: State
    reason: str
    figures: Mapping[str, float]
    records: tuple[Record, ...]
    excess: Mapping[str, float]

    @property
    def has_figures(self) -> bool:
        return self.state == "ok"

    @property
    def is_feasible(self) -> bool:
        """Tells whether there are figures and every limit holds."""
        return self.has_figures and all(value <= 0 for value in self.excess.values())


def outcome(study: Study, trial: Trial, records: Sequence[Record]) -> Outcome:
    """Joins the results of the models of a trial."""
    for record, model in zip(records, study.models, strict=True):
        if record.state != "ok":
            return Outcome(trial, record.state, f"{model.name}: {record.reason}", {}, tuple(records), {})
    known = [name for name in METRICS if all(name in r.figures for r in records)]
    missing = [name for name in (*study.objectives, *study.file.constraints) if name not in known]
    if missing:
        return Outcome(trial, "infeasible", f"{missing[0]}: the data have no labels", {}, tuple(records), {})
    figures = {name: METRICS[name].joined([r.figures[name] for r in records]) for name in known}
    wrong = [name for name, value in figures.items() if not math.isfinite(value)]
    if wrong:
        return Outcome(trial, "error", f"{wrong[0]} is {figures[wrong[0]]}", {}, tuple(records), {})
    excess = {limit.metric: _worst(limit, records) for limit in study.limits}
    return Outcome(trial, "ok", "", figures, tuple(records), excess)


def _worst(limit: Limit, records: Sequence[Record]) -> float:
    """Returns the excess of the model that breaks the limit most."""
    return max(limit.excess(record.figures[limit.metric]) for record in records)
