"""Back end `socket`: crossbars of a driver in another process."""

import select
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any

import numpy as np

from raptor.common.options.arguments import parse_finite
from raptor.device.back_end import Array, DeviceInfo
from raptor.device.backends.socket_protocol import (
    MAX_VECTORS,
    PROTOCOL_VERSION,
    FailureReply,
    HelloMessage,
    Message,
    MultiplyRequest,
    PingReply,
    PingRequest,
    ProductReply,
    ProtocolError,
    WelcomeMessage,
    WriteReply,
    WriteRequest,
    array_from_bytes,
    array_to_bytes,
    encode_frame,
    max_array_bytes,
    parse_address,
    parse_device_info,
    read_exactly,
    read_frame,
)
from raptor.device.errors import DriverError, LostError
from raptor.device.futures import CallCountdown

TIMEOUT_S = 10.0
"""Seconds without any message after which the driver counts as lost: longer than its slowest operation."""
_PINGS = 4
"""Number of pings sent during the timeout."""


def open_socket(_: DeviceInfo, *, address: str, timeout: float = TIMEOUT_S) -> "SocketCrossbars":
    """Connects to a driver. Raises `LostError` if there is none, `DriverError` for another protocol version."""
    family, place = parse_address(address)
    seconds = parse_finite("timeout", timeout, 0.01)
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.settimeout(seconds)
        link.connect(place)
        if family == socket.AF_INET:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(encode_frame(HelloMessage(PROTOCOL_VERSION)))
        reader = _Reader(link, seconds)
        info = _welcomed(read_frame(reader.read, 0)[0])
    except (OSError, ProtocolError) as e:
        link.close()
        raise LostError(f"driver at {address}: {e}") from e
    except BaseException:
        link.close()
        raise
    link.settimeout(None)
    return SocketCrossbars(info, link, reader, address)


def _welcomed(answer: Message) -> DeviceInfo:
    if isinstance(answer, FailureReply):
        raise DriverError(f"the driver refuses: {answer.message}")
    if not isinstance(answer, WelcomeMessage):
        raise ProtocolError(f"expected a welcome, got {type(answer).__name__}")
    if answer.version != PROTOCOL_VERSION:
        raise DriverError(
            f"the driver speaks version {answer.version} of the protocol, this is version {PROTOCOL_VERSION}"
        )
    return parse_device_info(answer.device)


