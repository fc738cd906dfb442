"""Bounds on the row numbers that `sld` reads: each selects a part of a table that memory.json declares.

An address is affine in its number. So if the smallest and the largest number of a table's rows reach bytes of that
table alone, all numbers between do.
"""

from collections.abc import Sequence

import numpy as np

from raptor.common.files import file_access
from raptor.output import files
from raptor.output.files import StepTable, TablePlace
from raptor.target import isa
from raptor.target.computed_loads import ComputedLoadError, find_computed_loads
from raptor.target.isa import OPCODE, Records
from validator.errors import ProgramError
from validator.program.coding import element_bytes
from validator.program.program import Indices, LoadedProgram

_WORD_BITS = 32
NOT_DECLARED = "it loads from a computed address, and no table of memory.json has its rows there"


def find_row_counts(records: Records, tables: Sequence[TablePlace]) -> Indices:
    """Returns for each `sld` of a stream, in order, how many numbers it may read, from 0: the rows of a table.

    Raises `ComputedLoadError` if a number in the range loads other bytes than those of one declared table.
    """
    found = find_computed_loads(records)
    rows = np.zeros(len(found.load), np.int64)
    for table in tables:
        # `ld` takes the sum as the low word of its address, so the sum must not leave the 4 GiB of the high word.
        last = found.base + found.stride * (table.rows - 1)
        low, high = np.minimum(found.base, last), np.maximum(found.base, last)
        inside = (low >= table.address) & (high + found.size <= table.address + table.rows * table.stride)
        inside &= (low >> _WORD_BITS == found.base >> _WORD_BITS) & (high >> _WORD_BITS == found.base >> _WORD_BITS)
        rows[inside] = np.maximum(rows[inside], table.rows)
    if not rows.all():
        raise ComputedLoadError(int(found.load[np.argmin(rows)]), NOT_DECLARED)
    counts = np.full(len(records), np.iinfo(np.int64).max)
    np.minimum.at(counts, found.read, rows)
    return counts[records["opcode"] == OPCODE["sld"]]


def find_all_row_counts(program: LoadedProgram) -> tuple[Indices, Indices]:
    """Returns the `find_row_counts` of all cores, one after another, and the index of the first entry of each core.

    A program without tables has no `sld`, unless it was not checked: then every number that a register holds is
    allowed. After the last entry there is a 0, so that an unexpected `sld` finds no row.
    """
    tables = program.memory.tables
    counts = [find_row_counts(records, tables) if tables else _unbounded(records) for records in program.streams]
    first = np.cumsum([0, *map(len, counts)], dtype=np.int64)[:-1]
    return np.concatenate([*counts, np.zeros(1, np.int64)]), first


def _unbounded(records: Records) -> Indices:
    return np.full(np.count_nonzero(records["opcode"] == OPCODE["sld"]), 2**31)


def describe_token(program: LoadedProgram, core: int, pc: int, address: int) -> str:
    """Returns the ONNX node and the token that an `sld` is for, as the beginning of a message; empty if unknown.

    address: global address of the id. Tokens are counted from 0, in the order of the ids; computed ids of which several
    cores read some have no number. Without steps.json, the node is not known.
    """
    if files.STEPS not in program.manifest.files:
        return ""
    steps = file_access.read_json_file(StepTable, program.folder, files.STEPS)
    mine = next((found for found in steps.cores if found.core == core), None)
    if mine is None or pc >= max(mine.ends, default=0):
        return ""
    found = find_computed_loads(program.streams[core])
    nodes = np.array(mine.nodes)[np.searchsorted(mine.ends, found.read, side="right")]
    (at,) = np.flatnonzero(found.read == pc)[:1]
    token = _input_element(program, address)
    if token is None and not any(nodes[at] in other.nodes for other in steps.cores if other.core != core):
        same = (nodes == nodes[at]) & (found.base == found.base[at])
        token = int(same[:at].sum())
    return f"{steps.nodes[nodes[at]]}{'' if token is None else f', token {token}'}: "


def _input_element(program: LoadedProgram, address: int) -> int | None:
    """Returns the number, in C order, of the element of an input at a global address; None for other addresses."""
    for place in program.memory.inputs:
        each = element_bytes(place.coding, program.memory.element_bytes)
        for tile in place.tiles:
            offset = (address - tile.address) // each
            if 0 <= offset < tile.region.elements(place.image):
                numbers = place.image.to_pixels(np.arange(place.image.elements))
                return int(numbers[tile.region.index()].ravel()[offset])
    return None


def check_lookups(core: int, records: Records, tables: Sequence[TablePlace]) -> None:
    """Raises `ProgramError` for an `sld` whose number does not select a row of a declared table."""
    try:
        find_row_counts(records, tables)
    except ComputedLoadError as e:
        raise ProgramError(core, e.pc, isa.format_record(records[e.pc]), e.reason) from None
