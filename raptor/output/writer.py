"""Writes an output directory: everything or nothing."""

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.directory_lock import lock_directory
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import StreamFormat, WeightFormat
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.output import files, repair_files, round_files
from raptor.output.decoder_files import DecoderFile
from raptor.output.machine_files import Content, FileForms, MachineFiles
from raptor.target import arch
from raptor.target.arch import Target, arch_json
from raptor.target.chip_file import chip_to_json
from raptor.target.device_file import DeviceFile

if TYPE_CHECKING:  # they import the compiler, which a repair does not need
    from raptor.mapping.mapping_file import MappingFile
    from raptor.output.compile_report import CompileReport

ConstantArray = npt.NDArray[np.float32 | np.int32 | np.uint8]

_TOOL = "raptor"
_REMOVALS = 100
"""Attempts, within a second, to remove a folder in which files may still be created."""
_THREADS = 2
"""Number of threads. Hashes, checksums and file writes release Python's lock: two take 0.7 of the time of one."""


@dataclass(frozen=True, slots=True, eq=False)
class GrowingFiles:
    """A model whose states grow, and how the steps of a program stand for it."""

    steps: DecoderFile
    onnx_bytes: bytes


@dataclass(frozen=True, slots=True, eq=False)
class ProgramArtifacts:
    """Contents of all files of a program, in memory.

    `machine`: the files that belong to the machine, whose back end is called `backend`. `decoder`: only for a step of a
    model whose states grow.
    """

    name: str
    numbers: Literal["float", "int", "mixed"]
    integers: files.IntegerProofs | None
    options: Mapping[str, Any]
    memory: files.MemoryMap
    mapping: "MappingFile"
    report: "CompileReport"
    machine: MachineFiles
    backend: str
    constants: ConstantArray
    onnx_bytes: bytes
    decoder: GrowingFiles | None = None

    @property
    def has_streams(self) -> bool:
        """True if the machine is pimsim-nn, whose programs are instruction streams."""
        return self.backend == files.PIMSIM

    @property
    def arch(self) -> Target:
        """The chip as `arch.json` has it."""
        return self.machine.target


