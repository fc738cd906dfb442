"""Drivers in another process: equal to those in this one, and every way to be gone."""

import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import raptor.device
from raptor.common.errors import UserError
from raptor.device import DeviceInfo, DriverError, LostError
from raptor.device.backends.ideal_crossbars import NumpyCrossbars
from raptor.device.backends.socket_protocol import (
    MAX_VECTORS,
    FailureReply,
    HelloMessage,
    MultiplyRequest,
    PingReply,
    ProductReply,
    ProtocolError,
    WelcomeMessage,
    WriteReply,
    WriteRequest,
    encode_frame,
    read_frame,
)
from raptor.device.server import serve, started
from tests.device.boards import BadCrossbars, info

EYE, ONES = np.eye(4, dtype=np.float32), np.ones(4, np.float32)
FIELDS = {"back_end": "test", "version": "1", "xbar": [4, 4], "crossbars": 2}
WELCOME = encode_frame(WelcomeMessage(1, FIELDS))


def work(device: raptor.device.Device) -> tuple[bytes, raptor.device.Account]:
    rng = np.random.default_rng(5)
    with device.acquire() as a, device.acquire() as b:
        a.write(rng.standard_normal((4, 3)))
        b.write(rng.standard_normal((3, 4)))
        b.write(rng.standard_normal((1, 4)), row=1)
        y = b.matmat(a.matmat(rng.standard_normal((MAX_VECTORS + 5, 4))))
        return y.result().tobytes(), device.account


def test_a_driver_in_another_process_is_equal():
    command = [sys.executable, "-m", "raptor.device.server", "numpy", "--xbar", "4", "--crossbars", "2"]
    with started(command) as address, raptor.device.open("numpy", xbar=4, crossbars=2) as ideal:
        folder = Path(address).parent
        assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(Path(address).stat().st_mode)) == (0o700, 0o600)
        with raptor.device.open(f"socket:{address}") as device:
            assert work(device) == work(ideal)
        again = raptor.device.open("socket", address=address, xbar=4, crossbars=2)
        with again, pytest.raises(raptor.device.NotWrittenError):
            again.acquire().matvec(ONES)
        with pytest.raises(raptor.device.DeviceError, match=r"the crossbars of numpy are \(4, 4\)"):
            raptor.device.open(f"socket:{address}", xbar=8)
    assert not folder.exists()


@contextmanager
def driver(process: Callable[[socket.socket], None], tmp_path: Path) -> Iterator[str]:
    """Serves one program by a function, in a thread."""
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()

        def run() -> None:
            link, _ = listener.accept()
            with link:
                process(link)

        thread = threading.Thread(target=run)
        thread.start()
        yield address
        thread.join()


def test_integers_over_loopback():
    found: list[str] = []

    class Board(NumpyCrossbars):
        def multiply(self, crossbar: int, vectors: np.ndarray, columns: int) -> np.ndarray:
            return (vectors.astype(np.int32) @ self._cells[crossbar][: vectors.shape[1], :columns]).astype(np.int32)

    def run() -> None:
        serve(Board(info(dtype="int8")), f"tcp://127.0.0.1:{port}", once=True)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    thread = threading.Thread(target=run)
    thread.start()
    while not found:
        try:
            with raptor.device.open(f"socket:tcp://localhost:{port}") as device, device.acquire() as x:
                x.write([[100, -100]])
                assert x.matvec([100]).result().tolist() == [10000, -10000]
                found.append("done")
        except LostError:
            time.sleep(0.01)  # it does not listen yet
    thread.join()


def test_a_failure_of_the_board_is_told(tmp_path: Path):
    def process(link: socket.socket) -> None:
        from raptor.device.server import _Session  # pyright: ignore[reportPrivateUsage]

        with pytest.raises(ProtocolError, match="the program is gone"):
            _Session(BadCrossbars(info()), link).run()

    with driver(process, tmp_path) as address, raptor.device.open(f"socket:{address}") as device:
        x = device.acquire()
        w, y = x.write(13 * EYE), x.matvec(ONES)
        with pytest.raises(DriverError, match="OSError: a fuse blew"):
            w.result()
        with pytest.raises(raptor.device.DeviceError, match="holds no matrix"):
            y.result()
        x.write(EYE)
        assert x.matvec(ONES).result()[0] == 1


