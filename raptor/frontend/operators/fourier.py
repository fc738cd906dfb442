"""Fourier transforms of constant length and AffineGrid, as products with constant matrices."""

import math

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import Shape
from raptor.frontend.formulas.builder import OperatorBuilder, read_constant_ints
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Floats, Indices, Tensor
from raptor.graph.rearrangement import c_order
from raptor.target.tensor_layout import Image

LONGEST_TRANSFORM = 4096
"""Maximum length of a transform; its matrix has as many rows and columns."""


@importer("DFT", since=17, limits=f"a constant length of at most {LONGEST_TRANSFORM}")
def import_dft(node: NodeView, ctx: ImportContext) -> None:
    """Discrete Fourier transform along an axis, or its inverse, as a product with the transform's matrix."""
    build, x = OperatorBuilder(node, ctx), ctx.tensor(node.inputs[0])
    axis = _axis(node, ctx, len(x.shape))
    inverse, onesided = (bool(node.integer(a, 0)) for a in ("inverse", "onesided"))
    size, parts = x.shape[axis], x.shape[-1]
    given = read_constant_ints(node, ctx, 1) or (2 * (size - 1) if inverse and onesided else size,)
    matrix = _transform(size, parts, given[0], inverse=inverse, onesided=onesided)
    lines = np.moveaxis(c_order(x.shape), axis, -2)
    result = _multiplied(build, x, lines, matrix)
    outer, shape = lines.shape[:-2], ctx.shape(node.output)
    wanted = c_order((*outer, shape[axis], shape[-1]))
    build.finish(build.rearrange(np.moveaxis(wanted, -2, axis), result))


@importer("STFT", since=17, limits=f"a constant step, window and frame length, of at most {LONGEST_TRANSFORM}")
def import_stft(node: NodeView, ctx: ImportContext) -> None:
    """Short-time Fourier transform: overlapping frames times a window, transformed by a matrix product."""
    build, x = OperatorBuilder(node, ctx), ctx.tensor(node.inputs[0])
    (step,) = read_constant_ints(node, ctx, 1) or (0,)
    window = None if node.input(2) is None else ctx.read_float32(node.inputs[2])
    (size,) = read_constant_ints(node, ctx, 3) or (x.shape[1] if window is None else len(window),)
    if step < 1 or not 0 < size <= x.shape[1] or (window is not None and len(window) != size):
        raise ImportRefusal(f"frames of {size} every {step} of {x.shape[1]} samples, or a window of another length")
    signal = c_order(x.shape).reshape(x.shape[0], x.shape[1], -1)
    first = np.arange(0, x.shape[1] - size + 1, step)
    frames = signal[:, first[:, None] + np.arange(size)]
    parts = frames.shape[-1]
    matrix = _transform(size, parts, size, inverse=False, onesided=bool(node.integer("onesided", 1)))
    if window is not None:
        matrix = matrix * np.repeat(window, parts)[:, None]
    result = _multiplied(build, x, frames, matrix)
    build.finish(build.rearrange(c_order(ctx.shape(node.output)), result))


@importer("AffineGrid", since=20, limits="a constant size")
def import_affine_grid(node: NodeView, ctx: ImportContext) -> None:
    """Coordinates of each pixel after an affine map: the product of the map with the coordinates of all pixels."""
    build, theta = OperatorBuilder(node, ctx), ctx.tensor(node.inputs[0])
    dims = (read_constant_ints(node, ctx, 1) or ())[2:]
    batch, rank = theta.shape[:2]
    if rank != len(dims):
        raise ImportRefusal(f"a map of {rank} dimensions, a size of {len(dims)}")
    points = _coordinates(dims, aligned=bool(node.integer("align_corners", 0)))
    result = _multiplied(build, theta, c_order(theta.shape)[..., None], points)
    wanted = c_order((batch, rank, math.prod(dims))).transpose(0, 2, 1)
    build.finish(build.rearrange(wanted.reshape(batch, *dims, rank), result))


def _axis(node: NodeView, ctx: ImportContext, rank: int) -> int:
    """Returns the axis: an attribute before version 20, then an input."""
    given = (node.integer("axis", 1),) if node.version < 20 else read_constant_ints(node, ctx, 2) or (-2,)
    if not -rank <= given[0] < rank or given[0] % rank == rank - 1:
        raise ImportRefusal(f"axis {given[0]} of {rank} dimensions, of which the last holds real and imaginary parts")
    return given[0] % rank


def _transform(size: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Floats:
    """Returns [size * parts, new size * new parts]: the transforms of all unit vectors, real and imaginary parts."""
    if not 0 < max(size, length) <= LONGEST_TRANSFORM or length < 1:
        raise ImportRefusal(f"a transform of {size} numbers of length {length}; at most {LONGEST_TRANSFORM}")
    units = np.eye(size).astype(np.complex128)
    rows = np.stack([units, 1j * units][:parts], axis=1).reshape(size * parts, size)
    if inverse and onesided:
        return _as_float(np.fft.irfft(rows, n=length, axis=1)[..., None])
    found = (np.fft.ifft if inverse else np.fft.fft)(rows, n=length, axis=1)
    found = found[:, : length // 2 + 1] if onesided else found
    return _as_float(np.stack([found.real, found.imag], axis=-1))


def _as_float(rows: npt.NDArray[np.float64]) -> Floats:
    return rows.reshape(len(rows), -1).astype(np.float32)


def _coordinates(dims: Shape, *, aligned: bool) -> Floats:
    """Returns [dimensions + 1, pixels]: homogeneous coordinates of each pixel from -1 to 1, last dimension first."""
    axes = [_centres(n, aligned=aligned) for n in dims]
    grid = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(dims)])
    return grid.reshape(len(dims) + 1, -1).astype(np.float32)


def _centres(count: int, *, aligned: bool) -> npt.NDArray[np.float64]:
    if aligned:
        # For a single pixel, onnxruntime uses the coordinate of the last border.
        return np.linspace(-1, 1, count) if count > 1 else np.ones(1)
    return (2 * np.arange(count) + 1) / count - 1


def _multiplied(build: OperatorBuilder, x: Tensor, lines: Indices, matrix: Floats) -> Tensor:
    """Multiplies vectors of elements of x, numbered by the last two dimensions of `lines`, by the matrix."""
    rows = lines.reshape(-1, matrix.shape[0])
    return build.multiply_by_matrix(build.lay_out(build.rearrange(rows, x), Image(rows.shape, 1)), matrix)