def write_directory(
    artifacts: ProgramArtifacts,
    folder: Path,
    *,
    version: str,
    stream_format: StreamFormat = "json",
    weight_format: WeightFormat = "json",
    force: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Writes the directory under a temporary name next to it, then renames it. Returns its size in bytes.

    `ready` is called before the rename, and raises an error if the contents are wrong. Raises `UserError` if `folder`
    exists and `force` is not given, is no output of RAPTOR, or cannot be written. After an error, no file remains.
    """
    with replace_folder(folder, force=force) as temporary:
        form = _Form(version, FileForms(stream_format, weight_format))
        entries = _write_program(artifacts, temporary, form)
        ready()
        return sum(e.size_bytes for e in entries.values())


@dataclass(frozen=True, slots=True)
class _Form:
    """File formats, and the `version` of the tool that writes them."""

    version: str
    files: FileForms


def _write_program(artifacts: ProgramArtifacts, folder: Path, form: _Form) -> dict[str, files.FileEntry]:
    """Writes all files of a program into a new directory, the manifest last. Returns their entries by name."""
    (folder / files.WEIGHTS).mkdir()
    for name in artifacts.machine.folders:
        (folder / name).mkdir()
    with CheckedThreadPool(_THREADS) as pool:
        # NOTE: if a write fails, `map` cancels those that have not begun, and the pool waits for the running ones.
        written = pool.map(partial(_write_file, folder), _contents(artifacts, form.files))
        entries = dict(sorted(written))
    manifest = files.OutputManifest(
        tool=f"{_TOOL} {form.version}",
        numbers=artifacts.numbers,
        model=artifacts.name,
        options=dict(artifacts.options),
        streams=_stream_formats(artifacts, form),
        weights=form.files.weights,
        backend=None if artifacts.has_streams else artifacts.backend,
        integers=artifacts.integers,
        files=entries,
    )
    return {**entries, files.MANIFEST: _write_file(folder, (files.MANIFEST, [file_access.model_to_json(manifest)]))[1]}


@dataclass(frozen=True, slots=True, eq=False)
class SegmentArtifacts:
    """Contents of a segment: a program for the chip (`artifacts`), or the ONNX model that the host runs."""

    kind: Literal["chip", "host"]
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    macs: int
    onnx_bytes: bytes
    artifacts: ProgramArtifacts | None
    uncounted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class HostedArtifacts:
    """Contents of the files of a program in segments. `report`: for all segments of the chip together.

    `rounds`, `device`: only if segments take turns on the chip.
    """

    name: str
    options: Mapping[str, Any]
    inputs: tuple[files.BorderTensor, ...]
    outputs: tuple[files.BorderTensor, ...]
    crossings: tuple[files.BorderTensor, ...]
    segments: tuple[SegmentArtifacts, ...]
    host_nodes: tuple[files.HostNode, ...]
    report: "CompileReport"
    onnx_bytes: bytes
    rounds: round_files.RoundList | None = None
    device: DeviceFile | None = None


def write_hosted_directory(
    artifacts: HostedArtifacts,
    folder: Path,
    *,
    version: str,
    stream_format: StreamFormat = "json",
    weight_format: WeightFormat = "json",
    force: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Writes a program with several segments: a directory or file per segment, `segments.json` last. See `write`."""
    form = _Form(version, FileForms(stream_format, weight_format))
    with replace_folder(folder, force=force) as temporary:
        segments = tuple(_write_segment(s, k, temporary, form) for k, s in enumerate(artifacts.segments))
        contents = [
            (files.MODEL, [artifacts.onnx_bytes]),
            (files.REPORT, [file_access.model_to_json(artifacts.report)]),
        ]
        if artifacts.rounds is not None and artifacts.device is not None:
            contents.append((files.ROUNDS, [file_access.model_to_json(artifacts.rounds)]))
            contents.append((files.DEVICE, [file_access.model_to_json(artifacts.device)]))
        listed = files.SegmentList(
            tool=f"{_TOOL} {version}",
            model=artifacts.name,
            options=dict(artifacts.options),
            inputs=artifacts.inputs,
            outputs=artifacts.outputs,
            crossings=artifacts.crossings,
            segments=segments,
            host_nodes=artifacts.host_nodes,
            files=dict(_write_file(temporary, content) for content in contents),
        )
        _write_file(temporary, (files.SEGMENTS, [file_access.model_to_json(listed)]))
        ready()


def _write_segment(segment: SegmentArtifacts, number: int, folder: Path, form: _Form) -> files.SegmentFile:
    name = files.segment_name(number, segment.kind)
    if segment.artifacts is None:
        entry = _write_file(folder, (name, [segment.onnx_bytes]))[1]
    else:
        (folder / name).mkdir()
        entry = _write_program(segment.artifacts, folder / name, form)[files.MANIFEST]
    return files.SegmentFile(
        kind=segment.kind,
        path=name,
        size_bytes=entry.size_bytes,
        sha256=entry.sha256,
        nodes=segment.nodes,
        reads=segment.reads,
        makes=segment.makes,
        macs=segment.macs,
        uncounted=segment.uncounted,
    )


@contextmanager
def replace_folder(folder: Path, *, force: bool) -> Generator[Path]:
    """Yields a directory next to `folder`, which replaces `folder` if the block succeeds and is removed otherwise."""
    check_folder_replaceable(folder, force=force)
    # The name is chosen before the directory is made, so that a Ctrl-C in between leaves nothing behind.
    temporary = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_directory(folder):
            check_folder_replaceable(folder, force=force)  # again: another process may have written it meanwhile
            try:
                temporary.mkdir()
                yield temporary
                check_folder_replaceable(folder, force=force)  # and again: not every program uses locks
                _swap(temporary, folder)
            finally:
                _remove(temporary)
    except OSError as e:
        raise UserError(f"{folder}: cannot be written: {e.strerror or e}") from e


@contextmanager
def reserve_folder(folder: Path, *, force: bool) -> Generator[None]:
    """Locks a folder in the block. Raises `UserError` if `replace_folder` would: before a compilation, not after it."""
    check_folder_replaceable(folder, force=force)
    if not folder.parent.is_dir():  # nobody is writing there, and it is made only when there is something to write
        yield
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_directory(folder))
        except OSError as e:
            raise UserError(f"{folder}: cannot be written: {e.strerror or e}") from e
        yield


