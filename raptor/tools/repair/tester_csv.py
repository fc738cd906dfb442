"""Reads the defects that a tester lists line by line, as CSV."""

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.schema_types import format_errors
from raptor.target.chip_file import LIMIT_BYTES, ArrayDefects, ChipFile, ChipSize

COLUMNS = ("core", "crossbar", "array", "row", "column", "converter", "link", "defect")
"""Columns of the file. Only `core` and `defect` must be there; a column that is missing counts as empty."""
_PLACES = COLUMNS[:-1]
_MOST_NUMBER = 2**31 - 1
_Lists = defaultdict[str, set[int]]


def read_tester_csv(path: Path, size: ChipSize, name: str) -> ChipFile:
    """Returns the chip of a tester's file. Raises `UserError` with the line and the column at fault.

    A line names a core, and as much of crossbar, array, row, column and converter as the defect has: `off` or `on` for
    a cell, `dead` for a core, a crossbar, a row, a column, a converter, or the link to the core `link`, a neighbour in
    the mesh. Repeated lines count once.
    """
    content = file_access.read_bytes(path.parent, path.name, limit_bytes=LIMIT_BYTES)
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: not a text in UTF-8: byte {e.start}") from None
    cores, crossbars, links = set[int](), set[tuple[int, int]](), set[tuple[int, int]]()
    lists: defaultdict[tuple[int, int, int], _Lists] = defaultdict(lambda: defaultdict(set))
    for where, place, defect in _read_lines(path, lines):
        _add(where, place, defect, size, (cores, crossbars, links), lists)
    try:
        return ChipFile(
            version=1,
            name=name,
            source=f"read from {path.name}",
            size=size,
            dead_cores=tuple(sorted(cores)),
            dead_crossbars=tuple(sorted(crossbars)),
            dead_links=tuple(sorted(links)),
            arrays=tuple(_array(spot, found) for spot, found in sorted(lists.items())),
        )
    except ValidationError as e:
        raise UserError(f"{path}: {'; '.join(format_errors(e, 5))}") from e


def _array(place: tuple[int, int, int], found: _Lists) -> ArrayDefects:
    core, crossbar, array = place
    lists = {name: tuple(sorted(numbers)) for name, numbers in found.items()}
    return ArrayDefects(core=core, crossbar=crossbar, array=array, **lists)


def _read_lines(path: Path, lines: list[str]) -> Iterator[tuple[str, dict[str, int], str]]:
    """Yields, for each line, its name in messages, the numbers that it gives, and its defect."""
    rows = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(rows, list[str]())]
        _check_header(path, header)
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(f"{where}: {len(row)} values, the first line has {len(header)} columns")
            entries = {key: text.strip() for key, text in zip(header, row, strict=True)}
            yield where, dict(_numbers(where, entries)), entries["defect"]
    except csv.Error as e:
        raise UserError(f"{path}, line {rows.line_num}: {e}") from None


def _check_header(path: Path, header: list[str]) -> None:
    odd = [name for name in header if name not in COLUMNS]
    missing = [name for name in ("core", "defect") if name not in header]
    if odd or missing or len(set(header)) != len(header):
        fault = f"no column {missing[0]}" if missing else f"column {odd[0]!r:.40}" if odd else "a column appears twice"
        raise UserError(f"{path}, line 1: {fault}; the columns are {', '.join(COLUMNS)}")


def _numbers(where: str, entries: dict[str, str]) -> Iterator[tuple[str, int]]:
    for key in _PLACES:
        text = entries.get(key, "")
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MOST_NUMBER):
            raise UserError(f"{where}: {key} {text!r:.40}: expected a whole number from 0")
        yield key, int(text)


def _add(
    where: str,
    place: dict[str, int],
    defect: str,
    size: ChipSize,
    whole: tuple[set[int], set[tuple[int, int]], set[tuple[int, int]]],
    lists: defaultdict[tuple[int, int, int], _Lists],
) -> None:
    """Adds the defect of a line. Raises `UserError` for a defect or a place that there is not.

    `whole`: dead cores, dead crossbars and dead links.
    """
    limits = (size.cores, size.all_crossbars, size.arrays, size.rows, size.all_columns, size.converters, size.cores)
    cores, crossbars, links = whole
    for (key, number), count in zip(place.items(), (limits[_PLACES.index(key)] for key in place), strict=True):
        if number >= count:
            raise UserError(f"{where}: {key} {number}, but there are {count}")
    given = frozenset(place) - {"array"}
    kind = _KINDS.get((given, defect))
    if kind is None or (given <= {"core", "crossbar"} and "array" in place):
        raise UserError(
            f"{where}: defect {defect!r:.40} of {', '.join(place) or 'nothing'}: expected off or on with core, "
            "crossbar, row and column, or dead with core; core and link; core and crossbar; or these and row, column "
            "or converter"
        )
    if kind == "core":
        cores.add(place["core"])
    elif kind == "link":
        links.add((min(place["core"], place["link"]), max(place["core"], place["link"])))
    elif kind == "crossbar":
        crossbars.add((place["core"], place["crossbar"]))
    else:
        number = place["row"] * size.all_columns + place["column"] if kind in ("off", "on") else place[kind]
        lists[place["core"], place["crossbar"], place.get("array", 0)][
            kind if kind in ("off", "on") else f"{kind}s"
        ].add(number)


_KINDS = {
    (frozenset({"core"}), "dead"): "core",
    (frozenset({"core", "link"}), "dead"): "link",
    (frozenset({"core", "crossbar"}), "dead"): "crossbar",
    **{(frozenset({"core", "crossbar", line}), "dead"): line for line in ("row", "column", "converter")},
    **{(frozenset({"core", "crossbar", "row", "column"}), state): state for state in ("off", "on")},
}
"""Kind of defect of a line, keyed by the places that it gives (without `array`) and its defect."""
