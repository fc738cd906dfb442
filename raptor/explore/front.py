"""The best trade-offs of a study: its Pareto front, and the hypervolume that it covers."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.explore.points import digest_of
from raptor.explore.study import Study
from raptor.explore.trials import Outcome

Floats = npt.NDArray[np.float64]

_MARGIN = 1.1
"""Distance of the reference of the hypervolume from the worst trial of the first batch, as a factor."""


def costs(study: Study, outcomes: Sequence[Outcome]) -> Floats:
    """Returns the objectives of trials with figures, [n, objectives]; all are to be made small."""
    signs = [1.0 if d == "min" else -1.0 for d in study.objectives.values()]
    rows = [[o.figures[name] for name in study.objectives] for o in outcomes]
    return np.array(rows, np.float64).reshape(len(rows), len(signs)) * signs


def front(study: Study, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Returns the feasible trials that none is better than in one objective and as good in all others.

    Of equal points only the first trial counts; points with equal figures are all kept. Sorted by objectives, then by
    the digest of the point, so that equal studies have equal fronts.
    """
    feasible = list({digest_of(o.trial.point): o for o in outcomes[::-1] if o.is_feasible}.values())
    table = costs(study, feasible)
    best = [o for o, row in zip(feasible, table, strict=True) if not _is_dominated(row, table)]
    return sorted(best, key=lambda o: (*costs(study, [o])[0], digest_of(o.trial.point)))


def _is_dominated(row: Floats, table: Floats) -> bool:
    return bool(((table <= row).all(axis=1) & (table < row).any(axis=1)).any())


def hypervolumes(study: Study, outcomes: Sequence[Outcome]) -> Floats:
    """Returns the hypervolume after each trial, as a share of the box that the reference and the best values span.

    The reference is a little worse than the worst feasible values of the first batch that has any.
    """
    reference = _reference(study, outcomes)
    found = np.zeros(len(outcomes))
    if reference is None:
        return found
    best: Floats = costs(study, [o for o in outcomes if o.is_feasible]).min(axis=0)
    box = float(np.prod(reference - best)) or 1.0
    shown: Floats = np.empty((0, reference.size))
    volume = 0.0
    for i, one in enumerate(outcomes):
        if one.is_feasible:
            row = costs(study, [one])[0]
            if bool((row < reference).all()) and not (shown <= row).all(axis=1).any():
                shown = np.vstack([shown[~(row <= shown).all(axis=1)], row])
                volume = hypervolume(shown, reference) / box
        found[i] = volume
    return found


def _reference(study: Study, outcomes: Sequence[Outcome]) -> Floats | None:
    batch = study.file.study.batch
    for first in range(0, len(outcomes), batch):
        feasible = [o for o in outcomes[first : first + batch] if o.is_feasible]
        if feasible:
            worst = costs(study, feasible).max(axis=0)
            return worst + np.abs(worst) * (_MARGIN - 1) + 1e-9
    return None


def hypervolume(table: Floats, reference: Floats) -> float:
    """Returns the volume between points [n, d] and a reference that is worse than all of them.

    Cuts the volume into slices along the last objective, each of which has one dimension less.
    """
    if len(table) == 0:
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - table.min())
    order = table[np.argsort(table[:, -1], kind="stable")]
    edges = np.append(order[:, -1], reference[-1])
    heights = np.diff(edges)
    return sum(
        float(height) * hypervolume(_front_of(order[: k + 1, :-1]), reference[:-1])
        for k, height in enumerate(heights)
        if height > 0
    )


def _front_of(table: Floats) -> Floats:
    """Returns the rows that no other row is as good as in all columns."""
    kept = np.empty((0, table.shape[1]))
    for row in table[np.lexsort(table.T[::-1])]:
        if not (kept <= row).all(axis=1).any():
            kept = np.vstack([kept, row])
    return kept
