"""Folder of the machine code of a kernel, which processes read and write at once.

numba's own numbers the files of a kernel and writes its index before them. So two processes that compile at once give
one number to two specialisations, and a process that comes between reads the file that was there before: each ends in
code for arguments of other types, which reads and writes wherever they happen to point.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from numba.core.caching import IndexDataCacheFile  # pyright: ignore[reportMissingTypeStubs] numba has no types


class MachineCode(IndexDataCacheFile):
    """Machine code of one kernel: a file for each specialisation, named but once, and an index of them.

    Beside them stands how long Python has run the kernel so far, while there is none.
    """

    _cache_path: str
    _index_path: str

    def save(self, key: Any, data: Any) -> None:
        """Adds the machine code of a specialisation, and removes what belongs to an older kernel."""
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
        """Tells whether there is no machine code.

        Raises `AttributeError` or `ImportError` if another version wrote it, whose types are no more.
        """
        return not self._load_index()

    def interpreted_us(self) -> float:
        """Returns how long Python has run the kernel, in microseconds."""
        try:
            return sum(map(float, self._times.read_text(encoding="ascii").split()))
        except (OSError, ValueError):  # none yet, or somebody's else
            return 0.0

    def add_interpreted_us(self, us: float) -> None:
        """Adds to `interpreted_us`, where that can be written."""
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
        """Keeps other processes waiting, where the system has locks. Without, code gets lost at worst."""
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
