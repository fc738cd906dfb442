"""File access: size-limited reading from untrusted folders, and atomic writing."""

import errno
import hashlib
import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from raptor.common.errors import UserError
from raptor.common.files.schema_types import format_errors
from raptor.common.option_spelling import spell_option as spelled

T = TypeVar("T", bound=BaseModel)


def read_json_file(schema: type[T], folder: Path, name: str, *, limit_bytes: int = 2**30) -> T:
    """Reads a JSON file of an output directory by its schema. Raises `UserError` with the file and the wrong fields."""
    return parse_json_file(schema, read_bytes(folder, name, limit_bytes=limit_bytes), folder / name)


def parse_json_file(schema: type[T], content: bytes, path: Path) -> T:
    """Parses the content of a JSON file by its schema. Raises `UserError` with the file and the wrong fields."""
    try:
        return schema.model_validate_json(content)
    except ValidationError as e:
        mistakes = (f"  {fault}" for fault in format_errors(e, 5))
        raise UserError("\n".join([f"{path}: not a file this version can read:", *mistakes])) from e


def check_regular_file(folder: Path, name: str) -> Path:
    """Returns the path of a regular file inside `folder`. Raises `UserError` for links, also in parent folders."""
    path = folder / name
    try:
        inside = path.resolve() == folder.resolve() / name
        if path.is_symlink() or not path.is_file() or not inside:
            raise UserError(f"{path}: missing, or not a regular file of this directory")
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from e
    except RuntimeError as e:
        raise UserError(f"{path}: a link that leads to itself") from e
    return path


def check_file_entry(folder: Path, name: str, size_bytes: int, sha256: str | None, listing: str) -> None:
    """Raises `UserError` unless a file has the size and the SHA-256 (None: any) that the file `listing` records."""
    path = check_regular_file(folder, name)
    try:
        size = path.stat().st_size
        if size != size_bytes:
            raise UserError(f"{path}: {size} bytes, but {listing} says {size_bytes}")
        if sha256 is not None and _sha256(path) != sha256:
            raise UserError(f"{path}: changed since it was compiled (its sha256 is not the one in {listing})")
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from e


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(folder: Path, name: str, *, limit_bytes: int) -> bytes:
    """Returns the content of a regular file of at most `limit_bytes` inside `folder`; links are not followed."""
    path = check_regular_file(folder, name)
    try:
        size = path.stat().st_size
        if size > limit_bytes:
            raise UserError(f"{path}: {size} bytes, more than the {limit_bytes} expected")
        return path.read_bytes()
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from e


def model_to_json(value: BaseModel) -> bytes:
    """Returns a model as canonical JSON: keys in declared order, indented by two spaces, a newline at the end."""
    return value.model_dump_json(indent=2).encode() + b"\n"


@contextmanager
def open_atomic(option: str, path: Path) -> Generator[BinaryIO]:
    """Yields a temporary file that replaces `path` if the block succeeds, and is deleted otherwise.

    Pipes, devices and links are written directly. Raises `UserError` with `option` and path if `path` cannot be
    written, and for `-`, because only JSON goes to standard output (`print_or_write`).
    """
    refuse_stdout(option, path)
    # The name is chosen before the file is created, so that a Ctrl-C cannot come between the two.
    temporary = path.parent / f".raptor.{secrets.token_hex(4)}"
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            with path.open("wb") as stream:
                yield stream
            return
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        try:
            with temporary.open("xb") as stream:
                yield stream
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as e:
        raise UserError(f"{option} {path}: cannot be written: {e.strerror or e}") from e


def write_atomic(option: str, path: Path, content: bytes) -> None:
    """Writes `content` to `path` atomically. Raises `UserError` that names `option`; see `whole`."""
    with open_atomic(option, path) as stream:
        stream.write(content)


def check_file_replaceable(named: str, path: Path, *, force: bool) -> None:
    """Raises `UserError` if the file of the option `named` exists and `force` is not given, or if it is `-`."""
    refuse_stdout(named, path)
    if path.exists() and not force:
        raise UserError(f"{named} {path}: exists; {spelled('force', True)} replaces it")


def refuse_stdout(option: str, path: Path) -> None:
    """Raises `UserError` for the path `-`: the option writes no JSON, so it has no standard output."""
    if is_stdout(path):
        raise UserError(f"{option} -: standard output takes JSON only (--json -); name another")


def is_stdout(path: Path | None) -> bool:
    """Returns True for the path `-`, as in `--json -`: then standard output gets the JSON and nothing else."""
    return str(path) == "-"


def print_or_write(option: str, path: Path, content: bytes) -> None:
    """Writes `content` to standard output if the path is `-`, else to a file as `write_atomic` does."""
    if is_stdout(path):
        print_json(content)
    else:
        write_atomic(option, path, content)


def print_json(content: bytes) -> None:
    """Writes JSON to standard output in UTF-8, regardless of the encoding of the terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
