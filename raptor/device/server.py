"""A driver process: offers a back end over a socket. Template for boards, and test double.

    python -m raptor.device.server numpy /run/user/1000/board/socket --xbar 128 --crossbars 64

It serves one program at a time, and drops all matrices when the next one connects.
"""

import argparse
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from raptor.device.back_end import Array, BackEnd, DeviceInfo
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
    read_exactly,
    read_frame,
)
from raptor.device.errors import LostError
from raptor.device.futures import is_future

START_TIMEOUT_S = 60.0


def serve(board: BackEnd, address: str, *, once: bool = False) -> None:
    """Serves programs one after another (with `once`, a single one) until the process is stopped.

    `address` is a path, at which a socket is created that only this user can open, or `tcp://127.0.0.1:PORT`, which
    every user of this computer can open. Port 0 takes a free one. Prints `ready ADDRESS` when programs can connect.
    """
    family, place = parse_address(address)
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(place)
        finally:
            os.umask(before)
        listener.listen(1)
        shown = address if family == socket.AF_UNIX else f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        print(f"ready {shown}", flush=True)
        try:
            _serve_all(board, listener, once=once)
        finally:
            if family == socket.AF_UNIX:
                Path(place).unlink(missing_ok=True)


def _serve_all(board: BackEnd, listener: socket.socket, *, once: bool) -> None:
    while True:
        link, _ = listener.accept()
        with link, suppress(OSError, ProtocolError):  # a lost or faulty program does not affect the next one
            if link.family == socket.AF_INET:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Session(board, link).run()
        if once:
            return


class _Session:
    """The connection of one program. Its requests are processed in order."""

    def __init__(self, board: BackEnd, link: socket.socket) -> None:
        self._board, self._link = board, link
        self._info: DeviceInfo = board.info
        self._written: set[int] = set()

    def run(self) -> None:
        """Answers requests until the program is gone, which raises `BrokenError`."""
        hello, _ = read_frame(self._read, 0)
        if not isinstance(hello, HelloMessage) or hello.version != PROTOCOL_VERSION:
            self._link.sendall(
                encode_frame(FailureReply(0, f"this driver speaks version {PROTOCOL_VERSION} of the protocol"))
            )
            return
        self._link.sendall(encode_frame(WelcomeMessage(PROTOCOL_VERSION, asdict(self._info))))
        limit = max_array_bytes(self._info)
        while True:
            message, content = read_frame(self._read, limit)
            self._link.sendall(self._answer(message, content))

    def _read(self, count: int) -> bytes:
        return read_exactly(self._link.recv, count, "the program")

    def _answer(self, message: Message, content: bytes) -> bytes:
        if isinstance(message, PingRequest):
            return encode_frame(PingReply())
        if not isinstance(message, WriteRequest | MultiplyRequest):
            raise ProtocolError(f"expected a request, got {type(message).__name__}")
        try:
            self._check(message)
            if isinstance(message, WriteRequest):
                return self._write(message, content)
            return self._multiply(message, content)
        except ProtocolError:
            raise
        except Exception as e:  # any failure of the board is reported to the program
            return encode_frame(FailureReply(message.number, f"{type(e).__name__}: {e}"[:1000]))

    def _write(self, message: WriteRequest, content: bytes) -> bytes:
        if message.row and message.crossbar not in self._written:
            return encode_frame(FailureReply(message.number, f"crossbar {message.crossbar} holds no matrix"))
        self._written.discard(message.crossbar)
        matrix = array_from_bytes(content, _dtype(self._info), message.shape)
        _wait(self._board.write(message.crossbar, message.row, matrix))
        self._written.add(message.crossbar)
        return encode_frame(WriteReply(message.number))

    def _multiply(self, message: MultiplyRequest, content: bytes) -> bytes:
        if message.crossbar not in self._written:
            return encode_frame(FailureReply(message.number, f"crossbar {message.crossbar} holds no matrix"))
        vectors = array_from_bytes(content, self._info.vector_dtype, message.shape)
        products: Array = _wait(self._board.multiply(message.crossbar, vectors, message.columns))
        return encode_frame(ProductReply(message.number, (len(products), message.columns)), array_to_bytes(products))

    def _check(self, message: WriteRequest | MultiplyRequest) -> None:
        """Raises `BrokenError` for sizes outside of the device, which no client of this project sends."""
        rows, cols = self._info.xbar
        if isinstance(message, WriteRequest):
            fits = message.row >= 0 and message.row + message.shape[0] <= rows and message.shape[1] <= cols
        else:
            fits = message.shape[0] <= MAX_VECTORS and message.shape[1] <= rows and 0 < message.columns <= cols
        if not fits or not 0 <= message.crossbar < self._info.crossbars:
            raise ProtocolError(f"outside of the device: {message}")


def _dtype(info: DeviceInfo) -> "np.dtype[Any]":
    return np.dtype(info.dtype)


def _wait(result: Any) -> Any:
    return result.result() if is_future(result) else result


@contextmanager
def started(command: Sequence[str] = (), *, seconds: float = START_TIMEOUT_S) -> Generator[str]:
    """Starts a driver in another process, yields its address, and ends the process.

    `command` receives the path of a socket, in a new folder of this user, as its last argument, and prints `ready` when
    programs can connect, as `serve` does. Without it, the back end `numpy` is served. Raises `LostError` if the driver
    does not start within `seconds`.
    """
    folder = tempfile.mkdtemp(prefix="raptor-device-")  # NOTE: its mode is 0700
    words = [*(command or (sys.executable, "-m", "raptor.device.server", "numpy")), str(Path(folder) / "socket")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # it is a pipe
        with process.stdout as printed:
            if not select.select([printed], [], [], seconds)[0]:
                raise LostError(f"{words[0]}: the driver was not ready after {seconds} s")
            state, _, address = printed.readline().strip().partition(" ")
            if state != "ready":
                raise LostError(f"{' '.join(words)}: the driver ended before it was ready")
            yield address
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves a back end; see the top of this file."""
    from raptor.device.backend_registry import open

    parser = argparse.ArgumentParser(prog="python -m raptor.device.server", description="Serves crossbars.")
    parser.add_argument("back_end", help="numpy, integer, or the name of an entry point of raptor.devices")
    parser.add_argument("address", help="path of the socket to make, or tcp://127.0.0.1:PORT")
    parser.add_argument("--xbar", help="rows and columns of weights, such as 128 or 128x256")
    parser.add_argument("--crossbars", type=int, help="number of crossbars")
    parser.add_argument("--once", action="store_true", help="end after one program")
    given = parser.parse_args(arguments)
    device = open(given.back_end, xbar=given.xbar, crossbars=given.crossbars)
    serve(device.back_end, given.address, once=given.once)


if __name__ == "__main__":
    main()
