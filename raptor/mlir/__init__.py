"""MLIR text of the intermediate forms: writers, readers, and the table of their dialects (docs/reference/mlir.md)."""

from typing import Any

from raptor.common.errors import UserError
from raptor.common.process.gc_policy import pause_gc
from raptor.mlir.pim_reader import PimModule, read_pim
from raptor.mlir.pim_writer import source_digest, write_pim
from raptor.mlir.reader import line_of
from raptor.mlir.syntax import MlirError
from raptor.pim.ir import PimProgram

__all__ = ["PimModule", "dump", "has_form", "load", "source_digest"]


def has_form(value: object) -> bool:
    """True if MLIR text can be written of a value and read back."""
    return isinstance(value, PimProgram)


def dump(value: Any, made_by: str) -> str:
    """Returns the result of the pass `made_by` as the text of an MLIR module."""
    return write_pim(value, made_by)


def load(text: str, label: str = "module") -> PimModule:
    """Returns the program of a module, and the places of its parts in the text.

    label: what messages call the text. Raises `UserError` that names the line of the first wrong operation. The
    program is not verified: `raptor.compile` does that when it goes on with it.
    """
    try:
        with pause_gc():
            return read_pim(text)
    except MlirError as e:
        raise UserError(f"{label}: line {line_of(text, e.position)}: {e}") from None
