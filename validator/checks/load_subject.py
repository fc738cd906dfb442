"""Loads files into a `CheckSubject`. Text, weights and streams are read in parallel."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import msgspec
import orjson

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.output import files, repair_files
from raptor.output.resident_files import ResidentMap
from raptor.target import arch as architectures
from raptor.target.arch import NETWORK_FILE
from raptor.target.chip_file import load_chip_file
from raptor.target.instruction_json import DECODE_ERRORS as NOT_JSON
from validator.checks.arch_file import read_chip
from validator.checks.json_faults import TextFaults, find_text_faults
from validator.checks.rule_subject import ArchitectureFile, CheckSubject, GroupShapes
from validator.program.group_weights import ZIP_ERRORS
from validator.program.network_table import FileTable
from validator.program.npy import FLOAT_TYPES, INTEGER_TYPES, read_header
from validator.program.pimsim_program import RawProgram, read_program, read_texts

Texts = Mapping[str, msgspec.Raw]
"""Members of a single-file program; empty for a directory."""
_LIMIT = 16 * 2**30


def load_subject(path: str | Path, arch: str | Path | None = None) -> CheckSubject:
    """Reads a program directory or single-file program and the files that belong to it.

    `arch`: an architecture file or preset. Default: `arch.json` of the directory, if there is one. Raises `UserError`
    for files that cannot be read at all.
    """
    source = Path(path)
    with CheckedThreadPool(1) as pool:
        early = _start_early(pool, source)
        texts: Texts = read_texts(source) if source.is_file() else {}
        program = read_program(source, texts)
        subject = _subject(program, texts)
        subject.text = _text(program, early, texts)
        subject.shapes = early["shapes"].result() if "shapes" in early else None
    subject.chip = _chip(source, arch)
    if source.is_dir() and (source / files.MEMORY).is_file():
        subject.memory = file_access.read_json_file(files.MemoryMap, source, files.MEMORY)
    if source.is_dir():
        subject.resident = read_resident(source)
    if subject.chip is not None and str(arch) not in architectures.arch_presets():  # a preset's table is complete
        read_network(subject, subject.chip)
    return subject


def read_resident(folder: Path) -> ResidentMap | None:
    """Reads the map of local memory that stays between two samples; None if a program forgets everything."""
    if not (folder / files.RESIDENT).is_file():
        return None
    return file_access.read_json_file(ResidentMap, folder, files.RESIDENT)


def read_defects(subject: CheckSubject, folder: Path, defects: str | Path | None) -> None:
    """Reads the chip file of a program, by default the one beside it, and how the program is repaired."""
    beside = folder / repair_files.CHIP
    if defects is None and not beside.is_file():
        return
    subject.defects = load_chip_file(beside if defects is None else defects)
    if (folder / repair_files.REPAIR).is_file():
        subject.repair = file_access.read_json_file(repair_files.RepairTable, folder, repair_files.REPAIR)


def _subject(program: RawProgram, texts: Texts) -> CheckSubject:
    """Returns the subject of a program, without chip and weights."""
    entries = program.config.get("array_group_map")
    named = cast(dict[str, object], entries) if isinstance(entries, dict) else {}
    groups = [g if isinstance(named.get(f"core{k}"), list) else None for k, g in enumerate(program.groups)]
    known = {f"core{k}" for k in range(program.core_cnt)}
    folder, manifest = program.source.is_dir(), _manifest(program.source)
    names = sorted(p.name for p in program.source.iterdir() if p.name.startswith("core_")) if folder else []
    return CheckSubject(
        streams=program.records,
        groups=groups,
        instantiated=program.instantiated,
        source=program.source,
        core_files=program.core_files,
        directory=folder,
        config=program.config,
        names=names,
        ignored_streams=[name for name in texts if name.startswith("core") and name not in known],
        load_faults=program.faults,
        allows_extensions=manifest is not None and manifest.options.get("isa") == "extended",
        made_by_raptor=manifest is not None,
    )


def _manifest(folder: Path) -> files.OutputManifest | None:
    """Reads the manifest of a program of RAPTOR; None for programs of other compilers."""
    if not (folder / files.MANIFEST).is_file():
        return None
    try:
        return file_access.read_json_file(files.OutputManifest, folder, files.MANIFEST)
    except UserError:
        return None


# Starts the work that needs no records, which runs while the records are read.


def _start_early(pool: CheckedThreadPool, source: Path) -> dict[str, Future[Any]]:
    if not source.is_dir():
        return {}
    started: dict[str, Future[Any]] = {}
    for path in sorted(source.glob("core_*.json")):
        if path.is_file():
            started[path.name] = pool.submit(_file_faults, path)
    if (source / files.WEIGHTS).is_dir():
        started["shapes"] = pool.submit(read_matrix_shapes, source)
    return started


def _file_faults(path: Path) -> TextFaults | None:
    return find_text_faults(file_access.read_bytes(path.parent, path.name, limit_bytes=_LIMIT))


def _text(program: RawProgram, early: Mapping[str, Future[Any]], texts: Texts) -> dict[int, TextFaults]:
    """Returns the faults in the text of each core that was read from JSON; cores without faults are left out."""
    if program.source.is_dir():
        found = {core: early[name].result() for core, name in enumerate(program.core_files) if name in early}
    else:
        streams = ((core, texts.get(f"core{core}")) for core in range(program.core_cnt))
        found = {core: find_text_faults(bytes(text)) for core, text in streams if text is not None}
    return {core: faults for core, faults in found.items() if faults is not None}


# Weights: only the sizes of the matrices.


def read_matrix_shapes(folder: Path) -> GroupShapes | None:
    """Returns rows and columns of each group's matrix, None for a core if unknown; None if there are no weights."""
    config = orjson.loads(file_access.read_bytes(folder, files.CONFIG, limit_bytes=2**30))
    shapes: list[Sequence[tuple[int, int]] | None] = []
    for core in range(int(config.get("core_cnt", 0))):
        npz, text = folder / files.weights_name(core, "npz"), folder / files.weights_name(core, "json")
        if npz.is_file():
            shapes.append(_npz_shapes(npz))
        else:
            shapes.append(_json_shapes(text.read_bytes()) if text.is_file() else None)
    return shapes if any(shapes) else None


