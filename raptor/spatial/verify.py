"""Invariants of SpatialIR (docs/design.md, 3)."""

from collections import Counter

import numpy as np

from raptor.arch import Arch
from raptor.errors import VerifyError
from raptor.frontend.graph import Filter
from raptor.layout import Image, Region
from raptor.mapping import Matrix
from raptor.spatial.ir import (
    ApplyFilters,
    ApplyRow,
    Compute,
    Gather,
    MoveTile,
    Part,
    SpatialGraph,
    Stack,
    TensorParts,
    Tile,
    Vector,
)
from raptor.unfold import PatchMatrix
from raptor.window import input_pixels

_Product = tuple[int, tuple[int, int], tuple[int, int]]
"""(kernel position, input channels, output channels) of a layer."""


def verify(graph: SpatialGraph, arch: Arch) -> None:
    """Raises `VerifyError` that names the op and the ONNX node."""
    given = [p.tile for tensor in graph.tensors.values() for p in tensor.parts]
    inputs = {p.tile.name for name in graph.inputs for p in graph.tensors[name].parts}
    known: dict[str, Tile] = {t.name: t for t in given if t.name in inputs or t.name in graph.literals}
    sums: dict[Tile, Counter[_Product]] = {}
    steps: dict[Tile, int] = {}
    for compute in graph.computes:
        _check_compute(compute, known, arch)
        if compute.matrices:
            _collect_products(compute, sums, steps)
    for tensor in graph.tensors.values():
        _check_cover(tensor.name, tensor.image, [p.region for p in tensor.parts])
        for part in tensor.parts:
            if known.get(part.tile.name) != part.tile:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} of {tensor.name} is never defined")
    for name, use in graph.filter_of.items():
        _check_reduction(graph.filters[use.key], graph.tensors[name], sums, _patch_rows(graph, use.key))
    _check_sources(graph)


def _check_compute(compute: Compute, known: dict[str, Tile], arch: Arch) -> None:
    where = f"spatial: {compute.node}"
    xbars = sum(m.xbars for m in compute.matrices)
    if xbars > arch.xbars_per_core:
        raise VerifyError(f"{where}: a compute needs {xbars} crossbars, a core has {arch.xbars_per_core}")
    for matrix in compute.matrices:
        rows, cols = matrix.rows[1] - matrix.rows[0], matrix.cols[1] - matrix.cols[0]
        if rows > arch.xbar_rows or cols > matrix.xbars * arch.outputs_per_xbar:
            raise VerifyError(f"{where}: a matrix of {rows}x{cols} does not fit {matrix.xbars} crossbars")
    for op in compute.body:
        undefined = [t for t in op.reads if known.get(t.name) != t]
        if undefined:
            raise VerifyError(f"{where}: {op.result} reads {undefined[0]} before it is defined")
        if op.result.name in known and not (isinstance(op, ApplyRow) and op.windows[0] > 0):
            raise VerifyError(f"{where}: {op.result} is defined twice")
        if isinstance(op, Gather):
            _check_gather(where, op)
        if isinstance(op, MoveTile):
            _check_move(where, op)
        known[op.result.name] = op.result


def _check_gather(where: str, op: Gather) -> None:
    spans = sorted((p.target, p.target + p.channels) for p in op.pieces)
    ends = [0, *(stop for _, stop in spans)]
    if [start for start, _ in spans] != ends[:-1] or ends[-1] != op.result.channels:
        raise VerifyError(f"{where}: {op.result} is not covered exactly once")
    if any(p.source + p.channels > p.tile.channels for p in op.pieces):
        raise VerifyError(f"{where}: {op.result} takes channels that its source does not have")


def _check_move(where: str, op: MoveTile) -> None:
    target, source, first, stride, count = op.runs.T
    ends = np.concatenate([[0], target + count])
    if (ends[:-1] != target).any() or ends[-1] != op.result.elements:
        raise VerifyError(f"{where}: {op.result} is not covered exactly once")
    sizes = np.array([t.elements for t in op.sources] + [0])
    outside = (source >= 0) & ((first < 0) | (stride < 0) | (first + (count - 1) * stride >= sizes[source]))
    if outside.any():
        raise VerifyError(f"{where}: {op.result} takes elements that its source does not have")


def _collect_products(compute: Compute, sums: dict[Tile, Counter[_Product]], steps: dict[Tile, int]) -> None:
    for op in compute.body:
        if isinstance(op, ApplyFilters):
            matrices = [compute.matrices[i] for i in op.weights]
            if [m.tap for m in matrices if isinstance(m, Matrix)] != list(op.taps):
                raise VerifyError(f"spatial: {compute.node}: {op.result}: kernel positions and matrices disagree")
            sums[op.result] = Counter((m.tap, m.rows, m.cols) for m in matrices if isinstance(m, Matrix))
        elif isinstance(op, ApplyRow):
            _check_step(compute, op, steps)
            patches = [compute.matrices[i] for i in op.weights]
            sums[op.result] = Counter((0, m.rows, (0, op.result.channels)) for m in patches)
        elif isinstance(op, Vector) and op.function == "add":
            sums[op.result] = sum((sums[t] for t in op.reads), Counter[_Product]())


