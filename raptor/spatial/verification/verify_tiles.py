"""Verifier of SpatialIR: definitions, crossbars, coverage of tensors and sums (docs/reference/forms.md)."""

from collections import Counter
from collections.abc import Container

import numpy as np

from raptor.common.errors import VerifyError
from raptor.common.index_ranges import concatenate_ranges
from raptor.graph.ir import Filter
from raptor.graph.window import Window, cached_input_pixels
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy, SpatialGraph, TensorPart, TensorParts
from raptor.spatial.operations import ApplyFilters, ApplyLine, Gather, Move, Overlap, Vector
from raptor.spatial.tiles import Tile
from raptor.spatial.verification.copy_sources import CopySources
from raptor.spatial.verification.element_origins import ElementOrigins
from raptor.spatial.verification.verify_constants import verify_constants
from raptor.spatial.verification.verify_dense import verify_dense
from raptor.spatial.verification.verify_lines import verify_lines
from raptor.spatial.verification.verify_lookups import verify_lookups
from raptor.spatial.verification.verify_moves import verify_moves
from raptor.spatial.verification.verify_types import verify_types
from raptor.spatial.verification.verify_views import verify_products, verify_views
from raptor.spatial.verification.zero_gaps import misses_only_zeros
from raptor.target.arch import Target
from raptor.target.tensor_layout import Image, TensorRegion

_Product = tuple[int, tuple[int, int], tuple[int, int]]
"""(kernel position, input channels, output channels) of a layer."""


def verify_spatial(graph: SpatialGraph, arch: Target) -> None:
    """Checks all invariants of a graph. Raises `VerifyError` that names the operation and the ONNX node."""
    flow = graph.dataflow
    _check_definitions(graph, flow)
    _check_matrices(graph, arch)
    for op, compute in flow.forms:
        _check_op(f"spatial: {compute.node}", op, compute)
    by_line = {compute.layer for op, compute in flow.forms if isinstance(op, ApplyLine)}
    for tensor in graph.tensors.values():
        _check_cover(tensor.name, tensor.image, [p.region for p in tensor.parts])
    copies = CopySources.from_graph(graph)
    _check_reductions(graph, by_line, copies)
    _check_sources(graph, copies)
    verify_types(graph)
    verify_lines(graph, copies)
    verify_dense(graph)
    verify_lookups(graph, copies)
    verify_constants(graph)
    origins = ElementOrigins(graph)
    verify_views(graph, origins)
    verify_products(graph, origins)
    verify_moves(graph, origins)
    _check_used(graph, flow)


def _check_definitions(graph: SpatialGraph, flow: Dataflow) -> None:
    """Checks that each tile is made once, before all its readers, and has one shape.

    Only copies may fill a tile together.
    """
    known, op = _given(graph), np.arange(len(flow.op_result))
    given = np.zeros(len(flow.tiles), np.bool_)
    given[[flow.number[name] for name in known if name in flow.number]] = True
    first = np.full(len(flow.tiles), len(op))
    first[flow.op_result[::-1]] = op[::-1]
    unlike = np.array([known.get(tile.name, tile) != tile for tile in flow.tiles], np.bool_)
    early = unlike[flow.read_tile] | (~given[flow.read_tile] & (first[flow.read_tile] >= flow.read_op))
    undefined = [(int(flow.read_op[i]), flow.tiles[int(flow.read_tile[i])]) for i in np.flatnonzero(early)[:1]]
    for at, tile in (*undefined, *flow.differing_tiles):
        where = f"spatial: {flow.node(at)}: {flow.tiles[int(flow.op_result[at])]}"
        raise VerifyError(f"{where} reads {tile} before it is defined")
    again = given[flow.op_result] | (first[flow.op_result] < op)
    for at in np.flatnonzero(again & ~flow.is_op_class(Copy))[:1].tolist():
        tile = flow.tiles[int(flow.op_result[at])]
        raise VerifyError(f"spatial: {flow.node(at)}: {tile} is defined twice")
    made = np.bincount(flow.op_result, minlength=len(flow.tiles)) > 0
    known |= {flow.tiles[i].name: flow.tiles[i] for i in np.flatnonzero(made).tolist()}
    for tensor in graph.tensors.values():
        for part in tensor.parts:
            if known.get(part.tile.name) != part.tile:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} of {tensor.name} is never defined")


