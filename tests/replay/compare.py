"""Describes the differences between two recordings in words."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MOST = 12
"""Differences that are shown of a file."""

MAPPINGS = Path("mapping.json"), Path("out/mapping.json")
NEW_LINES = ("out/manifest.json.files.mapping.json.", "out/digests.txt: mapping.json")
"""Beginnings of lines about a decision of another format; the second is for one too large to be kept whole."""


def explained(before: Path, after: Path, name: Path) -> bool:
    """The one difference that is expected: since format 5 a decision has its placement, which was found anew before.

    All else in it must be equal. What the placement does is in the streams, which must be equal, too.
    """
    return _formats(before, after, name) == (4, 5) and _plain(before / name) == _plain(after / name)


def _formats(before: Path, after: Path, name: Path) -> tuple[int, ...]:
    """The versions of a mapping file at both commits; empty if it is none, or not at both."""
    if name not in MAPPINGS or not all((f / name).exists() for f in (before, after)):
        return ()
    return tuple(json.loads((f / name).read_text())["version"] for f in (before, after))


def _plain(path: Path) -> Any:
    """A mapping file without its version and the placement."""
    found = json.loads(path.read_text())
    del found["version"]
    found["decision"].pop("placement", None)
    return found


def differences(before: Path, after: Path) -> Iterator[str]:
    """A line for each file or value that differs; none if all bytes are equal."""
    names = sorted({p.relative_to(f) for f in (before, after) for p in f.rglob("*") if p.is_file()})
    expected = NEW_LINES if _formats(before, after, MAPPINGS[0]) == (4, 5) else ()
    for name in names:
        old, new = before / name, after / name
        if explained(before, after, name):
            continue
        if not (old.exists() and new.exists()):
            yield f"{name}: only {'before' if old.exists() else 'after'}"
        elif old.read_bytes() != new.read_bytes():
            yield from islice((line for line in _of_file(name, old, new) if not line.startswith(expected)), MOST)


def _of_file(name: Path, old: Path, new: Path) -> Iterator[str]:
    if name.suffix == ".json":
        found = list(_of_values(json.loads(old.read_text()), json.loads(new.read_text()), ""))
        yield from (f"{name}{line}" for line in found or [": the same values, written differently"])
        return
    lines = {old: set(old.read_text().splitlines()), new: set(new.read_text().splitlines())}
    for file in sorted({line.split()[0] for line in lines[old] ^ lines[new]}):
        yield f"{name}: {file}"


def _of_values(old: Any, new: Any, at: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{at}.{key}: only {'before' if key in old else 'after'}"
            else:
                yield from _of_values(old[key], new[key], f"{at}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _of_values(a, b, f"{at}[{i}]")
    elif old != new:
        yield f"{at}: {_short(old)} -> {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
