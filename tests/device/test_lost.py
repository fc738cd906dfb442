"""The driver is killed while `raptor run` uses it: a sentence, status 2, in time, and nothing is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import raptor
from raptor.device import program_execution, server
from raptor.device.backends.socket_client import TIMEOUT_S
from raptor.device.device import Device
from raptor.device.resident_matrices import ResidentMatrices
from raptor.device.server import started
from raptor.tools.cli import app
from tests.pipeline import conv_model
from validator.program.program import LoadedProgram

BOARD = """
import os, signal, sys
from raptor.device import DeviceInfo
from raptor.device.backends.ideal_crossbars import NumpyCrossbars
from raptor.device.server import serve

class Board(NumpyCrossbars):
    def write(self, *given):
        die("write")
        super().write(*given)

    def multiply(self, *given):
        die("product")
        return super().multiply(*given)

def die(during):
    if sys.argv[1] == during:
        os.kill(os.getpid(), signal.SIGKILL)
    if (sys.argv[1], during) == ("stopped", "product"):
        os.kill(os.getpid(), signal.SIGSTOP)

serve(Board(DeviceInfo("mortal", "1", (32, 32), 64)), sys.argv[2])
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program") / "out"
    return raptor.compile(conv_model((1, 3, 4, 4), 4), xbar=32, cores=4).save(folder)


@contextmanager
def board(when: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Starts a driver that kills itself. Yields its address and its process, which has ended at the end."""
    began: list[subprocess.Popen[str]] = []
    create = subprocess.Popen

    def note(*given: object, **options: object) -> object:
        began.append(create(*given, **options))  # type: ignore[call-overload]
        return began[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server.subprocess, "Popen", note)
        with started([sys.executable, "-c", BOARD, when]) as address:
            yield address, began[0]
    assert began[0].poll() is not None


def kill_when_written(process: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills a driver that is idle: all matrices are written, and no product is asked for."""
    write = program_execution.write_program

    def kill(device: Device, program: LoadedProgram) -> ResidentMatrices:
        written = write(device, program)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return written

    monkeypatch.setattr(program_execution, "write_program", kill)


@pytest.mark.parametrize(
    ("command", "when"), [("run", "write"), ("run", "product"), ("run", "idle"), ("validate", "product")]
)
def test_a_driver_that_is_killed(
    command: str,
    when: str,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    before = set(threading.enumerate())
    file = tmp_path / "y.npy"
    file.write_text("an earlier result")
    with board(when) as (address, process):
        if when == "idle":
            kill_when_written(process, monkeypatch)
        words = ["-o", str(file), "--force"] if command == "run" else ["--samples", "1"]
        start = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            app.main([command, str(out), "--device", f"socket:{address}", *words])
        assert ended.value.code == 2
        assert time.monotonic() - start < 10, "the timeout of a driver"
        said = capsys.readouterr().err
        assert said.startswith(f"raptor: error: driver at {address}: ")
        assert len(said.splitlines()) == 1
    assert file.read_text() == "an earlier result"
    assert list(tmp_path.iterdir()) == [file]
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_a_driver_that_says_nothing_is_given_up(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with board("stopped") as (address, _):
        start = time.monotonic()
        with pytest.raises(SystemExit) as ended:
            app.main(["run", str(out), "--device", f"socket:{address}", "-o", str(tmp_path / "y.npy")])
        seconds = time.monotonic() - start
    assert (ended.value.code, list(tmp_path.iterdir())) == (2, [])
    assert "no sign of life for 10.0 s" in capsys.readouterr().err
    assert TIMEOUT_S <= seconds < 2 * TIMEOUT_S


@pytest.mark.slow
@pytest.mark.parametrize("when", ["write", "product"])
def test_a_program_in_a_process_of_its_own_ends(when: str, out: Path, tmp_path: Path):
    with board(when) as (address, _):
        words = ["run", out, "--device", f"socket:{address}", "-o", tmp_path / "y.npy"]
        done = subprocess.run([sys.executable, "-m", "raptor", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"raptor: error: driver at {address}: ")
