"""Runs code in a forked child with limits on time and memory, and returns how it ended."""

import math
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from raptor.common.terminal.escaping import escape_unprintable
from raptor.tools.cli import app

GIB = 2**30
STATUSES = (0, 1, 2, 3)
"""Exit statuses of `raptor`: done, mismatch, bad input, deadlock."""
FAILED = 70
PATIENCE = 8
"""Seconds of real time allowed for each second of processor time, because other work may run at the same time."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a child. `status`: its exit status, or a negative signal number, or None if it had to be stopped."""

    status: int | None
    out: str
    err: str
    seconds: float
    peak_bytes: int

    def fault(self, allowed: Sequence[int] = STATUSES) -> str | None:
        """Returns a fault that no input may cause, or None: a crash, a hang, a traceback, a status without message."""
        if self.status is None:
            return f"still running after {self.seconds:.0f} s"
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}: {self.err[-300:]}"
        if "Traceback" in self.out + self.err:
            return f"a traceback: {self.err[-600:]}"
        if (plain := _STYLE.sub("", self.out)) != escape_unprintable(plain):
            return f"output that controls the terminal: {self.out[-300:]!r}"
        if self.status not in allowed:
            return f"exit status {self.status}: {self.err[-300:]}"
        if self.status in (2, 3) and self.err.count("raptor: error: ") != 1:
            return f"exit status {self.status} without one error message: {self.err[-300:]}"
        return None


def raptor(*arguments: str | Path, seconds: float = 60, memory_bytes: int = 3 * GIB, terminal: bool = False) -> Outcome:
    """Runs `raptor` with these arguments in a child. `terminal`: with the output of a terminal, else of a pipe."""

    def run() -> None:
        os.environ |= {"TTY_COMPATIBLE": str(int(terminal)), "COLUMNS": "1000"}
        app.main([str(a) for a in arguments])

    return isolated(run, seconds=seconds, memory_bytes=memory_bytes)


def isolated(
    function: Callable[[], object],
    *,
    seconds: float = 60,
    memory_bytes: int = 3 * GIB,
    during: Callable[[int], object] = lambda _: None,
) -> Outcome:
    """Calls `function` in a child; `during` is called with its process id while it runs.

    `seconds`: limit of processor time; a child that only waits is stopped later. The child's status is 0 if `function`
    returns, its status if it calls `sys.exit`, and 70 after a traceback. `memory_bytes`: limit in addition to the
    memory of this process.
    """
    start = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the child is ready for it
        child = os.fork()
        if child == 0:
            try:
                _become(function, out.fileno(), err.fileno(), seconds, memory_bytes)
            finally:
                os._exit(FAILED)  # else it would continue as the parent
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        during(child)
        status, usage = _wait(child, start + PATIENCE * seconds)
        texts = [_text(file.fileno()) for file in (out, err)]
    return Outcome(status, *texts, time.monotonic() - start, usage.ru_maxrss * 1024)


def _become(function: Callable[[], object], out: int, err: int, seconds: float, memory_bytes: int) -> None:
    """Runs `function` in the child, and never returns. The child has its own process group."""
    status, ended = FAILED, False

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not ended:
            signal.default_int_handler(number, frame)

    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        os.dup2(out, 1)
        os.dup2(err, 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))  # a signal, then a kill
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, interrupt)
        function()
        ended, status = True, 0
    except SystemExit as stopped:
        ended = True
        status = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        ended = True
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, deadline: float) -> tuple[int | None, resource.struct_rusage]:
    pause = 0.001
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            ended = os.waitstatus_to_exitcode(status)
            return (None if ended == -signal.SIGXCPU else ended), usage
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            return None, usage
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _text(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, 2**20), max(0, size - 2**20)).decode(errors="replace")
