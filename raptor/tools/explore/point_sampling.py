"""Proposes points with Optuna's samplers, deterministically from the seed of the study and the earlier trials.

Each trial has its own sampler, seeded by the seed of the study and the number of the trial. So proposals depend neither
on the number of workers, nor on where a study was stopped and continued.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from raptor.tools.explore.evaluation.trial_outcomes import NoteValue, TrialOutcome
from raptor.tools.explore.study.search_space import ParameterValue, StudyParameter, digest_values, enumerate_grid
from raptor.tools.explore.study.study_file import Study

optuna.logging.set_verbosity(optuna.logging.ERROR)
_GENERATION = "generation"
"""Key of the note of a trial with its generation in NSGA-II."""


def make_distributions(space: Sequence[StudyParameter]) -> dict[str, BaseDistribution]:
    """Returns Optuna's distribution of each parameter, by name."""
    return {p.name: _distribution(p) for p in space}


def _distribution(p: StudyParameter) -> BaseDistribution:
    if p.values:
        return CategoricalDistribution(p.values)
    if p.is_integer and p.is_log:
        return IntDistribution(int(p.low), int(p.high), log=True)
    if p.is_integer:
        return IntDistribution(int(p.low), int(p.high), step=int(p.step))
    return FloatDistribution(p.low, p.high, log=p.is_log, step=None if p.is_log else p.step or None)


@dataclass(frozen=True, slots=True)
class PointProposal:
    """A proposed point. `notes`: state of the sampler that is stored with the trial, for a restart."""

    number: int
    point: Mapping[str, ParameterValue]
    notes: Mapping[str, NoteValue]


class _Nsga2(NSGAIISampler):
    """NSGA-II with a given search space and given parents.

    Optuna's own class derives both from all trials, anew for each trial.
    """

    def __init__(self, kinds: Mapping[str, BaseDistribution], seed: int, size: int, parents: list[FrozenTrial]) -> None:
        super().__init__(seed=seed, population_size=size)
        self._kinds = {name: kind for name, kind in sorted(kinds.items()) if not kind.single()}
        self._parents = parents

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._kinds

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._child_generation_strategy(study, search_space, self._parents) if self._parents else {}

    def best(self, study: optuna.Study, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        """Selects the next parents from a generation and its parents; sorted by number."""
        return sorted(self._elite_population_selection_strategy(study, trials), key=lambda t: t.number)


class _Generations:
    """The current generation of NSGA-II: its number, its parents, and its members with figures so far."""

    def __init__(self, study: optuna.Study, size: int) -> None:
        self._study, self._size = study, size
        self.number = 0
        self.parents: list[FrozenTrial] = []
        self._members: list[FrozenTrial] = []

    def add(self, trial: FrozenTrial, generation: int) -> None:
        """Adds a finished trial of `generation`."""
        if generation > self.number:
            self._end()
        if trial.state == TrialState.COMPLETE:
            self._members.append(trial)

    def begin_batch(self) -> None:
        """Starts the next generation if the current one is complete."""
        if len(self._members) >= self._size:
            self._end()

    def _end(self) -> None:
        self.parents = _Nsga2({}, 0, self._size, []).best(self._study, self._members + self.parents)
        self._members = []
        self.number += 1


class PointProposer:
    """Ask-and-tell interface: proposes batches of points and takes outcomes. `done`: outcomes of earlier runs."""

    def __init__(self, study: Study, done: Sequence[TrialOutcome]) -> None:
        self._study = study
        self._kinds = make_distributions(study.space)
        self._optuna = optuna.create_study(directions=list_directions(study))
        self._asked: list[optuna.Trial] = []
        self._generations = _Generations(self._optuna, max(2, study.file.study.batch))
        self._optuna.add_trials([to_frozen_trial(study, self._kinds, outcome) for outcome in done])
        for trial, outcome in zip(self._trials, done, strict=True):
            self._generations.add(trial, int(outcome.trial.notes.get(_GENERATION, 0)))

    @property
    def _trials(self) -> list[FrozenTrial]:
        return self._optuna.get_trials(deepcopy=False)

    def propose(self, count: int) -> list[PointProposal]:
        """Returns the next points; fewer than `count` at the end of a grid."""
        first = len(self._trials)
        self._generations.begin_batch()
        if self._study.file.study.sampler == "grid":
            points = islice(enumerate_grid(self._study.space), first, first + count)
            for point in points:
                self._optuna.enqueue_trial(dict(point))
                self._ask(0)
        else:
            for k in range(count):
                self._ask(first + k)
        notes = {_GENERATION: self._generations.number} if self._study.file.study.sampler == "nsga2" else {}
        return [PointProposal(t.number, t.params, notes) for t in self._asked]

    def tell(self, outcomes: Sequence[TrialOutcome]) -> None:
        """Takes the outcomes of the last proposed batch, in order."""
        for trial, outcome in zip(self._asked, outcomes, strict=True):
            for metric, excess in outcome.excess.items():
                trial.set_constraint(metric, excess)
            if outcome.has_figures:
                self._optuna.tell(trial, objective_values(self._study, outcome))
            else:
                self._optuna.tell(trial, state=TrialState.FAIL)
        for trial in self._trials[len(self._trials) - len(outcomes) :]:
            self._generations.add(trial, self._generations.number)
        self._asked = []

    def _ask(self, number: int) -> None:
        self._optuna.sampler = self._sampler(number)
        self._asked.append(self._optuna.ask(self._kinds))

    def _sampler(self, number: int) -> BaseSampler:
        settings = self._study.file.study
        seed = int(digest_values(settings.seed, number)[:8], 16)
        match settings.sampler:
            case "tpe":
                return TPESampler(seed=seed)
            case "nsga2":
                return _Nsga2(self._kinds, seed, max(2, settings.batch), self._generations.parents)
            case _:
                return RandomSampler(seed=seed)


def list_directions(study: Study) -> list[Literal["minimize", "maximize"]]:
    """Returns the direction of each objective in Optuna's words."""
    return ["minimize" if d == "min" else "maximize" for d in study.objectives.values()]


def objective_values(study: Study, outcome: TrialOutcome) -> list[float]:
    """Returns the objectives of a trial with figures, in their order."""
    return [outcome.figures[name] for name in study.objectives]


def to_frozen_trial(study: Study, kinds: Mapping[str, BaseDistribution], outcome: TrialOutcome) -> FrozenTrial:
    """Converts an outcome to a finished trial of Optuna. `kinds`: distributions of the parameters."""
    return create_trial(
        state=TrialState.COMPLETE if outcome.has_figures else TrialState.FAIL,
        values=objective_values(study, outcome) if outcome.has_figures else None,
        params=dict(outcome.trial.point),
        distributions=dict(kinds),
        constraints=dict(outcome.excess),
        user_attrs={"state": outcome.state, "reason": outcome.reason},
    )
