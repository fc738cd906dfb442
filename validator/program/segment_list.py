"""Reads the list of segments of a program, without loading the segments."""

from pathlib import Path

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.output.files import SegmentFile, SegmentList


def has_segments(folder: str | Path) -> bool:
    """Checks whether a directory holds a program in segments."""
    return (Path(folder) / files.SEGMENTS).is_file()


def has_rounds(folder: str | Path) -> bool:
    """Checks whether a directory holds a program whose segments take turns on the chip."""
    return has_segments(folder) and (Path(folder) / files.ROUNDS).is_file()


def read_segments(folder: Path) -> SegmentList:
    """Reads `segments.json` only."""
    return file_access.read_json_file(SegmentList, folder, files.SEGMENTS)


def chip_folders(folder: Path) -> list[Path]:
    """Returns the directories of the segments of the chip. Raises `UserError` if one is missing."""
    return [segment_folder(folder, s) for s in read_segments(folder).segments if s.kind == "chip"]


def segment_folder(folder: Path, segment: SegmentFile) -> Path:
    """Returns the directory of a segment of the chip. Raises `UserError` if it is missing or a symbolic link."""
    path = folder / segment.path
    if path.is_symlink() or not path.is_dir():
        raise UserError(f"{path}: missing, or not a directory of this program")
    return path


def require_one_segment(folder: str | Path, what: str) -> None:
    """Raises `UserError` for a program in segments if `what` needs one program; the message names the segments."""
    if has_segments(folder):
        found = chip_folders(Path(folder))
        there = f"one of {', '.join(map(str, found))}" if found else "it has none for the chip"
        raise UserError(f"{folder}: a program in segments, but {what} is of one segment of the chip: {there}")


def describe_host_nodes(listed: SegmentList) -> str:
    """Describes the nodes whose time and energy no figure includes; empty without a host."""
    if not listed.host_nodes:
        return ""
    hosts = sum(s.kind == "host" for s in listed.segments)
    nodes = len(listed.host_nodes)
    return (
        f"{nodes} node{'s' if nodes != 1 else ''} in {hosts} segment{'s' if hosts != 1 else ''} on the host: time and "
        "energy are not modelled, and in no figure"
    )
