"""Thread pool that raises an error if there is no memory for another thread, where CPython's `Thread.start` hangs."""

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from raptor.common.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_ROOM_BYTES = 96 * 2**20
"""Address space that a thread needs to start: its stack (8 MiB), a malloc arena (64 MiB), and a reserve."""


class CheckedThreadPool(ThreadPoolExecutor):
    """A thread pool; `submit` and `map` raise `UserError` if there is no memory for another thread."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            if len(self._threads) < self._max_workers:  # it may start a thread
                mmap.mmap(-1, _ROOM_BYTES).close()
            return super().submit(fn, *args, **kwargs)
        except (OSError, RuntimeError) as e:
            raise UserError("out of memory: no room for a thread; see ulimit -v and ulimit -u") from e
