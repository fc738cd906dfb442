"""MLIR text of the intermediate forms: writers, readers, and the table of their dialects (docs/reference/mlir.md)."""

from typing import Any

from raptor.common.errors import UserError
from raptor.common.mlir.reader import line_of, read_module
from raptor.common.mlir.syntax import MlirError
from raptor.common.process.gc_policy import pause_gc
from raptor.frontend.loading import LoadedModel
from raptor.mlir.pim_reader import PimModule, read_pim_module
from raptor.mlir.pim_writer import pim_body, text_digest, write_pim
from raptor.mlir.spat_reader import SpatModule, read_spat_module
from raptor.mlir.spat_writer import spat_body, write_spat
from raptor.pim.ir import PimProgram
from raptor.spatial.placed_graph import Partition, PlacedGraph, Schedule

__all__ = ["PimModule", "SpatModule", "compute_source", "dump", "find_text", "has_form", "load"]


def has_form(value: object) -> bool:
    """True if MLIR text can be written of a value and read back."""
    return isinstance(value, PimProgram | Partition | PlacedGraph | Schedule)


def dump(value: Any, made_by: str) -> str:
    """Returns the result of the pass `made_by` as the text of an MLIR module."""
    return write_pim(value, made_by) if isinstance(value, PimProgram) else write_spat(value, made_by)


def find_text(value: object, made_by: str) -> str | None:
    """Returns the result of a pass as MLIR text, None if it has no such form; a model is in the dialect `onnx`."""
    if isinstance(value, LoadedModel):
        from raptor.frontend.onnx_text.onnx_writer import write_onnx  # imports onnx

        return write_onnx(value.onnx_bytes, value.name)
    return dump(value, made_by) if has_form(value) else None


def compute_source(value: Any) -> str:
    """Returns the digest that a module of a value states, with which RAPTOR finds out what it was made from."""
    return text_digest("\n".join(pim_body(value) if isinstance(value, PimProgram) else spat_body(value)))


def load(text: str, label: str = "module") -> PimModule | SpatModule:
    """Returns the content of a module, and the places of its parts in the text.

    label: what messages call the text. Raises `UserError` that names the line of the first wrong operation. What the
    module says is not verified: `raptor.compile` does that when it goes on with it.
    """
    try:
        with pause_gc():
            module = read_module(text)
            return read_spat_module(module) if "spat.pass" in module.attributes else read_pim_module(module)
    except MlirError as e:
        raise UserError(f"{label}: line {line_of(text, e.position)}: {e}") from None
