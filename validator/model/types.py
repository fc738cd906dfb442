"""Types of tensors, by the names that onnxruntime gives them."""

from typing import Any

import ml_dtypes
import numpy as np

FEW_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn")
_OF_ML_DTYPES = frozenset(("int2", "uint2", "int4", "uint4", "bfloat16", *FEW_BITS))
_LONG = {"float": "float32", "double": "float64", "string": "object"}
"""numpy's names of types that onnxruntime names otherwise."""


def named_type(name: str) -> "np.dtype[Any]":
    """Returns the type with this name, of numpy or ml_dtypes. Raises `TypeError` if there is none."""
    return np.dtype(getattr(ml_dtypes, name) if name in _OF_ML_DTYPES else name)


def parse_tensor_type(type_: str) -> "np.dtype[Any] | None":
    """Returns numpy's type for `tensor(float)`; None if it is not a tensor of a known type."""
    if not type_.startswith("tensor("):
        return None
    name = type_.removeprefix("tensor(").removesuffix(")")
    try:
        return named_type(_LONG.get(name, name))
    except TypeError:
        return None


def number_type(type_: str) -> "np.dtype[Any] | None":
    """Returns numpy's own type for a tensor of real numbers or booleans; None for any other type."""
    dtype = parse_tensor_type(type_)
    return dtype if dtype is not None and dtype.isbuiltin == 1 and dtype.kind in "fiub" else None
