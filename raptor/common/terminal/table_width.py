"""Tables that fit the width of the terminal: columns are omitted first, then names are wrapped."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table

from raptor.common.terminal.escaping import escape_unprintable

_GAP = 1


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table with the headings of its columns (`shown`) and of the columns that did not fit (`left_out`)."""

    table: Table
    shown_columns: tuple[str, ...]
    omitted_columns: tuple[str, ...]


def fit_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, expendable: Sequence[str]
) -> FittedTable:
    """Builds a table of at most `width` characters. The first column has names, all others numbers.

    `expendable`: headings of columns that may be omitted, in this order. If that is not enough, names are wrapped.
    """
    widths = {
        head: max([cell_len(head), *(cell_len(escape_unprintable(row[k], keep="")) for row in rows)])
        for k, head in enumerate(heads)
    }
    left_out: list[str] = []
    for head in expendable:
        if sum(widths.values()) + _GAP * (len(widths) - 1) <= width:
            break
        left_out.append(head)
        del widths[head]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(heads[0], overflow="fold")
    for head in widths:
        if head != heads[0]:
            table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell for head, cell in zip(heads, row, strict=True) if head in widths))
    return FittedTable(table, tuple(widths), tuple(left_out))
