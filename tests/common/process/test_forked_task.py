"""Work in a copy of the process: results and errors come back whole, and wrong programs are never written."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import raptor
from raptor import pim
from raptor.codegen.pimsim import back_end
from raptor.common.errors import CapacityError, InternalError
from raptor.common.files.directory_lock import lock_directory
from raptor.common.process.forked_task import BackgroundChecks, ForkedTask
from raptor.compiler.pass_driver import Driver
from raptor.pim import PimProgram
from raptor.target.arch import Target
from tests.pipeline import conv_model

MODEL = conv_model((1, 3, 4, 4), 3)


def _fail() -> None:
    raise CapacityError("cores", 11, 10, where="layer conv", levers=("--cores 11",))


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_first_error_comes_back_whole():
    with BackgroundChecks() as beside:
        beside.add(lambda: None)
        beside.add(_fail)
        beside.add(_end)
        beside.start()
        with pytest.raises(CapacityError, match="layer conv") as caught:
            beside.finish()
        beside.finish()  # nothing is left
    assert caught.value.needed == 11


def test_checks_that_began_earlier_come_first():
    with BackgroundChecks() as beside:
        beside.add(_fail)
        beside.start()
        beside.add(_end)
        beside.start()
        beside.add(_end)
        with pytest.raises(CapacityError):
            beside.finish()
    with pytest.raises(ChildProcessError):  # the second copy has ended, too
        os.waitpid(-1, os.WNOHANG)


def test_a_later_error_comes_from_the_second_copy_or_from_here():
    with BackgroundChecks() as beside:
        beside.add(lambda: None)
        beside.start()
        beside.add(_fail)
        beside.start()
        with pytest.raises(CapacityError):
            beside.finish()
        beside.start()
        beside.add(_fail)
        with pytest.raises(CapacityError):
            beside.finish()


def test_a_result_comes_from_another_process():
    with ForkedTask(os.getpid) as copy:
        assert copy.result() != os.getpid()
    with ForkedTask(lambda: np.arange(100_000)) as copy:  # more than a pipe holds
        np.testing.assert_array_equal(copy.result(), np.arange(100_000))


def test_checks_run_here_if_their_process_is_killed():
    here = os.getpid()
    with BackgroundChecks() as beside:
        beside.add(lambda: _end() if os.getpid() != here else None)
        beside.add(_fail)
        beside.start()
        with pytest.raises(CapacityError):
            beside.finish()


def test_checks_run_here_if_there_is_no_room_for_a_process(monkeypatch: pytest.MonkeyPatch):
    def full() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", full)
    before = len(os.listdir("/proc/self/fd"))
    with BackgroundChecks() as beside:
        beside.add(_fail)
        beside.start()
        with pytest.raises(CapacityError):
            beside.finish()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_block_ends_the_process_of_the_checks():
    with BackgroundChecks() as beside:
        beside.add(signal.pause)
        beside.start()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_copy_of_a_killed_process_ends_and_keeps_nothing_locked(tmp_path: Path):
    folder = tmp_path / "out"
    program = (
        "import signal\n"
        "from pathlib import Path\n"
        "from raptor.common.process.forked_task import ForkedTask\n"
        "from raptor.common.files.directory_lock import lock_directory\n"
        f"with lock_directory(Path({str(folder)!r})), ForkedTask(signal.pause) as copy:\n"
        "    print(copy.child[0], flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        copy = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    ended, _, _ = select.select([copy], [], [], 60)
    os.close(copy)
    assert ended
    with lock_directory(folder):
        pass


def _swapped(program: PimProgram) -> PimProgram:
    """Returns a program in which all buffers of each core have the address 0."""
    assert isinstance(program, PimProgram)
    for core in program.cores.values():
        assert core.addresses is not None
        core.addresses[:] = np.zeros_like(core.addresses)
    return program


def _plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pass `allocate` return what is wrong."""
    right = pim.allocate

    def allocate(program: PimProgram, arch: Target) -> PimProgram:
        return _swapped(right(program, arch))

    monkeypatch.setattr(pim, "allocate", allocate)


def test_nothing_is_written_of_a_program_that_is_found_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _plant(monkeypatch)
    with BackgroundChecks() as beside:
        program = raptor.compile(MODEL, xbar=16, xbars_per_core=4, cores=4, driver=Driver(beside=beside))
        with pytest.raises(InternalError, match=r"^allocate failed after .*pim: core 0"):
            program.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_wrong_result_is_named_before_what_follows_from_it(monkeypatch: pytest.MonkeyPatch):
    def generate(program: PimProgram, arch: Target) -> None:
        raise IndexError

    _plant(monkeypatch)
    monkeypatch.setattr(back_end, "generate", generate)
    with BackgroundChecks() as beside, pytest.raises(InternalError, match=r"^allocate failed"):
        raptor.compile(MODEL, xbar=16, xbars_per_core=4, cores=4, driver=Driver(beside=beside))
