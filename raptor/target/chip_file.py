"""The chip file: the defects of one chip, as a tester found them: stuck cells, dead lines, crossbars, cores and links.

The architecture file describes a kind of chip, the device file its cells, a chip file one chip of this kind. Numbers of
crossbars, rows and columns count what is physically there, so spares come after the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.schema_types import JsonArray, JsonPair, StrictSchema
from raptor.common.options.arguments import parse_path
from raptor.target.mesh_routes import CutRoutes

LIMIT_BYTES = 2**28
_MOST_CELLS = 2**40
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Spare = Annotated[int, Field(ge=0, le=2**20)]
CellStates = npt.NDArray[np.uint8]
"""States of the cells of an array, [rows, columns], as numbers of `CellState`."""
CellNumbers = npt.NDArray[np.int64]


class CellState(IntEnum):
    """State of a cell. A cell on a dead line adds nothing to any sum."""

    FREE = 0
    OFF = 1
    ON = 2
    DEAD = 3


class ChipSize(StrictSchema):
    """Numbers of physical parts. A crossbar has `arrays` arrays of cells: two if pairs of cells are subtracted."""

    cores: Size
    crossbars: Size = Field(description="crossbars of a core, without spares")
    rows: Size
    columns: Size = Field(description="columns of cells of an array, without spares")
    arrays: Annotated[int, Field(ge=1, le=2)] = Field(1, description="2: pairs of cells, whose currents are subtracted")
    converters: Spare = Field(0, description="ADCs of an array, each for neighbouring columns; 0: not known")
    cell_bits: Annotated[int, Field(ge=1, le=32)] | None = Field(None, description="bits of a cell; null: not known")
    mesh_columns: Spare = Field(0, description="cores in a row of the mesh; 0: not known, or no mesh")
    spare_crossbars: Spare = Field(0, description="more crossbars of a core; each can stand in for any of the core")
    spare_columns: Spare = Field(0, description="more columns of an array; each can stand in for any of the array")

    @property
    def all_crossbars(self) -> int:
        """Crossbars of a core, with spares."""
        return self.crossbars + self.spare_crossbars

    @property
    def all_columns(self) -> int:
        """Columns of cells of an array, with spares."""
        return self.columns + self.spare_columns

    @property
    def mesh_places(self) -> int:
        """Places of the mesh; the last row may have more of them than cores."""
        return -(-self.cores // self.mesh_columns) * self.mesh_columns if self.mesh_columns else 0

    def list_links(self) -> list[tuple[int, int]]:
        """Returns the pairs of cores that are neighbours in the mesh, in ascending order; none without a mesh."""
        columns = self.mesh_columns
        if not columns:
            return []
        steps = ((core, step) for core in range(self.cores) for step in sorted({1, columns}))
        return [
            (core, core + step)
            for core, step in steps
            if core + step < self.cores and (step == columns or (core + 1) % columns)
        ]

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        cells = self.cores * self.all_crossbars * self.arrays * self.rows * self.all_columns
        if cells > _MOST_CELLS:
            raise ValueError(f"{cells} cells; at most {_MOST_CELLS}")
        if self.converters and self.columns % self.converters:
            raise ValueError(f"{self.columns} columns cannot be shared evenly by {self.converters} converters")
        return self


class ArrayDefects(StrictSchema):
    """Defects of one array of cells. A number in a list appears once, the lists are in ascending order."""

    core: Index
    crossbar: Index
    array: Annotated[int, Field(ge=0, le=1)] = Field(0, description="1: the cells that are subtracted")
    rows: JsonArray[Index] = Field((), description="dead rows")
    columns: JsonArray[Index] = Field((), description="dead columns")
    converters: JsonArray[Index] = Field((), description="dead ADCs: all their columns are dead")
    off: JsonArray[Index] = Field((), description="cells stuck at off: row x (columns + spare_columns) + column")
    on: JsonArray[Index] = Field((), description="cells stuck at on, numbered in the same way")

    @property
    def place(self) -> tuple[int, int, int]:
        return self.core, self.crossbar, self.array


class ChipFile(StrictSchema):
    """A chip and its defects. Everything that is not listed works."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    source: Annotated[str, Field(min_length=1, max_length=2000)] = Field(description="who measured what, and how")
    size: ChipSize
    dead_cores: JsonArray[Index] = ()
    dead_crossbars: JsonArray[JsonPair[Index, Index]] = Field((), description="pairs: core and crossbar")
    dead_links: JsonArray[JsonPair[Index, Index]] = Field(
        (), description="pairs of neighbours in the mesh, the smaller number first; neither direction works"
    )
    arrays: JsonArray[ArrayDefects] = Field((), description="by core, crossbar and array; those without defects not")

    @model_validator(mode="after")
    def _places_exist(self) -> Self:
        size = self.size
        _check_list("dead_cores", self.dead_cores, size.cores)
        for core, crossbar in self.dead_crossbars:
            _check_place("dead_crossbars", core, crossbar, size)
        if not _ascend(self.dead_crossbars):
            raise ValueError("dead_crossbars: not in ascending order, or one appears twice")
        _check_links(self.dead_links, size)
        if not _ascend([found.place for found in self.arrays]):
            raise ValueError("arrays: not in ascending order of core, crossbar and array, or one appears twice")
        for found in self.arrays:
            _check_array(found, size)
        return self


