"""Binding the shapes of the inputs: the chip needs them fixed."""

from collections.abc import Mapping, Sequence

from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from raptor.errors import UserError

Dim = int | str
"""A fixed size, or the name of an open one (`?` if it has none)."""


def bind_shapes(proto: ModelProto, shapes: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Writes `shapes` into the inputs of `proto`; afterwards every input is static. Returns notes for the user.

    An open dimension with a name (`batch`) has one size throughout, so binding it in one input binds it in all.
    Raises `UserError` for unknown inputs, wrong ranks, conflicts with fixed sizes, and sizes still open.
    """
    initializers = {t.name for t in proto.graph.initializer}
    inputs = {v.name: v for v in proto.graph.input if v.name not in initializers}
    unknown = [name for name in shapes if name not in inputs]
    if unknown:
        raise UserError(f"--shape: no input '{unknown[0]}'; the inputs are {', '.join(inputs) or 'none'}")
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        _bind(inputs[name], shape, named)
    for value in inputs.values():
        _fill_named(value, named)
        _require_static(value)
    _forget_derived_shapes(proto)
    return tuple(f"input '{n}' bound to {_text(shapes[n])}" for n in inputs if n in shapes)


def _bind(value: ValueInfoProto, shape: Sequence[int], named: dict[str, int]) -> None:
    name = value.name
    declared = _dims(value)
    if len(shape) != len(declared):
        raise UserError(f"--shape {name}={_text(shape)}: the model has {len(declared)} dimensions: {_text(declared)}")
    for d, (size, old) in enumerate(zip(shape, declared, strict=True)):
        if size < 1:
            raise UserError(f"--shape {name}={_text(shape)}: sizes must be at least 1")
        fixed = named.setdefault(old, size) if isinstance(old, str) and old != "?" else old
        if fixed not in (size, "?"):
            raise UserError(f"--shape {name}={_text(shape)}: dimension {d} is {fixed} in the model ({_text(declared)})")
    _write(value, shape)


def _fill_named(value: ValueInfoProto, named: Mapping[str, int]) -> None:
    _write(value, [named.get(d, d) if isinstance(d, str) else d for d in _dims(value)])


def _require_static(value: ValueInfoProto) -> None:
    dims = _dims(value)
    for d, size in enumerate(dims):
        if isinstance(size, str):
            raise UserError(
                f"input '{value.name}': dimension {d} ({size}) has no size; give it with "
                f"--shape {value.name}={_suggestion(dims)}"
            )
        if size < 1:
            raise UserError(f"input '{value.name}': dimension {d} is {size}, there is nothing to compute")


def _suggestion(dims: Sequence[Dim]) -> str:
    """The shape to give: 1 for an open batch, plausible names for other open sizes."""
    names = ["1", "C", "H", "W"] if len(dims) == 4 else ["1", *(f"D{d}" for d in range(1, len(dims)))]
    return ",".join(names[d] if isinstance(size, str) else str(size) for d, size in enumerate(dims))


def _forget_derived_shapes(proto: ModelProto) -> None:
    """Inner and output shapes were written for open sizes; they are inferred again from the inputs."""
    proto.graph.ClearField("value_info")
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")


def _dims(value: ValueInfoProto) -> tuple[Dim, ...]:
    return tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in value.type.tensor_type.shape.dim
    )


def _write(value: ValueInfoProto, dims: Sequence[Dim]) -> None:
    shape = TensorShapeProto()
    for size in dims:
        dim = shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size != "?":
            dim.dim_param = size
    value.type.tensor_type.shape.CopyFrom(shape)


def _text(dims: Sequence[Dim]) -> str:
    return ",".join(map(str, dims))
