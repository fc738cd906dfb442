"""Compare samplers of studies with random search.

    python -m benchmarks.search.samplers QUESTION FOLDER [--plot FILE.svg] \
        | python -m benchmarks.tables.store_tables samplers-QUESTION

Two questions, each with all points of its grid evaluated once: a study in FOLDER, which goes on where it was stopped.
Then every sampler, and an estimator, play with ten seeds, and are answered from these results. A budget is a number of
different points, as points that are proposed again cost nothing. The hypervolume is a share of that of the front of the
whole grid, with a reference a tenth of the front's span beyond its worst values.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import models
import raptor
from benchmarks.search.screening import encode_parameter, make_boosting
from models.trained import MODEL, load_images
from raptor.tools.explore import study_driver
from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.point_sampling import PointProposer
from raptor.tools.explore.results.pareto_front import compute_hypervolume, objective_matrix, pareto_front
from raptor.tools.explore.study.search_space import digest_values
from raptor.tools.explore.study.study_file import Study, read_study

Floats = npt.NDArray[np.float64]
SAMPLERS = ("random", "nsga2", "tpe")
SEEDS = range(10)
BATCH = 8
CALIBRATION, VALIDATION = slice(0, 200), slice(200, 300)
_MOST_ROUNDS = 200
"""Largest number of batches of a sampler, for the case that it proposes no new points."""


@dataclass(frozen=True)
class StudyQuestion:
    """A question: its study file, a function that writes its models and data to a folder, and the reported budgets."""

    study: str
    prepare: Callable[[Path], None]
    budgets: Sequence[int]


def write_resnet18(folder: Path) -> None:
    (folder / "resnet18.onnx").write_bytes(models.build("resnet18", seed=0).SerializeToString())


def write_digits(folder: Path) -> None:
    training, _ = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[CALIBRATION])
    np.savez(folder / "validation.npz", x=training.pixels[VALIDATION], y=training.digits[VALIDATION])
    raptor.quantize(MODEL, data=folder / "calibration.npz", per_channel=True).save(folder / "digits.onnx")


QUESTIONS: Mapping[str, StudyQuestion] = {
    "chip": StudyQuestion(
        """
        objectives = { latency_ns = "min", energy_pj = "min" }
        study = { name = "chip", models = ["resnet18.onnx"], sampler = "grid", trials = 256 }
        options = { xbars_per_core = 64 }
        [space]
        cores = { min = 16, max = 256, step = 16 }
        xbar = ["64x64", "64x128", "64x256", "64x512", "128x64", "128x128", "128x256", "128x512",
            "256x64", "256x128", "256x256", "256x512", "512x64", "512x128", "512x256", "512x512"]
        """,
        write_resnet18,
        (16, 32, 64, 96),
    ),
    "converters": StudyQuestion(
        """
        objectives = { top1 = "max", adc_bits = "min", energy_pj = "min" }
        study = { name = "converters", models = ["digits.onnx"], sampler = "grid", trials = 128 }
        options = { cores = 64 }
        accuracy = { data = ["validation.npz"], crossbar = "sliced" }
        [space]
        xbar = [64, 128, 32, 256]
        cell_bits = [1, 2, 4, 8]
        crossbar.adc_bits = { min = 3, max = 10 }
        """,
        write_digits,
        (8, 16, 32, 48),
    ),
}


def main() -> None:
    """Evaluates the grid, and replays all samplers on its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path, help="file for a drawing (needs matplotlib)")
    given = parser.parse_args()
    question = QUESTIONS[given.question]
    study = prepare_study(question, given.folder)
    known = {digest_values(o.trial.point): o for o in study_driver.run_study(study)}
    best = pareto_front(study, list(known.values()))
    feasible = sum(o.is_feasible for o in known.values())
    print(f"{len(known)} points, {feasible} with figures, {len(best)} on the front\n")
    measured = FrontMeasure(study, best)
    budget = max(question.budgets)
    curves = {
        sampler: np.array([list(play_sampler(study, known, measured, sampler, seed, budget)) for seed in SEEDS])
        for sampler in SAMPLERS
    }
    points = list(known.values())
    curves["(boosting)"] = np.array([list(play_boosting(study, points, measured, seed, budget)) for seed in SEEDS])
    print_table(curves, question.budgets)
    if given.plot:
        draw_curves(curves, given.plot)


