"""Fixtures of the tests of studies."""

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from raptor.tools.explore.evaluation import worker_pool
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord, evaluate_job


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluates in this process: others take seconds to start."""

    @contextmanager
    def local(_: int) -> Generator[worker_pool.SubmitFunction]:
        def submit(job: EvaluationJob, _: worker_pool.JobLimits) -> Future[EvaluationRecord]:
            done: Future[EvaluationRecord] = Future()
            done.set_result(evaluate_job(job))
            return done

        yield submit

    monkeypatch.setattr(worker_pool, "open_local_pool", local)
