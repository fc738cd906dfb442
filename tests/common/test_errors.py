"""Messages of errors: what happened, and what to do about it."""

import numpy as np
import pytest

import raptor
from raptor.common.errors import (
    CapacityError,
    UnsupportedError,
    UnsupportedNode,
    UserError,
)
from raptor.target import arch
from tests.pipeline import conv_model
from tests.tiny_models import make_model, node, random


def test_a_capacity_error_says_demand_bound_and_levers():
    error = CapacityError("cores", 11, 10, where="layer conv", levers=("--cores 11", "--xbar 4"))
    assert str(error) == "layer conv: cores: need 11, have 10; try --cores 11 or --xbar 4"
    assert (error.needed, error.available, error.levers) == (11, 10, ("--cores 11", "--xbar 4"))


def test_unsupported_nodes_are_listed_together():
    nodes = [UnsupportedNode("a", "Loop", "no loops"), UnsupportedNode("b", "If", "no branches")]
    assert str(UnsupportedError(nodes)) == "2 nodes cannot be compiled:\n  a (Loop): no loops\n  b (If): no branches"
    assert str(UnsupportedError(nodes[:1])).startswith("1 node cannot")


def test_base_isa_names_every_node_that_needs_more():
    nodes = [
        node("Softmax", "x", "s", name="attention", axis=1),
        node("Div", "x s", "d", name="ratio"),
        node("Relu", "d", "r", name="plain"),
        node("Sqrt", "r", "y", name="root"),
    ]
    model = make_model(nodes, {"x": (1, 4, 1, 1)}, ["y"])
    with pytest.raises(UnsupportedError) as caught:
        raptor.compile(model, base_isa=True)
    assert {n.node for n in caught.value.nodes} == {"attention", "ratio", "root"}
    for instruction in ("vsoftmax", "vvdiv", "vsqrt"):
        assert f"extended instruction {instruction}" in str(caught.value)


def test_base_isa_takes_what_the_base_can_compute():
    report = raptor.compile(conv_model((1, 3, 4, 4), 3, bias=True, relu=True), base_isa=True).report
    assert "vsoftmax" not in report.instructions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0}, "bits=0: expected a whole number, 1 to 32"),
        ({"bits": 33}, "bits=33: expected a whole number, 1 to 32"),
        (
            {"xbar": (8, 3), "cell_bits": 2},
            "takes 4 cells of 2 bits, but a crossbar has only 3 columns; try xbar=\\(8, 4\\) or cell_bits=8",
        ),
        ({"cores": 0}, "cores=0: expected a whole number, 1 to "),
        ({"xbars_per_core": 0}, "xbars_per_core=0: expected a whole number"),
        ({"xbar": (0, 4)}, "xbar=0: expected a size such as 128"),
        ({"cell_bits": 0}, "cell_bits=0: expected a whole number"),
    ],
)
def test_sizes_that_make_no_sense(options: dict[str, int], message: str):
    with pytest.raises(UserError, match=message):
        arch.load(**options)


def test_the_advice_for_a_crossbar_too_narrow_works():
    weight_bits, columns = 8, 3
    with pytest.raises(UserError, match=r"try xbar=\(8, 4\) or cell_bits=8"):
        arch.load(xbar=(8, columns), cell_bits=2, bits=weight_bits)
    model = conv_model((1, 2, 3, 3), 2)
    raptor.compile(model, xbar=(8, 4), cell_bits=2)
    raptor.compile(model, xbar=(8, columns), cell_bits=8)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_numbers(value: float):
    weights = random(4, 3, 3, 3)
    weights[1, 2, 0, 0] = value
    with pytest.raises(UserError, match="weights 'w': 1 of 108 values are not finite"):
        raptor.compile(conv_model((1, 3, 4, 4), 4, weights=weights))
