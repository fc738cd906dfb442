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
"""Attribute `folders`: directories that this thread has locked; it may lock them again (a reentrant lock)."""


@contextmanager
def lock_directory(folder: Path) -> Generator[None]:
    """Locks `folder` in the block, against other threads and processes that use this function. Its parent must exist.

    Raises `UserError` if another one holds the lock, and `OSError` if the parent is not writable.
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
    """Opens and locks the lock file `name` in the block; retries if another process removed the file in between."""
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
    """Removes the lock file even if Ctrl-C interrupts it, and raises `KeyboardInterrupt` afterwards."""
    try:
        with suppress(OSError):  # removed, or locked by another process by now
            _remove(parent, name)
    except KeyboardInterrupt:
        with suppress(OSError):
            _remove(parent, name)
        raise


def _remove(parent: int, name: str) -> None:
    """Removes the lock file unless another process holds its lock."""
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
    """Unlocks the file explicitly: while a forked child has it open, closing would not release the lock."""
    import fcntl

    with suppress(OSError):  # there are no locks on this drive
        fcntl.flock(file, fcntl.LOCK_UN)


def _is(file: int, parent: int, name: str) -> bool:
    """Returns True if the open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False
