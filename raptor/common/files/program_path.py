"""Checks the path of a compiled program before a command reads from it."""

from pathlib import Path

from raptor.common.errors import UserError
from raptor.common.option_spelling import is_spelled_as_flags


def check_program_path(path: Path, *, directory: bool = False) -> None:
    """Raises `UserError` if `path` is missing, is an ONNX model, or (with `directory`) is not a directory."""
    if path.is_dir():
        return
    if path.is_file() and path.suffix == ".onnx":
        how = f"raptor compile {path}" if is_spelled_as_flags() else f"raptor.compile({str(path)!r})"
        raise UserError(f"{path}: a model, where a compiled program is expected; compile it first: {how}")
    if not path.exists():
        raise UserError(f"{path}: no such file or directory")
    if directory:
        raise UserError(f"{path}: not a directory")
