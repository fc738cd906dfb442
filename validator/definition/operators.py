"""The table of operators with exact results.

Each function returns None if its operands have no exact form: then its results are floats.
"""

from collections.abc import Mapping
from types import MappingProxyType

from validator.definition import elementwise, pools, shapes, sums
from validator.definition.moves import MOVE_OPERATORS
from validator.definition.nodes import ExactOperator

EXACT_OPERATORS: Mapping[str, ExactOperator] = MappingProxyType(
    {
        "Add": elementwise.add,
        "AveragePool": pools.average_pool,
        "Cast": elementwise.cast,
        "Clip": elementwise.clip,
        "Concat": shapes.concat,
        "Conv": sums.conv,
        "ConvTranspose": sums.conv_transpose,
        "DequantizeLinear": elementwise.dequantize,
        "Gemm": sums.gemm,
        "GlobalAveragePool": pools.global_average_pool,
        "GlobalMaxPool": pools.global_max_pool,
        "MatMul": sums.matmul,
        "MaxPool": pools.max_pool,
        "Mul": elementwise.mul,
        "Pad": shapes.pad,
        "QuantizeLinear": elementwise.quantize,
        "ReduceMean": pools.reduce_mean,
        "ReduceSum": pools.reduce_sum,
        "Relu": elementwise.relu,
        "Resize": shapes.resize,
        "Split": shapes.split,
        "Sub": elementwise.sub,
        "Sum": elementwise.sum_operands,
        "Upsample": shapes.resize,
        **dict.fromkeys(MOVE_OPERATORS, shapes.move),
    }
)
"""Functions that compute ONNX's operators on exact numbers, keyed by operator type."""
