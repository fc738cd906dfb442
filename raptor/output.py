"""Writing an output directory: everything or nothing."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from raptor import arch, files, isa, streams
from raptor.arch import Arch
from raptor.errors import UserError
from raptor.report import Report

Floats = npt.NDArray[np.float32]
StreamFormat = Literal["json", "pim", "both"]
WeightFormat = Literal["json", "npz"]

_TOOL = "raptor"


@dataclass(frozen=True, slots=True, eq=False)
class Artifacts:
    """Everything that goes into the files, in memory. Cores without work are missing from the mappings."""

    name: str
    arch: Arch
    options: Mapping[str, Any]
    config: files.Config
    memory: files.Memory
    layers: files.Layers
    steps: files.Steps
    report: Report
    records: Mapping[int, isa.Records]
    weights: Mapping[int, Sequence[Floats]]
    constants: Floats
    onnx_bytes: bytes


def write(
    artifacts: Artifacts,
    folder: Path,
    *,
    version: str,
    stream_format: StreamFormat = "json",
    weight_format: WeightFormat = "json",
    force: bool = False,
) -> int:
    """Writes the directory under a temporary name beside it, then renames it; returns its size in bytes.

    Raises `UserError` when it exists already and `force` is not given, or is not an output of RAPTOR, or cannot be
    written. Nothing is left behind then.
    """
    with replacing(folder, force=force) as temporary:
        writer = _Writer(temporary)
        _write_all(artifacts, writer, stream_format, weight_format)
        manifest = files.Manifest(
            tool=f"{_TOOL} {version}",
            model=artifacts.name,
            options=dict(artifacts.options),
            streams=("json", "pim") if stream_format == "both" else (stream_format,),
            weights=weight_format,
            files=dict(sorted(writer.entries.items())),
        )
        writer.write(files.MANIFEST, [files.to_json(manifest)])
        return sum(entry.size_bytes for entry in writer.entries.values())


@contextmanager
def replacing(folder: Path, *, force: bool) -> Generator[Path]:
    """A new directory beside `folder` that takes its place when the block ends well, and vanishes otherwise."""
    check_replaceable(folder, force=force)
    temporary: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        temporary.chmod(0o755)
        yield temporary
        _swap(temporary, folder)
    except OSError as e:
        raise UserError(f"{folder}: cannot be written: {e.strerror or e}") from e
    finally:
        if temporary is not None:
            _remove(temporary)


def check_replaceable(folder: Path, *, force: bool) -> None:
    """Raises `UserError` unless `folder` is free, or an output that `force` allows to replace."""
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
    if not (folder / files.MANIFEST).is_file():
        raise UserError(f"{folder}: exists and is not an output of {_TOOL}; choose another with -o")
    if not force:
        raise UserError(f"{folder}: exists; choose another with -o, or replace it with --force")


def _swap(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        temporary.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    try:
        os.replace(folder, old / "old")
        try:
            temporary.rename(folder)
        except BaseException:  # also Ctrl-C
            os.replace(old / "old", folder)
            raise
    finally:
        _remove(old)


def _remove(folder: Path) -> None:
    """All of it, also where Ctrl-C comes in between."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@dataclass(slots=True)
class _Writer:
    """Writes files into one folder and remembers their sizes and hashes."""

    folder: Path
    entries: dict[str, files.FileEntry]

    def __init__(self, folder: Path) -> None:
        self.folder, self.entries = folder, {}

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with path.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        self.entries[name] = files.FileEntry(size_bytes=size, sha256=digest.hexdigest())


def _write_all(artifacts: Artifacts, writer: _Writer, stream_format: StreamFormat, weight_format: WeightFormat) -> None:
    writer.write(files.CONFIG, [files.to_json(artifacts.config)])
    writer.write(files.MEMORY, [files.to_json(artifacts.memory)])
    writer.write(files.LAYERS, [files.to_json(artifacts.layers)])
    writer.write(files.STEPS, [orjson.dumps(artifacts.steps.model_dump(mode="json")), b"\n"])
    writer.write(files.REPORT, [files.to_json(artifacts.report)])
    writer.write(files.ARCH, [files.to_json(artifacts.arch.file)])
    writer.write(files.NETWORK, arch.write_network(artifacts.arch))
    writer.write(files.MODEL, [artifacts.onnx_bytes])
    writer.write(files.CONSTANTS, [_npy(artifacts.constants)])
    empty = np.zeros(0, isa.RECORD)
    for core in range(artifacts.config.core_cnt):
        records = artifacts.records.get(core, empty)
        if stream_format in ("json", "both"):
            writer.write(files.stream_name(core, "json"), streams.json_chunks(records))
        if stream_format in ("pim", "both"):
            writer.write(files.stream_name(core, "pim"), [streams.to_pim(records)])
    chunks = _weights_json if weight_format == "json" else _weights_npz
    for core, matrices in artifacts.weights.items():
        if matrices:
            writer.write(files.weights_name(core, weight_format), chunks(matrices))


_Chunks = Callable[[Sequence[Floats]], Iterable[bytes]]


def _weights_json(matrices: Sequence[Floats]) -> Iterator[bytes]:
    """`{"0": [[...], ...], ...}`: array group to matrix, one group a line."""
    for group, matrix in enumerate(matrices):
        yield b'%s"%d": ' % (b",\n" if group else b"{", group)
        yield orjson.dumps(np.ascontiguousarray(matrix), option=orjson.OPT_SERIALIZE_NUMPY)
    yield b"}\n"


def _weights_npz(matrices: Sequence[Floats]) -> Iterator[bytes]:
    buffer = BytesIO()
    # NOTE: numpy stamps members with a constant date, so equal weights give equal bytes.
    np.savez(buffer, **{str(g): np.ascontiguousarray(m) for g, m in enumerate(matrices)})  # pyright: ignore
    yield buffer.getvalue()


def _npy(values: Floats) -> bytes:
    buffer = BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()
