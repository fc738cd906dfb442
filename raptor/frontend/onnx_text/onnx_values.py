"""Element types and constants of ONNX as MLIR has them."""

from collections.abc import Mapping
from math import prod

from onnx import TensorProto, numpy_helper

from raptor.common.mlir.syntax import TensorValue, element_dtype

ELEMENTS: Mapping[int, str] = {
    TensorProto.FLOAT: "f32",
    TensorProto.DOUBLE: "f64",
    TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.BOOL: "i1",
    **{getattr(TensorProto, f"INT{bits}"): f"i{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(TensorProto, f"UINT{bits}"): f"ui{bits}" for bits in (8, 16, 32, 64)},
}
"""Names of element types in MLIR, by ONNX's number."""
NUMBERS: Mapping[str, int] = {name: number for number, name in ELEMENTS.items()}


def tensor_to_proto(value: TensorValue, name: str) -> TensorProto:
    """Returns a constant as ONNX has it. Raises `ValueError` if the number of bytes is wrong for its shape."""
    if value.element not in NUMBERS:
        raise ValueError(f"{value.element} is no element type of ONNX that RAPTOR reads")
    wanted = prod(value.shape) * element_dtype(value.element).itemsize
    if len(value.content) != wanted:
        raise ValueError(f"{len(value.content)} bytes of values, expected {wanted}")
    return TensorProto(name=name, dims=value.shape, data_type=NUMBERS[value.element], raw_data=value.content)


def proto_to_tensor(tensor: TensorProto) -> TensorValue:
    """Returns a constant of ONNX. Raises `ValueError` for element types that MLIR does not have here."""
    if tensor.data_type not in ELEMENTS:
        raise ValueError(f"{tensor.name}: elements of type {TensorProto.DataType.Name(tensor.data_type)}")
    content = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
    return TensorValue(tuple(tensor.dims), ELEMENTS[tensor.data_type], content)
