"""Follows a section of CONTRIBUTING.md in a copy of the sources, word for word."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT

PAGES = "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml"
SOURCES = "raptor", "validator", "models", "tests", "docgen", "docs", "benchmarks", "pyproject.toml", *PAGES
MOST_FILES = 4
"""Files that adding one thing may change."""

_STEP = re.compile(
    r"^(?P<place>At the end of|In the new file|(?:Above|Below|Instead of)\s`(?P<anchor>[^`]+)`\sin)\s"
    r"`(?P<file>[^`]+)`:\n\n"
    r"```\w+\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A text for a file: beside or instead of the line that holds `anchor`, as far indented; its end; or all of it."""

    place: str
    file: str
    anchor: str | None
    text: str

    def find_places(self, content: str) -> list[int]:
        """Returns the lines that hold the anchor."""
        return [i for i, line in enumerate(content.splitlines()) if self.anchor and self.anchor in line]

    def apply(self, sources: Path) -> None:
        path = sources / self.file
        if self.place == "In the new file":
            path.write_text(self.text)
            return
        content = path.read_text()
        if self.anchor is None:
            path.write_text(f"{content.rstrip()}\n\n\n{self.text}")
            return
        lines = content.splitlines(keepends=True)
        (at,) = self.find_places(content)
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        first = at + self.place.startswith("Below")
        last = at + (not self.place.startswith("Above"))
        lines[first:last] = [f"{indent}{line}" for line in self.text.splitlines(keepends=True)]
        path.write_text("".join(lines))


def steps(heading: str) -> list[Step]:
    """Returns the texts that a section of CONTRIBUTING.md says to write, in order: every text has a place."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"\n## {heading}\n")
    section = rest.partition("\n## ")[0]
    found = [Step(m["place"], m["file"], m["anchor"], m["text"]) for m in _STEP.finditer(section)]
    assert len(found) == len(re.findall("^```", section, re.MULTILINE)) / 2, f"a text of {heading!r} says no place"
    return found


def copied(folder: Path) -> Path:
    """Copies the sources with their compiled kernels, which numba knows by the times of the files."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def followed(sources: Path, heading: str) -> None:
    """Applies the section to a copy of the sources."""
    found = steps(heading)
    assert found, f"CONTRIBUTING.md has no steps in a section {heading!r}"
    assert len({step.file for step in found}) <= MOST_FILES
    for step in found:
        step.apply(sources)


def run(sources: Path, words: Iterable[str | Path], *, status: int = 0, folder: Path | None = None) -> str:
    """Calls `python` with the copy's packages, in `folder`; returns what it prints."""
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder or sources,
        env=os.environ | {"PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
