"""Float sections: nodes without an exact form, which onnxruntime computes with every optimisation off."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper

from validator.model.definition.exact_values import Array, code_limits
from validator.model.node import ModelNode
from validator.model.node_models import model_of
from validator.model.ort_session import create_session, run

_NARROW = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8}
"""Types that onnxruntime's Python API does not exchange, and the wider types that a Cast converts."""
ELEMENTWISE_OPERATORS = frozenset([
    "Abs", "Add", "BiasGelu", "Cast", "Ceil", "Celu", "Clip", "Cos", "DequantizeLinear", "Div", "Dropout", "Elu", "Erf",
    "Exp", "FastGelu", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min",
    "Mish", "Mul", "Neg", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
    "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tan", "Tanh", "ThresholdedRelu",
])  # fmt: skip
"""Operators that act on each element alone if all operands but one have a single element."""


def is_narrow_type(name: str) -> bool:
    return name in _NARROW


def to_runtime_type(array: Array) -> Array:
    """Returns an array in a type that onnxruntime accepts."""
    return array.astype(_NARROW.get(array.dtype.name, array.dtype))


def make_model_input(name: str, dtype: "np.dtype[Any]") -> tuple[onnx.ValueInfoProto, list[NodeProto]]:
    """Returns a model input for a tensor of any type, and the Cast after it if it needs one."""
    if dtype.name not in _NARROW:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None), []
    wide = helper.np_dtype_to_tensor_dtype(np.dtype(_NARROW[dtype.name]))
    to = helper.np_dtype_to_tensor_dtype(dtype)
    value = helper.make_tensor_value_info(f"{name}.wide", wide, None)
    return value, [helper.make_node("Cast", [value.name], [name], to=to)]


@dataclass(slots=True, eq=False)
class FloatSection:
    """Nodes that compute `results` from `sources`. The session is opened at the first run, when types are known."""

    model: ModelProto
    nodes: Sequence[ModelNode]
    sources: Sequence[str]
    results: Sequence[str]
    _session: Any = field(default=None)

    def run(self, values: Mapping[str, Array]) -> list[Array]:
        """Returns the results. Raises `UserError` if onnxruntime cannot compute them."""
        if self._session is None:
            self._session = self._opened(values)
        feed = {_entry(name, values[name]): to_runtime_type(values[name]) for name in self.sources}
        return [*run(self._session, self.results, feed, f"onnxruntime, {self.results[0]!r}: ").values()]

    def _opened(self, values: Mapping[str, Array]) -> Any:
        doors = [make_model_input(name, values[name].dtype) for name in self.sources]
        inputs, casts = [door[0] for door in doors], [node for door in doors for node in door[1]]
        used = {name for node in self.nodes for name in node.reads} | set(self.results)
        constants = [t for t in self.model.graph.initializer if t.name in used]
        opsets = next((node.opsets for node in self.nodes), self.model.opset_import)
        model = model_of(
            [*casts, *(node.proto for node in self.nodes)],
            inputs,
            self.results,
            opsets,
            constants,
            self.model.ir_version,
        )
        return create_session(model.SerializeToString(), Path(self.results[0]))


def _entry(name: str, array: Array) -> str:
    return f"{name}.wide" if array.dtype.name in _NARROW else name


def list_codes(dtype: "np.dtype[Any]") -> Array:
    """Returns all integers of a type, the smallest first."""
    low, high = code_limits(dtype)
    return np.arange(low, high + 1).astype(dtype)
