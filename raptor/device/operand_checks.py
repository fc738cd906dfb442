"""Validation of matrices and vectors: each function returns a copy in the type of the device, or raises an error."""

from typing import Any

import numpy as np

from raptor.device.back_end import Array, DeviceInfo
from raptor.device.errors import OperandError, ShapeError
from raptor.device.futures import is_future, peek_result

UNKNOWN_SHAPE = (0,)
"""Shape of a pending vector whose future has no shape. It must have the rows of the matrix, or fails later."""


def convert_matrix(info: DeviceInfo, value: object, shape: tuple[int, ...] | None = None) -> Array:
    """Returns a matrix [rows, columns] in the type of a weight. `shape`: the required shape, if known."""
    array = _typed(value, np.dtype(info.dtype), info.weight_bits, "a matrix")
    check_matrix_shape(info, array.shape)
    if shape is not None and array.shape != shape:
        raise ShapeError(f"expected a matrix of shape {shape}, got {array.shape}")
    return array


def convert_vectors(info: DeviceInfo, value: object, rows: int, dimensions: int) -> Array:
    """Returns vectors [n, rows], or one vector [rows], in the type of a vector."""
    array = _typed(value, info.vector_dtype, info.input_bits, "a vector")
    check_vectors_shape(array.shape, rows, dimensions)
    return array


def check_matrix_shape(info: DeviceInfo, shape: tuple[int, ...]) -> None:
    """Raises `ShapeError` for a matrix that does not fit a crossbar."""
    rows, cols = info.xbar
    if len(shape) != 2 or not (0 < shape[0] <= rows and 0 < shape[1] <= cols):
        raise ShapeError(f"a matrix of shape {shape} does not fit the {rows} rows and {cols} columns of a crossbar")


def check_vectors_shape(shape: tuple[int, ...], rows: int, dimensions: int) -> None:
    """Raises `ShapeError` for vectors that do not match a matrix of `rows` rows."""
    if len(shape) != dimensions or shape[-1] != rows or not shape[0]:
        wanted = f"({rows},)" if dimensions == 1 else f"(n, {rows})"
        raise ShapeError(f"expected shape {wanted}, as the matrix has {rows} rows; got {shape}")


def expected_shape(operand: object, dimensions: int, what: str) -> tuple[int, ...]:
    """Returns the shape that an operand has or will have. Raises `ShapeError` if a future does not know it."""
    shape = getattr(operand, "shape", None)
    if shape is None and is_future(operand) and operand.done() and operand.exception() is None:
        shape = np.shape(peek_result(operand))
    if shape is None and dimensions == 1:
        return UNKNOWN_SHAPE
    if shape is None or len(shape) != dimensions:
        raise ShapeError(f"{what} must have {dimensions} dimensions, got {shape or 'a future without a shape'}")
    return tuple(shape)


def _typed(value: Any, dtype: "np.dtype[Any]", bits: int, what: str) -> Array:
    try:
        array = np.asarray(value)
        if array.dtype == dtype and dtype.itemsize * 8 == bits:
            return array.copy()
        if dtype.kind == "f":
            return array.astype(dtype, casting="same_kind")
    except (TypeError, ValueError) as e:
        raise OperandError(f"{what}: not numbers of type {dtype}: {e}") from e
    if array.dtype.kind not in "iu":
        raise OperandError(f"{what}: expected integers, got {array.dtype}; this device multiplies integers")
    most = 2 ** (bits - 1)
    if array.size and not (-most <= array.min() and array.max() < most):
        raise OperandError(f"{what}: {array.min()} to {array.max()} leaves the {-most} to {most - 1} of {bits} bits")
    return array.astype(dtype)