def _given(graph: SpatialGraph) -> dict[str, Tile]:
    """Returns the tiles that exist before any compute, by name: inputs and constants."""
    parts = [p.tile for tensor in graph.tensors.values() for p in tensor.parts]
    inputs = {p.tile.name for name in graph.inputs for p in graph.tensors[name].parts}
    known: dict[str, Tile] = {t.name: t for t in parts if t.name in inputs or t.name in graph.literals}
    constants = {n: Tile(n, t.rows, t.width, t.channels, t.element) for n, t in graph.literals.items()}
    return constants | known


def _check_matrices(graph: SpatialGraph, arch: Target) -> None:
    """Checks that the matrices of each compute fit a core, and that each fits its crossbars."""
    for compute in {id(c.matrices): c for c in graph.computes if c.matrices}.values():
        where, xbars = f"spatial: {compute.node}", sum(m.xbars for m in compute.matrices)
        if xbars > arch.xbars_per_core:
            raise VerifyError(f"{where}: a compute needs {xbars} crossbars, a core has {arch.xbars_per_core}")
        most = arch.weight_columns(graph.filters[compute.layer].weight_bits)
        for matrix in compute.matrices:
            rows, cols = matrix.rows[1] - matrix.rows[0], matrix.cols[1] - matrix.cols[0]
            if rows > arch.xbar_rows or cols > matrix.xbars * most:
                raise VerifyError(f"{where}: a matrix of {rows}x{cols} does not fit {matrix.xbars} crossbars")


def _check_reductions(graph: SpatialGraph, by_line: Container[str], copies: CopySources) -> None:
    """Checks that layers that are not computed by line add each product once."""
    sums: dict[Tile, Counter[_Product]] = {}
    first = 0
    for compute in graph.computes:
        if compute.matrices and compute.layer not in by_line:
            _check_windows(compute, graph.filters[compute.layer])
            _collect_products(compute, sums, first, copies)
        first += len(compute.body)
    for name, use in graph.filter_of.items():
        if use.key not in by_line:
            _check_reduction(graph.filters[use.key], graph.tensors[name], sums)


def _check_windows(compute: Compute, operator: Filter) -> None:
    """Checks that products of whole tiles have the window and the relu of their layer. Tables are of parts of it."""
    for op in compute.body:
        if not isinstance(op, ApplyFilters):
            continue
        other = op.window is not operator.window and isinstance(op.window, Window) and op.window != operator.window
        if other or op.relu != operator.relu:
            raise VerifyError(f"spatial: {compute.node}: {op.result} has another window or relu than its layer")


def _check_used(graph: SpatialGraph, flow: Dataflow) -> None:
    """Checks that each result is read, or is part of a tensor, which can be compared.

    Copies are exempt: the reference mappings make copies without readers, and their programs are kept as they are.
    """
    used = np.zeros(len(flow.tiles), np.bool_)
    used[flow.read_tile] = True
    parts = (part.tile.name for tensor in graph.tensors.values() for part in tensor.parts)
    used[[flow.number[name] for name in parts if name in flow.number]] = True
    for at in np.flatnonzero(~used[flow.op_result] & ~flow.is_op_class(Copy, Gather, Move))[:1].tolist():
        tile = flow.tiles[int(flow.op_result[at])]
        raise VerifyError(f"spatial: {flow.node(at)}: {tile} is computed, and nobody reads it")


def _check_op(where: str, op: BodyOp, compute: Compute) -> None:
    match op:
        case Gather():
            _check_gather(where, op)
        case Move():
            _check_move(where, op)
        case ApplyLine():
            _check_line(where, op, compute)
        case Overlap():
            _check_runs(where, op)
        case Copy():
            _check_copy(where, op)
        case _:
            pass


def _check_gather(where: str, op: Gather[Tile]) -> None:
    """Checks that pieces lie inside their sources, and cover the channels of the result once."""
    spans = sorted((p.target, p.target + p.channels) for p in op.pieces)
    ends = [0, *(stop for _, stop in spans)]
    if [start for start, _ in spans] != ends[:-1] or ends[-1] != op.result.channels:
        raise VerifyError(f"{where}: {op.result} is not covered exactly once")
    if any(p.source + p.channels > p.value.channels for p in op.pieces):
        raise VerifyError(f"{where}: {op.result} takes channels that its source does not have")


