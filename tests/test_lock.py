"""A lock of a directory leaves nothing behind, whatever interrupts it."""

import os
from pathlib import Path
from typing import Any

import pytest

from raptor.common import lock


def test_a_ctrl_c_while_the_file_is_removed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unlink, calls = os.unlink, list[str]()

    def interrupted(name: str, **options: Any) -> None:
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt), lock.locked(tmp_path / "out"):
        assert [p.name for p in tmp_path.iterdir()] == [".out.lock"]
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []
