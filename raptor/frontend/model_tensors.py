"""Tensors of a model while it is imported: their shapes and types, and the values of constants."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raptor.frontend.codes import Coded
from raptor.frontend.constants import as_float32
from raptor.frontend.import_refusal import NeedsConstantError, Refusal
from raptor.frontend.nodes import Array, Constants
from raptor.frontend.whole import is_small_float, is_whole_type
from raptor.graph.ir import Floats
from raptor.target.element import Coding

Shape = tuple[int, ...]
Kind = np.dtype[np.generic]
_FLOAT = np.dtype(np.float32)


class ModelTensors:
    """Shapes, types and constants of a model. Importers add tensors that the ONNX model does not have."""

    def __init__(self, shapes: Mapping[str, Shape], constants: Constants, kinds: Mapping[str, Kind]) -> None:
        """shapes: static ONNX shapes by tensor name. kinds: numpy types of all tensors of the model."""
        self._shapes, self._constants, self._kinds = dict(shapes), constants, kinds
        self._coded: dict[str, Coded] = {}

    def shape(self, name: str) -> Shape:
        """Returns the ONNX shape of a tensor. Raises `Refusal` if it is not static, or the tensor is not numeric."""
        if name not in self._shapes:
            raise Refusal(f"the shape of '{name}' depends on values, or it has no numbers")
        return self._shapes[name]

    def kind(self, name: str) -> Kind:
        """Returns the numpy type of a tensor in the model; float32 for a tensor that the model does not have."""
        value = self._constants[name] if name not in self._kinds and name in self._constants else None
        return self._kinds.get(name, _FLOAT) if value is None else value.dtype

    def is_whole(self, name: str) -> bool:
        """Tells whether the model's type of a tensor is integer or bool."""
        return is_whole_type(self.kind(name))

    def set_constant(self, name: str, values: Array) -> None:
        """Makes a tensor of the model a constant computed by an importer."""
        self._constants.add(name, values)

    def add_coded(self, name: str, value: Coded) -> None:
        """Adds a constant of quantised integers."""
        self._coded[name] = value

    def coded(self, name: str | None) -> Coded | None:
        """Returns a constant of quantised integers; None for any other tensor."""
        return None if name is None else self._coded.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self._constants or name in self._coded

    def constant(self, name: str | None) -> Array | None:
        """Returns the value of a constant, dequantised if it is quantised; None if `name` is computed or absent."""
        if name in self._coded:
            return self._coded[name].real
        return self._constants[name] if name is not None and name in self._constants else None

    def weights(self, name: str) -> Floats:
        """Returns the value of a constant as float32; a constant computed by an importer keeps its type.

        Raises `NeedsConstantError` for a computed tensor, and `Refusal` for integers that float32 does not hold.
        """
        value = self.constant(name)
        if value is None:
            raise NeedsConstantError(name)
        if value.dtype == np.float32 or self._constants.is_computed(name):
            return value
        if not is_whole_type(value.dtype):
            raise Refusal(f"'{name}' is {value.dtype}, must be float32 or of integers")
        return as_float32(name, value)

    def _coding(self, name: str) -> Coding | None:
        """Returns the coding of a model tensor that is held as float32; None if its type is float32."""
        kind = self.kind(name)
        return None if kind == _FLOAT else Coding(kind.name)

    def _of_floats(self, name: str, coding: Coding) -> Coding:
        """Returns `coding` with the float type that the model gives the dequantised tensor."""
        kind = self.kind(name)
        return coding if self.is_whole(name) or is_small_float(kind) else replace(coding, dtype=kind.name)
