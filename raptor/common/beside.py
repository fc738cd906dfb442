"""Work in a copy of this process, beside its own.

Python runs one thread at a time, so a second core is of use to it only in a second process. A copy (`fork`) has
everything that the work looks at, without a byte being sent; it sends back the result, or the error that was raised.
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
Check = Callable[[], object]
"""Raises an error if something is wrong; changes nothing."""


@dataclass(slots=True)
class Copy(Generic[T]):
    """A task at work in a copy of the process; in this one, where there can be no copy.

    Only for a process of our own, whose other threads hold no lock that the task needs: a lock that is held while the
    copy is made stays locked there for ever. at: the process, and the end of the pipe by which it answers.
    """

    task: Callable[[], T]
    at: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        """Begins. What the task looks at must not change any more."""
        self.at = _started(self.task)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the copy if it is still at work, because something else has failed."""
        if self.at is not None:
            os.kill(self.at[0], signal.SIGKILL)
            self._answer()

    def result(self) -> T:
        """Waits for the end, and returns the result; to be called once. Raises the error of the task."""
        answer = self._answer()
        # Without an answer, there was no copy, or it was killed, for lack of memory, say.
        found, error = pickle.loads(answer) if answer else _tried(self.task)
        if error is not None:
            raise error
        return found

    def _answer(self) -> bytes:
        """Waits for the end of the copy, and forgets it. Returns what it wrote."""
        if self.at is None:
            return b""
        (process, reading), self.at = self.at, None
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(process, 0)
        return answer


def _started(task: Callable[[], object]) -> tuple[int, int] | None:
    """Starts a copy. Returns its process and the pipe to read; None if there can be none."""
    if sys.platform != "linux":  # elsewhere, libraries of the system do not outlive a fork
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
        # NOTE: from Python 3.12 on, it warns of threads of libraries. Those of numpy end before a fork, by themselves.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work(task: Callable[[], object], parent: int, writing: int) -> NoReturn:
    """Runs a task in the copy, writes what comes of it, and ends the copy."""
    try:
        _end_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches both; the process itself ends its copy
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        answer = pickle.dumps(_tried(task))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)  # not as Python ends, because files and threads are those of the process itself


def _end_with(parent: int) -> None:
    """Ends the copy when its parent is killed: it would work for nobody, and keep the parent's folders locked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # killed before
        os._exit(0)


def _tried(task: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Runs a task. Returns its result, and the error that it raised."""
    try:
        return task(), None
    except MemoryError:  # the process itself may have enough
        raise
    except Exception as e:
        return None, e


@dataclass(slots=True)
class Beside:
    """Checks that run in copies of the process. waiting: those that have not begun, in order. copies: they run others.

    The checks of a copy came before those of the next one, and before those that wait.
    """

    waiting: list[Check] = field(default_factory=list[Check])
    copies: list[Copy[None]] = field(default_factory=list[Copy[None]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for copy in self.copies:
            copy.__exit__(*error)

    def add(self, check: Check) -> None:
        """Remembers a check."""
        self.waiting.append(check)

    def start(self) -> None:
        """Begins with the checks that wait. What they look at must not change any more."""
        checks, self.waiting = self.waiting, []
        self.copies.append(Copy(partial(_run, checks)))

    def finish(self) -> None:
        """Waits for all checks. Raises the error of the first one that failed."""
        checks, self.waiting = self.waiting, []
        while self.copies:
            self.copies.pop(0).result()
        _run(checks)


def _run(checks: Iterable[Check]) -> None:
    for check in checks:
        check()
