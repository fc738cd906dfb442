"""Estimated time of each operation on its core, without messages; the list scheduler uses it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter
from raptor.mapping.modes.integer_costs import requantise_ns
from raptor.mapping.packed_runs import runs_ns
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.integer_operations import Bound, Lookup, Requantise, RequantiseAtOnce
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import (
    ApplyFilters,
    ApplyLine,
    Average,
    Dot,
    Gather,
    Move,
    Overlap,
    Pool,
    Softmax,
    Stencil,
    Vector,
)
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target, Widths
from raptor.target.timing import ISSUE_NS, copy_ns, load_ns, mvmul_ns, pixel_runs_ns, vector_ns

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class CostModel:
    """Estimates times of operations in ns from their instructions. `filters`: layers by `Compute.layer`."""

    arch: Target
    filters: Mapping[str, Filter]
    products: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """Time of an MVM in ns, by layer and number of crossbars."""

    def work_ns(self, compute: Compute) -> float:
        """Returns the time of the operations of a compute. Copies count as 0, because the schedule times messages."""
        return sum(self.op_ns(op, compute) for op in compute.body)

    def op_ns(self, op: BodyOp, compute: Compute) -> float:
        """Returns the time of an operation. Classes without a formula count as one vector function of two operands."""
        arch = self.arch.with_element(op.result.element)
        match op:
            case ApplyLine():
                weights: list[int] = op.products[:, 0].tolist()
                given = op.lines[0], op.result
                return sum(self.product_ns(compute.layer, *given, compute.matrices[w].xbars) for w in weights)
            case ApplyFilters():
                product = self.product_ns(compute.layer, op.input, op.result, compute.matrices[0].xbars) - ISSUE_NS
                return op.result.pixels * len(op.weights) * (product + vector_ns(arch, op.result.channels, 2))
            case Requantise():
                return requantise_ns(op.recipe, op.result.element, op.result.elements, self.arch)
            case _:
                return COST_FUNCTIONS.get(type(op), _at_once_ns)(op, arch)

    def product_ns(self, layer: str, given: Tile, result: Tile, xbars: int) -> float:
        """Returns the time of an MVM and its issue. given, result: tiles of input and output element type."""
        key = layer, xbars
        if key not in self.products:
            bits = self.filters[layer].weight_bits or self.arch.widths.weights
            widths = Widths(bits, self.arch.bits_of(given.element), self.arch.bits_of(result.element))
            self.products[key] = mvmul_ns(self.arch.with_widths(widths), xbars) + ISSUE_NS
        return self.products[key]


def operation_times_ns(flow: Dataflow, filters: Mapping[str, Filter], arch: Target) -> Floats:
    """Returns the estimated time in ns of each operation, in program order, as `CostModel` has them.

    filters: of the graph. The times of forms are kept, because one choice after another asks for them.
    """
    if arch not in flow.known_form_ns:
        costs = CostModel(arch, filters)
        flow.known_form_ns[arch] = np.array([costs.op_ns(op, compute) for op, compute in flow.forms])
    return flow.known_form_ns[arch][flow.op_form]


def _overlap_ns(op: Overlap[Tile], arch: Target) -> float:
    added = max(int(op.runs[:, 3].sum()) - op.result.elements, 1)
    return vector_ns(arch, added, 2) + len(op.runs) * ISSUE_NS


def _vector_ns(op: Vector[Tile], arch: Target) -> float:
    return vector_ns(arch, op.result.elements, len(op.sources)) + ISSUE_NS


def _at_once_ns(op: BodyOp, arch: Target) -> float:
    return vector_ns(arch, op.result.elements, 2)


def _rows_ns(op: TakeRows[Tile], arch: Target) -> float:
    return op.result.pixels * (load_ns(arch, op.result.channels) + 4 * ISSUE_NS)


def _stencil_ns(op: Stencil[Tile], arch: Target) -> float:
    return 2 * op.window.tap_count * pixel_runs_ns(arch, op.result.pixels, op.result.channels, op.together)


def _pixels_ns(op: BodyOp, arch: Target) -> float:
    return op.result.pixels * (vector_ns(arch, op.result.channels, 2) + ISSUE_NS)


def _pool_ns(op: Pool[Tile], arch: Target) -> float:
    """Returns the time of all taps but the first. With a stride along the line, each pixel is an instruction."""
    run = op.result.width if op.window.strides[-1] == 1 else 1
    count = op.result.pixels // run * (op.window.tap_count - 1)
    return count * (vector_ns(arch, run * op.result.channels, 2) + ISSUE_NS)


def _dot_ns(op: Dot[Tile], arch: Target) -> float:
    return op.result.elements * (vector_ns(arch, op.left.channels, 2) + ISSUE_NS)


def _gather_ns(op: Gather[Tile], arch: Target) -> float:
    """Returns the time of the pieces: one copy if piece, source and result have equal channels, else one per pixel."""
    total = 0.0
    for piece in op.pieces:
        whole = piece.channels == op.result.channels == piece.value.channels
        count, channels = (1, op.result.elements) if whole else (op.result.pixels, piece.channels)
        total += count * (copy_ns(arch, channels) + ISSUE_NS)
    return total


def _average_ns(op: Average[Tile], arch: Target) -> float:
    return op.result.pixels * (vector_ns(arch, op.input.channels, 1) + ISSUE_NS)


COST_FUNCTIONS: Mapping[type[BodyOp], Callable[[Any, Target], float]] = {
    Average: _average_ns,
    Bound: _at_once_ns,
    Copy: lambda _, __: 0.0,
    Dot: _dot_ns,
    Gather: _gather_ns,
    Lookup: _at_once_ns,
    Move: lambda op, arch: runs_ns(op.runs, arch),
    Overlap: _overlap_ns,
    Pool: _pool_ns,
    RequantiseAtOnce: _at_once_ns,
    Softmax: _pixels_ns,
    Stencil: _stencil_ns,
    TakeRows: _rows_ns,
    Vector: _vector_ns,
}
"""Time of an operation without matrices in ns, keyed by its class. Other classes use `_at_once_ns`."""
