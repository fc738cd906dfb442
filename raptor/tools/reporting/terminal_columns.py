"""Comparison on a terminal: a column for each output, in as many tables as the width requires."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from raptor.common.terminal.console import LiteralConsole
from raptor.common.terminal.escaping import escape_unprintable

_GAP = 2

FigureLine = tuple[str, ...]
"""Name of a key figure, and its text for each output."""


def show_columns(
    names: Sequence[str], wide: Sequence[FigureLine], narrow: Sequence[FigureLine], console: LiteralConsole
) -> bool:
    """Prints `wide` if it fits, else `narrow`, in several tables one below another if necessary.

    Outputs whose names are too long for a heading are numbered there, and named above. Returns whether `wide` fitted.
    """
    fits = _width(wide) <= console.width
    lines = wide if fits else narrow
    for chosen in _blocks(lines, console.width):
        heads = _heads([names[k - 1] for k in chosen], lines, chosen, console.width)
        if heads is None:
            for k in chosen:
                console.print(f"{k}: {names[k - 1]}", soft_wrap=True)
            heads = [str(k) for k in chosen]
        console.print(_table(heads, lines, chosen))
    return fits


def _column(lines: Sequence[FigureLine], k: int) -> int:
    return max(cell_len(line[k]) for line in lines)


def _width(lines: Sequence[FigureLine]) -> int:
    return sum(_column(lines, k) + _GAP for k in range(len(lines[0]))) - _GAP


def _blocks(lines: Sequence[FigureLine], width: int) -> Iterator[list[int]]:
    """Yields groups of outputs (numbered from 1) that fit side by side; at least one output each."""
    left, block = width - _column(lines, 0), list[int]()
    room = left
    for k in range(1, len(lines[0])):
        need = _GAP + _column(lines, k)
        if block and need > room:
            yield block
            room, block = left, []
        block.append(k)
        room -= need
    yield block


def _heads(
    names: Sequence[str], lines: Sequence[FigureLine], chosen: Sequence[int], width: int
) -> Sequence[str] | None:
    """Returns the names as headings, or None if they do not fit; a name of two words may take two lines."""
    shown = [escape_unprintable(name, keep="") for name in names]
    widest = (max(map(cell_len, name.split()), default=0) for name in shown)
    need = sum(_GAP + max(w, _column(lines, k)) for w, k in zip(widest, chosen, strict=True))
    return shown if _column(lines, 0) + need <= width else None


def _table(heads: Sequence[str], lines: Sequence[FigureLine], chosen: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column("", no_wrap=True)
    for head, k in zip(heads, chosen, strict=True):
        widest = max(map(cell_len, head.split()), default=0)
        table.add_column(Text(head), justify="right", min_width=max(widest, _column(lines, k)))
    for line in lines:
        table.add_row(line[0], *(Text(line[k], no_wrap=True) for k in chosen))
    return table
