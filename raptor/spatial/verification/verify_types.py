"""Verifier of element types: each SpatialIR operation combines types as the corresponding operator of the Graph may."""

from typing import Any

from raptor.common.errors import VerifyError
from raptor.graph.element_types import Signature, find_type_fault
from raptor.spatial.integer_operations import Bound, Lookup, Requantise, RequantiseAtOnce
from raptor.spatial.ir import Copy, SpatialGraph, TakeRows
from raptor.spatial.operations import (
    ApplyFilters,
    ApplyLine,
    Dot,
    Gather,
    Move,
    OneResult,
    Overlap,
    Pool,
    Stencil,
    Vector,
)
from raptor.target.chip_elements import MODELLED_FLOAT

_SIGNATURES: dict[type[object], Signature] = {
    ApplyFilters: "Filter",
    ApplyLine: "Filter",
    Overlap: "Concat",
    Gather: "Concat",
    Copy: "Rename",
    Move: "Move",
    TakeRows: "Take",
    Pool: "Pool",
    Stencil: "Stencil",
    Dot: "Dot",
    Requantise: "Requantise",
    RequantiseAtOnce: "Requantise",
    Bound: "Bound",
    Lookup: "Lookup",
}
"""The operator of the Graph whose type rule an operation follows; other classes compute floats."""


def verify_types(graph: SpatialGraph) -> None:
    """Raises `VerifyError` for an operation whose element types do not match."""
    for op, compute in graph.dataflow.forms:
        fault = find_operation_fault(op)
        if fault:
            raise VerifyError(f"spatial: {compute.node}: {op.result}: {fault}")


def find_operation_fault(op: OneResult[Any]) -> str | None:
    """Returns which element types of an operation do not match; None if all do."""
    types = [operand.element for operand in (op.ids if isinstance(op, TakeRows) else op.operands)]
    if op.result.element is MODELLED_FLOAT and all(element is MODELLED_FLOAT for element in types):
        return None
    if isinstance(op, Requantise) and len(op.sources) != len(op.recipe.operands):
        return f"a recipe of {len(op.recipe.operands)} operands has {len(op.sources)}"
    if isinstance(op, Lookup) and op.table.elements != 1 << op.source.element.bits:
        return f"a table of {op.table.elements} entries for {op.source.element}"
    signature = op.function if isinstance(op, Vector) else _SIGNATURES.get(type(op), type(op).__name__)
    return find_type_fault(signature, types, op.result.element)