def prepare_study(question: StudyQuestion, folder: Path) -> Study:
    """Writes models, data and study file where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "study.toml"
    if not path.exists():
        question.prepare(folder)
        path.write_text("\n".join(line.strip() for line in question.study.strip().splitlines()))
    return read_study(path)


class FrontMeasure:
    """Computes hypervolumes relative to the hypervolume of the best front."""

    def __init__(self, study: Study, best: Sequence[TrialOutcome]) -> None:
        self._study = study
        table = objective_matrix(study, best)
        worst: Floats = table.max(axis=0)
        self._reference: Floats = worst + 0.1 * np.maximum(worst - table.min(axis=0), 1e-9)
        self._whole = compute_hypervolume(table, self._reference)

    def share(self, outcomes: Sequence[TrialOutcome]) -> float:
        table = objective_matrix(self._study, [o for o in outcomes if o.is_feasible])
        return compute_hypervolume(table[(table < self._reference).all(axis=1)], self._reference) / self._whole


def play_sampler(
    study: Study, known: Mapping[str, TrialOutcome], measure: FrontMeasure, sampler: str, seed: int, budget: int
) -> Iterator[float]:
    """Replays a sampler on the known outcomes. Yields the hypervolume after each new point, up to the budget."""
    part = study.file.study.model_copy(update={"sampler": sampler, "seed": seed, "batch": BATCH})
    proposer = PointProposer(replace(study, file=study.file.model_copy(update={"study": part})), [])
    seen: dict[str, TrialOutcome] = {}
    for _ in range(_MOST_ROUNDS):
        found: list[TrialOutcome] = []
        for proposal in proposer.propose(BATCH):
            key = digest_values(dict(proposal.point))
            found.append(known[key])
            if key not in seen and len(seen) < budget:
                seen[key] = known[key]
                yield measure.share(list(seen.values()))
        proposer.tell(found)
        if len(seen) == budget:
            return
    share = measure.share(list(seen.values()))
    yield from [share] * (budget - len(seen))


def play_boosting(
    study: Study, points: Sequence[TrialOutcome], measure: FrontMeasure, seed: int, budget: int
) -> Iterator[float]:
    """Replays a search guided by gradient boosting (see screening.py). Yields the hypervolume after each point.

    The estimator selects three quarters of each batch greedily by predicted gain of hypervolume, among all points; the
    rest is random. It does not learn from points without figures.
    """
    inputs = np.column_stack(
        [c for p in study.space for c in encode_parameter(p, [o.trial.point[p.name] for o in points])]
    )
    learnt = np.array([o.is_feasible for o in points])
    figures = np.ones((len(points), len(study.objectives)))
    figures[learnt] = objective_matrix(study, [o for o in points if o.is_feasible])
    figures = np.where((figures > 0).all(axis=0), np.log(np.maximum(figures, 1e-300)), figures)
    rng = np.random.default_rng(seed)
    seen: list[int] = rng.permutation(len(points))[:BATCH].tolist()
    while len(seen) < budget:
        rest = np.setdiff1d(np.arange(len(points)), seen)
        told = np.array(seen)[learnt[seen]]
        guessed = np.column_stack([make_boosting().fit(inputs[told], f).predict(inputs[rest]) for f in figures[told].T])
        chosen = select_promising(figures[told], guessed, 3 * BATCH // 4)
        others = [i for i in rng.permutation(len(rest)).tolist() if i not in chosen]
        seen += rest[chosen + others[: BATCH - len(chosen)]].tolist()
    yield from (measure.share([points[i] for i in seen[:count]]) for count in range(1, budget + 1))


def select_promising(known: Floats, guessed: Floats, count: int) -> list[int]:
    """Selects `count` points greedily by gain of hypervolume. Returns their indices."""
    reference = known.max(axis=0) + 0.1
    chosen: list[int] = []
    for _ in range(count):
        shown = np.vstack([known, guessed[chosen]])
        shown = shown[(shown < reference).all(axis=1)]
        gains = [
            compute_hypervolume(np.vstack([shown, g]), reference) if (g < reference).all() else 0.0 for g in guessed
        ]
        chosen.append(max((i for i in range(len(guessed)) if i not in chosen), key=lambda i: gains[i]))
    return chosen


def print_table(curves: Mapping[str, Floats], budgets: Sequence[int]) -> None:
    """Prints a table of means and standard deviations over the seeds, in percent."""
    print("|", " | ".join(("different points", *curves)), "|")
    print("|---:" + "|---" * len(curves) + "|")
    for budget in budgets:
        cells = [100 * values[:, budget - 1] for values in curves.values()]
        print("|", " | ".join((str(budget), *(f"{c.mean():.1f} ± {c.std(ddof=1):.1f}" for c in cells))), "|")


def draw_curves(curves: Mapping[str, Floats], path: Path) -> None:
    """Draws the mean of each sampler, and the range of the middle eight seeds."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "raptor"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    plot: Any = axes
    for (name, values), colour in zip(curves.items(), ("#7f8c8d", "#3b82c4", "#c0504d", "#4aa564"), strict=True):
        points = np.arange(1, values.shape[1] + 1, dtype=np.int64)
        low, high = np.percentile(values, (10, 90), axis=0)
        plot.plot(points, 100 * values.mean(axis=0), color=colour, label=name)
        plot.fill_between(points, 100 * low, 100 * high, color=colour, alpha=0.15, linewidth=0)
    plot.set_xlabel("points evaluated")
    plot.set_ylabel("hypervolume, % of the whole grid")
    plot.set_ylim(0, 102)
    plot.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})  # pyright: ignore[reportUnknownMemberType] as matplotlib declares it


if __name__ == "__main__":
    main()
