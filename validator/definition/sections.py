"""Float sections: nodes without an exact form, which onnxruntime computes with every optimisation off."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from raptor.common.errors import UserError
from validator.definition.values import BITS, Array
from validator.session import session
from validator.widen import reads

_NARROW = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8}
"""Types that onnxruntime's Python API does not exchange, and the wider types that a Cast converts."""
ELEMENTWISE = frozenset([
    "Abs", "Add", "BiasGelu", "Cast", "Ceil", "Celu", "Clip", "Cos", "DequantizeLinear", "Div", "Dropout", "Elu", "Erf",
    "Exp", "FastGelu", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min",
    "Mish", "Mul", "Neg", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
    "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tan", "Tanh", "ThresholdedRelu",
])  # fmt: skip
"""Operators that act on each element alone if all operands but one have a single element."""


def narrow(name: str) -> bool:
    return name in _NARROW


def fed(array: Array) -> Array:
    """Returns an array in a type that onnxruntime accepts."""
    return array.astype(_NARROW.get(array.dtype.name, array.dtype))


def entrance(name: str, dtype: "np.dtype[Any]") -> tuple[onnx.ValueInfoProto, list[NodeProto]]:
    """Returns a model input for a tensor of any type, and the Cast after it if it needs one."""
    if dtype.name not in _NARROW:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), None), []
    wide = helper.np_dtype_to_tensor_dtype(np.dtype(_NARROW[dtype.name]))
    to = helper.np_dtype_to_tensor_dtype(dtype)
    value = helper.make_tensor_value_info(f"{name}.wide", wide, None)
    return value, [helper.make_node("Cast", [value.name], [name], to=to)]


@dataclass(slots=True, eq=False)
class Section:
    """Nodes that compute `results` from `sources`. The session is opened at the first run, when types are known.

    `opset`: version of ONNX's operators; None: the version of the model.
    """

    model: ModelProto
    nodes: Sequence[NodeProto]
    sources: Sequence[str]
    results: Sequence[str]
    opset: int | None = None
    _session: Any = field(default=None)

    def run(self, values: Mapping[str, Array]) -> list[Array]:
        """Returns the results. Raises `UserError` if onnxruntime cannot compute them."""
        if self._session is None:
            self._session = self._opened(values)
        feed = {_entry(name, values[name]): fed(values[name]) for name in self.sources}
        try:
            return cast(list[Array], self._session.run(list(self.results), feed))
        except Exception as e:  # onnxruntime's exceptions have no common base
            raise UserError(f"onnxruntime, {self.results[0]!r}: {e}") from e

    def _opened(self, values: Mapping[str, Array]) -> Any:
        doors = [entrance(name, values[name].dtype) for name in self.sources]
        inputs, casts = [door[0] for door in doors], [node for door in doors for node in door[1]]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.results]
        used = {name for node in self.nodes for name in reads(node)} | set(self.results)
        constants = [t for t in self.model.graph.initializer if t.name in used]
        graph = helper.make_graph([*casts, *self.nodes], "section", inputs, outputs, constants)
        opsets = list(self.model.opset_import) if self.opset is None else [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = self.model.ir_version
        return session(model.SerializeToString(), Path(self.results[0]))


def _entry(name: str, array: Array) -> str:
    return f"{name}.wide" if array.dtype.name in _NARROW else name


def behind(
    producers: Mapping[str, NodeProto], results: Iterable[str], known: Iterable[str]
) -> tuple[list[NodeProto], list[str]]:
    """Returns the nodes that compute `results` from known tensors, in no order, and the known tensors they read."""
    stop, nodes, sources = set(known), dict[int, NodeProto](), dict[str, None]()
    waiting = list(results)
    while waiting:
        name = waiting.pop()
        if name in stop:
            sources[name] = None
        elif (node := producers.get(name)) is not None and id(node) not in nodes:
            nodes[id(node)] = node
            waiting += reads(node)
    return list(nodes.values()), list(sources)


def tensors(model: ModelProto) -> Mapping[str, TensorProto]:
    return {t.name: t for t in model.graph.initializer}


def all_codes(dtype: "np.dtype[Any]") -> Array:
    """Returns all integers of a type, the smallest first."""
    bits = BITS[dtype.name]
    low = 0 if dtype.name.startswith("u") else -(1 << (bits - 1))
    return np.arange(low, low + (1 << bits)).astype(dtype)
