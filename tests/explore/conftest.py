"""Fixtures of the tests of studies."""

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from raptor.explore import workers
from raptor.explore.jobs import Job, Record, evaluate


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluates in this process: others take seconds to start."""

    @contextmanager
    def local(_: int) -> Generator[workers.Submit]:
        def submit(job: Job, _: workers.Limits) -> Future[Record]:
            done: Future[Record] = Future()
            done.set_result(evaluate(job))
            return done

        yield submit

    monkeypatch.setattr(workers, "local", local)
