"""Element-wise operators against onnxruntime."""

from typing import Any

import numpy as np
import pytest

from raptor.errors import UnsupportedError
from raptor.frontend import load
from raptor.frontend.graph import Map
from tests.frontend.support import Array, compare, golden, make_model, node, random, single


def functions(model: Any) -> list[str]:
    operators = [n.operator for n in load(model).graph.nodes]
    assert all(isinstance(o, Map) for o in operators)
    return [o.function for o in operators]


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3), (7,), (), (2, 3, 2, 2, 2)])
def test_functions(op_type: str, shape: tuple[int, ...]):
    compare(single(op_type, shape))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Max", "Sum"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4), (2, 3, 4)])
def test_two_tensors(op_type: str, shape: tuple[int, ...]):
    compare(make_model([node(op_type, "a b")], {"a": shape, "b": shape}, {"y": len(shape)}))


@pytest.mark.parametrize(
    ("op_type", "order"),
    [(o, i) for o in ("Add", "Sub", "Mul", "Div", "Max", "Sum") for i in ("x c", "c x") if (o, i) != ("Div", "c x")],
)
@pytest.mark.parametrize(
    "constant", [(), (1,), (5,), (4, 1), (3, 1, 1), (3, 4, 5), (1, 3, 1, 1), (2, 3, 4, 5), (2, 1, 1, 1), (2, 1, 4, 1)]
)
def test_tensor_and_broadcast_constant(op_type: str, constant: tuple[int, ...], order: str):
    compare(make_model([node(op_type, order)], {"x": [2, 3, 4, 5]}, ["y"], {"c": random(*constant)}))


@pytest.mark.parametrize(
    ("constant", "pixels"),
    [
        ((), (1, 1, 1)),
        ((3, 1, 1), (1, 1, 3)),
        ((5,), (1, 5, 1)),
        ((4, 1), (8, 1, 1)),
        ((2, 3, 4, 5), (8, 5, 3)),
    ],
)
def test_constants_are_as_small_as_their_broadcast(constant: tuple[int, ...], pixels: tuple[int, ...]):
    model = make_model([node("Mul", "x c")], {"x": [2, 3, 4, 5]}, ["y"], {"c": random(*constant)})
    (mul,) = load(model).graph.nodes
    assert mul.operator.operands[1].pixels.shape == pixels


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Max"])
def test_a_tensor_with_itself(op_type: str):
    compare(make_model([node(op_type, "x x")], {"x": [1, 2, 3, 3]}, ["y"]))


@pytest.mark.parametrize("op_type", ["Sum", "Max"])
@pytest.mark.parametrize("inputs", ["a", "a b d", "a a a", "a c b a", "c a k", "a b a b d d"])
def test_any_number_of_operands(op_type: str, inputs: str):
    shape = (1, 2, 3, 3)
    used = set(inputs.split())
    compare(
        make_model(
            [node(op_type, inputs)],
            {n: shape for n in ("a", "b", "d") if n in used},
            ["y"],
            {n: v for n, v in {"c": random(2, 1, 1), "k": random()}.items() if n in used},
        )
    )


def test_sub_of_both_orders_keeps_its_signs():
    compare(
        make_model([node("Sub", "a b", "d"), node("Sub", "d a", name="second")], {"a": [2, 3], "b": [2, 3]}, {"y": 2})
    )


BOUNDS = [
    (None, None),
    (0.0, 6.0),
    (-0.5, 0.5),
    (None, 0.25),
    (0.25, None),
    (0.0, None),
    (1.0, -1.0),
    (-np.inf, np.inf),
]


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_clip_is_exact(low: float | None, high: float | None):
    bounds = {n: np.float32(v) for n, v in (("l", low), ("h", high)) if v is not None}
    inputs = "x " + " ".join(n if n in bounds else "-" for n in "lh")
    compare(make_model([node("Clip", inputs)], {"x": [1, 3, 9, 9]}, ["y"], bounds), tolerance=0)


@pytest.mark.parametrize(("low", "high"), [b for b in BOUNDS if b != (1.0, -1.0)])
def test_clip_with_attributes(low: float | None, high: float | None):
    attributes = {n: v for n, v in (("min", low), ("max", high)) if v is not None}
    compare(single("Clip", (1, 3, 9, 9), opset=10, **attributes), tolerance=0)


def test_clip_uses_as_few_maps_as_it_can():
    def count(*bounds: float | None) -> list[str]:
        names = {n: np.float32(b) for n, b in zip("lh", bounds, strict=True) if b is not None}
        inputs = "x " + " ".join(n if n in names else "-" for n in "lh")
        return functions(make_model([node("Clip", inputs)], {"x": [1, 3, 9, 9]}, ["y"], names))

    assert count(0, None) == ["relu"]
    assert count(1, None) == ["max"]
    assert count(0, 6) == ["relu", "sub", "max", "sub"]


def test_map_on_a_flattened_image():
    nodes = [
        node("Relu", "x", "r"),
        node("Flatten", "r", "f"),
        node("Mul", "f c", "m"),
        node("Add", "m s", "a"),
        node("Tanh", "a"),
    ]
    model = make_model(nodes, {"x": [2, 3, 4, 5]}, {"y": 2}, {"c": random(60), "s": random(1)})
    compare(model)


@pytest.mark.parametrize(
    ("nodes", "shapes", "constants", "reason"),
    [
        (
            [node("Add", "a b")],
            {"a": (1, 3, 4, 4), "b": (1, 3, 1, 1)},
            {},
            r"my_add \(Add\): 'b' \(1, 3, 1, 1\) would be broadcast",
        ),
        (
            [node("Add", "a c")],
            {"a": (1, 3, 1, 1)},
            {"c": random(3, 4, 4)},
            r"'a' \(1, 3, 1, 1\) would be broadcast to \(1, 3, 4, 4\)",
        ),
        ([node("Div", "a b")], {"a": (1, 3, 4, 4), "b": (1, 3, 4, 4)}, {}, r"my_div \(Div\): 'b' must be a constant"),
        (
            [node("Div", "c a")],
            {"a": (1, 3, 4, 4)},
            {"c": random(3, 1, 1)},
            r"my_div \(Div\): 'c' must not be a constant",
        ),
        ([node("Div", "a c")], {"a": (1, 3, 4, 4)}, {"c": np.zeros(4, "f4")}, r"my_div \(Div\): divides by zero"),
        ([node("Clip", "a b")], {"a": (1, 3, 4, 4), "b": ()}, {}, r"my_clip \(Clip\): 'b' must be a constant"),
    ],
)
def test_refusals(nodes: list[Any], shapes: dict[str, tuple[int, ...]], constants: dict[str, Array], reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        load(make_model(nodes, shapes, ["y"], constants))


def test_flattened_image_and_matrix_product_do_not_meet():
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node("MatMul", "f w", "m"), node("Add", "f m")]
    model = make_model(nodes, {"x": [1, 3, 2, 2]}, {"y": 2}, {"w": random(12, 12)})
    with pytest.raises(UnsupportedError, match="'m' and 'f' were reshaped from different layouts"):
        load(model)


def test_flattened_vector_and_matrix_product_do():
    nodes = [
        node("GlobalAveragePool", "x", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f w", "m"),
        node("Add", "f m"),
    ]
    compare(make_model(nodes, {"x": [1, 3, 2, 2]}, {"y": 2}, {"w": random(3, 3)}))


def test_golden_helper_disables_the_optimiser():
    model = single("Relu", (1, 2))
    assert list(golden(model, {"x": random(1, 2)})) == ["y"]
