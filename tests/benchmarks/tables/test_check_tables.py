"""`benchmarks/tables`: stored tables are compared with what the code makes, and written anew."""

import io
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from benchmarks.programs import mapping_figures
from benchmarks.tables import check_tables, store_tables
from docgen import stored_figures
from docgen.stored_figures import StoredTable

TABLE = StoredTable("`make x`", "2026-01-01", "0000000", "Chip.", ["model", "ms"], [("x", "1"), ("y", "2")])


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_figures, "RESULTS", tmp_path)
    stored_figures.write_table("here", TABLE)


def cells() -> list[list[str]]:
    return [list(row) for row in stored_figures.read_table("here").rows]


def test_equal_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_tables.compare_table(check_tables.MadeTable("here", [("x", "1"), ("y", None)]), write=True) == 0
    assert capsys.readouterr().out == "here: 2 lines, 0 differ\n"
    assert stored_figures.read_table("here").date == TABLE.date


def test_a_cell_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    made = check_tables.MadeTable("here", [(None, "1"), ("y", "3")])
    assert check_tables.compare_table(made, write=False) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["  is     | y | 2 |", "  should | y | 3 |"]
    assert cells() == [["x", "1"], ["y", "2"]]
    assert check_tables.compare_table(made, write=True) == 1
    assert cells() == [["x", "1"], ["y", "3"]]
    found = stored_figures.read_table("here")
    assert (found.made_by, found.conditions) == (TABLE.made_by, TABLE.conditions)
    assert found.date > TABLE.date
    assert found.commit != TABLE.commit


@pytest.mark.parametrize("rows", [[("x", "1")], [("x", "1"), ("y", "2"), ("z", "3")]])
def test_other_numbers_of_lines(rows: list[tuple[str, str]]) -> None:
    made = check_tables.MadeTable("here", rows)
    assert check_tables.compare_table(made, write=True) == 1
    assert check_tables.compare_table(made, write=False) == 0


def test_what_a_benchmark_prints_is_stored(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = "title\n| a | b |\n|---|---:|\n| 1 | 2 us |\n|---|---|\n| 3 | 4 us |\nmore\n\n| c |\n|---|\n| 5 |\n"
    for names, status in ((["here", "-"], 0), (["here"], 1)):
        monkeypatch.setattr("sys.stdin", io.StringIO(printed))
        monkeypatch.setattr("sys.argv", ["store_tables", *names])
        assert store_tables.main() == status
        assert capsys.readouterr().out == printed
    assert (stored_figures.read_table("here").columns, cells()) == (["a", "b"], [["1", "2 us"], ["3", "4 us"]])


def test_figures_of_a_row():
    reference = mapping_figures.MappingRow("vgg16", 144, "raptor", 3148.2, 0.4449, 371.9, 6_421_700, 1, 2, "")
    row = mapping_figures.MappingRow("vgg16", 144, "rows", 10.1, 39.44, 4.466, 545_400, 1, 659.4, "")
    assert check_tables.usual_cells(row) == ("VGG-16", "10.10", "39.4", "4.47", None)
    assert check_tables.readme_cells(row) == (None, "10.10", "39.4", "4.47")
    assert check_tables.compared_cells(reference, row) == (
        *("VGG-16", "144", "3148", "10.10", "0.44", "39.4", "659", "372", "4.47", "6422", "545"),
    )


def test_exit_status(monkeypatch: pytest.MonkeyPatch):
    def made(_: Executor) -> Iterator[check_tables.MadeTable]:
        yield check_tables.MadeTable("here", [("x", "1"), ("y", "3")])

    monkeypatch.setattr(check_tables, "TABLES", {"small": made})
    statuses: list[int] = []
    for options in ([], ["--write"], []):
        monkeypatch.setattr("sys.argv", ["tables.py", "--jobs", "1", *options])
        statuses.append(check_tables.main())
    assert statuses == [1, 0, 0]
