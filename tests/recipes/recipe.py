"""Follows a recipe of CONTRIBUTING.md in a copy of the sources."""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("raptor", "validator", "tests", "pyproject.toml", "CONTRIBUTING.md")


def copy_sources(folder: Path) -> None:
    """Copies all that the tests need, with times, so that code that is compiled already stays good."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy2(source, folder / name)


def follow(title: str, folder: Path) -> list[str]:
    """Makes the changes of the entry `title` under `folder`; returns the files changed, in order."""
    text = (folder / "CONTRIBUTING.md").read_text(encoding="utf-8")
    entry = re.split(r"^(?:\*\*|## )", text.partition(f"**{title}**")[2], maxsplit=1, flags=re.M)[0]
    changed: list[str] = []
    for block in re.findall(r"^```diff\n(.*?)^```", entry, re.M | re.S):
        name, lines = block.removeprefix("+++ ").split("\n", 1)
        path = folder / name
        path.write_text(_patched(path.read_text(encoding="utf-8"), lines), encoding="utf-8")
        changed.append(name)
    return changed


def _patched(text: str, lines: str) -> str:
    """Adds the lines with a `+` after those that stand before them, which must be there once."""
    for before, added in re.findall(r"((?:^ .*\n)+)((?:^\+.*\n)+)", lines, re.M):
        anchor, new = (re.sub(r"^.", "", part, flags=re.M) for part in (before, added))
        assert text.count(anchor) == 1, anchor
        text = text.replace(anchor, anchor + new)
    return text


def environment(folder: Path) -> dict[str, str]:
    """Variables for a process that imports the copy."""
    return {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(folder), "HOME": str(folder)}
