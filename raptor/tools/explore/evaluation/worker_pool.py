"""Runs evaluations in worker processes, on this computer or on a Dask cluster."""

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

import msgspec

from raptor.common.files.json_decoding import json_decoder
from raptor.common.process import dask_cluster
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord

MAX_ATTEMPTS = 3
"""Attempts for a job whose process dies: a single death may have another cause than the job."""
WORKER_COMMAND = ("-m", "raptor.tools.explore.evaluation.worker_process")
START_TIMEOUT_S = 300
"""Timeout for the start of a process; on a busy computer its imports take many seconds."""
_PART_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of an evaluation."""

    timeout_s: float
    memory_mb: int


class ProcessDiedError(Exception):
    """The process of an evaluation died."""


class _Process:
    """A process that runs `raptor.tools.explore.evaluation.worker_process`, and serves one job after another."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        # NOTE: each evaluation is one thread; several workers would otherwise fight over the cores.
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, *WORKER_COMMAND, str(memory_mb)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, bufsize=0
        )

    def wait(self) -> None:
        """Waits until the process is ready. Raises `ProcessDiedError`."""
        try:
            self._line(time.monotonic() + START_TIMEOUT_S)
        except TimeoutError as e:
            raise ProcessDiedError(f"the process did not begin in {START_TIMEOUT_S} s") from e

    def ask(self, job: EvaluationJob, timeout_s: float) -> EvaluationRecord:
        """Evaluates a job. After a `TimeoutError` or `ProcessDiedError`, the process cannot be used any more."""
        assert self._process.stdin is not None  # it is a pipe
        try:
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            return json_decoder(EvaluationRecord).decode(self._line(time.monotonic() + timeout_s))
        except OSError as e:
            if isinstance(e, TimeoutError):
                raise
            raise ProcessDiedError(self._fate()) from e

    def _line(self, end: float) -> bytes:
        assert self._process.stdout is not None  # it is a pipe
        line = bytearray()
        while not line.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(self._process.stdout.fileno(), _PART_BYTES)
            if not part:
                raise ProcessDiedError(self._fate())
            line += part
        return bytes(line)

    def _fate(self) -> str:
        code = self._process.wait()
        return f"the process was killed by signal {-code}" if code < 0 else f"the process ended with status {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class WorkerPool:
    """Pool of worker processes, one per calling thread. The owner of the pool ends them by `kill`."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: set[_Process] = set()
        self._ended = False

    def evaluate(self, job: EvaluationJob, limits: JobLimits) -> EvaluationRecord:
        """Evaluates a job in the process of this thread, which is started if necessary. Raises `ProcessDiedError`.

        A process that dies before it is ready is restarted, because the job cannot be the cause.
        """
        process = self._of_this_thread(limits.memory_mb)
        begin = time.perf_counter()
        try:
            return process.ask(job, limits.timeout_s)
        except TimeoutError:
            self._drop(process)
            return EvaluationRecord(
                "timeout", {}, f"took more than {limits.timeout_s:g} s", seconds=time.perf_counter() - begin
            )
        except BaseException:
            self._drop(process)
            raise

    def _of_this_thread(self, memory_mb: int) -> _Process:
        process: _Process | None = self._mine.__dict__.get("process")
        if process is not None and process.memory_mb == memory_mb:
            return process
        if process is not None:
            self._drop(process)
        return self._started(memory_mb)

    def _started(self, memory_mb: int) -> _Process:
        died = 0
        while True:
            self._mine.process = process = _Process(memory_mb)
            self._all.add(process)
            try:
                process.wait()
            except ProcessDiedError:
                self._drop(process)
                died += 1
                if self._ended or died == MAX_ATTEMPTS:
                    raise
            else:
                return process

    def _drop(self, process: _Process) -> None:
        process.kill()
        self._all.discard(process)
        self._mine.__dict__.pop("process", None)

    def kill(self) -> None:
        """Ends all processes for good. Running evaluations raise `ProcessDiedError`."""
        self._ended = True
        for process in list(self._all):
            process.kill()
        self._all.clear()


SubmitFunction = Callable[[EvaluationJob, JobLimits], Future[EvaluationRecord]]
"""Function that submits a job to another process, and returns the future of its record."""


@contextmanager
def open_local_pool(count: int) -> Generator[SubmitFunction]:
    """Yields a submit function for `count` processes of this computer, which end with the block."""
    processes, threads = WorkerPool(), ThreadPoolExecutor(count)
    try:
        yield lambda job, limits: threads.submit(processes.evaluate, job, limits)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        processes.kill()
        threads.shutdown()
        processes.kill()  # one that a thread had just begun to start


@contextmanager
def connect_cluster(address: str) -> Generator[SubmitFunction]:
    """Yields a submit function for a Dask cluster. Raises `UserError` if its scheduler does not answer."""
    with dask_cluster.connect_cluster(address, "run.scheduler") as executor:
        yield lambda job, limits: executor.submit(_on_worker, job, limits)


def _on_worker(job: EvaluationJob, limits: JobLimits) -> EvaluationRecord:
    """Evaluates a job on a Dask worker, in a process that lives as long as the worker."""
    return _of_worker().evaluate(job, limits)


@cache
def _of_worker() -> WorkerPool:
    return WorkerPool()


def evaluate_all(
    submit: SubmitFunction,
    jobs: Sequence[EvaluationJob],
    limits: JobLimits,
    done: Callable[[int, EvaluationRecord], None],
) -> None:
    """Evaluates jobs. `done` is called with index and record of each job, in the order of completion.

    A job whose process dies is tried again, without other jobs at the same time. If all attempts die, the state of its
    record is `crashed`.
    """
    failed = _round(submit, list(enumerate(jobs)), limits, done)
    for _ in range(MAX_ATTEMPTS - 1):
        failed = [again for index, job, _ in failed for again in _round(submit, [(index, job)], limits, done)]
    for index, _, reason in failed:
        done(index, EvaluationRecord("crashed", {}, f"{reason}, {MAX_ATTEMPTS} times"))


def _round(
    submit: SubmitFunction,
    jobs: Sequence[tuple[int, EvaluationJob]],
    limits: JobLimits,
    done: Callable[[int, EvaluationRecord], None],
) -> list[tuple[int, EvaluationJob, str]]:
    """Evaluates jobs in parallel, once. Returns index, job and reason for each job whose process died."""
    futures = {submit(job, limits): (i, job) for i, job in jobs}
    died: list[tuple[int, EvaluationJob, str]] = []
    for future in as_completed(futures):
        index, job = futures[future]
        error = future.exception()
        if error is None:
            done(index, future.result())
        elif isinstance(error, ProcessDiedError) or type(error).__name__ == "KilledWorker":
            died.append((index, job, str(error)))
        else:
            raise error
    return died
