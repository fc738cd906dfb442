"""Main loop of a study: proposes a batch, evaluates points without a stored result, writes the trials, repeats.

The database is the only state. A study that was stopped at any moment continues with the unfinished batch: the same
points are proposed again, and those with a stored result are not evaluated again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from raptor.common.errors import UserError
from raptor.common.spelling import option
from raptor.explore import workers
from raptor.explore.dashboard import Mirror
from raptor.explore.jobs import Record
from raptor.explore.planning import VERSION, Plan, job_of, plans_of
from raptor.explore.proposing import Proposal, Proposer
from raptor.explore.store import Entry, Store, UnreachableError, shown
from raptor.explore.study import Study
from raptor.explore.trials import Outcome, Trial, outcome

_TRIES = 600
"""Attempts, one per second, to reach a database server that has answered before."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a study: the outcomes so far, of `count` trials in total; `before` are of earlier runs.

    `evaluated`: number of evaluations in this run. `known`: number of results that the database or the run had.
    """

    outcomes: Sequence[Outcome]
    count: int
    before: int
    evaluated: int
    known: int


Watch = Callable[[Progress], None]


def run(study: Study, watch: Watch = lambda _: None) -> list[Outcome]:
    """Runs a study, or continues it, until it has all trials. Returns the outcomes of all its trials.

    `watch` is called after each evaluation. Raises `UserError` if another process runs the study, if the database has
    another study of this name, or if the database cannot be reached.
    """
    results: dict[str, Record] = {}
    Store(study.storage).close()  # a wrong address is reported before anything starts
    with _evaluator(study) as submit:
        tries = known = 0
        while True:
            try:
                return _Driver(study, submit, results, watch).run()
            except (OperationalError, StorageInternalError, UnreachableError) as e:
                tries = tries + 1 if len(results) == known else 1
                known = len(results)
                if study.storage.startswith("sqlite") or tries > _TRIES:
                    raise UserError(f"study.storage: {shown(study.storage)}: {e}") from e
                time.sleep(1)  # the server may be restarting; `results` has what is not stored yet


def _evaluator(study: Study) -> AbstractContextManager[workers.Submit]:
    settings = study.file.run
    return workers.cluster(settings.scheduler) if settings.scheduler else workers.local(settings.workers)


class _Driver:
    """The loop of a study on one connection to the database. `results`: by digest, stored or not yet."""

    def __init__(self, study: Study, submit: workers.Submit, results: dict[str, Record], watch: Watch) -> None:
        self._study, self._submit, self._results, self._watch = study, submit, results, watch
        self._outcomes: list[Outcome] = []
        self._before = self._evaluated = self._known = 0

    def run(self) -> list[Outcome]:
        store = Store(self._study.storage)
        try:
            with store.driving(self._study.name):
                return self._run(store)
        finally:
            store.close()

    def _run(self, store: Store) -> list[Outcome]:
        study = self._study
        store.begin(study.name, VERSION, study.settings)
        self._outcomes = stored_outcomes(store, study)
        self._before = len(self._outcomes)
        with closing(Mirror(study)) as mirror:
            return self._batches(store, mirror)

    def _batches(self, store: Store, mirror: Mirror) -> list[Outcome]:
        study, settings = self._study, self._study.file.study
        proposer = Proposer(study, self._outcomes)
        mirror.follow(self._outcomes)
        self._tell()
        while len(self._outcomes) < settings.trials:
            batch = proposer.propose(min(settings.batch, settings.trials - len(self._outcomes)))
            if not batch:
                break
            outcomes = self._evaluate(store, batch)
            store.add_trials(study.name, [o.trial for o in outcomes])
            proposer.tell(outcomes)
            self._outcomes += outcomes
            mirror.follow(self._outcomes)
            self._tell()
        return self._outcomes

    def _tell(self) -> None:
        settings = self._study.file.study
        self._watch(Progress(self._outcomes, settings.trials, self._before, self._evaluated, self._known))

    def _evaluate(self, store: Store, batch: Sequence[Proposal]) -> list[Outcome]:
        """Returns the outcomes of a batch. Equal jobs are evaluated once, jobs with a stored result never."""
        wanted = [plans_of(self._study, p.point) for p in batch]
        plans = {plan.digest: plan for of_point in wanted for plan in of_point}
        stored = store.results(plans)
        for d in self._results.keys() & plans.keys() - stored.keys():
            self._write(store, plans[d])
        self._results |= stored
        missing = [plan for d, plan in plans.items() if d not in self._results]
        self._known += sum(map(len, wanted)) - len(missing)

        def done(index: int, record: Record) -> None:
            self._results[missing[index].digest] = record
            self._write(store, missing[index])
            self._evaluated += 1
            self._tell()

        limits = workers.Limits(self._study.file.run.timeout_s, self._study.file.run.memory_mb)
        workers.evaluate_all(self._submit, [plan.job for plan in missing], limits, done)
        return [self._outcome(p, of_point) for p, of_point in zip(batch, wanted, strict=True)]

    def _outcome(self, p: Proposal, plans: Sequence[Plan]) -> Outcome:
        trial = Trial(p.number, dict(p.point), [plan.digest for plan in plans], dict(p.notes))
        records = [self._results[d] for d in trial.digests]
        return outcome(self._study, trial, [plan.job for plan in plans], records)

    def _write(self, store: Store, plan: Plan) -> None:
        entry = Entry(plan.digest, plan.model.sha256, plan.job.options, self._results[plan.digest])
        store.add_result(entry, VERSION)


def stored_outcomes(store: Store, study: Study) -> list[Outcome]:
    """Returns the outcomes of all trials of a study in an open database, by number of the trial."""
    trials = store.trials(study.name)
    records = store.results(d for trial in trials for d in trial.digests)
    return [
        outcome(study, t, [job_of(study, m, t.point) for m in study.models], [records[d] for d in t.digests])
        for t in trials
    ]


def read_outcomes(study: Study) -> list[Outcome]:
    """Opens the database and returns the outcomes of a study so far; it may be running. `UserError` without trials."""
    store = Store(study.storage)
    try:
        found = stored_outcomes(store, study)
    finally:
        store.close()
    if not found:
        raise UserError(f"study {study.name}: no trials yet; raptor explore run begins it")
    return found


def adapted(study: Study, workers: int | None, trials: int | None) -> Study:
    """Returns the study with other numbers of workers and trials; None keeps a number."""
    file = study.file
    if workers is not None:
        if file.run.scheduler:
            raise UserError(f"{option('workers', workers)}: not with run.scheduler, which has workers of its own")
        file = file.model_copy(update={"run": file.run.model_copy(update={"workers": workers})})
    if trials is not None:
        file = file.model_copy(update={"study": file.study.model_copy(update={"trials": trials})})
    return replace(study, file=file)
