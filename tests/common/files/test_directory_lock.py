"""A lock of a directory leaves nothing behind, whatever interrupts it."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from raptor.common.files import directory_lock
from raptor.common.process.forked_task import ForkedTask


def test_a_ctrl_c_while_the_file_is_removed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unlink, calls = os.unlink, list[str]()

    def interrupted(name: str, **options: Any) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt), directory_lock.lock_directory(tmp_path / "out"):
        assert [p.name for p in tmp_path.iterdir()] == [".out.lock"]
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_the_process_does_not_hold_the_lock(tmp_path: Path):
    """One that a Ctrl-C lost as it was made is still at work when the lock is released."""
    with directory_lock.lock_directory(tmp_path / "out"):
        lost = ForkedTask(lambda: time.sleep(60))
    with lost:
        assert list(tmp_path.iterdir()) == []
