"""Tables of `raptor.common.terminal.table_width`: a name is whole as long as there is a column to leave out."""

import io

import pytest

from raptor.common.terminal.console import LiteralConsole
from raptor.common.terminal.table_width import fit_table

HEADS = ("layer", "cores", "smaller", "larger")
ROWS = [("fire2.squeeze", "12", "5: 25.7 us", "7: 13.6 us"), ("conv1", "1", "none", "-")]
EXPENDABLE = ("larger", "smaller")


def shown(width: int) -> tuple[list[str], tuple[str, ...]]:
    fitted = fit_table(HEADS, ROWS, width, EXPENDABLE)
    console = LiteralConsole()
    console.file, console.width = io.StringIO(), width
    console.print(fitted.table)
    return console.file.getvalue().splitlines(), fitted.omitted_columns


@pytest.mark.parametrize(
    ("width", "left_out"), [(41, ()), (40, ("larger",)), (30, ("larger",)), (29, EXPENDABLE), (19, EXPENDABLE)]
)
def test_columns_are_left_out_before_a_name_is_broken(width: int, left_out: tuple[str, ...]) -> None:
    lines, found = shown(width)
    assert found == left_out
    assert len(lines) == 1 + len(ROWS)
    assert lines[1].startswith("fire2.squeeze")
    assert all(len(line) <= width for line in lines)
    assert ("7: 13.6 us" in lines[1]) == (not left_out)


def test_a_name_that_fits_nowhere_is_folded() -> None:
    lines, _ = shown(12)
    assert "".join(line[:7].strip() for line in lines[1:3]) in "fire2.squeeze"
