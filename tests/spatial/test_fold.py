"""A ReLU moves into `mvmul` only where the sum has a single product."""

import pytest

from tests.frontend.support import make_model, node, random
from tests.pipeline import check, conv_model, count_ops, passes

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
