"""Runs a study: proposes a batch, evaluates what is not known yet, writes the trials, and so on.

The database is the only state. A study that was stopped at any moment goes on with the open batch: the same points are
proposed again, and those whose results were ready are not evaluated again.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from raptor import __version__
from raptor.common.errors import UserError
from raptor.common.spelling import option
from raptor.explore import workers
from raptor.explore.dashboard import Mirror
from raptor.explore.evaluation import Job, Measuring, Record
from raptor.explore.points import digest_of, options_of, settings_of
from raptor.explore.proposing import Proposal, Proposer
from raptor.explore.store import Entry, Store, UnreachableError, shown
from raptor.explore.study import Model, Study
from raptor.explore.trials import Outcome, Trial, outcome
from validator.simulate.builtin import MODEL_VERSION

VERSION = f"{__version__}, cycle model {MODEL_VERSION}"
"""Results of one version are comparable, and used again."""
_TRIES = 600
"""Most times, a second apart, that a server is asked which answered before and does not now."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a study for whoever watches: outcomes so far, of `count` trials; `before`: those of earlier runs.

    `evaluated`, `known`: number of evaluations, and of answers from the database.
    """

    outcomes: Sequence[Outcome]
    count: int
    before: int
    evaluated: int
    known: int


Watch = Callable[[Progress], None]


def run(study: Study, watch: Watch = lambda _: None) -> list[Outcome]:
    """Runs a study to its end, from where it is. Returns the outcomes of all its trials.

    Raises `UserError` if another process runs it, or the study of this name is another one.
    """
    results: dict[str, Record] = {}
    Store(study.storage).close()  # a wrong address is told at once
    with _executor(study) as executor:
        tries = known = 0
        while True:
            try:
                return _Driver(study, executor, results, watch).run()
            except (OperationalError, StorageInternalError, UnreachableError) as e:
                tries = tries + 1 if len(results) == known else 1
                known = len(results)
                if study.storage.startswith("sqlite") or tries > _TRIES:
                    raise UserError(f"study.storage: {shown(study.storage)}: {e}") from e
                time.sleep(1)  # the server is restarted, say; what it has not got is in `results`


def _executor(study: Study) -> AbstractContextManager[Executor]:
    settings = study.file.run
    return workers.cluster(settings.scheduler) if settings.scheduler else workers.local(settings.workers)


class _Driver:
    """One connection to the database. `results`: all that this process has got, also what is not written yet."""

    def __init__(self, study: Study, executor: Executor, results: dict[str, Record], watch: Watch) -> None:
        self._study, self._executor, self._results, self._watch = study, executor, results, watch
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
        """Returns the outcomes of a batch. Equal jobs are evaluated once, and those with a stored result not at all."""
        wanted = [[(model, job_of(self._study, model, p.point)) for model in self._study.models] for p in batch]
        hashes = [data.sha256 for data in self._study.data] or [""] * len(self._study.models)
        digests = [[digest(m, job, data) for (m, job), data in zip(jobs, hashes, strict=True)] for jobs in wanted]
        jobs = {d: pair for ds, pairs in zip(digests, wanted, strict=True) for d, pair in zip(ds, pairs, strict=True)}
        stored = store.results(jobs)
        for d in self._results.keys() & jobs.keys() - stored.keys():
            self._write(store, d, *jobs[d])
        self._results |= stored
        missing = [d for d in jobs if d not in self._results]
        self._known += sum(map(len, digests)) - len(missing)

        def done(index: int, record: Record) -> None:
            d = missing[index]
            self._results[d] = record
            self._write(store, d, *jobs[d])
            self._evaluated += 1
            self._tell()

        limits = workers.Limits(self._study.file.run.timeout_s, self._study.file.run.memory_mb)
        workers.evaluate_all(self._executor, [jobs[d][1] for d in missing], limits, done)
        trials = [Trial(p.number, dict(p.point), ds, dict(p.notes)) for p, ds in zip(batch, digests, strict=True)]
        return [outcome(self._study, t, [self._results[d] for d in t.digests]) for t in trials]

    def _write(self, store: Store, d: str, model: Model, job: Job) -> None:
        store.add_result(Entry(d, model.sha256, job.options, self._results[d]), VERSION)


def job_of(study: Study, model: Model, point: Mapping[str, Any]) -> Job:
    """Returns the job of a model at a point."""
    is_fixed = study.file.study.mapping == "fixed"
    fields = {n.removeprefix("fields."): value for n, value in point.items() if n.startswith("fields.")}
    options = options_of(study.file.options, {} if is_fixed else point)
    for name in ("arch", "mapping"):
        if name in options:
            options[name] = _beside(study, options[name])
    return Job(
        str(model.path),
        options,
        study.needs("steady"),
        fields if is_fixed else None,
        _measuring(study, study.models.index(model), point),
    )


def _beside(study: Study, name: str) -> str:
    """Returns the path of a file beside the study file; other names, of presets say, as they are."""
    path = study.folder / name
    return str(path) if path.is_file() else name


def _measuring(study: Study, index: int, point: Mapping[str, Any]) -> Measuring | None:
    part = study.file.accuracy
    if part is None:
        return None
    shared = {name: str(value) for name, value in part.settings.items()}
    given = part.model_dump(exclude={"data", "settings"})
    if part.cells is not None:
        given["cells"] = _beside(study, part.cells)
    return Measuring(str(study.data[index].path), settings=shared | settings_of(point), **given)


def digest(model: Model, job: Job, data_sha256: str) -> str:
    """Returns the key of a result: all that it depends on, files by their contents."""
    parts: list[Any] = [VERSION, model.sha256, job.options, job.is_steady, job.fields]
    named = [job.options.get("arch"), job.options.get("mapping")]
    if job.accuracy is not None:
        parts.append(msgspec.to_builtins(job.accuracy) | {"data": data_sha256})
        named.append(job.accuracy.cells)
    found = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in named if name and Path(name).is_file()]
    return digest_of(*parts, *found)


def stored_outcomes(store: Store, study: Study) -> list[Outcome]:
    """Returns the outcomes of all trials in the database."""
    trials = store.trials(study.name)
    records = store.results(d for trial in trials for d in trial.digests)
    return [outcome(study, trial, [records[d] for d in trial.digests]) for trial in trials]


def read_outcomes(study: Study) -> list[Outcome]:
    """Returns the outcomes of a study so far, also while it runs. Raises `UserError` if it was not begun."""
    store = Store(study.storage)
    try:
        found = stored_outcomes(store, study)
    finally:
        store.close()
    if not found:
        raise UserError(f"study {study.name}: no trials yet; raptor explore run begins it")
    return found


def adapted(study: Study, workers: int | None, trials: int | None) -> Study:
    """Returns the study with another number of workers and of trials, where they are given."""
    file = study.file
    if workers is not None:
        if file.run.scheduler:
            raise UserError(f"{option('workers', workers)}: not with run.scheduler, which has workers of its own")
        file = file.model_copy(update={"run": file.run.model_copy(update={"workers": workers})})
    if trials is not None:
        file = file.model_copy(update={"study": file.study.model_copy(update={"trials": trials})})
    return replace(study, file=file)
