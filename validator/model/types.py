"""Types of tensors, by the names that onnxruntime gives them."""

from typing import Any

import ml_dtypes
import numpy as np

_SHORT = {"float": "float32", "double": "float64", "string": "object"}
_OTHERS = ("bfloat16", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")


def dtype_of(type_: str) -> "np.dtype[Any] | None":
    """Returns numpy's type for `tensor(float)`; None if it is not a tensor of a known type."""
    if not type_.startswith("tensor("):
        return None
    name = type_.removeprefix("tensor(").removesuffix(")")
    if name in _OTHERS:
        return np.dtype(getattr(ml_dtypes, name))
    try:
        return np.dtype(_SHORT.get(name, name))
    except TypeError:
        return None


def number_type(type_: str) -> "np.dtype[Any] | None":
    """Returns numpy's own type for a tensor of real numbers or booleans; None for any other type."""
    dtype = dtype_of(type_)
    return dtype if dtype is not None and dtype.isbuiltin == 1 and dtype.kind in "fiub" else None
