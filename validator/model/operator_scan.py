"""Searches the bytes of a model file for names, which shows without parsing that a model lacks an operator."""

from collections.abc import Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path


def contains_name(path: Path, marks: Iterable[bytes]) -> bool:
    """Checks whether a file contains one of the byte strings `marks`. False for an empty or missing file."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return any(content.find(mark) >= 0 for mark in marks)