def _ascend(found: Sequence[tuple[int, ...]]) -> bool:
    return all(a < b for a, b in pairwise(found))


def _check_place(what: str, core: int, crossbar: int, size: ChipSize) -> None:
    if core >= size.cores or crossbar >= size.all_crossbars:
        raise ValueError(
            f"{what}: core {core}, crossbar {crossbar}: there are {size.cores} cores of {size.all_crossbars} crossbars"
        )


def _check_links(links: Sequence[tuple[int, int]], size: ChipSize) -> None:
    if links and not size.mesh_columns:
        raise ValueError("dead_links: the size has no mesh_columns, the number of cores in a row of the mesh")
    for first, second in links:
        in_row = second == first + 1 and second % size.mesh_columns
        if second >= size.mesh_places or not (in_row or second == first + size.mesh_columns):
            raise ValueError(
                f"dead_links: {first} and {second} are no neighbours in a mesh of {size.cores} cores in rows of "
                f"{size.mesh_columns}, the smaller number first"
            )
    if not _ascend(links):
        raise ValueError("dead_links: not in ascending order, or one appears twice")


def _check_list(what: str, numbers: Sequence[int], count: int) -> None:
    if not numbers:  # most lists of a chip: a large one has a hundred thousand
        return
    held = np.array(numbers, np.int64)
    if held.max() >= count:
        raise ValueError(f"{what}: {int(held.max())} of {count}")
    if (held[1:] <= held[:-1]).any():
        raise ValueError(f"{what}: not in ascending order, or a number appears twice")


def _check_array(found: ArrayDefects, size: ChipSize) -> None:
    what = f"core {found.core}, crossbar {found.crossbar}, array {found.array}"
    _check_place("arrays", found.core, found.crossbar, size)
    if found.array >= size.arrays:
        raise ValueError(f"{what}: a crossbar has {size.arrays} array")
    cells = size.rows * size.all_columns
    lists = {
        "rows": (found.rows, size.rows),
        "columns": (found.columns, size.all_columns),
        "converters": (found.converters, size.converters),
        "off": (found.off, cells),
        "on": (found.on, cells),
    }
    for name, (numbers, count) in lists.items():
        _check_list(f"{what}: {name}", numbers, count)
    both = np.intersect1d(np.array(found.off, np.int64), np.array(found.on, np.int64), assume_unique=True)
    if len(both):
        raise ValueError(f"{what}: cell {both[0]} is stuck at off and at on")


