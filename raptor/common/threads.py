"""Threads that start, or say why not: CPython waits for ever for one that had no memory to say that it has started."""

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from raptor.common.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_ROOM_BYTES = 96 * 2**20
"""Of addresses, for a thread to start: its stack (8 MiB), an arena of malloc (64 MiB), and something to begin with."""


class Threads(ThreadPoolExecutor):
    """A pool of them; `submit` and `map` raise `UserError` where there is no room for one more."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            mmap.mmap(-1, _ROOM_BYTES).close()
            return super().submit(fn, *args, **kwargs)
        except (OSError, RuntimeError) as e:
            raise UserError("out of memory: no room for a thread; see ulimit -v and ulimit -u") from e
