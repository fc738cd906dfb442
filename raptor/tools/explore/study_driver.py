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
from raptor.common.option_spelling import spell_option
from raptor.tools.explore.evaluation import worker_pool
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationRecord
from raptor.tools.explore.evaluation.job_planning import RESULTS_VERSION, JobPlan, make_job, plan_jobs
from raptor.tools.explore.evaluation.trial_outcomes import StudyTrial, TrialOutcome, combine_records
from raptor.tools.explore.optuna_mirror import OptunaMirror
from raptor.tools.explore.point_sampling import PointProposal, PointProposer
from raptor.tools.explore.study.study_file import Study
from raptor.tools.explore.study_database import ResultEntry, StudyDatabase, UnreachableError, hide_password

_TRIES = 600
"""Attempts, one per second, to reach a database server that has answered before."""


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """Progress of a study: the outcomes so far, of `count` trials in total; `before` are of earlier runs.

    `evaluated`: number of evaluations in this run. `known`: number of results that the database or the run had.
    """

    outcomes: Sequence[TrialOutcome]
    total_trials: int
    earlier_trials: int
    evaluated: int
    reused_results: int


ProgressCallback = Callable[[StudyProgress], None]


def run_study(study: Study, watch: ProgressCallback = lambda _: None) -> list[TrialOutcome]:
    """Runs a study, or continues it, until it has all trials. Returns the outcomes of all its trials.

    `watch` is called after each evaluation. Raises `UserError` if another process runs the study, if the database has
    another study of this name, or if the database cannot be reached.
    """
    results: dict[str, EvaluationRecord] = {}
    StudyDatabase(study.storage).close()  # a wrong address is reported before anything starts
    with _evaluator(study) as submit:
        tries = known = 0
        while True:
            try:
                return _Driver(study, submit, results, watch).run()
            except (OperationalError, StorageInternalError, UnreachableError) as e:
                tries = tries + 1 if len(results) == known else 1
                known = len(results)
                if study.storage.startswith("sqlite") or tries > _TRIES:
                    raise UserError(f"study.storage: {hide_password(study.storage)}: {e}") from e
                time.sleep(1)  # the server may be restarting; `results` has what is not stored yet


def _evaluator(study: Study) -> AbstractContextManager[worker_pool.SubmitFunction]:
    settings = study.file.run
    return (
        worker_pool.connect_cluster(settings.scheduler)
        if settings.scheduler
        else worker_pool.open_local_pool(settings.workers)
    )


class _Driver:
    """The loop of a study on one connection to the database. `results`: by digest, stored or not yet."""

    def __init__(
        self,
        study: Study,
        submit: worker_pool.SubmitFunction,
        results: dict[str, EvaluationRecord],
        watch: ProgressCallback,
    ) -> None:
        self._study, self._submit, self._results, self._watch = study, submit, results, watch
        self._outcomes: list[TrialOutcome] = []
        self._before = self._evaluated = self._known = 0

    def run(self) -> list[TrialOutcome]:
        store = StudyDatabase(self._study.storage)
        try:
            with store.lock_study(self._study.name):
                return self._run(store)
        finally:
            store.close()

    def _run(self, store: StudyDatabase) -> list[TrialOutcome]:
        study = self._study
        store.register_study(study.name, RESULTS_VERSION, study.settings)
        self._outcomes = load_outcomes(store, study)
        self._before = len(self._outcomes)
        with closing(OptunaMirror(study)) as mirror:
            return self._batches(store, mirror)

    def _batches(self, store: StudyDatabase, mirror: OptunaMirror) -> list[TrialOutcome]:
        study, settings = self._study, self._study.file.study
        proposer = PointProposer(study, self._outcomes)
        mirror.add_missing_trials(self._outcomes)
        self._tell()
        while len(self._outcomes) < settings.trials:
            batch = proposer.propose(min(settings.batch, settings.trials - len(self._outcomes)))
            if not batch:
                break
            outcomes = self._evaluate(store, batch)
            store.add_trials(study.name, [o.trial for o in outcomes])
            proposer.tell(outcomes)
            self._outcomes += outcomes
            mirror.add_missing_trials(self._outcomes)
            self._tell()
        return self._outcomes

    def _tell(self) -> None:
        settings = self._study.file.study
        self._watch(StudyProgress(self._outcomes, settings.trials, self._before, self._evaluated, self._known))

    def _evaluate(self, store: StudyDatabase, batch: Sequence[PointProposal]) -> list[TrialOutcome]:
        """Returns the outcomes of a batch. Equal jobs are evaluated once, jobs with a stored result never."""
        wanted = [plan_jobs(self._study, p.point) for p in batch]
        plans = {plan.digest: plan for of_point in wanted for plan in of_point}
        stored = store.read_results(plans)
        for d in self._results.keys() & plans.keys() - stored.keys():
            self._write(store, plans[d])
        self._results |= stored
        missing = [plan for d, plan in plans.items() if d not in self._results]
        self._known += sum(map(len, wanted)) - len(missing)

        def done(index: int, record: EvaluationRecord) -> None:
            self._results[missing[index].digest] = record
            self._write(store, missing[index])
            self._evaluated += 1
            self._tell()

        limits = worker_pool.JobLimits(self._study.file.run.timeout_s, self._study.file.run.memory_mb)
        worker_pool.evaluate_all(self._submit, [plan.job for plan in missing], limits, done)
        return [self._outcome(p, of_point) for p, of_point in zip(batch, wanted, strict=True)]

    def _outcome(self, p: PointProposal, plans: Sequence[JobPlan]) -> TrialOutcome:
        trial = StudyTrial(p.number, dict(p.point), [plan.digest for plan in plans], dict(p.notes))
        records = [self._results[d] for d in trial.digests]
        return combine_records(self._study, trial, [plan.job for plan in plans], records)

    def _write(self, store: StudyDatabase, plan: JobPlan) -> None:
        entry = ResultEntry(plan.digest, plan.model.sha256, plan.job.options, self._results[plan.digest])
        store.add_result(entry, RESULTS_VERSION)


def load_outcomes(store: StudyDatabase, study: Study) -> list[TrialOutcome]:
    """Returns the outcomes of all trials of a study in an open database, by number of the trial."""
    trials = store.read_trials(study.name)
    records = store.read_results(d for trial in trials for d in trial.digests)
    return [
        combine_records(study, t, [make_job(study, m, t.point) for m in study.models], [records[d] for d in t.digests])
        for t in trials
    ]


def read_outcomes(study: Study) -> list[TrialOutcome]:
    """Opens the database and returns the outcomes of a study so far; it may be running. `UserError` without trials."""
    store = StudyDatabase(study.storage)
    try:
        found = load_outcomes(store, study)
    finally:
        store.close()
    if not found:
        raise UserError(f"study {study.name}: no trials yet; raptor explore run begins it")
    return found


def override_study(study: Study, workers: int | None, trials: int | None) -> Study:
    """Returns the study with other numbers of workers and trials; None keeps a number."""
    file = study.file
    if workers is not None:
        if file.run.scheduler:
            raise UserError(f"{spell_option('workers', workers)}: not with run.scheduler, which has workers of its own")
        file = file.model_copy(update={"run": file.run.model_copy(update={"workers": workers})})
    if trials is not None:
        file = file.model_copy(update={"study": file.study.model_copy(update={"trials": trials})})
    return replace(study, file=file)
