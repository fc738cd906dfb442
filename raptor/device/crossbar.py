"""Handle of an acquired crossbar, with the queue of its operations."""

import concurrent.futures
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from threading import RLock
from typing import Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt

from raptor.common.options.arguments import parse_optional_integer
from raptor.device.back_end import Array, BackEnd, CellWriter, DeviceInfo
from raptor.device.errors import (
    AlreadyReleasedError,
    DeviceTimeoutError,
    DriverError,
    LostError,
    NotWrittenError,
    OperandError,
    ShapeError,
    StaleHandleError,
)
from raptor.device.futures import AnyFuture, Future, advance_to, clock_ns, is_future, peek_result, run_queued
from raptor.device.operand_checks import (
    UNKNOWN_SHAPE,
    check_matrix_shape,
    check_vectors_shape,
    convert_matrix,
    convert_vectors,
    expected_shape,
)
from raptor.device.usage_statistics import UsageLedger

Operand = npt.ArrayLike | AnyFuture
"""An array, or the future of an array, for which the operation waits."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A requested operation: its operand is checked by `check`, then passed to the back end by `send`.

    replaces: whether it writes a whole matrix. epoch: number of such writes up to this operation.
    """

    future: Future[Any]
    operand: Any
    check: Callable[[Any], Array]
    send: Callable[[Array], Any]
    writes: bool
    replaces: bool
    epoch: int

    @property
    def is_ready(self) -> bool:
        """True if it can start: its operand is ready, or it was cancelled."""
        return not is_future(self.operand) or self.operand.done() or self.future.cancelled()


class CrossbarOwner(Protocol):
    """An open device, as its crossbars and graphs use it; `raptor.device.Device` is one."""

    back_end: BackEnd
    info: DeviceInfo
    ledger: UsageLedger
    serial: int

    @property
    def free(self) -> int:
        """Number of free crossbars."""
        ...

    def acquire(self) -> "Crossbar":
        """Returns a free crossbar, without a matrix. Raises `ExhaustedError` if there is none."""
        ...

    def return_crossbar(self, index: int) -> None:
        """Frees a crossbar whose handle was released."""
        ...

    def barrier(self, crossbar: "Crossbar | None" = None, *, timeout: float | None = None) -> None:
        """Waits for the requested operations, on one crossbar or on all; raises the first failure."""
        ...

    def check_open(self) -> None:
        """Raises `StaleHandleError` if the device was closed."""
        ...


