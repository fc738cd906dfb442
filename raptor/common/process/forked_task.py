"""Runs tasks and checks in forked child processes, in parallel to the parent.

Threads of Python do not run at the same time, so a second processor core needs a second process. A fork shares all data
that the task reads without sending it; it returns its result, or the error that was raised, through a pipe.
"""

import ctypes
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NoReturn, Self, TypeVar

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
CheckFunction = Callable[[], object]
"""A function that raises an error if an invariant is broken, and has no side effects."""


@dataclass(slots=True)
class ForkedTask(Generic[T]):
    """A task that runs in a forked child process, or in this process where forking is impossible.

    The other threads of the process must not hold locks that the task needs: a lock that is held during the fork stays
    locked in the child permanently. at: process id of the child, and the read end of its pipe.
    """

    task: Callable[[], T]
    child: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        """Starts the task. Data that it reads must not change until it ends."""
        self.child = _started(self.task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the child if it is still running, which is the case only after an error in the block."""
        if self.child is not None:
            os.kill(self.child[0], signal.SIGKILL)
            self._answer()

    def result(self) -> T:
        """Waits for the task, and returns its result or raises its error. Call it once."""
        answer = self._answer()
        # Without an answer, there was no child, or it was killed, for instance for lack of memory.
        result, error = pickle.loads(answer) if answer else _tried(self.task)
        if error is not None:
            raise error
        return result

    def _answer(self) -> bytes:
        """Waits for the child to end, and returns the bytes that it wrote."""
        if self.child is None:
            return b""
        (process, reading), self.child = self.child, None
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(process, 0)
        return answer


def _started(task: Callable[[], object]) -> tuple[int, int] | None:
    """Forks a child that runs a task. Returns its process id and the pipe to read, or None if it cannot fork."""
    if sys.platform != "linux":  # elsewhere, system libraries do not work after a fork
        return None
    parent = os.getpid()
    reading, writing = os.pipe()
    try:
        process = _fork()
    except OSError:  # too many processes, or no memory
        os.close(reading)
        os.close(writing)
        return None
    if process == 0:
        _work(task, parent, writing)
    os.close(writing)
    return process, reading


def _fork() -> int:
    with warnings.catch_warnings():
        # NOTE: Python 3.12 and later warn of threads of libraries. numpy ends its threads before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work(task: Callable[[], object], parent: int, writing: int) -> NoReturn:
    """Runs a task in the child, writes its result to the pipe, and exits."""
    try:
        _end_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches both; the parent ends its child
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        answer = pickle.dumps(_tried(task))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)  # without Python's cleanup, because files and threads belong to the parent


def _end_with(parent: int) -> None:
    """Makes the child die with its parent, whose folders it would otherwise keep locked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # killed already
        os._exit(0)


def _tried(task: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Runs a task. Returns its result and None, or None and the error that it raised."""
    try:
        return task(), None
    except MemoryError:  # the parent may have enough
        raise
    except Exception as e:
        return None, e


@dataclass(slots=True)
class BackgroundChecks:
    """Checks in forked children: `copies` are running, `waiting` have not started. Errors come in this order."""

    waiting: list[CheckFunction] = field(default_factory=list[CheckFunction])
    running: list[ForkedTask[None]] = field(default_factory=list[ForkedTask[None]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for copy in self.running:
            copy.__exit__(*error)

    def add(self, check: CheckFunction) -> None:
        """Queues a check, which the next `start` or `finish` runs."""
        self.waiting.append(check)

    def start(self) -> None:
        """Starts the queued checks in a child. Data that they read must not change afterwards."""
        checks, self.waiting = self.waiting, []
        self.running.append(ForkedTask(partial(_run, checks)))

    def finish(self) -> None:
        """Runs the queued checks and waits for all. Raises the error of the first one, in the order of `add`."""
        checks, self.waiting = self.waiting, []
        while self.running:
            self.running.pop(0).result()
        _run(checks)


def _run(checks: Iterable[CheckFunction]) -> None:
    for check in checks:
        check()
