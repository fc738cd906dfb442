"""Tensors of a model while it is imported: their shapes and types, and the values of constants."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from raptor.frontend.constant_pixels import to_exact_float32
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.nodes import Array, ModelConstants
from raptor.frontend.types.float32_integers import is_integer_type, is_small_float
from raptor.frontend.types.quant_params import QuantisedConstant
from raptor.graph.ir import Floats
from raptor.target.chip_elements import ElementCoding

Shape = tuple[int, ...]
Kind = np.dtype[np.generic]
_FLOAT = np.dtype(np.float32)


class ModelTensors:
    """Shapes, types and constants of a model. Importers add tensors that the ONNX model does not have."""

    def __init__(self, shapes: Mapping[str, Shape], constants: ModelConstants, kinds: Mapping[str, Kind]) -> None:
        """shapes: static ONNX shapes by tensor name. kinds: numpy types of all tensors of the model."""
        self._shapes, self._constants, self._kinds = dict(shapes), constants, kinds
        self._coded: dict[str, QuantisedConstant] = {}

    def shape(self, name: str) -> Shape:
        """Returns the ONNX shape of a tensor.

        Raises `ImportRefusal` if it is not static, or the tensor is not numeric.
        """
        if name not in self._shapes:
            raise ImportRefusal(f"the shape of '{name}' depends on values, or it has no numbers")
        return self._shapes[name]

    def numpy_dtype(self, name: str) -> Kind:
        """Returns the numpy type of a tensor in the model; float32 for a tensor that the model does not have."""
        value = self._constants[name] if name not in self._kinds and name in self._constants else None
        return self._kinds.get(name, _FLOAT) if value is None else value.dtype

    def is_integer_type(self, name: str) -> bool:
        """Tells whether the model's type of a tensor is integer or bool."""
        return is_integer_type(self.numpy_dtype(name))

    def set_constant(self, name: str, values: Array) -> None:
        """Makes a tensor of the model a constant computed by an importer."""
        self._constants.add(name, values)

    def add_quantised(self, name: str, value: QuantisedConstant) -> None:
        """Adds a constant of quantised integers."""
        self._coded[name] = value

    def quantised_constant(self, name: str | None) -> QuantisedConstant | None:
        """Returns a constant of quantised integers; None for any other tensor."""
        return None if name is None else self._coded.get(name)

    def is_constant(self, name: str) -> bool:
        return name in self._constants or name in self._coded

    def constant(self, name: str | None) -> Array | None:
        """Returns the value of a constant, dequantised if it is quantised; None if `name` is computed or absent."""
        if name in self._coded:
            return self._coded[name].dequantised
        return self._constants[name] if name is not None and name in self._constants else None

    def read_float32(self, name: str) -> Floats:
        """Returns the value of a constant as float32; a constant computed by an importer keeps its type.

        Raises `NeedsConstantError` for a computed tensor, and `ImportRefusal` for integers that float32 does not hold.
        """
        value = self.constant(name)
        if value is None:
            raise NeedsConstantError(name)
        if value.dtype == np.float32 or self._constants.is_computed(name):
            return value
        if not is_integer_type(value.dtype):
            raise ImportRefusal(f"'{name}' is {value.dtype}, must be float32 or of integers")
        return to_exact_float32(name, value)

    def _coding(self, name: str) -> ElementCoding | None:
        """Returns the coding of a model tensor that is held as float32; None if its type is float32."""
        kind = self.numpy_dtype(name)
        return None if kind == _FLOAT else ElementCoding(kind.name)

    def _of_floats(self, name: str, coding: ElementCoding) -> ElementCoding:
        """Returns `coding` with the float type that the model gives the dequantised tensor."""
        kind = self.numpy_dtype(name)
        return coding if self.is_integer_type(name) or is_small_float(kind) else replace(coding, dtype=kind.name)
