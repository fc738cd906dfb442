"""Futures with a modelled completion time, and a virtual clock for each thread that waits for them.

Modelled time is virtual. The time at which an operation is ready follows from the order of operations alone, so it is
equal on every back end and for every scheduling of threads. A thread (or an asyncio task) that waits for a result has
reached the time of that result: its next operation cannot start earlier.
"""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from threading import Lock, local
from typing import Any, TypeGuard, TypeVar

T = TypeVar("T")
AnyFuture = concurrent.futures.Future[Any]
_WAITED: ContextVar[Mapping[int, float]] = ContextVar("raptor_device_waited")


def clock_ns(device: int) -> float:
    """Returns the latest time of a device that this thread has waited for."""
    return _WAITED.get({}).get(device, 0.0)


def advance_to(device: int, ns: float) -> None:
    """Records that this thread has waited until time `ns` of a device."""
    if ns > clock_ns(device):
        _WAITED.set({**_WAITED.get({}), device: ns})


class Future(concurrent.futures.Future[T]):
    """A `concurrent.futures.Future`, which asyncio can await, of an operation on device number `device`.

    shape: of the resulting array; None for a write. ready_ns: modelled time at which the result is ready.
    """

    def __init__(self, device: int, ready_ns: float, shape: tuple[int, ...] | None) -> None:
        super().__init__()
        self.device = device
        self.ready_ns = ready_ns
        self.shape = shape

    def result(self, timeout: float | None = None) -> T:
        """Waits and returns the result, or raises its failure; TimeoutError after `timeout` seconds."""
        value = super().result(timeout)
        advance_to(self.device, self.ready_ns)
        return value

    def __await__(self) -> Generator[Any, None, T]:
        value = yield from asyncio.wrap_future(self).__await__()
        advance_to(self.device, self.ready_ns)
        return value


def is_future(value: object) -> TypeGuard[AnyFuture]:
    """Returns True for a `concurrent.futures.Future`, also one that RAPTOR did not make."""
    return isinstance(value, concurrent.futures.Future)


def peek_result(future: AnyFuture) -> Any:
    """Returns the result of a future that is done, without advancing the modelled time of this thread."""
    return concurrent.futures.Future[Any].result(future)


class CallCountdown:
    """Counts down calls from several threads."""

    def __init__(self, count: int) -> None:
        self._left, self._lock = count, Lock()

    def count_down(self) -> bool:
        """Counts a call. Returns True for the last expected one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


class _Running(local):
    """Calls that this thread still has to make; None outside `run_queued`."""

    calls: deque[Callable[[], None]] | None = None


_RUNNING = _Running()


def run_queued(call: Callable[[], None]) -> None:
    """Calls a function now, or after the current one if this thread is inside `run_queued`.

    Otherwise a chain of operations, each started by the result of another, would recurse as deep as it is long.
    """
    if _RUNNING.calls is not None:
        _RUNNING.calls.append(call)
        return
    _RUNNING.calls = calls = deque([call])
    try:
        while calls:
            calls.popleft()()
    finally:
        _RUNNING.calls = None
