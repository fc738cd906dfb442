"""Writes a program for other cores of its chip: what each core does stays, only numbers of cores change.

So one compilation serves chips whose dead cores and links differ. Streams keep every instruction; those that name a
partner get its new number.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from raptor.common.files import file_access
from raptor.output import files, writer
from raptor.target.message_partners import Stream, encode_stream, renumber_stream

_OF_CORE = re.compile(r"(?P<folder>(?:[a-z]+/)?)core_(?P<core>\d+)(?P<rest>(?:_weights)?\.(?:json|npz|pim))")
"""Names of the files of a core: streams, also of auxiliary programs, and weights."""
_LIMIT_BYTES = 16 * 2**30


def write_moved(
    source: Path,
    manifest: files.OutputManifest,
    cores: Sequence[int],
    places: Sequence[int] | None,
    folder: Path,
    streams: Sequence[Stream] = (),
) -> Path:
    """Writes a copy of an output directory in which core k is `cores[k]`, a permutation. Returns the new folder.

    `places`: the placement of the mapping for these cores; None: to be decided anew. `streams`: those of the copy, if
    they are known; without them, those of the directory are decoded. Raises `UserError` if files cannot be read or
    written.
    """
    entries: dict[str, files.FileEntry] = {}
    with writer.replace_folder(folder, force=False) as temporary:
        for name in manifest.files:
            content = file_access.read_bytes(source, name, limit_bytes=_LIMIT_BYTES)
            moved, content = _move_file(name, content, cores, places, streams)
            (temporary / moved).parent.mkdir(exist_ok=True)
            (temporary / moved).write_bytes(content)
            entries[moved] = files.FileEntry(size_bytes=len(content), sha256=sha256(content).hexdigest())
        changed = manifest.model_copy(update={"files": dict(sorted(entries.items()))})
        (temporary / files.MANIFEST).write_bytes(file_access.model_to_json(changed))
    return folder


def _move_file(
    name: str, content: bytes, cores: Sequence[int], places: Sequence[int] | None, streams: Sequence[Stream]
) -> tuple[str, bytes]:
    """Returns the new name and content of a file."""
    found = _OF_CORE.fullmatch(name)
    if found is not None:
        core, is_binary = cores[int(found["core"])], found["rest"] == ".pim"
        if streams and not found["folder"]:
            content = encode_stream(streams[core], binary=is_binary)
        elif not found["rest"].startswith("_weights"):
            content = renumber_stream(content, cores, binary=is_binary)
        return f"{found['folder']}core_{core}{found['rest']}", content
    if name == files.MAPPING:
        mapping = json.loads(content)
        mapping["decision"]["placement"] = None if places is None else {"places": list(places)}
        return name, f"{json.dumps(mapping, indent=1)}\n".encode()
    if name in _CHANGES:
        table = orjson.loads(content)
        _CHANGES[name](table, cores)
        return name, orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n"
    return name, content


# Each function changes the table of a file in place.


def _move_config(table: dict[str, Any], cores: Sequence[int]) -> None:
    groups = table["array_group_map"]
    moved = {f"core{cores[core]}": groups[f"core{core}"] for core in range(len(cores))}
    table["array_group_map"] = {f"core{core}": moved[f"core{core}"] for core in range(len(cores))}


def _move_memory(table: dict[str, Any], cores: Sequence[int]) -> None:
    used = dict(zip(cores, table["local_bytes"], strict=True))
    table["local_bytes"] = [used[core] for core in range(len(cores))]


def _move_layers(table: dict[str, Any], cores: Sequence[int]) -> None:
    for probe in table["probes"]:
        _move_entries(probe["tiles"], cores)


def _move_trim(table: dict[str, Any], cores: Sequence[int]) -> None:
    for layer in table["layers"]:
        _move_entries(layer["sums"]["tiles"], cores)


def _move_resident(table: dict[str, Any], cores: Sequence[int]) -> None:
    for state in table.get("states", ()):
        _move_entries(state["tiles"], cores)
    _move_cores(table, cores)


def _move_report(table: dict[str, Any], cores: Sequence[int]) -> None:
    for layer in table["layers"]:
        used: list[int] = layer["cores"]
        layer["cores"] = sorted(cores[core] for core in used)
    _move_cores(table, cores)


def _move_cores(table: dict[str, Any], cores: Sequence[int]) -> None:
    entries: list[dict[str, Any]] = table["cores"]
    _move_entries(entries, cores)
    entries.sort(key=itemgetter("core"))


def _move_entries(entries: Sequence[dict[str, Any]], cores: Sequence[int]) -> None:
    for entry in entries:
        entry["core"] = cores[entry["core"]]


_CHANGES: Mapping[str, Callable[[dict[str, Any], Sequence[int]], None]] = {
    files.CONFIG: _move_config,
    files.MEMORY: _move_memory,
    files.LAYERS: _move_layers,
    files.TRIM: _move_trim,
    files.STEPS: _move_cores,
    files.RESIDENT: _move_resident,
    files.REPORT: _move_report,
}
