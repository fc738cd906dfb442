"""A ReLU moves into `mvmul` only where the sum has a single product."""

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

import raptor
from tests.pipeline import check, conv_model, count_ops, passes
from tests.tiny_models import make_model, node, random
from validator.validate import validate

CHIP = {"xbar": 4, "xbars_per_core": 16, "cores": 4}


def relu_of(*, channels: int = 4, kernel: int = 1, bias: bool = False) -> dict[str, int]:
    model = conv_model((1, channels, 3, 3), 6, (kernel, kernel), bias=bias, relu=True)
    streams = passes(model, **CHIP).streams
    products = [r for s in streams.cores.values() for r in s.records if r["opcode"] == 9]
    return {"vrelu": count_ops(streams).get("vrelu", 0), "with flag": sum(int(r["b"]) for r in products)}


def test_a_single_product_clips_by_itself():
    # 9 pixels, 2 output tiles
    assert relu_of() == {"vrelu": 0, "with flag": 18}
    check(conv_model((1, 4, 3, 3), 6, (1, 1), relu=True), **CHIP)


@pytest.mark.parametrize("why", [{"channels": 5}, {"kernel": 2}, {"bias": True}], ids=["two tiles", "taps", "bias"])
def test_a_sum_is_clipped_when_it_is_whole(why: dict[str, int]):
    assert relu_of(**why) == {"vrelu": 2, "with flag": 0}


def test_a_sum_over_tiles_narrower_than_the_crossbar_is_high():
    check(conv_model((1, 4, 3, 3), 2, (1, 1), relu=True), xbar=(4, 2), xbars_per_core=1)


def test_a_sum_that_others_read_is_kept():
    weights = {"w": random(4, 4, 1, 1)}
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Add", "c r", "y")]
    model = make_model(nodes, {"x": (1, 4, 3, 3)}, ["y"], weights)
    assert count_ops(passes(model, **CHIP).streams)["vrelu"] == 1
    check(model, **CHIP)


def test_a_sum_that_is_an_output_is_kept():
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "y")]
    model = make_model(nodes, {"x": (1, 4, 3, 3)}, ["c", "y"], {"w": random(4, 4, 1, 1)})
    assert count_ops(passes(model, **CHIP).streams)["vrelu"] == 1
    check(model, **CHIP)


def test_a_relu_of_a_relu():
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("Relu", "r", "y", name="again")]
    model = make_model(nodes, {"x": (1, 4, 3, 3)}, ["y"], {"w": random(4, 4, 1, 1)})
    check(model, **CHIP)


def _rounded_twice(*, read: bool) -> ModelProto:
    """A fully connected layer that is rounded, and again behind a ReLU, with the same scale."""
    nodes = [
        *(node("QuantizeLinear", "x s z", "xq"), node("DequantizeLinear", "xq s z", "a")),
        *(node("DequantizeLinear", "w s z", "v"), node("MatMul", "a v", "m")),
        *(node("QuantizeLinear", "m s z", "mq"), node("DequantizeLinear", "mq s z", "b")),
        *(node("Relu", "b", "r"), node("QuantizeLinear", "r s z", "y")),
        *([node("Identity", "mq", "o")] if read else []),
    ]
    for at, one in enumerate(nodes):
        one.name = f"node_{at}"
    weights = np.random.default_rng(0).integers(-128, 127, (6, 5)).astype(np.int8)
    constants = {"s": np.float32(0.02), "z": np.int8(3), "w": weights}
    types = {"y": TensorProto.INT8, "o": TensorProto.INT8}
    model = make_model(nodes, {"x": (2, 6)}, {"y": 2, **({"o": 2} if read else {})}, constants, opset=21, ir_version=10)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = types[output.name]
    return model


@pytest.mark.parametrize("read", [False, True])
def test_bounds_of_integers_become_those_of_the_rounding_before(read: bool, tmp_path: Path):
    model = _rounded_twice(read=read)
    kinds = [type(n.operator).__name__ for n in passes(model, **CHIP).graph.nodes]
    assert kinds.count("Bound") == read
    report = validate(raptor.compile(model, **CHIP).save(tmp_path / "out"), samples=3, layers=True)
    assert report.passed