@dataclass(slots=True)
class _Reader:
    """Reads from a socket; fails if nothing arrives for `seconds`. `idle` is called several times in that period."""

    link: socket.socket
    seconds: float
    idle: Callable[[], None] = lambda: None

    def read(self, count: int) -> bytes:
        return read_exactly(self._receive, count, "the driver")

    def _receive(self, count: int) -> bytes:
        self._await()
        return self.link.recv(count)

    def _await(self) -> None:
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        end = monotonic() + self.seconds
        while not poll.poll(1000 * self.seconds / _PINGS):
            if monotonic() >= end:
                raise ProtocolError(f"no sign of life for {self.seconds} s")
            self.idle()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pending request. `shape`: of the expected product; None for a write."""

    future: "Future[Any]"
    shape: tuple[int, int] | None


class SocketCrossbars:
    """Sends each operation immediately, and completes its future when the answer arrives."""

    def __init__(self, info: DeviceInfo, link: socket.socket, reader: _Reader, address: str) -> None:
        self.info = info
        self._link, self._reader, self._address = link, reader, address
        self._sending, self._lock = Lock(), Lock()
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._lost: LostError | None = None
        reader.idle = self._ping
        self._thread = Thread(target=self._receive, name=f"raptor device {address}", daemon=True)
        self._thread.start()

    def write(self, crossbar: int, row: int, matrix: Array) -> "Future[None]":
        shape = matrix.shape[0], matrix.shape[1]
        return self._ask(lambda number: WriteRequest(number, crossbar, row, shape), matrix, None)

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> "Future[Array]":
        if len(vectors) > MAX_VECTORS:
            parts = range(0, len(vectors), MAX_VECTORS)
            return _joined([self.multiply(crossbar, vectors[k : k + MAX_VECTORS], columns) for k in parts])
        shape = vectors.shape[0], vectors.shape[1]
        return self._ask(
            lambda number: MultiplyRequest(number, crossbar, columns, shape), vectors, (len(vectors), columns)
        )

    def close(self) -> None:
        self._lose("the device was closed")
        if self._thread is not current_thread():
            self._thread.join()

    def _ask(self, make: Callable[[int], Message], array: Array, shape: tuple[int, int] | None) -> "Future[Any]":
        future: Future[Any] = Future()
        content = array_to_bytes(array)
        with self._sending:
            with self._lock:
                if self._lost is not None:
                    raise self._lost
                self._number += 1
                number = self._number
                self._asked[number] = _Asked(future, shape)
            try:
                self._link.sendall(encode_frame(make(number), content))
            except OSError as e:
                self._lose(str(e))
        return future

    def _ping(self) -> None:
        if self._sending.acquire(blocking=False):  # else a message is being sent, which serves as well
            try:
                self._link.sendall(encode_frame(PingRequest()))
            except OSError as e:
                self._lose(str(e))
            finally:
                self._sending.release()

    def _receive(self) -> None:
        limit = max_array_bytes(self.info)
        try:
            while True:
                self._answer(*read_frame(self._reader.read, limit))
        except (OSError, ProtocolError) as e:
            self._lose(str(e))
        finally:
            self._link.close()  # NOTE: here only: while this thread waits, its descriptor must not be reused

    def _answer(self, message: Message, content: bytes) -> None:
        if isinstance(message, PingReply):
            return
        if not isinstance(message, WriteReply | ProductReply | FailureReply):
            raise ProtocolError(f"expected an answer, got {type(message).__name__}")
        with self._lock:
            asked = self._asked.pop(message.number, None)
        if asked is None:
            raise ProtocolError(f"an answer to request {message.number}, which is not open")
        try:
            self._complete(asked, message, content)
        except ProtocolError as e:
            asked.future.set_exception(self._lose(str(e)))

    def _complete(self, asked: _Asked, message: WriteReply | ProductReply | FailureReply, content: bytes) -> None:
        if isinstance(message, FailureReply):
            asked.future.set_exception(DriverError(f"driver at {self._address}: {message.message[:1000]}"))
        elif isinstance(message, ProductReply) and asked.shape == message.shape:
            asked.future.set_result(array_from_bytes(content, self.info.result_dtype, message.shape))
        elif isinstance(message, WriteReply) and asked.shape is None:
            asked.future.set_result(None)
        else:
            raise ProtocolError(f"request {message.number}: expected a result of shape {asked.shape}, got {message}")

    def _lose(self, reason: str) -> LostError:
        """Ends the connection, and fails all pending operations."""
        with self._lock:
            if self._lost is None:
                self._lost = LostError(f"driver at {self._address}: {reason}")
            lost, left = self._lost, list(self._asked.values())
            self._asked.clear()
        with suppress(OSError):  # the driver has closed it
            self._link.shutdown(socket.SHUT_RDWR)
        for asked in left:
            asked.future.set_exception(lost)
        return lost


def _joined(parts: "list[Future[Array]]") -> "Future[Array]":
    """Returns a future of the concatenated results of `parts`, which may complete in any order."""
    whole: Future[Array] = Future()
    left = CallCountdown(len(parts))

    def count(_: "Future[Array]") -> None:
        if not left.count_down():
            return
        failures = [failure for part in parts if (failure := part.exception()) is not None]
        if failures:
            whole.set_exception(failures[0])
        else:
            whole.set_result(np.concatenate([part.result() for part in parts]))

    for part in parts:
        part.add_done_callback(count)
    return whole
