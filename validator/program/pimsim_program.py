"""Reads pimsim-nn programs of any compiler: a directory of streams, or one JSON file, plain or gzipped.

Unlike `load`, it needs only the program (no manifest, no memory map), and accepts what the simulator accepts. Faults
that the simulator refuses, but that can be read, are recorded in `RawProgram.faults`.
"""

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import orjson

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.program_path import check_program_path
from raptor.common.option_spelling import spell_option
from raptor.output import files
from raptor.target import encoding
from raptor.target.isa import RECORD, Records
from validator.program.json_members import split_members

_LIMIT_BYTES = 16 * 2**30
_MAX_CORES = 2**20
_CORE_FILE = re.compile(r"core_([0-9]+)\.(json|pim)")
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, eq=False)
class RawProgram:
    """A program whose instructions are not checked yet. Tuples have one entry for each core.

    `groups`: crossbars of each array group (empty where the map has no entry). `instantiated`: false for a core that a
    single-file program leaves out. `core_files`: names of the files of streams, for messages. `folder` holds the
    program, `source` is the directory or file itself. `faults`: reasons why pimsim-nn refuses to load the program.
    `config`: content of config.json.
    """

    core_cnt: int
    groups: tuple[tuple[int, ...], ...]
    records: tuple[Records, ...]
    instantiated: tuple[bool, ...]
    core_files: tuple[str, ...]
    folder: Path
    source: Path
    faults: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def instruction_count(self) -> int:
        return sum(map(len, self.records))


def read_program(path: str | Path, texts: Mapping[str, msgspec.Raw] | None = None) -> RawProgram:
    """Reads a directory or a single-file program. Raises `UserError` if it cannot be read at all.

    `texts`: members of a single file, if `read_texts` has read them already.
    """
    source = Path(path)
    check_program_path(source)
    return _read_directory(source) if source.is_dir() else _read_file(source, texts or read_texts(source))


def refuse_other_machine(folder: Path) -> None:
    """Raises `UserError` for an output directory of another machine, which has no instruction streams."""
    if (folder / files.CONFIG).is_file() or not (folder / files.MANIFEST).is_file():
        return
    name = file_access.read_json_file(files.OutputManifest, folder, files.MANIFEST).backend
    if name is not None:
        raise UserError(
            f"{folder}: made with {spell_option('backend', name)}, so it has no instruction streams; raptor validate "
            "and raptor run execute it"
        )


def _read_directory(folder: Path) -> RawProgram:
    refuse_other_machine(folder)
    content = file_access.read_bytes(folder, files.CONFIG, limit_bytes=2**30)
    config = _object(_parse(content, folder / files.CONFIG), folder / files.CONFIG)
    count = _core_count(config, folder / files.CONFIG)
    names, faults = _core_files(folder, count)
    groups, more = _groups(config, count, range(count))
    missing = [core for core in range(count) if core not in names]
    faults += [f"core_{core}.json or core_{core}.pim is missing" for core in missing[:4]]
    return RawProgram(
        core_cnt=count,
        groups=groups,
        records=tuple(_read_core(folder, names.get(core)) for core in range(count)),
        instantiated=(True,) * count,
        core_files=tuple(names.get(core, "") for core in range(count)),
        folder=folder,
        source=folder,
        faults=(*faults, *more),
        config=config,
    )


def _core_files(folder: Path, count: int) -> tuple[dict[int, str], list[str]]:
    """Returns the stream file of each core (.pim before .json, else the first by name, as in the simulator)."""
    names: dict[int, str] = {}
    faults: list[str] = []
    for name in sorted(p.name for p in folder.iterdir() if p.name.startswith("core_") and p.is_file()):
        match = _CORE_FILE.fullmatch(name)
        core = int(match[1]) if match else -1
        if not 0 <= core < count:
            faults.append(f"{name}: not core_<id>.json or core_<id>.pim of a core from 0 to {count - 1}")
        elif core not in names or name.endswith(".pim"):
            names[core] = name
    return names, faults


def _read_core(folder: Path, name: str | None) -> Records:
    if name is None:
        return np.zeros(0, RECORD)
    content = file_access.read_bytes(folder, name, limit_bytes=_LIMIT_BYTES)
    read = encoding.decode_pim if name.endswith(".pim") else encoding.decode_json
    try:
        return read(content, lenient=True)
    except UserError as e:
        raise UserError(f"{folder / name}: {e}") from e


def read_texts(path: Path) -> Mapping[str, msgspec.Raw]:
    """Returns the members of a single-file program, not decoded. The file may be gzipped."""
    check_program_path(path)
    content = _read_content(path)
    texts = split_members(content)
    if not texts:
        _object(_parse(content, path), path)
    return texts


def _read_content(path: Path) -> bytes:
    content = file_access.read_bytes(path.parent, path.name, limit_bytes=_LIMIT_BYTES)
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as e:
        raise UserError(f"{path}: not a gzip file: {e}") from e


def _read_file(path: Path, texts: Mapping[str, msgspec.Raw]) -> RawProgram:
    config = _object(_member(texts, "config", path), path, "config")
    count = _core_count(config, path)
    present = [core for core in range(count) if f"core{core}" in texts]
    if not present:
        raise UserError(f"{path}: no streams core0 to core{count - 1}")
    groups, faults = _groups(config, count, present)
    return RawProgram(
        core_cnt=count,
        groups=groups,
        records=tuple(_member_core(texts, core, path) for core in range(count)),
        instantiated=tuple(f"core{core}" in texts for core in range(count)),
        core_files=(path.name,) * count,
        folder=path.parent,
        source=path,
        faults=tuple(faults),
        config=config,
    )


def _member(texts: Mapping[str, msgspec.Raw], name: str, path: Path) -> object:
    return _parse(bytes(texts[name]), path) if name in texts else None


def _member_core(texts: Mapping[str, msgspec.Raw], core: int, path: Path) -> Records:
    text = texts.get(f"core{core}")
    if text is None:
        return np.zeros(0, RECORD)
    try:
        return encoding.decode_json(bytes(text), lenient=True)
    except UserError as e:
        raise UserError(f"{path}: core{core}: {e}") from e


def _parse(content: bytes, path: Path) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as e:
        raise UserError(f"{path}: not a JSON file: {e}") from e


def _object(value: object, path: Path, what: str = "the file") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: {what} should be an object")
    return cast(dict[str, Any], value)


def _core_count(config: Mapping[str, Any], path: Path) -> int:
    count = config.get("core_cnt")
    if not isinstance(count, int) or not 1 <= count <= _MAX_CORES:
        raise UserError(f"{path}: core_cnt should be a number from 1 to {_MAX_CORES}, found {count!r:.40}")
    return count


def _groups(
    config: Mapping[str, Any], count: int, present: Iterable[int]
) -> tuple[tuple[tuple[int, ...], ...], list[str]]:
    """Returns the crossbar counts of each core's groups, and the faults of the map."""
    raw = config.get("array_group_map")
    entries = cast(dict[str, object], raw) if isinstance(raw, dict) else {}
    faults: list[str] = [] if isinstance(raw, dict) else ["array_group_map is missing or not an object"]
    groups: list[tuple[int, ...]] = [()] * count
    for core in present:
        entry = entries.get(f"core{core}")
        counts = cast(list[object], entry) if isinstance(entry, list) else []
        good = tuple(n for n in counts if isinstance(n, int) and 0 < n < 2**31)
        if entries and (not isinstance(entry, list) or len(good) != len(counts)):
            faults.append(f"array_group_map.core{core}: expected a list of crossbar counts")
        groups[core] = good if len(good) == len(counts) else ()
    return tuple(groups), faults
