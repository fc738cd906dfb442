"""Names that a file of a model contains. Quick: large models need not be parsed to learn that they lack an operator."""

from collections.abc import Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path


def has_mark(path: Path, marks: Iterable[bytes]) -> bool:
    """Tells whether a file contains one of some byte strings. What is empty, or no file, does not."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return any(content.find(mark) >= 0 for mark in marks)
