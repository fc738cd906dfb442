"""Loads a program in segments. The directory is not trusted: every fault in it is a `UserError`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.output.files import SegmentFile, SegmentList
from validator.load.output_directory import MEMORY_LIMIT_BYTES, check_extra, check_files, load_output
from validator.model.ort_session import create_session
from validator.program.program import CrossbarWriter, LoadedProgram
from validator.program.rounds import check_rounds, read_rounds
from validator.program.segment_list import read_segments, segment_folder

_LARGEST_MODEL = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentedProgram:
    """A loaded program in segments: `programs` of the chip and `sessions` of the host, keyed by segment path."""

    folder: Path
    segments: SegmentList
    programs: Mapping[str, LoadedProgram]
    sessions: Mapping[str, Any]

    def write_to_device(self, write: CrossbarWriter) -> "SegmentedProgram":
        """Returns the program with its matrices in external crossbars, where `write` puts them.

        Segments share the crossbars; rounds use them in turns.
        """
        programs = self.programs.values()
        places = write.write_in_turns([*programs]) if self.has_rounds else [write(program) for program in programs]
        placed = [replace(program, products=place) for program, place in zip(programs, places, strict=True)]
        return replace(self, programs=dict(zip(self.programs, placed, strict=True)))

    @property
    def has_rounds(self) -> bool:
        """True if the segments are rounds, whose weights take turns on the chip."""
        return files.ROUNDS in self.segments.files

    @property
    def core_count(self) -> int:
        return max((program.core_count for program in self.programs.values()), default=0)


def load_segmented(
    path: str | Path, *, check_hashes: bool = True, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> SegmentedProgram:
    """Reads the directory and checks everything that can be checked without running it, like `load`."""
    folder = Path(path)
    listed = read_segments(folder)
    check_files(folder, listed.files, files.SEGMENTS, check_hashes=check_hashes)
    check_extra(folder, "segment_", {segment.path for segment in listed.segments}, f"segment that {files.SEGMENTS}")
    programs: dict[str, LoadedProgram] = {}
    sessions: dict[str, Any] = {}
    for segment in listed.segments:
        if segment.kind == "host":
            check_files(folder, {segment.path: segment.entry}, files.SEGMENTS, check_hashes=check_hashes)
            sessions[segment.path] = _open(folder / segment.path, segment)
        else:
            inside = segment_folder(folder, segment)
            check_files(inside, {files.MANIFEST: segment.entry}, files.SEGMENTS, check_hashes=check_hashes)
            program = load_output(inside, check_hashes=check_hashes, memory_limit_bytes=memory_limit_bytes)
            programs[segment.path] = program
            _check_places(program, segment, listed)
    rounds = read_rounds(folder, listed)
    check_chip_sizes(programs)
    if rounds is None:
        check_disjoint_cores(programs)
    else:
        check_rounds(rounds, programs)
    return SegmentedProgram(folder, listed, programs, sessions)


def _open(path: Path, segment: SegmentFile) -> Any:
    """Opens the model of a host segment. Raises `UserError` if its inputs and outputs are not the listed ones."""
    opened = create_session(file_access.read_bytes(path.parent, path.name, limit_bytes=_LARGEST_MODEL), path)
    found = {i.name for i in opened.get_inputs()}, {o.name for o in opened.get_outputs()}
    _check_names(path, segment, *found)
    return opened


def _check_names(path: Path, segment: SegmentFile, reads: set[str], makes: set[str]) -> None:
    for what, found, wanted in (("input", reads, set(segment.reads)), ("output", makes, set(segment.makes))):
        odd = sorted(found ^ wanted)
        if odd:
            where = files.SEGMENTS if odd[0] in found else path
            raise UserError(f"{path}: {what} {odd[0]!r} is not in {where}")


def _check_places(program: LoadedProgram, segment: SegmentFile, listed: SegmentList) -> None:
    """Raises `UserError` unless a program of the chip has the inputs, outputs and shapes of its segment."""
    places = (*program.memory.inputs, *program.memory.outputs)
    _check_names(program.folder, segment, {p.name for p in program.memory.inputs}, {p.name for p in program.outputs})
    for place in places:
        wanted = listed.find_crossing(place.name).shape
        if place.shape != wanted:
            raise UserError(
                f"{program.folder}: {place.name!r} has shape {list(place.shape)}, {files.SEGMENTS} says {list(wanted)}"
            )


def check_disjoint_cores(programs: Mapping[str, LoadedProgram]) -> None:
    """Raises `UserError` if two segments use the same core: the weights of all must be on the chip at once."""
    users: dict[int, str] = {}
    for path, program in programs.items():
        for core in _used_cores(program):
            if users.setdefault(core, path) != path:
                raise UserError(f"{users[core]} and {path} both use core {core}, but they share one chip")


def check_chip_sizes(programs: Mapping[str, LoadedProgram]) -> None:
    """Raises `UserError` for programs of chips with different numbers of cores."""
    sizes = {path: program.core_count for path, program in programs.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(f"{', '.join(sizes)}: made for chips of different sizes: {sorted(set(sizes.values()))} cores")


def _used_cores(program: LoadedProgram) -> Iterator[int]:
    lengths = np.array([len(stream) for stream in program.streams])
    groups = np.array([len(program.config.group_sizes(core)) for core in range(program.core_count)])
    yield from np.flatnonzero((lengths > 0) | (groups > 0)).tolist()