def _check_step(compute: Compute, op: ApplyRow, steps: dict[Tile, int]) -> None:
    """The steps of a row follow one another; `steps`: windows done so far."""
    if op.windows[0] != steps.get(op.result, 0) or op.windows[1] <= op.windows[0]:
        where = f"spatial: {compute.node}: {op.result}"
        raise VerifyError(f"{where}: windows {op.windows} do not follow the {steps.get(op.result, 0)} done")
    steps[op.result] = op.windows[1]


def _patch_rows(graph: SpatialGraph, key: str) -> int | None:
    """Rows of the matrix of a whole patch, if the layer is computed by row."""
    rows = [m.rows[1] for c in graph.computes if c.layer == key for m in c.matrices if isinstance(m, PatchMatrix)]
    return max(rows, default=None)


def _check_reduction(
    operator: Filter, tensor: TensorParts, sums: dict[Tile, Counter[_Product]], patch_rows: int | None
) -> None:
    """Each output tile adds each input channel that it needs at each kernel position exactly once.

    A kernel position that lies in the padding for all its pixels may be left out.
    """
    taps = operator.weights.shape[0] if patch_rows is None else 1
    for part in tensor.parts:
        products = sums.get(part.tile, Counter[_Product]())
        rows: dict[int, list[tuple[int, int]]] = {tap: [] for tap in range(taps)}
        for (tap, span, cols), times in products.items():
            if times != 1 or cols != part.region.channels or tap not in rows:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} adds tap {tap} rows {span} {times} times")
            rows[tap].append(span)
        low, high = operator.needed(part.region.channels)
        if patch_rows is not None:
            low, high = 0, patch_rows
        for tap, spans in rows.items():
            ends = [low, *(stop for _, stop in sorted(spans))]
            covered = [start for start, _ in sorted(spans)] == ends[:-1] and ends[-1] == high
            if not covered and (spans or patch_rows is not None or _reads(operator, tensor, part, tap)):
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} misses products of tap {tap}: {sorted(spans)}")


def _reads(operator: Filter, tensor: TensorParts, part: Part, tap: int) -> bool:
    """Whether some pixel of the part reads a pixel of the input at this kernel position."""
    first, last = (row * tensor.image.width for row in part.region.rows)
    return bool((input_pixels(operator.window)[first:last, tap] >= 0).any())


def _check_sources(graph: SpatialGraph) -> None:
    """Products read the channels of the input tensor that are the rows of their matrices.

    A tile may hold several ranges of them: repeated elements are one tile under several names.
    """
    holders: dict[str, dict[Tile, list[tuple[int, int]]]] = {}
    for use in graph.filter_of.values():
        held = holders.setdefault(use.key, {})
        for part in graph.tensors[use.source].parts:
            held.setdefault(part.tile, []).append(part.region.channels)
    stacked = {op.result: op.rows[0] for compute in graph.computes for op in compute.body if isinstance(op, Stack)}
    for compute in graph.computes:
        for op in compute.body:
            if isinstance(op, ApplyFilters):
                held = holders[compute.layer]
                # Stacked for this layer, or before: a move of all elements in order is the stack under another name.
                ranges = held.get(op.input) or held.get(stacked.get(op.input, op.input), [])
                rows = {compute.matrices[i].rows for i in op.weights}
                if not any(_hold(r, op.channel, rows) for r in ranges):
                    where = f"spatial: {compute.node}: {op.result}"
                    raise VerifyError(f"{where}: {op.input} from channel {op.channel} on is not {sorted(rows)}")


def _hold(channels: tuple[int, int], first: int, rows: set[tuple[int, int]]) -> bool:
    """Whether all `rows` begin at place `first` of the channels, and end there too."""
    return all(start == channels[0] + first and stop <= channels[1] for start, stop in rows)


def _check_cover(name: str, image: Image, regions: list[Region]) -> None:
    """Parts of the same channels follow one another row by row; the channel ranges follow one another."""
    rows: dict[tuple[int, int], int] = {}
    for region in sorted(regions):
        if region.rows[0] != rows.get(region.channels, 0):
            raise VerifyError(f"spatial: {name}: row {region.rows[0]} is not covered exactly once")
        rows[region.channels] = region.rows[1]
    ends = [0, *(stop for _, stop in sorted(rows))]
    if [start for start, _ in sorted(rows)] != ends[:-1] or ends[-1] != image.channels:
        raise VerifyError(f"spatial: {name}: channels {sorted(rows)} are not covered exactly once")
    if any(stop != image.rows for stop in rows.values()):
        raise VerifyError(f"spatial: {name}: not every row is covered")
