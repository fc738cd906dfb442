"""Linear algebra kernels as graphs of products that fit crossbars, as OCC compiles them.

Matrices are cut into tiles; partial products along the inner dimension are added by the host. A contraction becomes a
matrix product by transposition and reshaping (TTGT), a convolution by im2col. Networks are in `raptor.device.networks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from raptor.device.back_end import Array
from raptor.device.errors import ShapeError
from raptor.device.graph import ArrayOrNode, GraphValue, ProductGraph


@dataclass(frozen=True, slots=True)
class ProductCosts:
    """Costs of a matrix product.

    writes: crossbar writes if each tile of vectors writes its matrix. fewest_writes: if no matrix is written twice.
    products: vectors that are multiplied. macs: multiply-accumulates on crossbars. additions: additions on the host.
    cells: fraction of the cells of the written crossbars that the matrix uses.
    """

    writes: int
    fewest_writes: int
    products: int
    macs: int
    additions: int
    cells: float


def counts(xbar: tuple[int, int], m: int, k: int, n: int) -> ProductCosts:
    """Returns the costs of `matmul` of [m, k] and [k, n] on crossbars of `xbar`, without computing it."""
    rows, cols = xbar
    bands, inner, columns = -(-m // rows), -(-k // rows), -(-n // cols)
    tiles = inner * columns
    return ProductCosts(bands * tiles, tiles, m * tiles, m * k * n, m * n * (inner - 1), k * n / (tiles * rows * cols))


def matmul(graph: ProductGraph, a: ArrayOrNode, b: ArrayOrNode) -> GraphValue:
    """Adds `a` [m, k] times `b` [k, n] in the order of OCC's tiled loops: rows, columns, inner dimension.

    A tile has the rows and columns of a crossbar, and as many vectors as a crossbar has rows.
    """
    left, right = _value(a), _value(b)
    if len(left.shape) != 2 or len(right.shape) != 2 or left.shape[1] != right.shape[0]:
        raise ShapeError(f"{left.shape} times {right.shape} is no product of matrices")
    (m, k), n = left.shape, right.shape[1]
    rows, cols = graph.info.xbar
    tiles = [[_tile(graph, right, p, q) for q in _cuts(n, cols)] for p in _cuts(k, rows)]
    bands = [[_tile(graph, left, p, q) for q in _cuts(k, rows)] for p in _cuts(m, rows)]
    blocks = [
        [
            _sum(graph, [graph.product(part, row[j]) for part, row in zip(band, tiles, strict=True)])
            for j in range(-(-n // cols))
        ]
        for band in bands
    ]
    return _joined(graph, blocks, (m, n))


def matvec(graph: ProductGraph, matrix: ArrayOrNode, vector: ArrayOrNode) -> GraphValue:
    """Adds `matrix` [m, k] times `vector` [k], with the matrix in the crossbars; returns [m]."""
    x, w = _value(vector), _value(matrix)
    row = _host(graph, lambda v: v.reshape(1, -1), x, (1, prod(x.shape)))
    product = matmul(graph, row, _host(graph, np.transpose, w, w.shape[::-1]))
    return graph.host(np.ravel, [product], (w.shape[0],))


def contraction(graph: ProductGraph, formula: str, a: ArrayOrNode, b: ArrayOrNode) -> GraphValue:
    """Adds a contraction such as `ab-acd-dbc`: the indices of the result, of `a` and of `b`.

    Indices of both operands are summed. Raises `UserError` for a formula with a result index that both operands or
    neither have.
    """
    result, of_a, of_b = _formula(formula)
    summed = [i for i in of_a if i in of_b]
    only_a, only_b = ([i for i in result if i in indices] for indices in (of_a, of_b))
    left, right = _value(a), _value(b)
    sizes = dict(zip(of_a, left.shape, strict=True)) | dict(zip(of_b, right.shape, strict=True))
    m, k, n = (prod(sizes[i] for i in part) for part in (only_a, summed, only_b))
    lhs = _folded(graph, left, [of_a.index(i) for i in (*only_a, *summed)], (m, k))
    rhs = _folded(graph, right, [of_b.index(i) for i in (*summed, *only_b)], (k, n))
    product, order = matmul(graph, lhs, rhs), [*only_a, *only_b]

    def unfold(value: Array) -> Array:
        return value.reshape([sizes[i] for i in order]).transpose([order.index(i) for i in result])

    return graph.host(unfold, [product], tuple(sizes[i] for i in result))


def kronecker(graph: ProductGraph, matrices: Sequence[ArrayOrNode], x: ArrayOrNode) -> GraphValue:
    """Adds the Kronecker product of matrices [d, n] times vectors `x` [m, n, n, ...], without forming the product.

    Returns [m, d, d, ...]. Each matrix is applied as a contraction, the last one first.
    """
    letters, product = "abcdefgh"[: len(matrices)], x
    if len(_value(x).shape) != 1 + len(matrices) or len(matrices) > len(letters):
        raise ShapeError(f"{len(matrices)} matrices do not fit vectors of shape {_value(x).shape}")
    for letter, matrix in zip(reversed(letters), reversed(matrices), strict=True):
        result = letters.replace(letter, "z")
        product = contraction(graph, f"m{result}-m{letters}-z{letter}", product, matrix)
    assert isinstance(product, GraphValue)
    return product


def convolution(graph: ProductGraph, image: ArrayOrNode, filters: ArrayOrNode, *, dilation: int = 1) -> GraphValue:
    """Adds a convolution of an image [n, c, ...] with filters [o, c, ...] that have equally many dimensions.

    No padding, stride 1. `dilation`: distance of the elements that a filter reads.
    """
    x, f = _value(image), _value(filters)
    (n, c, *dims), (o, filter_c, *taps) = x.shape, f.shape
    spans = [dilation * (tap - 1) + 1 for tap in taps]
    if len(dims) != len(taps) or not taps or c != filter_c or any(a > b for a, b in zip(spans, dims, strict=True)):
        raise ShapeError(f"filters {f.shape} do not fit an image of {x.shape}")
    sizes = [dim - span + 1 for dim, span in zip(dims, spans, strict=True)]
    inside, count = tuple(range(2, 2 + len(dims))), len(dims)
    order = (0, *inside, 1, *(axis + count for axis in inside))

    def windows(value: Array) -> Array:
        every = np.lib.stride_tricks.sliding_window_view(value, spans, axis=inside)
        read = every[(..., *[slice(None, None, dilation)] * count)]
        return read.transpose(order).reshape(n * prod(sizes), c * prod(taps))

    def fold(value: Array) -> Array:
        return np.moveaxis(value.reshape(n, *sizes, o), -1, 1)

    rows = _host(graph, windows, x, (n * prod(sizes), c * prod(taps)))
    columns = _host(graph, lambda value: value.reshape(o, -1).T, f, (c * prod(taps), o))
    return graph.host(fold, [matmul(graph, rows, columns)], (n, o, *sizes))


def _formula(formula: str) -> tuple[str, str, str]:
    parts = formula.split("-")
    if len(parts) != 3 or not all(len(set(part)) == len(part) for part in parts):
        raise UserError(f"contraction {formula!r}: expected indices of result and operands, such as ab-acd-dbc")
    result, a, b = parts
    if set(result) != set(a) ^ set(b) or not set(a) & set(b):
        raise UserError(f"contraction {formula!r}: an index belongs to two of result and operands, no more, no fewer")
    return result, a, b


def _value(value: ArrayOrNode) -> Any:
    return value if isinstance(value, GraphValue) else np.asarray(value)


def _host(graph: ProductGraph, function: Callable[[Any], Any], value: Any, shape: tuple[int, ...]) -> Any:
    """Applies a function to an array now, or to a node when the graph runs."""
    return graph.host(function, [value], shape) if isinstance(value, GraphValue) else function(value)


def _folded(graph: ProductGraph, value: Any, order: Sequence[int], shape: tuple[int, int]) -> Any:
    return _host(graph, lambda array: array.transpose(order).reshape(shape), value, shape)


def _cuts(size: int, step: int) -> list[slice]:
    return [slice(at, min(at + step, size)) for at in range(0, size, step)]


def _tile(graph: ProductGraph, value: Any, rows: slice, cols: slice) -> Any:
    shape = rows.stop - rows.start, cols.stop - cols.start
    return _host(graph, lambda array: array[rows, cols], value, shape)


def _sum(graph: ProductGraph, parts: Sequence[GraphValue]) -> GraphValue:
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].shape
    return graph.host(lambda *arrays: reduce(np.add, arrays), parts, shape, prod(shape) * (len(parts) - 1))


def _joined(graph: ProductGraph, blocks: Sequence[Sequence[GraphValue]], shape: tuple[int, int]) -> GraphValue:
    widths = len(blocks[0])

    def join(*arrays: Array) -> Array:
        return np.block([list(arrays[at : at + widths]) for at in range(0, len(arrays), widths)])

    return graph.host(join, [block for row in blocks for block in row], shape)
