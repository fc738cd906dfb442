"""Runs evaluations in other processes: of this computer, or of a Dask cluster."""

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
from typing import Any, cast

import msgspec

from raptor.common.decoding import json_decoder
from raptor.common.errors import UserError
from raptor.explore.jobs import Job, Record

ATTEMPTS = 3
"""Times that a job is tried whose process dies: once could be somebody else's fault."""
WORKER = ("-m", "raptor.explore.worker")
START_S = 300
"""Longest time for a process to begin: on a busy computer, to load what it needs takes many seconds."""
CONNECT_S = 10
"""Longest time to wait for the scheduler of a cluster."""
_PART_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an evaluation."""

    timeout_s: float
    memory_mb: int


class DiedError(Exception):
    """The process of an evaluation died."""


class _Process:
    """A process of `raptor.explore.worker`; it says that it is ready, then serves one job after another."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        # NOTE: each evaluation is one thread; several workers would otherwise fight over the cores.
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, *WORKER, str(memory_mb)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, bufsize=0
        )

    def wait(self) -> None:
        """Waits until the process is ready. Raises `DiedError`."""
        try:
            self._line(time.monotonic() + START_S)
        except TimeoutError as e:
            raise DiedError(f"the process did not begin in {START_S} s") from e

    def ask(self, job: Job, timeout_s: float) -> Record:
        """Evaluates a job. Raises `TimeoutError`, or `DiedError`; the process is of no use afterwards."""
        assert self._process.stdin is not None  # it is a pipe
        try:
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            return json_decoder(Record).decode(self._line(time.monotonic() + timeout_s))
        except OSError as e:
            if isinstance(e, TimeoutError):
                raise
            raise DiedError(self._fate()) from e

    def _line(self, end: float) -> bytes:
        assert self._process.stdout is not None  # it is a pipe
        line = bytearray()
        while not line.endswith(b"\n"):
            if not select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(self._process.stdout.fileno(), _PART_BYTES)
            if not part:
                raise DiedError(self._fate())
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


class Processes:
    """Processes that evaluate, one for each thread that asks; whoever made this object ends them."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: set[_Process] = set()
        self._ended = False

    def evaluate(self, job: Job, limits: Limits) -> Record:
        """Evaluates in the process of this thread, which is started if there is none. Raises `DiedError`.

        A process that dies before it is ready is started again: that is no fault of the job.
        """
        process = self._of_this_thread(limits.memory_mb)
        begin = time.perf_counter()
        try:
            return process.ask(job, limits.timeout_s)
        except TimeoutError:
            self._drop(process)
            return Record("timeout", {}, f"took more than {limits.timeout_s:g} s", seconds=time.perf_counter() - begin)
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
            except DiedError:
                self._drop(process)
                died += 1
                if self._ended or died == ATTEMPTS:
                    raise
            else:
                return process

    def _drop(self, process: _Process) -> None:
        process.kill()
        self._all.discard(process)
        self._mine.__dict__.pop("process", None)

    def kill(self) -> None:
        """Ends all processes, and starts none again; evaluations that run end with `DiedError`."""
        self._ended = True
        for process in list(self._all):
            process.kill()
        self._all.clear()


Submit = Callable[[Job, Limits], Future[Record]]
"""A way to have a job evaluated elsewhere."""


@contextmanager
def local(count: int) -> Generator[Submit]:
    """Opens `count` processes of this computer; they end with the block, at once if it fails."""
    processes, threads = Processes(), ThreadPoolExecutor(count)
    try:
        yield lambda job, limits: threads.submit(processes.evaluate, job, limits)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        processes.kill()
        threads.shutdown()
        processes.kill()  # one that a thread had just begun to start


@contextmanager
def cluster(address: str) -> Generator[Submit]:
    """Connects to the scheduler of a Dask cluster. Raises `UserError` if there is none."""
    try:
        from distributed import Client
    except ImportError as e:
        raise UserError("run.scheduler: needs Dask: pip install 'raptor-crossbar[cluster]'") from e
    try:
        client = Client(address, timeout=CONNECT_S)
    except (OSError, ValueError) as e:
        raise UserError(f"run.scheduler: {address}: no scheduler of Dask answers: {e}") from e
    with client:
        if not client.scheduler_info()["workers"]:
            client.wait_for_workers(1, timeout=60)
        executor = cast(Any, client).get_executor(pure=False)  # its types are not complete
        yield lambda job, limits: executor.submit(_on_worker, job, limits)


def _on_worker(job: Job, limits: Limits) -> Record:
    """Evaluates on a worker of Dask, whose processes last as long as it does."""
    return _of_worker().evaluate(job, limits)


@cache
def _of_worker() -> Processes:
    return Processes()


def evaluate_all(submit: Submit, jobs: Sequence[Job], limits: Limits, done: Callable[[int, Record], None]) -> None:
    """Evaluates jobs; `done` is called with the index of each and its record, in the order in which they end.

    A job whose process dies is tried again, then alone. If it dies every time, its state is `crashed`.
    """
    failed = _round(submit, list(enumerate(jobs)), limits, done)
    for _ in range(ATTEMPTS - 1):
        failed = [again for index, job, _ in failed for again in _round(submit, [(index, job)], limits, done)]
    for index, _, reason in failed:
        done(index, Record("crashed", {}, f"{reason}, {ATTEMPTS} times"))


def _round(
    submit: Submit, jobs: Sequence[tuple[int, Job]], limits: Limits, done: Callable[[int, Record], None]
) -> list[tuple[int, Job, str]]:
    """Evaluates jobs once. Returns those whose process died, with the reason."""
    futures = {submit(job, limits): (i, job) for i, job in jobs}
    died: list[tuple[int, Job, str]] = []
    for future in as_completed(futures):
        index, job = futures[future]
        error = future.exception()
        if error is None:
            done(index, future.result())
        elif isinstance(error, DiedError) or type(error).__name__ == "KilledWorker":
            died.append((index, job, str(error)))
        else:
            raise error
    return died
