"""Binds the inputs of a model: gives them static shapes, and turns inputs with given values into constants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, ValueInfoProto, numpy_helper

from raptor.common.errors import IncompleteError, UserError
from raptor.common.option_spelling import spell_name as spelled
from raptor.common.option_spelling import spell_option
from raptor.frontend.inputs.declared_shapes import (
    UNNAMED,
    Dim,
    find_open_dims,
    format_dims,
    has_shape,
    make_example_dims,
    read_dims,
    write_dims,
)
from raptor.frontend.inputs.input_values import convert_value
from raptor.frontend.proto.model_checks import MOST_ELEMENTS, collect_inputs, find_input_fault, is_settable
from raptor.options import ModelInputs

Array = npt.NDArray[Any]
_SHOWN_VALUES = 8


@dataclass(frozen=True, slots=True, eq=False)
class BoundInputs:
    """Result of `bind_inputs`. `constants`: the inputs that became constants. `notes`: messages for the user."""

    constants: Mapping[str, Array]
    notes: tuple[str, ...]


def bind_inputs(proto: ModelProto, fixed: ModelInputs) -> BoundInputs:
    """Writes shapes, sizes and constants into `proto`: each input gets a static shape, or becomes a constant.

    A named dimension (`batch`) has the same size in all inputs. An open first dimension is the batch and becomes 1.
    Raises `UserError` for unknown names, wrong ranks and conflicts, and `IncompleteError` listing everything that is
    missing.
    """
    inputs = collect_inputs(proto)
    _check_names(inputs, fixed)
    sizes = _named_sizes(inputs, fixed)
    constants = {n: _constant(inputs[n], value, sizes) for n, value in fixed.constants.items()}
    _make_constants(proto, constants)
    data = collect_inputs(proto)
    for value in (v for n, v in data.items() if has_shape(v) or n in fixed.shapes):
        write_dims(value, fixed.shapes.get(value.name) or [_sized(d, sizes) for d in read_dims(value)])
    notes = [f"input '{n}' bound to {format_dims(fixed.shapes[n])}" for n in data if n in fixed.shapes]
    notes += [f"input '{n}' is the constant {_shown(constants[n])}" for n in constants]
    notes += _bind_batch(data)
    _require_sizes(proto)
    _forget_derived_shapes(proto)
    return BoundInputs(constants, tuple(notes))


def make_constants(proto: ModelProto, given: Mapping[str, object]) -> None:
    """Makes inputs constants, in place. Raises `UserError` for unknown names, wrong types, and other shapes."""
    inputs = collect_inputs(proto)
    _check_names(inputs, ModelInputs(constants=given))
    _make_constants(proto, {name: _constant(inputs[name], value, {}) for name, value in given.items()})


def _check_names(inputs: Mapping[str, ValueInfoProto], fixed: ModelInputs) -> None:
    for keyword, given in (("shapes", fixed.shapes), ("constants", fixed.constants)):
        unknown = [name for name in given if name not in inputs]
        if unknown:
            raise UserError(
                f"{spelled(keyword)}: no input '{unknown[0]}'; the inputs are {', '.join(inputs) or 'none'}"
            )
    both = [name for name in fixed.shapes if name in fixed.constants]
    if both:
        why = f"{spelled('constants')} makes this input a constant, which has the shape of its value"
        raise UserError(f"{spelled('shapes')} {both[0]}: {why}")
    known = dict.fromkeys(d for v in inputs.values() for d in find_open_dims(read_dims(v)))
    unknown = [name for name in fixed.dims if name not in known]
    if unknown:
        without = f"those of the inputs have no names; use {spelled('shapes')}"
        there = f"the inputs have {', '.join(known)}" if known else without
        raise UserError(f"{spelled('dims')}: no dimension '{unknown[0]}'; {there}")


def _named_sizes(inputs: Mapping[str, ValueInfoProto], fixed: ModelInputs) -> dict[str, int]:
    """Returns the sizes of named dimensions, from those given and from whole shapes."""
    for name, size in fixed.dims.items():
        _check_size(spell_option("dims", {name: size}), size)
    sizes = dict(fixed.dims)
    for name, shape in fixed.shapes.items():
        _match(spell_option("shapes", {name: tuple(shape)}), inputs[name], shape, sizes)
    return sizes


def _check_size(given: str, size: int) -> None:
    if not 1 <= size <= MOST_ELEMENTS:
        raise UserError(f"{given}: sizes must be at least 1 and at most {MOST_ELEMENTS}")


def _match(given: str, value: ValueInfoProto, shape: Sequence[int], sizes: dict[str, int]) -> None:
    declared = read_dims(value) if has_shape(value) else (UNNAMED,) * len(shape)
    if len(shape) != len(declared):
        raise UserError(f"{given}: the model has {len(declared)} dimensions: {format_dims(declared) or 'a scalar'}")
    for d, (size, old) in enumerate(zip(shape, declared, strict=True)):
        _check_size(given, size)
        wanted = sizes.setdefault(old, size) if isinstance(old, str) and old != UNNAMED else old
        if wanted not in (size, UNNAMED):
            raise UserError(f"{given}: dimension {d} is {wanted} in the model ({format_dims(declared)})")


def _constant(value: ValueInfoProto, given: object, sizes: dict[str, int]) -> Array:
    dims = [_sized(d, sizes) for d in read_dims(value)]
    constant = convert_value(value.name, given, value.type.tensor_type.elem_type, dims)
    _match(f"{spelled('constants')} {value.name}", value, constant.shape, sizes)
    return constant


def _sized(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    return sizes.get(dim, dim) if isinstance(dim, str) else dim


def _shown(values: Array) -> str:
    shown = ",".join(str(v) for v in values.flat[:_SHOWN_VALUES])
    return f"{shown},..." if values.size > _SHOWN_VALUES else shown


def _bind_batch(inputs: Mapping[str, ValueInfoProto]) -> list[str]:
    """Sets open first dimensions to 1; returns notes. The first dimension of a vector is its length, not a batch."""
    notes: list[str] = []
    for name, value in inputs.items():
        first, *others = read_dims(value) or (1,)
        if not others or isinstance(first, int) or not _is_batch(first, inputs):
            continue
        if first == UNNAMED:
            again = f"--shape {name}={format_dims(('SIZE', *make_example_dims((1, *others))[1:]))}"
            notes.append(f"the first dimension of input '{name}' is taken as 1; for another: {again}")
            write_dims(value, (1, *others))
        else:
            notes.append(
                f"dimension {first}, the first of input '{name}', is taken as 1; for another: --dim {first}=SIZE"
            )
            for other in inputs.values():
                write_dims(other, [1 if d == first else d for d in read_dims(other)])
    return notes


def _is_batch(dim: str, inputs: Mapping[str, ValueInfoProto]) -> bool:
    """Checks whether the name `dim` stands for a batch everywhere: at most once in a shape, never after an open size.

    It may follow a fixed size: states of recurrent layers are [layers, batch, size].
    """
    shapes = [read_dims(value) for value in inputs.values()]
    return dim == UNNAMED or all(s.count(dim) < 2 and (dim not in s[1:] or isinstance(s[0], int)) for s in shapes)


def _require_sizes(proto: ModelProto) -> None:
    data = [v for v in collect_inputs(proto).values() if not is_settable(proto, v)]
    if any(not has_shape(v) or _is_open(read_dims(v)) for v in data):
        require_complete(proto)


def require_complete(proto: ModelProto) -> None:
    """Raises `IncompleteError` listing all missing sizes and all inputs that must become constants."""
    inputs = collect_inputs(proto)
    values = [name for name, value in inputs.items() if is_settable(proto, value)]
    unsized = {n: read_dims(v) for n, v in inputs.items() if n not in values and _is_open(read_dims(v))}
    unshaped = [n for n, v in inputs.items() if n not in values and not has_shape(v)]
    lines = [f"  input '{n}' has no shape, not even a number of dimensions" for n in unshaped]
    lines += [f"  input '{n}' ({format_dims(dims)}): {_open_sizes(dims)}" for n, dims in unsized.items()]
    lines += [f"  input '{n}' is {find_input_fault(proto, inputs[n])}" for n in values]
    if lines:
        shapes = [word for n in unshaped for word in ("--shape", f"{n}=SIZE,SIZE")]
        options = [*shapes, *_size_options(unsized), *(word for n in values for word in ("--set", f"{n}=VALUE"))]
        raise IncompleteError("\n".join(["the model leaves open what the chip needs fixed:", *lines]), options)


def _is_open(dims: Sequence[Dim]) -> bool:
    return any(isinstance(d, str) for d in dims)


def _open_sizes(dims: Sequence[Dim]) -> str:
    found = find_open_dims(dims) + [f"dimension {d}" for d, size in enumerate(dims) if size == UNNAMED]
    return f"{', '.join(dict.fromkeys(found))} {'have' if len(set(found)) > 1 else 'has'} no size"


def _size_options(unsized: Mapping[str, Sequence[Dim]]) -> list[str]:
    """Returns command line options: whole shapes where a size has no name, and the named sizes not covered by these."""
    whole = {name: dims for name, dims in unsized.items() if UNNAMED in dims}
    covered = {d for dims in whole.values() for d in find_open_dims(dims)}
    named = dict.fromkeys(d for dims in unsized.values() for d in find_open_dims(dims) if d not in covered)
    shapes = [("--shape", f"{name}={format_dims(make_example_dims(dims))}") for name, dims in whole.items()]
    return [word for pair in (*shapes, *(("--dim", f"{d}=SIZE") for d in named)) for word in pair]


def _make_constants(proto: ModelProto, constants: Mapping[str, Array]) -> None:
    kept = [v for v in proto.graph.input if v.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items())


def _forget_derived_shapes(proto: ModelProto) -> None:
    """Clears inner and output shapes, which contain open sizes and are inferred again from the inputs."""
    proto.graph.ClearField("value_info")
    for value in (v for v in proto.graph.output if v.type.HasField("tensor_type")):
        value.type.tensor_type.ClearField("shape")
