"""Values of tensors at the borders of segments, in the types that onnxruntime names."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from raptor.common.errors import UserError
from raptor.output.files import BorderTensor
from validator.model.node import Array
from validator.model.types import parse_tensor_type


def convert_input(value: Any, tensor: BorderTensor) -> Any:
    """Converts the value of an input, as a caller passes it, to the model's type.

    Raises `UserError` for another shape, and for numbers that the type does not have, such as NaN for an integer.
    """
    dtype = parse_tensor_type(tensor.type)
    if dtype is None:
        return value
    what, array = f"input {tensor.name!r}", np.asarray(value)
    if not matches_sizes(array.shape, tensor.shape):
        shown = "x".join("?" if size is None else str(size) for size in tensor.shape) or "a scalar"
        raise UserError(f"{what}: expected shape {shown}, got {list(array.shape)}")
    if (dtype.kind == "O") != (array.dtype.kind in "OUS"):
        raise UserError(f"{what}: holds {array.dtype}, expected {tensor.type}")
    return convert_tensor(array, dtype, what)


def as_array(value: Any) -> Array | None:
    """Returns the value if it is an array; None for sequences and absent values."""
    return cast(Array, value) if isinstance(value, np.ndarray) else None


def flatten_value(name: str, value: Any) -> dict[str, Array]:
    """Returns a value as named arrays: for a sequence `name/0`, `name/1` ..., for a map its values and `name/keys`.

    A sequence of maps with equal keys, as a classifier makes for samples, is one array with a row for each map. An
    absent value and an empty sequence have no arrays.
    """
    match value:
        case None:
            return {}
        case dict():
            table = _table(name, [cast(dict[Any, Any], value)])
            return {**table, name: table[name][0]}
        case list():
            items = cast(list[Any], value)
            if items and all(isinstance(item, dict) and item.keys() == items[0].keys() for item in items):
                return _table(name, items)
            parts = (flatten_value(f"{name}/{k}", item) for k, item in enumerate(items))
            return {key: array for part in parts for key, array in part.items()}
        case _:
            return {name: np.asarray(value)}


def _table(name: str, maps: Sequence[Mapping[Any, Any]]) -> dict[str, Array]:
    """Returns a row for each of these maps with equal keys. Python's floats become float32, as in onnxruntime."""
    keys = list(maps[0])
    rows = np.asarray([[one[key] for key in keys] for one in maps])
    return {name: rows.astype(np.float32) if rows.dtype.kind == "f" else rows, f"{name}/keys": np.asarray(keys)}


def matches_sizes(shape: Sequence[int], sizes: Sequence[int | None]) -> bool:
    """Checks whether a shape matches declared sizes, of which None matches any size."""
    return len(shape) == len(sizes) and all(wanted in (None, size) for size, wanted in zip(shape, sizes, strict=True))


def convert_tensor(value: Any, dtype: "np.dtype[Any] | None", what: str) -> Any:
    """Converts a tensor to another type. Raises `UserError` if that changes an integer. Other values stay unchanged."""
    array = as_array(value)
    if dtype is None or array is None or array.dtype == dtype:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(dtype)
        changed = dtype.kind in "iub" and not np.array_equal(found.astype(np.float64), array.astype(np.float64))
    if changed:
        raise UserError(f"{what}: holds numbers that are no {dtype.name}")
    return found


def convert_to_type(value: Any, type_: str, what: str) -> Any:
    """Converts a value to the type that onnxruntime calls `type_`, such as `tensor(float)`."""
    return convert_tensor(value, parse_tensor_type(type_), what)