def reader(link: socket.socket) -> Callable[[int], bytes]:
    return lambda count: link.recv(count, socket.MSG_WAITALL) if count else b""


def greet(link: socket.socket) -> Callable[[int], bytes]:
    read = reader(link)
    assert isinstance(read_frame(read, 0)[0], HelloMessage)
    link.sendall(WELCOME)
    return read


def test_answers_that_come_byte_by_byte(tmp_path: Path):
    def process(link: socket.socket) -> None:
        read = greet(link)
        first, second = read_frame(read, 99)[0], read_frame(read, 99)[0]
        assert isinstance(first, WriteRequest)
        assert isinstance(second, MultiplyRequest)
        answers = encode_frame(ProductReply(second.number, (1, 4)), ONES.tobytes()) + encode_frame(
            WriteReply(first.number)
        )
        for k in range(len(answers)):
            link.sendall(answers[k : k + 1])
        assert link.recv(1) == b""

    with driver(process, tmp_path) as address, raptor.device.open(f"socket:{address}") as device:
        x = device.acquire()
        w, y = x.write(EYE), x.matvec(ONES)
        assert (y.result(5).tolist(), w.result(5)) == ([1, 1, 1, 1], None)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "the driver is gone"),
        (b"\xff" * 8, "longer than allowed"),
        (encode_frame(WriteReply(1))[:9], "the driver is gone"),
        (b"\x03\0\0\0\0\0\0\0abc", "not a message"),
        (encode_frame(WriteReply(7)), "an answer to request 7, which is not open"),
        (encode_frame(ProductReply(1, (1, 4)), ONES.tobytes()), "expected a result of shape None"),
        (encode_frame(WriteReply(1)) + encode_frame(ProductReply(2, (1, 4)), b"abcd"), "4 bytes are not an array"),
        (
            encode_frame(WriteReply(1)) + encode_frame(ProductReply(2, (2, 4)), b""),
            r"expected a result of shape \(1, 4\)",
        ),
        (encode_frame(HelloMessage(1)), "expected an answer, got Hello"),
    ],
)
def test_answers_that_are_wrong(answer: bytes, message: str, tmp_path: Path):
    def process(link: socket.socket) -> None:
        read = greet(link)
        read_frame(read, 99), read_frame(read, 99)
        link.sendall(answer)
        link.shutdown(socket.SHUT_WR)

    with driver(process, tmp_path) as address:
        device = raptor.device.open(f"socket:{address}")
        x = device.acquire()
        w, y = x.write(EYE), x.matvec(ONES)
        with pytest.raises(LostError, match=message):
            y.result(5)
        assert w.done()
        with pytest.raises(LostError):
            x.write(EYE).result(5)
        device.close()


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (encode_frame(FailureReply(0, "busy")), DriverError, "the driver refuses: busy"),
        (encode_frame(WelcomeMessage(2, FIELDS)), DriverError, "speaks version 2 of the protocol, this is version 1"),
        (encode_frame(WelcomeMessage(1, FIELDS | {"crossbars": 2**40})), LostError, "not the description of a device"),
        (encode_frame(WelcomeMessage(1, {"xbar": "no"})), LostError, "not a description of a device"),
        (encode_frame(PingReply()), LostError, "expected a welcome"),
        (b"", LostError, "the driver is gone"),
    ],
)
def test_welcomes_that_are_wrong(answer: bytes, kind: type[Exception], message: str, tmp_path: Path):
    def process(link: socket.socket) -> None:
        read_frame(reader(link), 0)
        link.sendall(answer)

    with driver(process, tmp_path) as address, pytest.raises(kind, match=message):
        raptor.device.open(f"socket:{address}")