def check_folder_replaceable(folder: Path, *, force: bool) -> None:
    """Raises `UserError` unless `folder` is absent, empty, or an output that `force` allows to replace."""
    try:
        above = next((p for p in folder.absolute().parents if p.exists()), None)
        if above is not None and not above.is_dir():
            raise UserError(f"{folder}: cannot be written: {above} is not a directory")
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UserError(f"{folder}: exists and is not a directory")
        if not folder.exists() or not any(folder.iterdir()):
            return
    except OSError as e:
        raise UserError(f"{folder}: {e.strerror or e}") from e
    if not any((folder / name).is_file() for name in (files.MANIFEST, files.SEGMENTS)):
        raise UserError(
            f"{folder}: exists and is not an output of {_TOOL}; choose another with {spell_option('folder')}"
        )
    if not force:
        other = f"choose another with {spell_option('folder')}, or replace it with {spell_option('force', True)}"
        raise UserError(f"{folder}: exists; {other}")


def _swap(temporary: Path, folder: Path) -> None:
    """Renames `temporary` to `folder`. If that fails, the old folder is put back."""
    if not folder.exists():
        temporary.rename(folder)
        return
    old = folder.parent / f".{folder.name}.old.{secrets.token_hex(4)}"
    try:
        old.mkdir()
        os.replace(folder, old / "old")
        try:
            temporary.rename(folder)
        except BaseException:  # also Ctrl-C
            os.replace(old / "old", folder)
            raise
    finally:
        _remove(old)


def _remove(folder: Path) -> None:
    """Removes a folder completely, even if Ctrl-C interrupts it or a thread still writes a file there."""
    interrupt: KeyboardInterrupt | None = None
    for _ in range(_REMOVALS):
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except KeyboardInterrupt as e:
            interrupt = e
        if not folder.exists():
            break
        time.sleep(0.01)
    if interrupt is not None:
        raise interrupt


def _write_file(folder: Path, content: Content) -> tuple[str, files.FileEntry]:
    """Writes one file. Returns its name, size and digest."""
    name, chunks = content
    digest, size = hashlib.sha256(), 0
    with (folder / name).open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    return name, files.FileEntry(size_bytes=size, sha256=digest.hexdigest())


def _stream_formats(artifacts: ProgramArtifacts, form: _Form) -> tuple[Literal["json", "pim"], ...]:
    """Returns the formats of the streams; a machine other than pimsim-nn has none."""
    if not artifacts.has_streams:
        return ()
    return ("json", "pim") if form.files.streams == "both" else (form.files.streams,)


def _contents(artifacts: ProgramArtifacts, forms: FileForms) -> Iterator[Content]:
    """Yields every file except the manifest, the largest first."""
    yield files.MODEL, [artifacts.onnx_bytes]
    yield files.CONSTANTS, [_npy(artifacts.constants)]
    yield from artifacts.machine.contents(forms)
    yield files.MEMORY, [file_access.model_to_json(artifacts.memory)]
    if artifacts.decoder is not None:
        yield files.DECODER, [file_access.model_to_json(artifacts.decoder.steps)]
        yield files.ORIGINAL, [artifacts.decoder.onnx_bytes]
    yield files.MAPPING, [artifacts.mapping.to_json()]
    yield files.REPORT, [file_access.model_to_json(artifacts.report)]
    yield files.ARCH, [arch_json(artifacts.arch)]
    if artifacts.arch.defects is not None:
        yield repair_files.CHIP, [chip_to_json(artifacts.arch.defects.file)]
    yield files.NETWORK, arch.write_network(artifacts.arch)


def _npy(values: ConstantArray) -> bytes:
    buffer = BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()
