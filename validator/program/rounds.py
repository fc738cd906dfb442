"""Rounds of a program: segments whose weights take turns on the chip. Checks the contents of `rounds.json`.

The validator knows no decision of the compiler: it tracks the content of every crossbar, and finds a matrix that is
needed but was not written.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.output.files import GroupWrite, SegmentList
from raptor.output.round_files import RoundEntry, RoundList
from raptor.target.device_file import DeviceFile
from validator.program.program import LoadedProgram

_Held = dict[tuple[int, int], tuple[str, int]]
"""Content of each crossbar, keyed by core and number: the digest of a matrix, and the number of its part."""


def read_rounds(folder: Path, listed: SegmentList) -> RoundList | None:
    """Reads `rounds.json`; None if there are no rounds. Raises `UserError` if it names other segments."""
    if files.ROUNDS not in listed.files:
        return None
    rounds = file_access.read_json_file(RoundList, folder, files.ROUNDS)
    chips, named = [s.path for s in listed.segments if s.kind == "chip"], [one.path for one in rounds.rounds]
    if chips != named:
        raise UserError(f"{folder / files.ROUNDS}: rounds {', '.join(named)}, but the segments are {', '.join(chips)}")
    return rounds


def read_device(folder: Path) -> DeviceFile:
    """Reads the device file of the crossbars that are written."""
    return file_access.read_json_file(DeviceFile, folder, files.DEVICE)


def check_rounds(rounds: RoundList, programs: Mapping[str, LoadedProgram]) -> None:
    """Raises `UserError` unless every crossbar holds the matrix that its program uses, from the second batch on.

    In the first batch every matrix is written.
    """
    held: _Held = {}
    groups = {one.path: list(iterate_groups(programs[one.path])) for one in rounds.rounds}
    for found in groups.values():
        held.update(item for group in found for item in group.list_crossbars())
    for one in rounds.rounds:
        needed = {(g.core, g.group): g for g in groups[one.path]}
        for write in one.writes:
            if not _is_same(needed.get((write.core, write.group)), write):
                raise _fault(one, write, "is not that of the program")
            held.update(write.list_crossbars())
        for group in needed.values():
            if any(held.get(xbar) != content for xbar, content in group.list_crossbars()):
                raise _fault(one, group, "is neither written nor left from an earlier round")


def iterate_groups(program: LoadedProgram) -> Iterator[GroupWrite]:
    """Yields the array groups of a program; their `cells` are numbers of weights."""
    for core in range(program.core_count):
        matrices = (program.weights.matrix(core, group) for group in range(len(program.config.group_sizes(core))))
        yield from program.config.list_group_writes(core, matrices, lambda matrix: matrix.size)


def _is_same(found: GroupWrite | None, write: GroupWrite) -> bool:
    return found is not None and found == write.model_copy(update={"cells": found.cells})


def _fault(one: RoundEntry, group: GroupWrite, what: str) -> UserError:
    return UserError(f"{files.ROUNDS}: {one.path}: the matrix of core {group.core}, group {group.group}, {what}")