def _npz_shapes(path: Path) -> list[tuple[int, int]] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            found: list[tuple[int, int]] = []
            for group in range(len(archive.namelist())):
                with archive.open(f"{group}.npy") as stream:
                    (rows, cols), _ = read_header(stream, str(path), (*FLOAT_TYPES, *INTEGER_TYPES))
                    found.append((rows, cols))
            return found
    except (*ZIP_ERRORS, KeyError, UserError):
        return None


def _json_shapes(content: bytes) -> list[tuple[int, int]] | None:
    """Returns the sizes of matrices in JSON. Only the first row of each matrix is decoded."""
    try:
        raw = msgspec.json.decode(content, type=dict[str, list[msgspec.Raw]])
        matrices = [raw[str(group)] for group in range(len(raw))]
        return [(len(rows), len(msgspec.json.decode(rows[0], type=list[float]))) for rows in matrices]
    except (*NOT_JSON, KeyError, IndexError):
        return None


# The chip and its network table.


def _chip(source: Path, arch: str | Path | None) -> ArchitectureFile | None:
    if arch is not None:
        return read_chip(arch)
    beside = source / files.ARCH if source.is_dir() else None
    return read_chip(beside) if beside is not None and beside.is_file() else None


def read_network(subject: CheckSubject, chip: ArchitectureFile) -> None:
    """Reads the network table that an architecture file names. Sets `network_fault` if it cannot be read."""
    path = Path(chip.path).parent / (chip.network_file or NETWORK_FILE)
    try:
        subject.network = FileTable(path)
    except UserError as e:
        subject.network_fault = str(e)
