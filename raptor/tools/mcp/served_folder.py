"""The folder that the tools of an agent may read, and the limits of what they read and write there."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raptor.common.errors import UserError

KEPT = ".raptor"
"""Subfolder of the results that tools keep. It may be removed at any time."""


@dataclass(frozen=True, slots=True)
class ServedFolder:
    """A folder, and limits in bytes: of a model, and of all results in `KEPT`. Paths of tools are relative to it."""

    root: Path
    model_bytes: int
    kept_bytes: int

    @property
    def kept(self) -> Path:
        """Path of `KEPT`, which is made if it is missing. Raises `UserError` if it is a link or no folder."""
        folder = self.root / KEPT
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UserError(f"{KEPT}: a link or a file, where results are to be kept")
        folder.mkdir(exist_ok=True)
        return folder

    def _find(self, path: str) -> Path:
        """Returns the path below `root`. Raises `UserError` for paths that leave it, and for links anywhere in it."""
        found = Path(path)
        try:
            inside = not found.is_absolute() and ".." not in found.parts and found.parts
            if not inside or (self.root / found).resolve() != self.root / found:
                raise UserError(f"{path}: not a path below the served folder, or a link")
            (self.root / found).exists()
        except (OSError, RuntimeError, ValueError) as e:  # names that are too long, circles of links, null characters
            raise UserError(f"{path!r}: not a path: {e}") from e
        return found

    def find_model(self, path: str) -> Path:
        """Returns the path of a model, relative to `root`. Raises `UserError` unless it is a file within the limit."""
        found = self._find(path)
        if not (self.root / found).is_file():
            raise UserError(f"{path}: no such file")
        size = (self.root / found).stat().st_size
        if size > self.model_bytes:
            raise UserError(f"{path}: {size} bytes, more than the {self.model_bytes} that this server reads")
        return found

    def find_program(self, path: str) -> Path:
        """Returns the path of an output directory, relative to `root`; `UserError` if anything in it is a link."""
        found = self._find(path)
        if not (self.root / found).is_dir():
            raise UserError(f"{path}: no such program; compile_model makes one")
        for entry in _walk(self.root / found):
            if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                raise UserError(f"{path}: {entry.name} is a link, or no file")
        if _size(self.root / found) > self.kept_bytes:
            raise UserError(f"{path}: more than the {self.kept_bytes} bytes that this server reads")
        if (self.root / found).parent == self.kept:
            os.utime(self.root / found)
        return found

    def keep(self, made: Path, name: str) -> Path:
        """Moves a file or folder to `KEPT`, and removes what was used longest ago if there is too much there.

        Returns the new path, relative to `root`. Raises `UserError` if it is larger than the limit by itself.
        """
        size, place = _size(made), self.kept / name
        if size > self.kept_bytes:
            raise UserError(f"the result has {size} bytes, more than the {self.kept_bytes} that this server keeps")
        others = sorted((each for each in self.kept.iterdir() if not each.name.startswith("work-")), key=_last_use)
        while others and size + sum(map(_size, others)) > self.kept_bytes:
            remove(others.pop(0))
        made.rename(place)
        return place.relative_to(self.root)


def remove(path: Path) -> None:
    """Removes a file or folder; links are not followed. What is not there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    return path.lstat().st_mtime


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def _size(path: Path) -> int:
    """Returns the bytes of a file, or of all files in a folder."""
    return path.lstat().st_size + sum(entry.lstat().st_size for entry in _walk(path))
