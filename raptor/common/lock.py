"""One writer of a directory at a time.

The lock is the kernel's (flock), on a hidden file beside the directory: who dies gives it up, and whoever comes next
takes the file that was left. Without locks of this kind (Windows, some network drives) all go on unhindered.
"""

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from raptor.common.errors import UserError

_mine = threading.local()
"""`folders`: what this thread has locked, so that what it calls may ask for it again."""


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Keeps other threads and processes that ask for it from `folder`, whose parent exists.

    Raises `UserError` if one of them has it, `OSError` if nothing can be written beside it.
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
        with suppress(OSError):  # gone, or somebody else's by now
            _remove(parent, name)
        os.close(parent)


@contextmanager
def _file(parent: int, name: str, folder: Path) -> Generator[None]:
    """The file, locked; another is made if its last owner removed it meanwhile."""
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
            os.close(file)


def _remove(parent: int, name: str) -> None:
    """Unless somebody has locked it."""
    file = os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=parent)
    try:
        _lock(file)
        if _is(file, parent, name):
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(file)


def _lock(file: int) -> None:
    """Raises `BlockingIOError` if another has it."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # there are no locks on this drive
        return


def _is(file: int, parent: int, name: str) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False
