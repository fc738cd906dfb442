"""Activation functions against onnxruntime, on the graph and in the instruction streams."""

import re
from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UnsupportedError
from raptor.frontend import load, operator_page
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import EXTENDED_FUNCTIONS, Map
from tests.pipeline import check
from tests.tiny_models import compare, golden, make_model, node, random, single

BASE: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("Neg", {}),
    ("Abs", {}),
    ("LeakyRelu", {}),
    ("LeakyRelu", {"alpha": 0.3}),
    ("LeakyRelu", {"alpha": 1.0}),
    ("LeakyRelu", {"alpha": 1.5}),
    ("LeakyRelu", {"alpha": 0.0}),
    ("LeakyRelu", {"alpha": -0.5}),
    ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 0.5, "beta": 0.6}),
    ("HardSigmoid", {"alpha": -0.5, "beta": 0.2}),
    ("HardSwish", {}),
    ("Gelu", {"approximate": "tanh"}),
]
EXTENDED_OPS: list[tuple[str, dict[str, Any]]] = [
    ("Elu", {}),
    ("Elu", {"alpha": 2.0}),
    ("Selu", {}),
    ("Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("Celu", {}),
    ("Celu", {"alpha": 2.0}),
    ("Celu", {"alpha": 0.5}),
    ("Softplus", {}),
    ("ThresholdedRelu", {}),
    ("ThresholdedRelu", {"alpha": 0.0}),
    ("ThresholdedRelu", {"alpha": -0.5}),
    ("Softsign", {}),
    ("Mish", {}),
    ("Gelu", {}),
    ("Erf", {}),
    ("Exp", {}),
    ("Reciprocal", {}),
]


@pytest.mark.parametrize(("op_type", "attributes"), BASE + EXTENDED_OPS)
def test_functions(op_type: str, attributes: dict[str, Any]):
    compare(single(op_type, (2, 3, 4), opset=20, **attributes))


@pytest.mark.parametrize(("op_type", "attributes"), BASE)
def test_the_published_instruction_set_is_enough(op_type: str, attributes: dict[str, Any]):
    operators = [n.operator for n in load(single(op_type, (2, 3, 4), opset=20, **attributes)).graph.nodes]
    assert not any(isinstance(o, Map) and o.function in EXTENDED_FUNCTIONS for o in operators)


@pytest.mark.parametrize(("op_type", "attributes"), EXTENDED_OPS)
def test_what_they_need_beyond_it_is_listed(op_type: str, attributes: dict[str, Any]):
    operators = [n.operator for n in load(single(op_type, (2, 3, 4), opset=20, **attributes)).graph.nodes]
    used = {o.function for o in operators if isinstance(o, Map) and o.function in EXTENDED_FUNCTIONS}
    assert used
    assert used <= set(re.findall(r"\w+", operator_page.EXTENDED_NEEDS.get(op_type, "")))


@pytest.mark.parametrize(("op_type", "attributes"), BASE + EXTENDED_OPS)
def test_in_the_streams(op_type: str, attributes: dict[str, Any]):
    check(single(op_type, (2, 9, 3), opset=20, **attributes), xbar=8, xbars_per_core=8)


@pytest.mark.parametrize("op_type", ["Sqrt", "Log"])
def test_of_positive_numbers(op_type: str):
    check(make_model([node("Abs", "x", "a"), node(op_type, "a")], {"x": [2, 9]}, {"y": 2}), xbar=8, xbars_per_core=8)


@pytest.mark.parametrize(
    "op_type", ["Elu", "Selu", "Celu", "Softplus", "Softsign", "Mish", "Gelu", "HardSwish", "Erf", "ThresholdedRelu"]
)
def test_far_from_zero(op_type: str):
    model = single(op_type, (1, 8), opset=20)
    x = {"x": np.array([[-1e30, -500, -100, -30, 30, 100, 500, 1e30]], np.float32)}
    with np.errstate(over="ignore", under="ignore"):
        found = evaluate_graph(load(model).graph, x)["y"]
    np.testing.assert_allclose(found, golden(model, x)["y"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("op_type", ["Elu", "Selu", "Celu", "Softplus", "Mish", "Gelu"])
def test_near_zero(op_type: str):
    model = single(op_type, (1, 6), opset=20)
    x = {"x": np.array([[-1e-3, -1e-5, -1e-7, 0, 1e-7, 1e-4]], np.float32)}
    np.testing.assert_allclose(evaluate_graph(load(model).graph, x)["y"], golden(model, x)["y"], rtol=1e-3, atol=1.2e-7)


@pytest.mark.parametrize("slope", [(), (1,), (5,), (3, 1, 1), (3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("constant", [True, False])
def test_prelu(slope: tuple[int, ...], constant: bool):
    inputs = {"x": (2, 3, 4, 5)} | ({} if constant else {"s": slope})
    compare(make_model([node("PRelu", "x s")], inputs, ["y"], {"s": random(*slope)} if constant else {}))


def test_thresholds_are_sharp():
    one = np.float32(1)
    x = {"x": np.array([[one, np.nextafter(one, 2), np.nextafter(one, 0), -3]], np.float32)}
    model = single("ThresholdedRelu", (1, 4), alpha=1.0)
    np.testing.assert_array_equal(evaluate_graph(load(model).graph, x)["y"], golden(model, x)["y"])


def test_swish():
    """A separate operator from opset 24 on."""
    compare(single("Swish", (2, 3, 4), opset=24, alpha=1.5))


def test_celu_of_a_negative_alpha_is_refused():
    with pytest.raises(UnsupportedError, match=r"my_celu \(Celu\): alpha is -1.0, must be above 0"):
        load(single("Celu", (2, 3), alpha=-1.0))
