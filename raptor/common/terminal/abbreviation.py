"""Abbreviates long names in tables; exporters of models make names of sixty characters and more."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from raptor.common.terminal.escaping import escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table

    from raptor.common.terminal.console import LiteralConsole

ELLIPSIS = "\u2026"
MIN_NAME_WIDTH = 16
"""Least width of an abbreviated name in characters, even on a narrow terminal."""
_UNBOUNDED = 10_000


def abbreviate_names(names: Iterable[str], width: int) -> dict[str, str]:
    """Abbreviates each name in the middle to at most max(`width`, `LEAST`) characters. Returns distinct names, by name.

    Names that would become equal show the place where they start to differ, or get a number if that is not enough.
    """
    width = max(width, MIN_NAME_WIDTH)
    whole = {name: escape_unprintable(name, keep="") for name in names}
    short = {name: _cut(text, width) for name, text in whole.items()}
    for group in _equal(short):
        at = _first_difference([whole[name] for name in group])
        short |= {name: _cut_around(whole[name], width, at) for name in group}
    for group in _equal(short):
        taken = set(short.values())
        for name in group[1:]:
            short[name] = _numbered(whole[name], width, taken)
    return short


def _equal(short: Mapping[str, str]) -> list[list[str]]:
    """Returns the groups of two or more names whose abbreviations are equal."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, shown in short.items():
        groups[shown].append(name)
    return [group for group in groups.values() if len(group) > 1]


def _first_difference(names: Sequence[str]) -> int:
    return next((k for k, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)


def _cut(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    tail = width // 2  # the end is more informative: it says what a layer does
    return f"{name[: width - tail - 1]}{ELLIPSIS}{name[len(name) - tail :]}"


def _cut_around(name: str, width: int, at: int) -> str:
    """Abbreviates the name to its characters around position `at` and some of both ends."""
    if len(name) <= width:
        return name
    head, tail = width // 5, width // 3
    part = width - head - tail - 2
    begin = max(at - part // 3, head)
    if begin + part >= len(name) - tail:
        return f"{name[:head]}{ELLIPSIS}{name[len(name) - (width - head - 1) :]}"
    return f"{name[:head]}{ELLIPSIS}{name[begin : begin + part]}{ELLIPSIS}{name[len(name) - tail :]}"


def _numbered(name: str, width: int, taken: set[str]) -> str:
    """Abbreviates the name and appends the first free number. Adds the result to `taken`."""
    number = 2
    while True:
        suffix = f"#{number}"
        shown = f"{_cut(name, width - len(suffix))}{suffix}"
        if shown not in taken:
            taken.add(shown)
            return shown
        number += 1


def fit_names(
    console: "LiteralConsole", names: Sequence[str], build: "Callable[[Mapping[str, str]], Table]", *, columns: int = 1
) -> "Table":
    """Builds a table whose names are abbreviated to the width that the other columns leave on the console.

    `build` makes the table from a mapping of full to abbreviated names. `columns`: number of columns with names.
    """
    least = build(dict.fromkeys(names, "x" * MIN_NAME_WIDTH))
    wide = console.options.update(max_width=_UNBOUNDED)
    room = max(console.width - console.measure(least, options=wide).maximum, 0)
    return build(abbreviate_names(names, MIN_NAME_WIDTH + room // columns))
