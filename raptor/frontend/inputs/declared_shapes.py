"""Shapes that a model declares for its inputs, with open and named dimensions."""

from collections.abc import Sequence

from onnx import TensorShapeProto, ValueInfoProto

Dim = int | str
"""A fixed size, or the name of an open size (`UNNAMED` if it has none)."""
UNNAMED = "?"


def has_shape(value: ValueInfoProto) -> bool:
    """Checks whether a shape is declared, maybe with open sizes. The shape of a scalar is empty."""
    return value.type.tensor_type.HasField("shape")


def read_dims(value: ValueInfoProto) -> tuple[Dim, ...]:
    """Returns the declared shape. Exporters write open sizes as a name, an empty name, `?`, -1 or 0."""
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.dim_value > 0 else d.dim_param or UNNAMED for d in dims)


def static_dims(value: ValueInfoProto) -> tuple[int, ...] | None:
    """Returns the shape of a tensor if all sizes are known, 0 included; else None."""
    kind = value.type.tensor_type
    known = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
    return tuple(d.dim_value for d in kind.shape.dim) if known else None


def write_dims(value: ValueInfoProto, dims: Sequence[Dim]) -> None:
    """Sets the shape of `value`, in place; `UNNAMED` sizes stay empty."""
    shape = TensorShapeProto()
    for size in dims:
        dim = shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size != UNNAMED:
            dim.dim_param = size
    value.type.tensor_type.shape.CopyFrom(shape)


def format_dims(dims: Sequence[Dim]) -> str:
    """Returns a shape as text for messages and `--shape`: `1,3,H,W`."""
    return ",".join(map(str, dims))


def find_open_dims(dims: Sequence[Dim]) -> list[str]:
    """Returns the names of the open sizes."""
    return [d for d in dims if isinstance(d, str) and d != UNNAMED]


def make_example_dims(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Returns an example shape for an option: 1 for an open batch, letters for other open sizes."""
    letters = ["1", *(f"D{d}" for d in range(1, len(dims)))]
    if len(dims) == 4:
        # Channels are rarely open: if only the last size is fixed, it is the channels.
        last = isinstance(dims[3], int) and isinstance(dims[1], str)
        letters = ["1", "H", "W", "C"] if last else ["1", "C", "H", "W"]
    return tuple(letters[d] if isinstance(size, str) else size for d, size in enumerate(dims))
