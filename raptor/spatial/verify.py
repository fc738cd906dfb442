"""Invariants of SpatialIR (docs/design.md, 3)."""

from collections import Counter

from raptor.arch import Arch
from raptor.errors import VerifyError
from raptor.layout import Image, Region
from raptor.spatial.ir import ApplyFilters, Compute, Gather, SpatialGraph, Tile, Vector

_Product = tuple[int, tuple[int, int], tuple[int, int]]
"""(kernel position, input channels, output channels) of a layer."""


def verify(graph: SpatialGraph, arch: Arch) -> None:
    """Raises `VerifyError` that names the op and the ONNX node."""
    known: dict[str, Tile] = {p.tile.name: p.tile for name in graph.inputs for p in graph.tensors[name].parts}
    sums: dict[Tile, Counter[_Product]] = {}
    for compute in graph.computes:
        _check_compute(compute, known, arch)
        if compute.matrices:
            _collect_products(compute, sums)
    for tensor in graph.tensors.values():
        _check_cover(tensor.name, tensor.image, [p.region for p in tensor.parts])
        for part in tensor.parts:
            if known.get(part.tile.name) != part.tile:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} of {tensor.name} is never defined")
    for name in graph.filters:
        _check_reduction(graph, name, sums)


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
        if op.result.name in known:
            raise VerifyError(f"{where}: {op.result} is defined twice")
        if isinstance(op, Gather):
            _check_gather(where, op)
        known[op.result.name] = op.result


def _check_gather(where: str, op: Gather) -> None:
    spans = sorted((p.target, p.target + p.channels) for p in op.pieces)
    ends = [0, *(stop for _, stop in spans)]
    if [start for start, _ in spans] != ends[:-1] or ends[-1] != op.result.channels:
        raise VerifyError(f"{where}: {op.result} is not covered exactly once")
    if any(p.source + p.channels > p.tile.channels for p in op.pieces):
        raise VerifyError(f"{where}: {op.result} takes channels that its source does not have")


def _collect_products(compute: Compute, sums: dict[Tile, Counter[_Product]]) -> None:
    for op in compute.body:
        if isinstance(op, ApplyFilters):
            matrices = [compute.matrices[i] for i in op.weights]
            if [m.tap for m in matrices] != list(op.taps):
                raise VerifyError(f"spatial: {compute.node}: {op.result}: kernel positions and matrices disagree")
            sums[op.result] = Counter((m.tap, m.rows, m.cols) for m in matrices)
        elif isinstance(op, Vector) and op.function == "add":
            sums[op.result] = sum((sums[t] for t in op.reads), Counter[_Product]())


def _check_reduction(graph: SpatialGraph, name: str, sums: dict[Tile, Counter[_Product]]) -> None:
    """Each output tile adds each input channel and kernel position exactly once."""
    taps, channels, _ = graph.filters[name].weights.shape
    tensor = graph.tensors[name]
    for part in tensor.parts:
        products = sums.get(part.tile, Counter[_Product]())
        covered: Counter[int] = Counter()
        for (tap, rows, cols), times in products.items():
            if times != 1 or cols != part.region.channels or not 0 <= tap < taps:
                raise VerifyError(f"spatial: {tensor.node}: {part.tile} adds tap {tap} rows {rows} {times} times")
            covered[tap] += rows[1] - rows[0]
        starts = Counter(rows[0] for (_, rows, _) in products)
        if covered != Counter(dict.fromkeys(range(taps), channels)) or any(n != taps for n in starts.values()):
            raise VerifyError(f"spatial: {tensor.node}: {part.tile} misses products: {dict(covered)}")


def _check_cover(name: str, image: Image, regions: list[Region]) -> None:
    position = 0
    for region in sorted(regions):
        if region.channels[0] != position or region.rows != (0, image.rows):
            raise VerifyError(f"spatial: {name}: channel {position} is not covered exactly once")
        position = region.channels[1]
    if position != image.channels:
        raise VerifyError(f"spatial: {name}: channel {position} is not covered exactly once")