def _check_move(where: str, op: Move[Tile]) -> None:
    """Checks that runs lie inside their sources, and cover the elements of the result once, in order."""
    target, source, first, stride, count = op.runs.T
    ends = np.concatenate([[0], target + count])
    if (ends[:-1] != target).any() or ends[-1] != op.result.elements:
        raise VerifyError(f"{where}: {op.result} is not covered exactly once")
    sizes = np.array([t.elements for t in op.sources] + [0])
    outside = (source >= 0) & ((first < 0) | (stride < 0) | (first + (count - 1) * stride >= sizes[source]))
    if outside.any():
        raise VerifyError(f"{where}: {op.result} takes elements that its source does not have")


def _check_line(where: str, op: ApplyLine[Tile], compute: Compute) -> None:
    """Checks that blocks lie inside their lines, and that products fill the result, one after another."""
    at = 0
    products: list[list[int]] = op.products.tolist()
    for weight, line, source, target in products:
        matrix: Matrix | LineMatrix = compute.matrices[weight]
        rows, cols = matrix.rows[1] - matrix.rows[0], matrix.cols[1] - matrix.cols[0]
        if source < 0 or source + rows > op.lines[line].elements:
            raise VerifyError(f"{where}: {op.result} multiplies elements that {op.lines[line]} does not have")
        if target != at:
            raise VerifyError(f"{where}: {op.result} has a product at {target}, not {at}")
        at += cols
    if at != op.result.elements:
        raise VerifyError(f"{where}: {op.result} has {op.result.elements} elements, its products {at}")


def _check_runs(where: str, op: Overlap[Tile]) -> None:
    target, source, first, count = op.runs.T
    sizes = np.array([t.elements for t in op.reads] + [0])
    _check_range(where, op, bool((first < 0).any() or (first + count > sizes[source]).any()))
    _check_place(where, op, bool((target < 0).any() or (target + count > op.result.elements).any()))


def _check_copy(where: str, op: Copy[Tile]) -> None:
    _check_range(where, op, op.first < 0 or op.first + op.elements > op.source.elements)
    _check_place(where, op, op.at < 0 or op.at + op.elements > op.result.elements)


def _check_range(where: str, op: BodyOp, outside: bool) -> None:
    if outside:
        raise VerifyError(f"{where}: {op.result} takes elements that its source does not have")


def _check_place(where: str, op: BodyOp, outside: bool) -> None:
    if outside:
        raise VerifyError(f"{where}: {op.result} has no place for what it takes")


def _collect_products(compute: Compute, sums: dict[Tile, Counter[_Product]], first: int, copies: CopySources) -> None:
    """Adds to `sums` the products that each tile of a compute adds up. `first`: step of its first operation."""
    for step, op in enumerate(compute.body, first):
        if isinstance(op, ApplyFilters):
            matrices = [compute.matrices[i] for i in op.weights]
            if [m.tap for m in matrices if isinstance(m, Matrix)] != list(op.taps):
                raise VerifyError(f"spatial: {compute.node}: {op.result}: kernel positions and matrices disagree")
            sums[op.result] = Counter((m.tap, m.rows, m.cols) for m in matrices if isinstance(m, Matrix))
        elif isinstance(op, Vector) and op.function == "add":
            added = [copies.source(tile, sums, step) for tile in op.reads]
            if None in added:
                wrong = op.reads[added.index(None)]
                raise VerifyError(f"spatial: {compute.node}: {op.result} adds {wrong}, which is no sum of products")
            sums[op.result] = sum((sums[tile] for tile in added if tile is not None), Counter[_Product]())


