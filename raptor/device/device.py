"""A device: crossbars that a program acquires and releases, and statistics of their use."""

import concurrent.futures
from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from threading import Lock
from time import monotonic
from typing import Self

from raptor.common.options.arguments import parse_flag, parse_optional_integer
from raptor.device.back_end import BackEnd, DeviceInfo
from raptor.device.crossbar import Crossbar, advance_clock
from raptor.device.errors import DeviceTimeoutError, ExhaustedError, StaleHandleError
from raptor.device.graph import ProductGraph, SchedulerFunction
from raptor.device.schedulers import find_scheduler
from raptor.device.usage_statistics import Account, OperationCosts, UsageLedger

_SERIAL = count(1)


class Device:
    """An open device, made by `raptor.device.open`. Thread-safe; a context manager that closes it."""

    def __init__(self, back_end: BackEnd, costs: OperationCosts, *, refuse_worn: bool = False) -> None:
        self.back_end = back_end
        self.info: DeviceInfo = back_end.info
        self.costs = costs
        self.ledger = UsageLedger(self.info, costs, refuse_worn=refuse_worn)
        self.serial = next(_SERIAL)
        self._lock = Lock()
        self._free = list(range(self.info.crossbars))
        heapify(self._free)
        self._held: dict[int, Crossbar] = {}
        self._generations = [0] * self.info.crossbars
        self._waiting: deque[concurrent.futures.Future[Crossbar]] = deque()
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(discard=kind is not None)

    @property
    def account(self) -> Account:
        """Writes, products, wear, time and energy so far."""
        return self.ledger.read_account()

    @property
    def source(self) -> str:
        """Name and source document of the device file with the modelled costs."""
        return f"{self.costs.device.name}: {self.costs.device.source}"

    @property
    def free(self) -> int:
        """Number of free crossbars."""
        with self._lock:
            return len(self._free)

    def acquire(self, *, block: bool = False, timeout: float | None = None) -> Crossbar:
        """Returns the free crossbar with the lowest number, without a matrix.

        If none is free: raises `ExhaustedError`, or with `block` waits, and raises `DeviceTimeoutError` after `timeout`
        seconds. Waiting callers are served first come, first served.
        """
        blocks = parse_flag("block", block)
        with self._lock:
            self.check_open()
            if self._free and not self._waiting:
                return self._hand_out(heappop(self._free))
            if not blocks:
                raise ExhaustedError(
                    f"all {self.info.crossbars} crossbars are held: release one, wait with block=True, or open the "
                    "device with more (crossbars=)"
                )
            self._waiting.append(waiter := concurrent.futures.Future())
        try:
            return waiter.result(timeout)
        except TimeoutError:
            with self._lock:
                if waiter not in self._waiting:  # a crossbar became free at the last moment
                    return waiter.result()
                self._waiting.remove(waiter)
        raise DeviceTimeoutError(f"all {self.info.crossbars} crossbars are still held after {timeout} s")

    def barrier(self, crossbar: Crossbar | None = None, *, timeout: float | None = None) -> None:
        """Waits until all operations requested so far are done, on one crossbar or on all.

        Raises the first failure that no barrier has raised yet, and `DeviceTimeoutError` after `timeout` seconds.
        """
        with self._lock:
            waited = [crossbar] if crossbar is not None else list(self._held.values())
        end = None if timeout is None else monotonic() + timeout
        for each in waited:
            each.wait(None if end is None else max(0.0, end - monotonic()))
            advance_clock(each)
        for failure in filter(None, [each.pop_failure() for each in waited]):
            raise failure

    def graph(self, schedule: str | SchedulerFunction = "min_writes", *, crossbars: int | None = None) -> ProductGraph:
        """Returns an empty graph of products, for a with statement at whose end it is scheduled and runs.

        schedule: `asap`, `alap`, `min_writes`, or a scheduler of your own. crossbars: largest number to use; by
        default, all that are free.
        """
        return ProductGraph(
            self, find_scheduler(schedule), parse_optional_integer("crossbars", crossbars, 1, self.info.crossbars)
        )

    def close(self, *, discard: bool = False, timeout: float | None = None) -> None:
        """Waits for all operations (with `discard`, only for those that started), releases all crossbars, and closes.

        Afterwards, handles raise `StaleHandleError`. A second call does nothing.
        """
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            held, waiting = list(self._held.values()), list(self._waiting)
            self._waiting.clear()
        for waiter in waiting:
            waiter.set_exception(StaleHandleError("the device was closed"))
        try:
            for each in held:
                each.release(discard=discard, timeout=timeout)
        finally:
            self.back_end.close()

    def check_open(self) -> None:
        """Raises `StaleHandleError` after `close`."""
        if not self._is_open:
            raise StaleHandleError("the device was closed: open it again")

    def return_crossbar(self, index: int) -> None:
        """Frees a crossbar, or passes it to the first waiting caller. Called by `Crossbar.release`."""
        with self._lock:
            del self._held[index]
            if self._waiting:
                waiter = self._waiting.popleft()
                waiter.set_result(self._hand_out(index))
            else:
                heappush(self._free, index)

    def _hand_out(self, index: int) -> Crossbar:
        self._generations[index] += 1
        self._held[index] = handle = Crossbar(self, index, self._generations[index])
        return handle
