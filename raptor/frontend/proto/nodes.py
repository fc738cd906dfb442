"""ONNX nodes and constants as plain Python values."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """Returns the attributes of a node by name, as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@dataclass(frozen=True, slots=True)
class NodeView:
    """An ONNX node. `version`: version of the operator set. Absent optional inputs are ''."""

    name: str
    op_type: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @classmethod
    def from_proto(cls, node: NodeProto, name: str, version: int) -> "NodeView":
        return cls(name, node.op_type, version, tuple(node.input), tuple(node.output), read_attributes(node))

    @property
    def output(self) -> str:
        return self.outputs[0]

    def input(self, position: int) -> str | None:
        """Returns the name of an optional input; None if absent."""
        return (self.inputs[position] if position < len(self.inputs) else "") or None

    def integer(self, name: str, default: int) -> int:
        return int(self.attributes.get(name, default))

    def ints(self, name: str, default: Iterable[int] = ()) -> tuple[int, ...]:
        return tuple(map(int, self.attributes.get(name, default)))

    def number(self, name: str, default: float) -> float:
        return float(self.attributes.get(name, default))

    def string(self, name: str, default: str) -> str:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)


PACKED_TYPES = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2})
"""Types whose elements share bytes."""


def _unpacked(tensor: TensorProto, data: npt.NDArray[np.uint8]) -> Array:
    packed = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data.tobytes())
    return numpy_helper.to_array(packed)


class ModelConstants:
    """Constants of a model by name, read from their external data file on access."""

    def __init__(self, tensors: Iterable[TensorProto], folder: Path) -> None:
        self._tensors = {t.name: t for t in tensors}
        self._folder = folder

        self._computed: dict[str, Array] = {}

    def add(self, name: str, values: Array) -> None:
        """Adds a constant computed by an importer."""
        self._computed[name] = values

    def is_computed(self, name: str) -> bool:
        """Checks whether an importer computed the constant."""
        return name in self._computed

    def values(self) -> Iterator[Array]:
        """Yields the values of the model's own constants."""
        return (self[name] for name in self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._computed

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a constant without reading its data."""
        return self._computed[name].shape if name in self._computed else tuple(self._tensors[name].dims)

    def __getitem__(self, name: str) -> Array:
        """Returns an array, maybe mapped from the weights file; copy it if it must outlive the import."""
        if name in self._computed:
            return self._computed[name]
        tensor = self._tensors[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        entries = {e.key: e.value for e in tensor.external_data}
        path, offset = self._folder / entries["location"], int(entries.get("offset", 0))
        if tensor.data_type in PACKED_TYPES:
            return _unpacked(tensor, np.memmap(path, np.uint8, "r", offset, int(entries["length"])))
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.memmap(path, dtype, mode="r", offset=offset, shape=tuple(tensor.dims))
