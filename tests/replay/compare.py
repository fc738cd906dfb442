"""Describes the differences between two recordings in words."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MOST = 12
"""Differences that are shown of a file."""

EMITTED, STORED = Path("mapping.json"), Path("out/mapping.json")
NEW_LINES = "out/manifest.json.files.mapping.json: only after", "out/digests.txt: mapping.json"
"""Lines about a stored decision where there was none; the second where it is too large to be kept whole."""


def explained(before: Path, after: Path, name: Path) -> bool:
    """The one difference that is expected: decisions are stored in another format, and with every output.

    Since format 3 of the mapping file a layer has one record of its kind, so the files of both formats cannot be
    compared; and `mapping.json` stands in the output, with its entry in the manifest, where there was none. What the
    decisions do is in the streams, which must be equal.
    """
    if name == EMITTED and all((f / name).exists() for f in (before, after)):
        return [json.loads((f / name).read_text())["version"] for f in (before, after)] == [2, 3]
    return name == STORED and not _stores(before)


def differences(before: Path, after: Path) -> Iterator[str]:
    """A line for each file or value that differs; none if all bytes are equal."""
    names = sorted({p.relative_to(f) for f in (before, after) for p in f.rglob("*") if p.is_file()})
    expected = () if _stores(before) else NEW_LINES
    for name in names:
        old, new = before / name, after / name
        if explained(before, after, name):
            continue
        if not (old.exists() and new.exists()):
            yield f"{name}: only {'before' if old.exists() else 'after'}"
        elif old.read_bytes() != new.read_bytes():
            yield from islice((line for line in _of_file(name, old, new) if line not in expected), MOST)


def _stores(recorded: Path) -> bool:
    """Tells whether that commit stored its decision in the output."""
    manifest = recorded / "out" / "manifest.json"
    return manifest.exists() and STORED.name in json.loads(manifest.read_text())["files"]


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
