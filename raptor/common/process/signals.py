"""Ends a command cleanly on Ctrl-C and SIGTERM: unfinished output is deleted, and one line reports it."""

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM


class StopSignals:
    """Turns SIGTERM into `KeyboardInterrupt`, as Python does with SIGINT (Ctrl-C), and records which one came."""

    def __init__(self) -> None:
        self._number = signal.SIGINT

    @contextmanager
    def handle_signals(self) -> Generator[None]:
        """Handles SIGINT and SIGTERM inside of the block."""
        hook = sys.unraisablehook
        sys.unraisablehook = self._keep
        watched = _may_watch()
        try:
            if watched:
                signal.signal(signal.SIGTERM, self._terminate)
            yield
        finally:
            if watched:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.unraisablehook = hook

    def describe_stop(self) -> tuple[str, int]:
        """Returns the reason of the end, `terminated` or `interrupted`, and the exit status."""
        return ("terminated", EXIT_TERMINATED) if self._number == signal.SIGTERM else ("interrupted", EXIT_INTERRUPTED)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._number = signal.SIGTERM
        raise KeyboardInterrupt

    def _keep(self, lost: "sys.UnraisableHookArgs") -> None:
        """Sends the signal again after 10 ms if a library swallowed the exception, as pydantic can."""
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, os.kill, (os.getpid(), self._number)).start()
        else:
            sys.__unraisablehook__(lost)


def _may_watch() -> bool:
    """Returns True if a handler may be set: in the main thread, while SIGTERM has its default action."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
