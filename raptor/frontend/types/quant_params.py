"""Quantisation parameters: ONNX integer types, and the scales and zero points of quantised tensors."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.graph.ir import Floats
from raptor.target.chip_elements import ElementCoding, ElementType, integer_type

Shape = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CodeType:
    """An integer type of ONNX. The chip stores its values as signed integers: stored = value - `offset`."""

    name: str
    bits: int
    offset: int = 0

    @property
    def element(self) -> ElementType:
        """Element type on the chip."""
        return integer_type(self.bits)

    @property
    def low(self) -> int:
        """The smallest value."""
        return self.element.low + self.offset

    @property
    def high(self) -> int:
        """The largest value."""
        return self.element.high + self.offset

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        """Numpy type of an array of the values."""
        return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(self.name.upper()))

    @property
    def coding(self) -> ElementCoding:
        """Coding of a tensor of this type."""
        return ElementCoding(self.name, self.offset)


def _code_types() -> dict[int, CodeType]:
    found: dict[int, CodeType] = {TensorProto.INT32: CodeType("int32", 32)}
    for bits in (2, 4, 8, 16):
        found[TensorProto.DataType.Value(f"INT{bits}")] = CodeType(f"int{bits}", bits)
        found[TensorProto.DataType.Value(f"UINT{bits}")] = CodeType(f"uint{bits}", bits, 1 << (bits - 1))
    return found


CODE_TYPES: Mapping[int, CodeType] = MappingProxyType(_code_types())
"""ONNX element type -> representation on the chip."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantParams:
    """Parameters of a quantiser: real = (value - zero_point) * scale. Both arrays broadcast to the tensor's shape."""

    scale: Floats
    zero_point: Ints
    code: CodeType

    @property
    def is_uniform(self) -> bool:
        """True if all elements have the same scale and zero point."""
        return self.scale.size == 1 and self.zero_point.size == 1


def make_host_coding(by: QuantParams) -> ElementCoding:
    """Returns the coding with which the host quantises or dequantises. Raises `ImportRefusal` for scales in blocks."""
    scale, zero = np.broadcast_arrays(by.scale, by.zero_point - by.code.offset)
    wide = [a for a, n in enumerate(scale.shape) if n > 1]
    if len(wide) > 1:
        raise ImportRefusal("scales in blocks")
    axis = wide[0] if wide else None
    return ElementCoding("float32", 0, tuple(map(float, scale.ravel())), tuple(map(int, zero.ravel())), axis)


@dataclass(frozen=True, slots=True, eq=False)
class QuantisedConstant:
    """A constant of quantised integers: real = `values` * scale; the zero point is already subtracted.

    bits: bits of its ONNX type.
    """

    values: npt.NDArray[np.int32]
    scale: Floats
    bits: int

    @property
    def dequantised(self) -> Floats:
        """The dequantised values, in float32 as DequantizeLinear computes them."""
        return self.values.astype(np.float32) * self.scale


def quantise_values(values: npt.ArrayLike, by: QuantParams) -> Ints:
    """Returns the integers of QuantizeLinear: float32 division, ties to even, saturated; NaN becomes the lowest."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(np.asarray(values, np.float32) / by.scale).astype(np.float64) + by.zero_point
    return np.asarray(np.fmin(np.fmax(rounded, by.code.low), by.code.high), np.int64)


_OUTPUT_CHANNELS: Mapping[str, int] = MappingProxyType({"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1})
"""Operator -> axis of its weights along which quantisation scales may vary."""


def explain_float_layer(node: NodeView, coded: Mapping[str, QuantisedConstant], views: Container[str]) -> str:
    """Returns the reason why a layer of an integer model is not computed in integers.

    `views`: names of quantised tensors.
    """
    codes = next((i for i in node.inputs[:2] if i in coded), None)
    if codes is None:
        return "its weights are floats, and the model is of integers: quantise them, too"
    data = next((i for i in node.inputs[:2] if i in views), None)
    if data is None:
        which = "its weights are integers, but its input is not"
        return f"{which}, and the model is of integers: quantise the input, too"
    axis = _OUTPUT_CHANNELS.get(node.op_type, 0)
    scales = coded[codes].scale.shape
    if any(size > 1 for d, size in enumerate(scales) if d != axis):
        wanted = f"one for each output channel (axis {axis})"
        return f"its weights '{codes}' have scales {scales} along what is added up; they must be one, or {wanted}"
    return f"its input '{data}' is quantised by more than one scale; it must be by one"
