"""The Pareto front of a study, and its hypervolume."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.study.search_space import digest_values
from raptor.tools.explore.study.study_file import Study

Floats = npt.NDArray[np.float64]

_MARGIN = 1.1
"""Factor from the worst values of the first batch to the reference point of the hypervolume."""


def objective_matrix(study: Study, outcomes: Sequence[TrialOutcome]) -> Floats:
    """Returns the objectives [trials, objectives] of trials with figures; those to maximise are negated."""
    signs = [1.0 if d == "min" else -1.0 for d in study.objectives.values()]
    rows = [[o.figures[name] for name in study.objectives] for o in outcomes]
    return np.array(rows, np.float64).reshape(len(rows), len(signs)) * signs


def pareto_front(study: Study, outcomes: Sequence[TrialOutcome]) -> list[TrialOutcome]:
    """Returns the Pareto front: the feasible trials that no other trial dominates.

    Of equal points only the first trial counts; different points with equal figures are all kept. Sorted by objectives,
    then by the digest of the point, so that equal studies have equal fronts.
    """
    feasible = list({digest_values(o.trial.point): o for o in outcomes[::-1] if o.is_feasible}.values())
    table = objective_matrix(study, feasible)
    best = [(tuple(table[i]), digest_values(feasible[i].trial.point), feasible[i]) for i in _undominated(table)]
    return [one for *_, one in sorted(best, key=lambda found: found[:2])]


def _undominated(table: Floats) -> list[int]:
    """Returns the indices of the rows that no other row dominates (minimisation)."""
    found: list[int] = []
    kept, count = np.empty_like(table), 0
    for i in np.lexsort(table.T[::-1]).tolist():  # what beats a row comes before it
        rows = kept[:count]
        if not ((rows <= table[i]).all(axis=1) & (rows < table[i]).any(axis=1)).any():
            kept[count] = table[i]
            count += 1
            found.append(i)
    return found


class HypervolumeTracker:
    """Hypervolume of a study, updated with each outcome: the volume between feasible points and a reference point.

    The reference point is slightly worse than the worst values of the first batch with feasible points.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._seen = 0
        self._reference: Floats | None = None
        self._best: Floats = np.empty(0)
        self._front: Floats = np.empty((0, len(study.objectives)))
        self._volume = 0.0

    def add_outcomes(self, outcomes: Sequence[TrialOutcome]) -> list[float]:
        """Takes all outcomes so far, in whole batches. Returns the volume after each new outcome."""
        found: list[float] = []
        batch = self._study.file.study.batch
        for first in range(self._seen, len(outcomes), batch):
            part = outcomes[first : first + batch]
            self._refer(part)
            for one in part:
                self._add(one)
                found.append(self._volume)
        self._seen = len(outcomes)
        return found

    @property
    def relative_volume(self) -> float:
        """Volume relative to the box between the reference point and the best values, 0 to 1."""
        return 0.0 if self._reference is None else self._volume / self.box_volume

    @property
    def box_volume(self) -> float:
        """Volume of the box between the reference point and the best values; 1 without a reference."""
        return 1.0 if self._reference is None else float(np.prod(self._reference - self._best)) or 1.0

    def _refer(self, batch: Sequence[TrialOutcome]) -> None:
        """Sets the reference point from the first batch with feasible points."""
        feasible = [o for o in batch if o.is_feasible]
        if self._reference is None and feasible:
            worst: Floats = objective_matrix(self._study, feasible).max(axis=0)
            self._reference = worst + np.abs(worst) * (_MARGIN - 1) + 1e-9
            self._best = worst

    def _add(self, one: TrialOutcome) -> None:
        if self._reference is None or not one.is_feasible:
            return
        row: Floats = objective_matrix(self._study, [one])[0]
        self._best = np.minimum(self._best, row)
        if not bool((row < self._reference).all()) or (self._front <= row).all(axis=1).any():
            return
        known = compute_hypervolume(_thinned(np.maximum(self._front, row)), self._reference)
        sides: Floats = self._reference - row
        self._volume += max(0.0, float(sides.prod()) - known)
        self._front = np.vstack([self._front[~(row <= self._front).all(axis=1)], row])


def trace_hypervolume(study: Study, outcomes: Sequence[TrialOutcome]) -> Floats:
    """Returns the hypervolume after each trial, relative to the final box (see `HypervolumeTracker.box`)."""
    covered = HypervolumeTracker(study)
    return np.array(covered.add_outcomes(outcomes), np.float64) / covered.box_volume


def compute_hypervolume(table: Floats, reference: Floats) -> float:
    """Returns the hypervolume of points [n, d] (minimised) up to a reference point [d] that all points dominate.

    Recursive: slices along the last objective have one dimension less.
    """
    if len(table) == 0:
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - table.min())
    order = table[np.argsort(table[:, -1], kind="stable")]
    heights = np.diff(np.append(order[:, -1], reference[-1]))
    if len(reference) == 2:
        return float(heights @ (reference[0] - np.minimum.accumulate(order[:, 0])))
    return sum(
        float(height) * compute_hypervolume(order[: k + 1, :-1], reference[:-1])
        for k, height in enumerate(heights)
        if height > 0
    )


def _thinned(table: Floats) -> Floats:
    """Returns the rows that no other row dominates, without duplicates."""
    rows = np.unique(table, axis=0)
    return rows[_undominated(rows)]
