"""Models without a meaning are refused with the node and the numbers."""

import numpy as np
import pytest

from raptor.common.errors import UserError
from tests.validator.model.definition.quantised import Graph
from validator.model.definition.evaluator import load_definition

F32 = np.float32


def refuse(graph, output, *parts):
    with pytest.raises(UserError) as found:
        load_definition(graph.model(output)).run(graph.values)
    for part in parts:
        assert part in str(found.value)


@pytest.mark.parametrize("scale", [0.0, -0.5, np.nan, np.inf])
def test_scales_are_above_zero(scale):
    g = Graph(0)
    y = g.dequantized(g.given(g.codes("int8", (4,))), F32(scale), np.int8(0))
    refuse(g, y, "DequantizeLinear_0", f"scale of the operand is {F32(scale):g}", "above 0")


def test_one_scale_of_many_is_named():
    g = Graph(0)
    scales = np.array([1, 2, 0, 3], np.float32)
    y = g.dequantized(g.given(g.codes("int8", (4, 2))), scales, np.zeros(4, np.int8), axis=0)
    refuse(g, y, "is 0 at [2]")


def test_a_zero_point_has_the_type_of_its_tensor():
    g = Graph(0)
    refuse(g, g.dequantized(g.given(g.codes("int8", (4,))), F32(1), np.uint8(3)), "zero point", "uint8", "int8")


def test_a_bias_has_no_zero_point():
    g = Graph(0)
    y = g.dequantized(g.given(np.arange(4, dtype=np.int32)), F32(1), np.int32(7))
    refuse(g, y, "zero point of the operand is 7", "expected 0 for int32")


def test_scales_fit_their_axis():
    g = Graph(0)
    y = g.dequantized(g.given(g.codes("int8", (4, 2))), np.ones(3, np.float32), np.zeros(3, np.int8), axis=0)
    refuse(g, y, "3 scales for axis 0", "size is 4")


def test_there_are_as_many_zero_points_as_scales():
    g = Graph(0)
    y = g.dequantized(g.given(g.codes("int8", (4, 2))), np.ones(4, np.float32), np.zeros(2, np.int8), axis=0)
    refuse(g, y, "4 scales and 2 zero points")


def qlinear_conv(**changed):
    g = Graph(0)
    x = g.given(g.codes("uint8", (1, 2, 4, 4)))
    parts = {
        "xs": F32(0.1),
        "xz": np.uint8(3),
        "w": g.codes("int8", (3, 2, 2, 2)),
        "ws": np.ones(3, np.float32),
        "wz": np.zeros(3, np.int8),
        "ys": F32(0.2),
        "yz": np.uint8(5),
        "b": np.zeros(3, np.int32),
    } | changed
    return g, g.op("QLinearConv", [x, *map(g.constant, parts.values())])


def test_the_model_without_faults_is_accepted():
    g, y = qlinear_conv()
    assert load_definition(g.model(y)).run(g.values).codes[y].shape == (1, 3, 3, 3)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"wz": np.array([0, 1, 0], np.int8)}, ("zero points of w are 0 and 1", "expected one")),
        ({"xz": np.int8(3)}, ("zero point of x is int8", "x is uint8")),
        ({"xs": np.ones(2, np.float32), "xz": np.zeros(2, np.uint8)}, ("x has 2 scales, expected one",)),
        ({"ws": np.ones(2, np.float32), "wz": np.zeros(2, np.int8)}, ("3 output channels and 2 scales",)),
        ({"ys": F32(0)}, ("scale of the output is 0",)),
        ({"b": np.zeros(3, np.int64)}, ("bias is int64",)),
        ({"w": np.zeros((3, 5, 2, 2), np.int8)}, ("QLinearConv_0",)),
        ({"b": np.full(3, 2**31 - 1, np.int32), "w": np.full((3, 2, 2, 2), 127, np.int8)}, ("does not fit 32 bits",)),
        ({"ws": np.full(3, 1e30, np.float32), "ys": F32(1e-20)}, ("scales are too far apart",)),
    ],
)
def test_faults_of_a_convolution(changed, parts):
    g, y = qlinear_conv(**changed)
    refuse(g, y, *parts)


def test_sums_fit_32_bits():
    g = Graph(0)
    a = np.full((1, 3), 32767, np.int16)
    real = [g.dequantized(g.given(a), F32(1), np.int16(0)), g.dequantized(g.constant(a.T.copy()), F32(1), np.int16(0))]
    y = g.quantized(g.op("MatMul", real), F32(1), np.int16(0))
    refuse(g, y, "MatMul_2", "[0, 0]", str(3 * 32767**2), "32 bits")


def test_a_product_of_scales_leaves_float32():
    g = Graph(0)
    a, b = g.codes("int8", (2, 3)), g.codes("int8", (3, 2))
    real = [g.dequantized(g.given(a), F32(1e-30), np.int8(0)), g.dequantized(g.constant(b), F32(1e-30), np.int8(0))]
    refuse(g, g.quantized(g.op("MatMul", real), F32(1), np.int8(0)), "MatMul_2", "leaves float32")


def test_a_number_of_the_input_must_be_one():
    g = Graph(0)
    y = g.quantized(g.given(np.array([1, np.nan], np.float32)), F32(1), np.int8(0))
    refuse(g, y, "not a number")