@dataclass(frozen=True, eq=False)
class Chip:
    """A chip file in memory. `digest`: SHA-256 of the file as RAPTOR writes it."""

    file: ChipFile
    digest: str

    @property
    def size(self) -> ChipSize:
        return self.file.size

    @cached_property
    def dead_cores(self) -> frozenset[int]:
        return frozenset(self.file.dead_cores)

    @cached_property
    def cut_routes(self) -> CutRoutes | None:
        """The routes on the mesh that dead links cut; None without dead links."""
        links, size = self.file.dead_links, self.size
        return CutRoutes.from_links(links, size.mesh_places, size.mesh_columns) if links else None

    @cached_property
    def _dead_crossbars(self) -> frozenset[tuple[int, int]]:
        return frozenset((core, crossbar) for core, crossbar in self.file.dead_crossbars)

    @cached_property
    def _defects(self) -> dict[tuple[int, int, int], ArrayDefects]:
        return {found.place: found for found in self.file.arrays}

    def list_crossbars(self, core: int) -> list[int]:
        """Returns the crossbars of a core that are not dead, spares last; none of a dead core."""
        if core in self.dead_cores:
            return []
        return [k for k in range(self.size.all_crossbars) if (core, k) not in self._dead_crossbars]

    def count_whole_crossbars(self, core: int) -> int:
        """Returns the number of crossbars of a core without dead lines that no spare replaces, at most the usual."""
        whole = sum(self._is_whole(core, crossbar) for crossbar in self.list_crossbars(core))
        return min(whole, self.size.crossbars)

    def _is_whole(self, core: int, crossbar: int) -> bool:
        size = self.size
        return all(self.has_whole_lines(core, crossbar, array, size.rows, size.columns) for array in range(size.arrays))

    def has_whole_lines(self, core: int, crossbar: int, array: int, rows: int, columns: int) -> bool:
        """Checks that none of the first rows of an array is dead, and that spares replace all its dead columns."""
        found = self._defects.get((core, crossbar, array))
        if found is None:
            return True
        dead = self._dead_columns(found)
        spares = self.size.spare_columns - sum(column >= self.size.columns for column in dead)
        return not any(row < rows for row in found.rows) and sum(column < columns for column in dead) <= spares

    def _dead_columns(self, found: ArrayDefects) -> list[int]:
        """Returns the columns of an array that are dead, or have a dead converter."""
        width = self.size.columns // self.size.converters if self.size.converters else 0
        behind = (k for converter in found.converters for k in range(converter * width, (converter + 1) * width))
        return sorted({*found.columns, *behind})

    def read_states(self, core: int, crossbar: int, array: int) -> CellStates:
        """Returns the state of each cell of an array, [rows, columns + spare columns]."""
        size = self.size
        states = np.zeros((size.rows, size.all_columns), np.uint8)
        found = self._defects.get((core, crossbar, array))
        if found is None:
            return states
        for cells, state in zip(self._number_cells(found), (CellState.OFF, CellState.ON), strict=True):
            states.ravel()[cells] = state
        if found.rows:
            states[np.array(found.rows, np.int64)] = CellState.DEAD
        dead = self._dead_columns(found)
        if dead:
            states[:, np.array(dead, np.int64)] = CellState.DEAD
        return states

    def _number_cells(self, found: ArrayDefects) -> tuple[CellNumbers, CellNumbers]:
        """Returns the cells of an array that are stuck at off and at on; lists of integers are converted once."""
        if found.place not in self._stuck:
            self._stuck[found.place] = np.array(found.off, np.int64), np.array(found.on, np.int64)
        return self._stuck[found.place]

    @cached_property
    def _stuck(self) -> dict[tuple[int, int, int], tuple[CellNumbers, CellNumbers]]:
        return {}


def chip_to_json(file: ChipFile) -> bytes:
    """Returns the content of a chip file. Defaults are left out, and a file may have millions of cells: no indents."""
    return file.model_dump_json(exclude_defaults=True).encode() + b"\n"


def make_chip(file: ChipFile) -> Chip:
    """Returns the chip that a file describes."""
    return Chip(file, sha256(chip_to_json(file)).hexdigest())


def load_chip_file(source: str | Path) -> Chip:
    """Reads a chip file. Raises `UserError` that names the file and the field at fault."""
    file = parse_path("chip", source)
    if not file.is_file():
        raise UserError(f"chip {file}: no such file; raptor arch defects writes one")
    return read_chip_file(file.parent, file.name)


def read_chip_file(folder: Path, name: str) -> Chip:
    """Reads a chip file of a folder. The chip that was read last is kept: parsing millions of cells takes seconds."""
    content = file_access.read_bytes(folder, name, limit_bytes=LIMIT_BYTES)
    chip = _last_read.get(content)
    if chip is None:
        chip = make_chip(file_access.parse_json_file(ChipFile, content, folder / name))
        _last_read.clear()
        _last_read[content] = chip
    return chip


_last_read: dict[bytes, Chip] = {}
"""Cache of one parsed chip file, the latest: content of the file -> chip."""
