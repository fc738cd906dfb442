"""Exclusive lock of a directory for writing.

It is a kernel lock (flock) on a hidden file beside the directory. The kernel releases it when the process dies, and the
next process reuses the file. Where the system has no such locks (Windows, some network drives), nothing is locked.
"""

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from raptor.common.errors import UserError

_mine = threading.local()
"""Attribute `folders`: the directories that this thread has locked, so that a called function may lock them again."""


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Locks `folder`, whose parent must exist, against other threads and processes that call this.

    Raises `UserError` if one of them holds the lock, `OSError` if its parent is not writable.
    """
    held: set[Path] = _mine.__dict__.setdefault("folders", set())
    place = folder.resolve()
    if sys.platform == "win32" or place in held:
        yield
        return
    parent, name = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY), f".{place.name}.lock"
    try:
        with _file(parent, name, folder):
            held.add(place)
            yield
    finally:
        held.discard(place)
        _surely_remove(parent, name)
        os.close(parent)


@contextmanager
def _file(parent: int, name: str, folder: Path) -> Generator[None]:
    """Opens and locks the file; retries if its last owner removed it meanwhile."""
    while True:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666, dir_fd=parent)
        try:
            try:
                _lock(file)
            except BlockingIOError as e:
                advice = "wait until it has ended, or choose another with -o"
                raise UserError(f"{folder}: is being written by another raptor; {advice}") from e
            if _is(file, parent, name):
                yield
                return
        finally:
            _unlock(file)
            os.close(file)


def _surely_remove(parent: int, name: str) -> None:
    """Removes the file even if Ctrl-C interrupts, and raises `KeyboardInterrupt` afterwards."""
    try:
        with suppress(OSError):  # removed, or locked by another process by now
            _remove(parent, name)
    except KeyboardInterrupt:
        with suppress(OSError):
            _remove(parent, name)
        raise


def _remove(parent: int, name: str) -> None:
    """Removes the file unless another process has locked it."""
    file = os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=parent)
    try:
        _lock(file)
        if _is(file, parent, name):
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(file)


def _lock(file: int) -> None:
    """Locks the file. Raises `BlockingIOError` if another process holds the lock."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # there are no locks on this drive
        return


def _unlock(file: int) -> None:
    """Unlocks the file also in a forked child that still has it open; closing it here would not."""
    import fcntl

    with suppress(OSError):  # there are no locks on this drive
        fcntl.flock(file, fcntl.LOCK_UN)


def _is(file: int, parent: int, name: str) -> bool:
    """Returns whether the open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False
