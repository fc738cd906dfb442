"""`benchmarks/tables.py`: the tables of the pages are found, and one that differs is told."""

from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import mapping
import pytest
import tables

PAGE = """Text.

<!-- table here -->

| a | b |
|---|---:|
| x | 1 |
| y | 2 |

<!-- end -->

More | text |
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_equal_tables(page: Path, capsys: pytest.CaptureFixture[str]):
    assert tables.compare(tables.Made(page, "here", [("x", "1"), ("y", None)]), write=True) == 0
    assert capsys.readouterr().out == "page.md, here: 2 lines, 0 differ\n"
    assert page.read_text() == PAGE


def test_a_cell_that_differs(page: Path, capsys: pytest.CaptureFixture[str]):
    made = tables.Made(page, "here", [(None, "1"), ("y", "3")])
    assert tables.compare(made, write=False) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["  is     | y | 2 |", "  should | y | 3 |"]
    assert page.read_text() == PAGE
    assert tables.compare(made, write=True) == 1
    assert page.read_text() == PAGE.replace("| y | 2 |", "| y | 3 |")


@pytest.mark.parametrize("rows", [[("x", "1")], [("x", "1"), ("y", "2"), ("z", "3")]])
def test_other_numbers_of_lines(page: Path, rows: list[tuple[str, str]]):
    made = tables.Made(page, "here", rows)
    assert tables.compare(made, write=True) == 1
    assert tables.compare(made, write=False) == 0


def test_a_table_that_is_not_there(page: Path):
    with pytest.raises(SystemExit, match="0 tables there, expected one"):
        tables.compare(tables.Made(page, "there", []), write=False)


@pytest.mark.parametrize(
    ("path", "names"), [(tables.PERFORMANCE, ["rows", "mappings", "streaming"]), (tables.THESIS, ["5.2", "A.3"])]
)
def test_the_pages_have_the_tables(path: Path, names: list[str]):
    for name in names:
        _, lines, _ = tables.parts(path.read_text(), name)
        assert len(lines) >= 6
        assert len({line.count("|") for line in lines}) == 1


def test_figures_of_a_row():
    reference = mapping.Row("vgg16", 144, "raptor", 3148.2, 0.4449, 371.9, 6_421_700, 1, 2, "")
    row = mapping.Row("vgg16", 144, "rows", 10.1, 39.44, 4.466, 545_400, 1, 659.4, "")
    assert tables.usual(row) == ("VGG-16", "10.10", "39.4", "4.47", None)
    assert tables.beside(reference, row) == (
        *("VGG-16", "144", "3148", "10.10", "0.44", "39.4", "659", "372", "4.47", "6422", "545"),
    )


def test_exit_status(page: Path, monkeypatch: pytest.MonkeyPatch):
    def made(_: Executor) -> Iterator[tables.Made]:
        yield tables.Made(page, "here", [("x", "1"), ("y", "3")])

    monkeypatch.setattr(tables, "TABLES", {"small": made})
    statuses: list[int] = []
    for options in ([], ["--write"], []):
        monkeypatch.setattr("sys.argv", ["tables.py", "--jobs", "1", *options])
        statuses.append(tables.main())
    assert statuses == [1, 0, 0]
