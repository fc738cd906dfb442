"""Freed memory that goes back to the system."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from raptor.common.process import malloc_trim
from raptor.common.process.forked_task import BackgroundChecks
from raptor.compiler.pass_driver import Driver

FRAGMENTED = """
from pathlib import Path

from raptor.common.process.malloc_trim import trim_heap

def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])

before = resident_pages()
blocks = [bytearray(b"x" * 100_000) for _ in range(1000)]
full = resident_pages() - before
last = blocks[-1]
del blocks
kept = resident_pages() - before
trim_heap()
print(kept / full, (resident_pages() - before) / full)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps it"
)
def test_what_lies_below_a_block_in_use_is_given_back():
    done = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, text=True, check=True)
    kept, left = map(float, done.stdout.split())
    assert kept > 0.9, "glibc gives it back by itself, so nobody needs to ask"
    assert left < 0.1


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_a_c_library_that_cannot_is_not_asked(platform: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    malloc_trim.trim_heap()


def test_only_a_command_gives_back_before_each_stage(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(malloc_trim, "trim_heap", lambda: asked.append("given back"))
    Driver().timed("trial", list)
    assert not asked
    with BackgroundChecks() as beside:
        driver = Driver(beside=beside)
        driver.timed("one", list)
        driver.timed("two", list)
    assert len(asked) == 2
