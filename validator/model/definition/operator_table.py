"""The table of operators with exact results.

Each function returns None if its operands have no exact form: then its results are floats.
"""

from collections.abc import Mapping
from types import MappingProxyType

from validator.model.definition import elementwise, join_split, linear_operators, pooling
from validator.model.definition.data_movement import MOVE_OPERATORS
from validator.model.definition.nodes import ExactOperator

EXACT_OPERATORS: Mapping[str, ExactOperator] = MappingProxyType(
    {
        "Add": elementwise.add,
        "AveragePool": pooling.average_pool,
        "Cast": elementwise.cast,
        "Clip": elementwise.clip,
        "Concat": join_split.concat,
        "Conv": linear_operators.conv,
        "ConvTranspose": linear_operators.conv_transpose,
        "DequantizeLinear": elementwise.dequantize,
        "Gemm": linear_operators.gemm,
        "GlobalAveragePool": pooling.global_average_pool,
        "GlobalMaxPool": pooling.global_max_pool,
        "MatMul": linear_operators.matmul,
        "MaxPool": pooling.max_pool,
        "Mul": elementwise.mul,
        "Pad": join_split.pad,
        "QuantizeLinear": elementwise.quantize,
        "ReduceMean": pooling.reduce_mean,
        "ReduceSum": pooling.reduce_sum,
        "Relu": elementwise.relu,
        "Resize": join_split.resize,
        "Split": join_split.split,
        "Sub": elementwise.sub,
        "Sum": elementwise.sum_operands,
        "Upsample": join_split.resize,
        **dict.fromkeys(MOVE_OPERATORS, join_split.move),
    }
)
"""Functions that compute ONNX's operators on exact numbers, keyed by operator type."""