class Crossbar:
    """Handle of one crossbar, made by `Device.acquire`. Thread-safe; a context manager that releases it.

    Operations return immediately. They take effect in the order of the calls: a product after a write uses its matrix.
    Operations of different crossbars run independently, unless one is an operand of the other.
    """

    def __init__(self, device: CrossbarOwner, index: int, generation: int) -> None:
        self.device = device
        self.index = index
        self.generation = generation
        """Number of times that the crossbar was acquired, this one included."""
        self._lock = RLock()
        self._queue: deque[_Work] = deque()
        self._open: dict[Future[Any], None] = {}
        self._is_draining = False
        self._shape: tuple[int, int] | None = None
        self._epoch = 0
        self._unwritten: dict[int, BaseException] = {}
        self._failure: BaseException | None = None
        self._is_released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_released:
            self.release(discard=kind is not None)

    def __repr__(self) -> str:
        state = "released" if self._is_released else f"holds {self._shape}"
        return f"<crossbar {self.index} of {self.device.info.back_end}, {state}>"

    @property
    def shape(self) -> tuple[int, int] | None:
        """Rows and columns of the matrix after all requested operations; None before a write."""
        return self._shape

    def write(
        self, matrix: Operand, *, row: int | None = None, mask: "npt.NDArray[np.bool_] | None" = None
    ) -> Future[None]:
        """Writes a matrix [rows, columns], which is copied now. With `row`, replaces rows of the present matrix.

        `mask` [rows, columns]: weights whose cells are written; the others of the present matrix stay as they are.
        Raises `DriverError` for a mask if the back end cannot write single cells.

        Raises `ShapeError` for a matrix that does not fit, `OperandError` for wrong types or values, `WornError` for
        cells beyond their endurance, and `StaleHandleError` after the release.
        """
        info = self.device.info
        first = parse_optional_integer("row", row if mask is None else row or 0, 0, info.xbar[0] - 1)
        given = matrix if is_future(matrix) else convert_matrix(info, matrix)
        shape = expected_shape(given, 2, "a matrix")
        check_matrix_shape(info, shape)
        chosen = None if mask is None else self._check_mask(mask, shape)

        def check(value: Any) -> Array:
            return convert_matrix(info, value, shape)

        def send(value: Array) -> Any:
            if chosen is None:
                return self.device.back_end.write(self.index, first or 0, value)
            return cast(CellWriter, self.device.back_end).write_cells(self.index, first or 0, value, chosen)

        with self._lock:
            self._check_held()
            after = self._after_write(shape, first)
            future = self._future(
                given, None, lambda at: self.device.ledger.record_write(self.index, first or 0, shape, at, chosen)
            )
            self._shape = after
            self._epoch += first is None
            work = _Work(future, given, check, send, writes=True, replaces=first is None, epoch=self._epoch)
            self._add(work)
        self._start(work)
        return future

    def _check_mask(self, mask: "npt.NDArray[np.bool_]", shape: tuple[int, ...]) -> "npt.NDArray[np.bool_]":
        """Returns a copy of a mask. Raises an error unless it has the shape of the matrix, and can be used."""
        found = np.array(mask)
        if found.dtype != bool:
            raise OperandError(f"a mask of {found.dtype}: expected booleans")
        if found.shape != tuple(shape):
            raise ShapeError(f"a mask of shape {found.shape} for a matrix of {shape}")
        if not hasattr(self.device.back_end, "write_cells"):
            raise DriverError(f"back end {self.device.info.back_end} cannot write single cells; write whole rows")
        return found

    def matvec(self, vector: Operand) -> Future[Array]:
        """Multiplies a vector [rows] with the matrix; returns a future of [columns].

        Raises `NotWrittenError` without a matrix, `ShapeError`, `OperandError`, and `StaleHandleError` after the
        release.
        """
        return self._product(vector, 1)

    def matmat(self, vectors: Operand) -> Future[Array]:
        """Multiplies vectors [n, rows] with the matrix, one after another; returns a future of [n, columns].

        Raises the same errors as `matvec`.
        """
        return self._product(vectors, 2)

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all requested operations are done; see `Device.barrier`."""
        self.device.barrier(self, timeout=timeout)

    def release(self, *, discard: bool = False, timeout: float | None = None) -> None:
        """Returns the crossbar to the device when its operations are done. With `discard`, cancels those not started.

        Raises `AlreadyReleasedError`, and `DeviceTimeoutError` if operations are pending after `timeout` seconds; then
        the crossbar is still held.
        """
        if discard:
            self._discard()
        while not self._try_release():
            self.wait(timeout)
        self.device.return_crossbar(self.index)

    def _try_release(self) -> bool:
        """Ends the handle if no operation is pending. Returns True if it did."""
        with self._lock:
            if self._is_released:
                raise AlreadyReleasedError(f"crossbar {self.index} was released already")
            self._is_released = not self._open
            return self._is_released

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the operations that are pending now. Raises `DeviceTimeoutError`."""
        with self._lock:
            opened = list(self._open)
        if concurrent.futures.wait(opened, timeout).not_done:
            raise DeviceTimeoutError(f"crossbar {self.index}: work is still open after {timeout} s")

    def pop_failure(self) -> BaseException | None:
        """Returns the first failure since the last call, or None."""
        with self._lock:
            failure, self._failure = self._failure, None
            return failure

    def _product(self, operand: Operand, dimensions: int) -> Future[Array]:
        info = self.device.info
        with self._lock:
            self._check_held()
            if self._shape is None:
                raise NotWrittenError(f"crossbar {self.index} holds no matrix: write one first")
            rows, cols = self._shape
            given = operand if is_future(operand) else convert_vectors(info, operand, rows, dimensions)
            operand_shape = expected_shape(given, dimensions, "vectors" if dimensions == 2 else "a vector")
            if operand_shape != UNKNOWN_SHAPE:
                check_vectors_shape(operand_shape, rows, dimensions)
            shape = (*operand_shape[:-1], cols)
            count = shape[0] if dimensions == 2 else 1

            def check(value: Any) -> Array:
                return convert_vectors(info, value, rows, dimensions)

            def send(value: Array) -> Any:
                return self.device.back_end.multiply(self.index, value.reshape(count, rows), cols)

            future: Future[Array] = self._future(
                given, shape, lambda at: self.device.ledger.record_product(self.index, (rows, cols), count, at)
            )
            work = _Work(future, given, check, send, writes=False, replaces=False, epoch=self._epoch)
            self._add(work)
        self._start(work)
        return future

    def _future(self, operand: object, shape: tuple[int, ...] | None, charge: Callable[[float], float]) -> Future[Any]:
        """Makes the future of an operation, which `charge` records in the account."""
        serial = self.device.serial
        ready_ns = clock_ns(serial)
        if is_future(operand) and isinstance(operand, Future) and operand.device == serial:
            ready_ns = max(ready_ns, operand.ready_ns)
        return Future(serial, charge(ready_ns), shape)

    def _after_write(self, shape: tuple[int, ...], row: int | None) -> tuple[int, int]:
        """Returns the shape of the matrix after a write. Raises an error unless rows are part of the present one."""
        if row is None:
            return shape[0], shape[1]
        if self._shape is None:
            raise NotWrittenError(f"crossbar {self.index} holds no matrix whose rows could be replaced: write it whole")
        rows, cols = self._shape
        if shape[1] != cols or row + shape[0] > rows:
            raise ShapeError(
                f"crossbar {self.index}: rows {row} to {row + shape[0] - 1} of {shape[1]} columns are not part of the "
                f"matrix of {rows} x {cols}"
            )
        return rows, cols

    def _check_held(self) -> None:
        if self._is_released:
            raise StaleHandleError(f"crossbar {self.index} was released: acquire one again")
        self.device.check_open()

    def _add(self, work: _Work) -> None:
        self._queue.append(work)
        self._open[work.future] = None

    def _start(self, work: _Work) -> None:
        """Runs ready operations now, and others when the operand is ready."""
        # NOTE: not under the lock: a callback may come at once, and run work of other crossbars.
        if not work.is_ready:
            for future in (work.operand, work.future):
                future.add_done_callback(self._go_on)
        run_queued(self._drain)

    def _go_on(self, _: AnyFuture) -> None:
        run_queued(self._drain)

    def _drain(self) -> None:
        """Runs ready operations from the head of the queue, unless another thread does so."""
        with self._lock:
            if self._is_draining:
                return
            self._is_draining = True
        try:
            while (work := self._next()) is not None:
                self._run(work)
        except BaseException:  # Ctrl-C: another thread must be able to continue with the queue
            self._is_draining = False
            raise

    def _next(self) -> _Work | None:
        with self._lock:
            if self._queue and self._queue[0].is_ready:
                return self._queue.popleft()
            self._is_draining = False
            return None

    def _run(self, work: _Work) -> None:
        if not work.future.set_running_or_notify_cancel():
            self._fail(work, concurrent.futures.CancelledError())
            return
        try:
            result = work.send(self._checked(work))
        except Exception as e:  # any exception of a driver is the failure of the operation
            self._fail(work, e)
            return
        except BaseException as e:
            self._fail(work, e)
            raise
        if is_future(result):
            result.add_done_callback(partial(self._finish_later, work))
        else:
            self._finish(work, result)

    def _checked(self, work: _Work) -> Array:
        # NOTE: failures of later writes do not matter: they may be requested before this operation ends.
        failure = None if work.replaces else self._unwritten.get(work.epoch)
        if isinstance(failure, LostError):
            raise failure
        if failure is not None:
            raise NotWrittenError(f"crossbar {self.index} holds no matrix: {failure}") from failure
        if not is_future(work.operand):
            return work.operand
        if (failure := work.operand.exception()) is not None:
            raise failure
        return work.check(peek_result(work.operand))

    def _finish_later(self, work: _Work, done: AnyFuture) -> None:
        if (failure := done.exception()) is not None:
            self._fail(work, failure)
        else:
            self._finish(work, done.result())

    def _finish(self, work: _Work, result: Any) -> None:
        if work.writes:
            self._end(work, None, None)
            return
        wanted, array = work.future.shape, np.asarray(result)
        assert wanted is not None  # a product has a result
        if array.dtype != self.device.info.result_dtype or array.size != prod(wanted):
            self._fail(work, DriverError(f"the driver answered {array.dtype} {array.shape}, expected {wanted}"))
            return
        self._end(work, array.reshape(wanted), None)

    def _fail(self, work: _Work, failure: BaseException) -> None:
        self._end(work, None, failure)

    def _end(self, work: _Work, result: Array | None, failure: BaseException | None) -> None:
        """Completes an operation. It counts as pending until its future is done."""
        with self._lock:
            if work.writes and failure is not None:
                self._unwritten.setdefault(work.epoch, failure)
            if failure is not None and not work.future.cancelled():
                self._failure = self._failure or failure
        if failure is None:
            work.future.set_result(result)
        elif not work.future.cancelled():
            work.future.set_exception(failure)
        with self._lock:
            self._open.pop(work.future, None)

    def _discard(self) -> None:
        with self._lock:
            dropped, self._queue = list(self._queue), deque()
            for work in dropped:
                self._open.pop(work.future, None)
        for work in dropped:
            work.future.cancel()
            work.future.set_running_or_notify_cancel()


def advance_clock(crossbar: Crossbar) -> None:
    """Advances this thread's modelled time to the end of a crossbar's operations."""
    advance_to(crossbar.device.serial, crossbar.device.ledger.idle_from_ns(crossbar.index))
