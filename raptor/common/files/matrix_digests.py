"""Digests of matrices. Compiler and validator compare the contents of crossbars by them."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt


def digest_matrix(matrix: npt.NDArray[Any]) -> str:
    """Returns the SHA-256 (hex) of shape, type and values: floats as float32, integers as int64, little-endian."""
    kind = "<f4" if matrix.dtype.kind == "f" else "<i8"
    digest = hashlib.sha256(f"{kind} {matrix.shape}".encode())
    digest.update(np.ascontiguousarray(matrix, kind).data)
    return digest.hexdigest()
