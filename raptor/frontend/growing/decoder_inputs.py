"""The inputs of a decoder: caches that grow, inputs that follow from the position, and all others."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name, spell_option
from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.inputs.declared_shapes import read_dims
from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.proto.onnx_wrappers import InvalidTypes, infer_shapes
from raptor.graph.decoder_steps import DerivedInput, DerivedKind, GrowingState
from raptor.options import ModelInputs

Array = npt.NDArray[Any]

_DERIVED: Mapping[str, DerivedKind] = MappingProxyType(
    {
        "attention_mask": "ones",
        "cache_position": "position",
        "input_pos": "position",
        "past_sequence_length": "position",
        "position_ids": "position",
        "total_sequence_length": "length",
    }
)
"""Names that exporters give to inputs which the position determines."""

_OF_ENCODER = "encoder_"
"""Begin of the names that exporters give to inputs from an encoder."""
_COMBINED_RANK = 5
"""Rank of a cache that holds keys and values, [2, batch, heads, rows, d]."""
_CACHE_TYPES = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT8))


@dataclass(frozen=True, slots=True, eq=False)
class DecoderInputs:
    """The inputs of a decoder. `shapes`: of all inputs; a cache has the size 0 along the axis on which it grows."""

    states: tuple[GrowingState, ...]
    appends: Mapping[str, NodeProto]
    """Input of a state -> the Concat that appends a row to it."""
    derived: Mapping[str, DerivedKind]
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, "np.dtype[Any]"]

    def values(self, position: int, names: Collection[str] | None = None) -> dict[str, Array]:
        """Returns the arrays of all inputs, or of `names` alone, for the step at a position.

        Inputs that the position does not determine are zeros.
        """
        wanted = self.shapes if names is None else names
        return {name: self._value(name, shape, position) for name, shape in self.shapes.items() if name in wanted}

    def _value(self, name: str, shape: tuple[int, ...], position: int) -> Array:
        kind, dtype = self.derived.get(name), self.types[name]
        if kind == "ones":
            return np.ones((*shape[:-1], position + 1), dtype)
        if kind is not None:
            return np.full(shape, position + (kind == "length"), dtype)
        # A cache of fixed size is given without the row that the step appends.
        rows = {s.axis: position if s.rows is None else s.rows - 1 for s in self.states if s.input == name}
        return np.zeros([rows.get(d, size) for d, size in enumerate(shape)], dtype)

    def derived_inputs(self, position: int) -> tuple[DerivedInput, ...]:
        """Returns the inputs that the position determines, with their shapes there."""
        return tuple(
            DerivedInput(name, kind, self._value(name, self.shapes[name], position).shape, self.types[name].name)
            for name, kind in self.derived.items()
        )


def read_decoder_inputs(proto: ModelProto, pairs: Mapping[str, str], fixed: ModelInputs) -> DecoderInputs:
    """Finds the caches of a decoder that grow, and the sizes of its inputs. `pairs`: states as the user names them.

    Raises `UserError` for sizes that are not known, and for more than one sequence or token a step.
    """
    weights = {t.name for t in proto.graph.initializer}
    inputs = {v.name: v for v in proto.graph.input if v.name not in weights}
    _check_names(inputs, fixed)
    appends = _find_appends(proto, inputs)
    states = [
        GrowingState(name, node.output[0], _axis(node, inputs[name]), ())
        for name, node in appends.items()
        if pairs == AUTOMATIC or pairs.get(name) == node.output[0]
    ]
    derived: dict[str, DerivedKind] = {name: _DERIVED[name] for name in inputs if name in _DERIVED}
    of_a_step = _integer_dims(inputs.values(), derived)
    sizes = _Sizes(fixed, of_a_step, partial(_infer_open_sizes, proto, appends, of_a_step))
    axes = {state.input: state.axis for state in states}
    shapes = {name: sizes.shape(value, axes.get(name), name in derived) for name, value in inputs.items()}
    types = {
        name: np.dtype(helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)) for name, v in inputs.items()
    }
    return DecoderInputs(tuple(states), {s.input: appends[s.input] for s in states}, derived, shapes, types)


def reads_position(proto: ModelProto) -> bool:
    """Checks whether an input has a name that exporters give to the position of a step."""
    return any(_DERIVED.get(value.name) == "position" for value in proto.graph.input)


def require_states(inputs: DecoderInputs) -> None:
    """Raises `UserError` for a decoder without caches."""
    if not inputs.states:
        raise UserError(
            f"{spell_name('capacity')}: no state grows; a cache is an input to which a Concat appends rows, or of "
            "which each step writes the row of its position, and whose next value the model returns"
        )


def has_open_axis(value: ValueInfoProto, fixed: ModelInputs) -> bool:
    """Checks whether an input of numbers may be a cache: a size behind the first one is open, and not given."""
    dims = value.type.tensor_type.shape.dim[1:]
    is_open = any(not d.HasField("dim_value") and d.dim_param not in fixed.dims for d in dims)
    kind = value.type.tensor_type.elem_type
    return kind in _CACHE_TYPES and len(dims) > 1 and is_open and value.name not in fixed.shapes


def _check_names(inputs: Mapping[str, ValueInfoProto], fixed: ModelInputs) -> None:
    """Raises `UserError` for shapes of other inputs, and for dimensions that no input has."""
    open_dims = {d.dim_param for v in inputs.values() for d in v.type.tensor_type.shape.dim if d.dim_param}
    for keyword, given, known in (("shapes", fixed.shapes, inputs), ("dims", fixed.dims, open_dims)):
        if unknown := [name for name in given if name not in known]:
            raise UserError(f"{spell_name(keyword)}: no {unknown[0]!r}; there are {', '.join(sorted(known)) or 'none'}")


def _find_appends(proto: ModelProto, inputs: Mapping[str, ValueInfoProto]) -> dict[str, NodeProto]:
    """Returns the Concat of each input that it extends at the end, where its result is an output of the model."""
    outputs = {v.name for v in proto.graph.output}
    return {
        node.input[0]: node
        for node in proto.graph.node
        if node.op_type == "Concat" and len(node.input) == 2 and node.input[0] in inputs and node.output[0] in outputs
    }


def _axis(node: NodeProto, value: ValueInfoProto) -> int:
    axis, rank = int(read_attributes(node)["axis"]), len(value.type.tensor_type.shape.dim)
    return axis % rank if rank else axis


def _integer_dims(values: Any, derived: Mapping[str, DerivedKind]) -> frozenset[str]:
    """Returns the symbolic sizes of inputs of integers, such as the ids of tokens: batch and tokens of a step.

    Those of an encoder, such as its mask, have the tokens of the encoder.
    """
    integers = (
        v
        for v in values
        if v.name not in derived
        and not v.name.startswith(_OF_ENCODER)
        and np.dtype(helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)).kind in "iu"
    )
    return frozenset(d.dim_param for v in integers for d in v.type.tensor_type.shape.dim if d.dim_param)


def _infer_open_sizes(
    proto: ModelProto, appends: Mapping[str, NodeProto], of_a_step: Collection[str]
) -> dict[str | tuple[str, int], int]:
    """Returns open sizes of caches, by name or by input and axis, as far as they follow from the rows that they get.

    `of_a_step`: symbolic sizes that are 1. The sizes along which caches grow are among the results, too.
    """
    step = ModelProto()
    step.CopyFrom(proto)
    step.graph.ClearField("value_info")
    for value in step.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in of_a_step:
                dim.dim_value = 1
    try:
        inferred = infer_shapes(step).graph
    except (InvalidTypes, ValueError):  # the user gives the sizes, or learns in which operator the fault is
        return {}
    known = {value.name: read_dims(value) for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    caches = ((v, known.get(appends[v.name].input[1], ())) for v in proto.graph.input if v.name in appends)
    return {
        dim.dim_param or (value.name, axis): size
        for value, row in caches
        for axis, (dim, size) in enumerate(zip(value.type.tensor_type.shape.dim, row, strict=False))
        if isinstance(size, int)
    }


class _Sizes:
    """Finds the sizes of inputs. `of_a_step`: symbolic sizes that are 1, because a step is a token of a sequence.

    `infer`: returns open sizes of caches, by name or by input and axis; called if one is not declared.
    """

    def __init__(
        self,
        fixed: ModelInputs,
        of_a_step: frozenset[str],
        infer: Callable[[], Mapping[str | tuple[str, int], int]],
    ) -> None:
        self.fixed, self.of_a_step, self.infer = fixed, of_a_step, infer

    @cached_property
    def inferred(self) -> Mapping[str | tuple[str, int], int]:
        return self.infer()

    def shape(self, value: ValueInfoProto, axis: int | None, is_derived: bool) -> tuple[int, ...]:
        given = self.fixed.shapes.get(value.name)
        dims = value.type.tensor_type.shape.dim
        if given is not None and len(given) != len(dims):
            raise UserError(
                f"{spell_option('shapes', {value.name: tuple(given)})}: the model has {len(dims)} dimensions"
            )
        found = [
            0 if d == axis else self._size(value.name, d, dim, None if given is None else given[d], is_derived)
            for d, dim in enumerate(dims)
        ]
        batch = int(axis is not None and len(found) == _COMBINED_RANK)
        if len(found) > batch and found[batch] > 1 and (axis is not None or is_derived):
            raise UserError(f"{value.name}: batch of {found[batch]}: a session is one sequence")
        for dim, size in zip(dims, found, strict=True):
            if size > 1 and dim.dim_param in self.of_a_step:
                raise UserError(f"{value.name}: {dim.dim_param}={size}: a step takes one token of one sequence")
        return tuple(found)

    def _size(self, name: str, position: int, dim: Any, given: int | None, is_derived: bool) -> int:
        if given is not None:
            return given
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        if dim.dim_param in self.fixed.dims:
            return int(self.fixed.dims[dim.dim_param])
        if position == 0 or is_derived or dim.dim_param in self.of_a_step:
            return 1
        if (size := self.inferred.get(dim.dim_param or (name, position))) is not None:
            return size
        shown = dim.dim_param or f"dimension {position}"
        raise UserError(f"input {name}: the size of {shown} is not known; give it with {spell_option('dims')}")
