"""The front and its hypervolume, against definitions."""

from pathlib import Path

import numpy as np
import pytest

from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord
from raptor.tools.explore.evaluation.trial_outcomes import StudyTrial, TrialOutcome, combine_records
from raptor.tools.explore.results.pareto_front import (
    compute_hypervolume,
    objective_matrix,
    pareto_front,
    trace_hypervolume,
)
from raptor.tools.explore.study.study_file import Study
from tests.tools.explore.small import small

JOB = EvaluationJob("m.onnx", {}, is_steady=False)
NAMES = ("latency_ns", "energy_pj", "xbars")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small(tmp_path, rest='[constraints]\nxbars = "<= 8"\n')


def outcomes(study: Study, rows: np.ndarray) -> list[TrialOutcome]:
    """Makes trials with these figures; the points are different."""
    found: list[TrialOutcome] = []
    for k, row in enumerate(rows):
        trial = StudyTrial(k, {"cores": k}, ["0"])
        found.append(
            combine_records(
                study, trial, [JOB], [EvaluationRecord("ok", dict(zip(NAMES, map(float, row), strict=True)))]
            )
        )
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_its_definition_says(study: Study, seed: int):
    rows = np.random.default_rng(seed).integers(1, 10, (40, 3))
    found = outcomes(study, rows)
    kept = [row for row in rows if row[2] <= 8]
    expected = [row for row in kept if not any((o <= row).all() and (o < row).any() for o in kept)]
    assert sorted(map(tuple, objective_matrix(study, pareto_front(study, found)).tolist())) == sorted(
        map(tuple, expected)
    )
    assert pareto_front(study, found[::-1]) == pareto_front(study, found)


def test_a_point_counts_once_and_equal_figures_are_kept(study: Study):
    found = outcomes(study, np.array([[1, 1, 1], [1, 1, 1]]))
    assert len(pareto_front(study, found)) == 2
    assert len(pareto_front(study, [found[0], found[0]])) == 1


def test_figures_that_are_to_be_large(tmp_path: Path):
    study = small(tmp_path)
    turned = study.file.model_copy(update={"objectives": {"xbars": "max"}})
    object.__setattr__(study, "file", turned)
    assert pareto_front(study, outcomes(study, np.array([[1, 1, 3], [1, 1, 5]])))[0].figures["xbars"] == 5


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_the_hypervolume_is_the_volume(dimensions: int):
    rng = np.random.default_rng(dimensions)
    for _ in range(10):
        table = rng.integers(0, 6, (7, dimensions))
        cells = np.stack(np.meshgrid(*[np.arange(6)] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
        covered = sum(any((row <= cell).all() for row in table) for cell in cells)
        assert compute_hypervolume(table.astype(float), np.full(dimensions, 6.0)) == covered


def test_the_hypervolume_grows(study: Study):
    rows = np.random.default_rng(1).integers(1, 10, (40, 3))
    found = trace_hypervolume(study, outcomes(study, rows))
    assert (np.diff(found) >= 0).all()
    assert 0 < found[-1] <= 1
    assert not trace_hypervolume(study, outcomes(study, np.array([[1, 1, 9]]))).any()


def test_what_is_not_finite_is_no_figure(study: Study):
    (found,) = outcomes(study, np.array([[np.inf, 1, 1]]))
    assert (found.state, found.reason) == ("error", "latency_ns is inf")
