"""Judge an estimator of figures on stored results.

    python -m benchmarks.search.screening STUDY.toml [--figure latency_ns]

Gradient boosting learns the logarithm of a figure from the parameters. Every value of every parameter is left out in
turn, as an estimator must order points that it has not seen. Told for the values left out: rank correlation (Spearman),
and how much worse the best of the first five points is than the best of all; the same for the nearest neighbours, for
the evaluation that the mapping goes by (`raptor.mapping.evaluation`), and for five points at random.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from raptor import frontend
from raptor.common.options.option_values import DEFAULT_STRATEGY
from raptor.compiler import pipeline
from raptor.compiler.pass_driver import Driver
from raptor.mapping.evaluation.evaluate import Evaluation, evaluate
from raptor.mapping.strategies import STRATEGIES
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, load_simulated_chip
from raptor.tools.explore.evaluation.job_planning import make_job
from raptor.tools.explore.study.search_space import ParameterValue, StudyParameter
from raptor.tools.explore.study.study_file import read_study
from raptor.tools.explore.study_driver import read_outcomes
from raptor.transforms.choose_recipes import RequantMethod

Floats = npt.NDArray[np.float64]
MIN_POINTS = 12
"""Least number of points with a value that is left out."""
FIRST_POINTS = 5
EVALUATED_FIGURES = ("latency_ns", "interval_ns")
"""Figures of a decision that are evaluated before it is lowered."""
_DRAWS = 200


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--figure", default="latency_ns")
    given = parser.parse_args()
    study = read_study(given.study)
    outcomes = list({repr(o.trial.point): o for o in read_outcomes(study) if o.has_figures}.values())
    points = [o.trial.point for o in outcomes]
    inputs = np.column_stack(
        [column for p in study.space for column in encode_parameter(p, [point[p.name] for point in points])]
    )
    for k, model in enumerate(study.models):
        figures = np.log(np.array([o.records[k].figures[given.figure] for o in outcomes]))
        groups = {p.name: np.array([str(point[p.name]) for point in points]) for p in study.space}
        evaluated = None
        if given.figure in EVALUATED_FIGURES:
            jobs = [make_job(study, model, point) for point in points]
            evaluated = np.array([getattr(evaluate_job(job), given.figure) for job in jobs])
        Console().print(make_table(f"{model.name}, {given.figure}", inputs, figures, groups, evaluated))


def evaluate_job(job: EvaluationJob) -> Evaluation:
    """Evaluates the decision about a job: the model is mapped, but not lowered."""
    chip = load_simulated_chip(job)
    graph = pipeline.prepare_graph(frontend.load(job.model).graph, chip, RequantMethod(), driver=Driver(verified=False))
    mapped = pipeline.rewrite_and_map(graph, chip, STRATEGIES[job.options.get("mapping", DEFAULT_STRATEGY)])
    return evaluate(mapped.graph, mapped.decision, chip)


def encode_parameter(p: StudyParameter, values: Sequence[ParameterValue]) -> list[Floats]:
    """Encodes a parameter as columns: logarithms of sizes, or a one-hot column for each name."""
    if p.name == "xbar":
        sizes = [str(value).split("x") for value in values]
        return [np.log2(np.array([float(size[end]) for size in sizes])) for end in (0, -1)]
    if any(isinstance(value, str) for value in values):
        return [np.array([float(value == name) for value in values]) for name in sorted({str(v) for v in values})]
    return [np.log2(1 + np.array(values, np.float64))]


def make_table(
    title: str, inputs: Floats, figures: Floats, groups: Mapping[str, npt.NDArray[Any]], evaluated: Floats | None
) -> Table:
    found = Table(box=None, title=title)
    heads = ("left out", "boosting", "worst", "best of 5", "neighbours", "best of 5", "evaluated", "best of 5")
    for name in (*heads, "5 at random"):
        found.add_column(name, justify="left" if name == "left out" else "right")
    for name, group in groups.items():
        chosen = [group == value for value in np.unique(group)]
        masks = [mask for mask in chosen if MIN_POINTS <= mask.sum() < len(group)]
        if not masks:
            continue
        boosted = [judge_estimator(make_boosting, inputs, figures, mask) for mask in masks]
        nearest = [judge_estimator(make_neighbours, inputs, figures, mask) for mask in masks]
        drawn = np.mean([random_ratio(figures[mask]) for mask in masks])
        known = [] if evaluated is None else [rank_agreement(evaluated[mask], figures[mask]) for mask in masks]
        ranks, first = np.mean(boosted, axis=0)
        means = np.mean(known, axis=0) if known else (np.nan, np.nan)
        row = (ranks, min(rank for rank, _ in boosted), first, *np.mean(nearest, axis=0), *means, drawn)
        found.add_row(name, *(f"{value:.2f}" for value in row))
    return found


def judge_estimator(
    estimator: Callable[[], Any], inputs: Floats, figures: Floats, mask: npt.NDArray[Any]
) -> tuple[float, float]:
    """Trains on the points outside of the mask. Returns rank correlation and ratio (see `agreement`) on the mask."""
    scaled = (inputs - inputs[~mask].mean(axis=0)) / (inputs[~mask].std(axis=0) + 1e-9)
    guessed: Floats = estimator().fit(scaled[~mask], figures[~mask]).predict(scaled[mask])
    return rank_agreement(guessed, figures[mask])


def rank_agreement(guessed: Floats, true: Floats) -> tuple[float, float]:
    """Returns the rank correlation of guesses, and the best of the first five by guess, relative to the best of all."""
    left, right = (np.argsort(np.argsort(values, kind="stable")) for values in (guessed, true))
    first = true[np.argsort(guessed, kind="stable")[:FIRST_POINTS]].min()
    return float(np.corrcoef(left, right)[0, 1]), float(np.exp(first - true.min()))


def random_ratio(figures: Floats) -> float:
    """Returns the mean ratio of the best of five random points to the best of all."""
    rng = np.random.default_rng(0)
    best = [rng.permutation(figures)[:FIRST_POINTS].min() for _ in range(_DRAWS)]
    return float(np.exp(np.array(best) - figures.min()).mean())


def make_boosting() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(n_estimators=100, max_depth=3, random_state=0)


def make_neighbours() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(3, weights="distance")


if __name__ == "__main__":
    main()