@pytest.mark.parametrize(
    "request_",
    [
        encode_frame(HelloMessage(9)),
        b"\xff" * 8,
        encode_frame(HelloMessage(1)) + encode_frame(WriteRequest(1, 5, 0, (4, 4)), EYE.tobytes()),
        encode_frame(HelloMessage(1)) + encode_frame(WriteRequest(1, 0, 3, (4, 4)), EYE.tobytes()),
        encode_frame(HelloMessage(1)) + encode_frame(WriteRequest(1, 0, 0, (4, 4)), b"short"),
        encode_frame(HelloMessage(1)) + encode_frame(MultiplyRequest(1, 0, 9, (1, 4)), ONES.tobytes()),
        encode_frame(HelloMessage(1)) + encode_frame(WriteReply(1)),
        encode_frame(HelloMessage(1)) + b"\x01\0\0\0\xff\xff\xff\x7f",
    ],
)
def test_requests_that_are_wrong_end_the_connection_and_nothing_else(request_: bytes, tmp_path: Path):
    address = str(tmp_path / "socket")
    thread = threading.Thread(target=serve, args=(NumpyCrossbars(info()), address), daemon=True)
    thread.start()
    with socket.socket(socket.AF_UNIX) as link:
        while link.connect_ex(address):
            time.sleep(0.001)  # it does not listen yet
        link.sendall(request_)
        link.shutdown(socket.SHUT_WR)
        while link.recv(1000):
            pass
    with raptor.device.open(f"socket:{address}") as device:
        x = device.acquire()
        x.write(EYE)
        assert x.matvec(ONES).result(5)[0] == 1


BOARD = """
import os, sys, time
from raptor.device import DeviceInfo
from raptor.device.backends.ideal_crossbars import NumpyCrossbars
from raptor.device.server import serve

class Board(NumpyCrossbars):
    def write(self, crossbar, row, matrix):
        if matrix[0, 0] == 7:
            print("at it", flush=True)
            time.sleep(60)
        super().write(crossbar, row, matrix)
    def multiply(self, crossbar, vectors, columns):
        if vectors[0, 0] == 7:
            print("at it", flush=True)
            time.sleep(60)
        return super().multiply(crossbar, vectors, columns)

serve(Board(DeviceInfo("slow", "1", (4, 4), 2)), sys.argv[1])
"""


@pytest.mark.parametrize("when", ["write", "product", "idle", "stopped"])
def test_a_driver_that_is_killed(when: str, monkeypatch: pytest.MonkeyPatch):
    import subprocess

    began: list[subprocess.Popen[str]] = []
    create = subprocess.Popen

    def note(*args: object, **options: object) -> object:
        began.append(create(*args, **options))  # type: ignore[call-overload]
        return began[-1]

    monkeypatch.setattr("raptor.device.server.subprocess.Popen", note)
    with started([sys.executable, "-c", BOARD]) as address:
        device = raptor.device.open(f"socket:{address}", timeout=0.3 if when == "stopped" else 10)
        x, z = device.acquire(), device.acquire()
        x.write(7 * EYE if when == "write" else EYE)
        z.write(EYE)
        vector = 7 * ONES if when == "product" else ONES
        y = x.matvec(vector)
        results = [y, z.matvec(y)]
        if when == "idle":
            results[-1].result(10)
        elif when != "stopped":
            time.sleep(0.05)
        os.kill(began[0].pid, signal.SIGSTOP if when == "stopped" else signal.SIGKILL)
        results = results if when in ("write", "product") else [x.matvec(ONES), z.matvec(ONES)]
        for result in results:
            assert isinstance(result.exception(5), LostError)
        device.close()
    assert began[0].poll() is not None


def test_a_driver_that_does_not_start():
    with pytest.raises(LostError, match="ended before it was ready"), started([sys.executable, "-c", ""]):
        pass
    with pytest.raises(LostError, match="No such file"):
        raptor.device.open("socket:/nonexistent/socket")
    for address in ("tcp://example.org:80", "tcp://127.0.0.1:x", "a" * 200):
        with pytest.raises(UserError, match="address"):
            raptor.device.open("socket", address=address)


def test_a_description_crosses_the_socket_whole():
    from dataclasses import asdict

    from raptor.device.backends.socket_protocol import parse_device_info

    whole = DeviceInfo("board", "2.1", (64, 32), 7, "int16", 12, 2, 10, 24)
    message, _ = read_frame(_bytes(encode_frame(WelcomeMessage(1, asdict(whole)))), 0)
    assert isinstance(message, WelcomeMessage)
    assert parse_device_info(message.device) == whole


def _bytes(content: bytes) -> Callable[[int], bytes]:
    from io import BytesIO

    return BytesIO(content).read