def _check_reduction(operator: Filter, tensor: TensorParts, sums: dict[Tile, Counter[_Product]]) -> None:
    """Checks that each output tile adds each input channel that it needs exactly once at each kernel position.

    A kernel position that lies in the padding for all pixels of the tile may be missing, and so may weights of 0.
    """
    taps = operator.weights.shape[0]
    for part in tensor.parts:
        products = sums.get(part.tile, Counter[_Product]())
        rows: dict[int, list[tuple[int, int]]] = {tap: [] for tap in range(taps)}
        for (tap, span, cols), times in products.items():
            if times != 1 or cols != part.region.channels or tap not in rows:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} adds tap {tap} rows {span} {times} times")
            rows[tap].append(span)
        low, high = operator.input_range(part.region.channels)
        for tap, spans in rows.items():
            covered = misses_only_zeros(operator, tap, sorted(spans), (low, high), part.region.channels)
            if not covered and (spans or _reads(operator, tensor, part, tap)):
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} misses products of tap {tap}: {sorted(spans)}")


def _reads(operator: Filter, tensor: TensorParts, part: TensorPart, tap: int) -> bool:
    """True if some pixel of the part reads an input pixel, not padding, at this kernel position."""
    first, last = (row * tensor.image.width for row in part.region.rows)
    return bool((cached_input_pixels(operator.window)[first:last, tap] >= 0).any())


def _check_sources(graph: SpatialGraph, copies: CopySources) -> None:
    """Checks that products read the input channels that are the rows of their matrices.

    A tile may hold several ranges of channels, because equal parts of a tensor may share a tile. It may be a copy.
    """
    if not graph.dataflow.is_op_class(ApplyFilters).any():
        return
    holders: dict[str, dict[Tile, list[tuple[int, int]]]] = {}
    for use in graph.filter_of.values():
        held = holders.setdefault(use.key, {})
        source = graph.tensors[use.source]
        for part in (*source.parts, *source.whole):
            held.setdefault(part.tile, []).append(part.region.channels)
    for step, (compute, op) in enumerate((c, op) for c in graph.computes for op in c.body):
        if isinstance(op, ApplyFilters):
            held = holders[compute.layer]
            source = copies.source(op.input, held, step)
            ranges = held[source] if source is not None else []
            rows = {compute.matrices[i].rows for i in op.weights}
            if not any(_hold(r, op.channel, rows) for r in ranges):
                where = f"spatial: {compute.node}: {op.result}"
                raise VerifyError(f"{where}: {op.input} from channel {op.channel} on is not {sorted(rows)}")


def _hold(channels: tuple[int, int], first: int, rows: set[tuple[int, int]]) -> bool:
    """True if all `rows` begin at index `first` of the channels, and end inside them."""
    return all(start == channels[0] + first and stop <= channels[1] for start, stop in rows)


def _check_cover(name: str, image: Image, regions: list[TensorRegion]) -> None:
    """Checks that each channel of each pixel is in exactly one region; channel ranges are equal or disjoint."""
    channels = sorted({region.channels for region in regions})
    ends = [0, *(stop for _, stop in channels)]
    if [start for start, _ in channels] != ends[:-1] or ends[-1] != image.channels:
        raise VerifyError(f"spatial: {name}: channels {channels} are not covered exactly once")
    edges = [(*region.rows, *(region.cols or (0, image.width))) for region in regions]
    top, bottom, left, right = np.array(edges, np.int64).reshape(-1, 4).T
    inside = (top >= 0) & (top <= bottom) & (bottom <= image.rows)
    inside &= (left >= 0) & (left <= right) & (right <= image.width)
    for i in np.flatnonzero(~inside)[:1].tolist():
        raise VerifyError(f"spatial: {name}: {regions[i]} is outside of {image.rows} rows, {image.width} columns")
    number = {span: k for k, span in enumerate(channels)}
    span = np.array([number[region.channels] for region in regions], np.int64)
    within, region_of = concatenate_ranges(bottom - top)
    count = np.zeros((len(channels), image.rows, image.width + 1), np.int64)
    np.add.at(count, (span[region_of], top[region_of] + within, left[region_of]), 1)
    np.add.at(count, (span[region_of], top[region_of] + within, right[region_of]), -1)
    wrong = np.argwhere(np.cumsum(count[:, :, :-1], axis=2) != 1)
    for k, row, col in wrong[:1].tolist():
        raise VerifyError(f"spatial: {name}: row {row} column {col} of {channels[k]} is not covered exactly once")
