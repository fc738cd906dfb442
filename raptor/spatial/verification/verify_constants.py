"""Verifier of constants that crossbars produce: each tile repeats the constant that it stands for."""

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.operations import ApplyLine, Move
from raptor.spatial.tiles import ConstantTile, Tile

Floats = npt.NDArray[np.float32]


def verify_constants(graph: SpatialGraph) -> None:
    """Traces each produced constant to the row of a matrix. Raises `VerifyError` with ONNX node and tile."""
    if not graph.made:
        return
    products: dict[str, Floats] = {}
    made: dict[str, tuple[str, Tile, Floats | None]] = {}
    for compute in graph.computes:
        for op in compute.body:
            if isinstance(op, ApplyLine) and compute.layer in graph.filters:
                row = _row(graph, compute, op)
                if row is not None:
                    products[op.result.name] = row
            elif isinstance(op, Move) and op.result.name in graph.made:
                made[op.result.name] = compute.node, op.result, _moved(op, products)
    for name, constant in graph.made.items():
        node, tile, values = made.get(name, ("", constant, None))
        if values is None or not np.array_equal(values, _repeated(constant, tile)):
            raise VerifyError(f"spatial: {node}: %{name} is not the constant that it stands for")


def _repeated(constant: ConstantTile, tile: Tile) -> Floats:
    """Returns the wanted elements of a tile, which has the pixels of the constant, or repeats one in each row."""
    values = constant.values.astype(np.float32, copy=False)
    pixels = values.reshape(tile.rows, constant.pixels // tile.rows, constant.channels)
    return np.broadcast_to(pixels, (tile.rows, tile.width, tile.channels)).reshape(-1)


def _row(graph: SpatialGraph, compute: Compute, op: ApplyLine[Tile]) -> Floats | None:
    """Returns the result of a product of a single 1 with a row matrix; None for another product."""
    one = graph.literals.get(op.lines[0].name)
    if one is None or one.values.tolist() != [1.0] or op.products.tolist() != [[0, 0, 0, 0]]:
        return None
    values = compute.matrices[0].values(graph.filters[compute.layer])
    return values[0] if values.shape == (1, op.result.elements) else None


def _moved(op: Move[Tile], products: dict[str, Floats]) -> Floats | None:
    """Returns the elements that a move takes from such a product; None if it takes others, or leaves some out."""
    row = products.get(op.sources[0].name)
    values = np.full(op.result.elements, np.nan, np.float32)
    runs: list[list[int]] = op.runs.tolist()
    for at, source, first, stride, count in runs:
        index = first + np.arange(count) * stride
        if row is None or source != 0 or index.max() >= len(row) or at + count > len(values):
            return None
        values[at : at + count] = row[index]
    return values
