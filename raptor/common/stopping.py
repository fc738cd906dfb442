"""Ctrl-C and SIGTERM end a command alike: what it had begun is taken away, and a line says so."""

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Stopper:
    """Turns SIGTERM into what Python makes of Ctrl-C, `KeyboardInterrupt`, and remembers which of them it was."""

    def __init__(self) -> None:
        self._number = signal.SIGINT

    @contextmanager
    def watching(self) -> Generator[None]:
        """For the time of the block."""
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

    def end(self) -> tuple[str, int]:
        """The word for how the command was stopped, and the exit status."""
        return ("terminated", TERMINATED) if self._number == signal.SIGTERM else ("interrupted", INTERRUPTED)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._number = signal.SIGTERM
        raise KeyboardInterrupt

    def _keep(self, lost: "sys.UnraisableHookArgs") -> None:
        """A signal where a library cannot pass it on, as while pydantic builds its classes, comes a little later."""
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, os.kill, (os.getpid(), self._number)).start()
        else:
            sys.__unraisablehook__(lost)


def _may_watch() -> bool:
    """Python sets handlers in the main thread only; and whoever ignores SIGTERM, or has a handler, keeps that."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
