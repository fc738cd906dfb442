"""Clip of quantised integers, between QuantizeLinear and DequantizeLinear: how QCDQ exports write widths below 8."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import raptor
from raptor import frontend
from raptor.common.errors import UserError
from raptor.graph.ir import Bound
from validator.execution.run import run_program
from validator.load.output_directory import load_output


def qcdq(low: int, high: int, kind: type = np.uint8, computed: bool = False) -> onnx.ModelProto:
    """A convolution with weights of 4 bits in int8, and results from `low` to `high`, as Brevitas exports them."""
    weights = np.random.default_rng(0).integers(-9, 10, (4, 2, 3, 3)).astype(np.float32) * np.float32(0.1)
    constants = {
        **{"w": weights, "sw": np.full(4, 0.1, np.float32), "zw": np.zeros(4, np.int8)},
        **{"wlow": np.array(-7, np.int8), "whigh": np.array(7, np.int8)},
        **{"sx": np.array(0.05, np.float32), "zx": np.array(0, np.int8)},
        **{"xlow": np.array(-128, np.int8), "xhigh": np.array(127, np.int8)},
        **{"sy": np.array(0.1, np.float32), "zy": np.array(0, kind)},
        **{"low": np.array(low, kind), "high": np.array(high, kind)},
    }
    n = helper.make_node
    nodes = [
        n("QuantizeLinear", ["x", "sx", "zx"], ["xq"], "xq"),
        n("Clip", ["xq", "xlow", "xhigh"], ["xc"], "xc"),
        n("DequantizeLinear", ["xc", "sx", "zx"], ["xd"], "xd"),
        n("QuantizeLinear", ["w", "sw", "zw"], ["wq"], "wq", axis=0),
        n("Clip", ["wq", "wlow", "whigh"], ["wc"], "wc"),
        n("DequantizeLinear", ["wc", "sw", "zw"], ["wd"], "wd", axis=0),
        n("Conv", ["xd", "wd"], ["c"], "conv", pads=[1, 1, 1, 1]),
        n("QuantizeLinear", ["c", "sy", "zy"], ["cq"], "cq"),
        n("Clip", ["cq", "low", "end" if computed else "high"], ["cc"], "clip"),
        n("DequantizeLinear", ["cc", "sy", "zy"], ["y"], "y"),
    ]
    if computed:
        nodes.insert(8, n("ReduceMax", ["cq"], ["end"], "end", keepdims=0))
    graph = helper.make_graph(
        nodes,
        "qcdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 6, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 6, 6))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(("low", "high", "kind"), [(0, 31, np.uint8), (3, 20, np.uint8), (-5, 6, np.int8)])
def test_integers_are_clipped(tmp_path: Path, low: int, high: int, kind: type):
    program = raptor.compile(qcdq(low, high, kind), xbar=64, cores=4)
    out = program.save(tmp_path / "out")
    assert program.validate(samples=3).passed
    x = np.random.default_rng(1).normal(0, 2, (1, 2, 6, 6)).astype(np.float32)
    found = np.rint(run_program(load_output(out), {"x": x}).outputs["y"] / np.float32(0.1))
    assert (found.min(), found.max()) == (low, high)


def test_the_range_of_weights_is_that_of_the_clip(tmp_path: Path):
    out = raptor.compile(qcdq(0, 31), xbar=64, cores=4, mapping="raptor").save(tmp_path / "out")
    values = load_output(out).weights.values
    assert (values.min(), values.max()) == (-7, 7)


def test_a_clip_to_the_whole_type_adds_nothing():
    bounds = [n for n in frontend.load(qcdq(0, 255)).graph.nodes if isinstance(n.operator, Bound)]
    assert bounds == []


def test_bounds_between_which_there_is_nothing():
    with pytest.raises(UserError, match=r"clip \(Clip\): no integer of its input is from 40 to 30"):
        raptor.compile(qcdq(40, 30), xbar=64, cores=4)


def test_computed_bounds():
    with pytest.raises(UserError, match="its bounds are computed; give it constant bounds"):
        raptor.compile(qcdq(0, 31, np.int8, computed=True), xbar=64, cores=4)
