"""Cache of the machine code of kernels on disk that is safe for concurrent processes.

numba's own cache numbers the files of a kernel and writes its index first. So two processes that compile at the same
time can give one number to two specialisations, and a process that reads in between can get an older file. Either way
it executes code for arguments of other types, which accesses arbitrary memory.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from numba.core.caching import IndexDataCacheFile  # pyright: ignore[reportMissingTypeStubs] numba has no types


class KernelCache(IndexDataCacheFile):
    """Machine code of one kernel: an index, and a file with a unique name for each specialisation.

    Until a specialisation exists, another file holds the time for which Python has interpreted the kernel.
    """

    _cache_path: str
    _index_path: str

    def save(self, key: Any, data: Any) -> None:
        """Stores the machine code of a specialisation, and removes files of older versions of the kernel."""
        numba: Any = super()
        with self._alone():
            known: dict[Any, str] = numba._load_index()
            name = known[key] = f"{self._base.name}.{uuid4().hex[:16]}.nbc"
            numba._save_data(name, data)
            numba._save_index(known)
            for path in self._base.parent.glob(f"{self._base.name}.*"):
                if path.name not in known.values() and path.suffix in {".nbc", ".us"}:
                    path.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Returns True if there is no machine code.

        Raises `AttributeError` or `ImportError` if another version wrote it, with types that no longer exist.
        """
        return not self._load_index()

    def read_interpreted_us(self) -> float:
        """Returns the microseconds for which Python has interpreted the kernel, summed over all processes."""
        try:
            return sum(map(float, self._times.read_text(encoding="ascii").split()))
        except (OSError, ValueError):  # no file yet, or a file of another program
            return 0.0

    def add_interpreted_us(self, us: float) -> None:
        """Adds microseconds to the file of interpreted time; does nothing if the file cannot be written."""
        with suppress(OSError):
            self._base.parent.mkdir(parents=True, exist_ok=True)
            with self._times.open("a", encoding="ascii") as file:
                file.write(f"{us:.0f}\n")

    @property
    def _base(self) -> Path:
        return Path(self._index_path).with_suffix("")

    @property
    def _times(self) -> Path:
        return self._base.with_name(f"{self._base.name}.us")

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Locks the folder against other processes in the block. On systems without locks, stored code may be lost."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        folder = os.open(self._cache_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
