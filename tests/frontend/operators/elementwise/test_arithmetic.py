"""Element-wise operators against onnxruntime."""

from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Map, Rename
from tests.pipeline import check
from tests.tiny_models import Array, compare, golden, make_model, node, random, single


def functions(model: Any) -> list[str]:
    operators = [n.operator for n in load(model).graph.nodes]
    assert all(isinstance(o, Map) for o in operators)
    return [o.function for o in operators]


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3), (7,), (), (2, 3, 2, 2, 2)])
def test_functions(op_type: str, shape: tuple[int, ...]):
    compare(single(op_type, shape))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4), (2, 3, 4)])
def test_two_tensors(op_type: str, shape: tuple[int, ...]):
    compare(make_model([node(op_type, "a b")], {"a": shape, "b": shape}, {"y": len(shape)}))


@pytest.mark.parametrize(
    ("op_type", "order"),
    [(o, i) for o in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean") for i in ("x c", "c x")],
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


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_a_tensor_with_itself(op_type: str):
    compare(make_model([node(op_type, "x x")], {"x": [1, 2, 3, 3]}, ["y"]))


@pytest.mark.parametrize("op_type", ["Sum", "Max", "Min", "Mean"])
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
        ([node("Div", "a c")], {"a": (1, 3, 4, 4)}, {"c": np.zeros(4, "f4")}, r"my_div \(Div\): divides by zero"),
        (
            [node("Pow", "a b")],
            {"a": (2, 3), "b": (2, 3)},
            {},
            r"my_pow \(Pow\): neither base nor exponent is a constant",
        ),
        ([node("Pow", "a c")], {"a": (2, 3)}, {"c": random(3)}, r"exponent differs from element to element"),
        ([node("Pow", "c a")], {"a": (2, 3)}, {"c": np.float32(-2)}, r"its constant base is not above 0"),
    ],
)
def test_refusals(nodes: list[Any], shapes: dict[str, tuple[int, ...]], constants: dict[str, Array], reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        load(make_model(nodes, shapes, {"y": len(shapes["a"])}, constants))


def test_flattened_image_and_matrix_product_meet():
    nodes = [node("Relu", "x", "r"), node("Flatten", "r", "f"), node("MatMul", "f w", "m"), node("Add", "f m")]
    model = make_model(nodes, {"x": [1, 3, 2, 2]}, {"y": 2}, {"w": random(12, 12)})
    compare(model)


def test_flattened_vector_and_matrix_product_do():
    nodes = [
        node("GlobalAveragePool", "x", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f w", "m"),
        node("Add", "f m"),
    ]
    compare(make_model(nodes, {"x": [1, 3, 2, 2]}, {"y": 2}, {"w": random(3, 3)}))


SHAPES = [
    ((2, 3, 4, 5), (2, 3, 1, 1)),
    ((1, 9, 2, 2), (1, 9, 1, 1)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((2, 3, 4), (1,)),
    ((2, 3, 4), ()),
    ((3, 1), (1, 4)),
    ((3, 1), (2, 1, 4)),
    ((2, 1, 4), (2, 3, 1)),
    ((5,), (2, 3, 5)),
    ((1, 1), (1,)),
    ((1, 9), (3, 9)),
]


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean"])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_both_computed_and_broadcast(op_type: str, a: tuple[int, ...], b: tuple[int, ...]):
    rank = max(len(a), len(b))
    compare(make_model([node(op_type, "a b")], {"a": a, "b": b}, {"y": rank}))
    compare(make_model([node(op_type, "b a")], {"a": a, "b": b}, {"y": rank}))


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_broadcast_in_the_streams(a: tuple[int, ...], b: tuple[int, ...]):
    model = make_model(
        [node("Sub", "a b", "d"), node("Div", "d c")], {"a": a, "b": b}, {"y": max(len(a), len(b))}, {"c": random(1)}
    )
    check(model, xbar=4, xbars_per_core=16)


def test_a_vector_meets_every_pixel_without_being_copied():
    model = make_model([node("Mul", "a b")], {"a": (1, 9, 4, 4), "b": (1, 9, 1, 1)}, ["y"])
    assert [type(n.operator) for n in load(model).graph.nodes if not isinstance(n.operator, Rename)] == [Map]


@pytest.mark.parametrize("constant", [(3, 1, 1), (2, 3, 4, 5), (4, 1)])
def test_a_constant_larger_than_the_tensor(constant: tuple[int, ...]):
    for order in ("x c", "c x"):
        compare(make_model([node("Sub", order)], {"x": [1, 1, 4, 1]}, ["y"], {"c": random(*constant)}))


def test_operands_of_different_layouts():
    nodes = [node("Relu", "x", "r"), node("Reshape", "r s", "p"), node("MatMul", "x w", "m"), node("Add", "m p")]
    constants = {"s": np.array([2, 3, 4]), "w": random(4, 4)}
    compare(make_model(nodes, {"x": [2, 3, 4]}, {"y": 3}, constants))


@pytest.mark.parametrize("bounds", ["x l h", "x - h", "x l", "x c h"])
def test_clip_with_computed_bounds(bounds: str):
    used = set(bounds.split()) - {"-", "c"}
    model = make_model(
        [node("Clip", bounds)],
        {n: (2, 3) if n == "x" else () for n in sorted(used)},
        {"y": 2},
        {"c": np.float32(-0.25)},
    )
    if "c" not in bounds:
        del model.graph.initializer[:]
    compare(model)


EXPONENTS = [0, 1, 2, 3, 5, 16, -1, -2, 0.5, 1.5, 2.5, -0.5, 1 / 3, 0.3, 10.25]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("positive", [True, False])
def test_pow(exponent: float, positive: bool):
    nodes = [node("Abs", "x", "a"), node("Pow", "a c" if positive else "x c")]
    model = make_model(nodes if positive else nodes[1:], {"x": [4, 5]}, {"y": 2}, {"c": np.float32(exponent)})
    with np.errstate(invalid="ignore"):
        compare(model, tolerance=5e-5)


@pytest.mark.parametrize("exponent", [np.int64(3), np.full(5, 2, np.float32), np.array([[0.5]], np.float32)])
def test_pow_of_uniform_exponents(exponent: Array):
    with np.errstate(invalid="ignore"):
        compare(make_model([node("Pow", "x c")], {"x": [4, 5]}, {"y": 2}, {"c": exponent}))


@pytest.mark.parametrize("base", [(), (5,), (4, 1)])
def test_pow_of_a_constant_base(base: tuple[int, ...]):
    compare(make_model([node("Pow", "c x")], {"x": [4, 5]}, {"y": 2}, {"c": np.abs(random(*base)) + np.float32(0.1)}))


def test_powers_of_zero_and_of_negative_numbers():
    x = {"x": np.array([[0, -1, -2.5, 4]], np.float32)}
    for exponent in EXPONENTS:
        model = make_model([node("Pow", "x c")], {"x": [1, 4]}, {"y": 2}, {"c": np.float32(exponent)})
        with np.errstate(all="ignore"):
            found = evaluate_graph(load(model).graph, x)["y"]
        np.testing.assert_allclose(found, golden(model, x)["y"], rtol=1e-5)


def test_division_by_tiny_constants_does_not_overflow():
    model = make_model([node("Div", "x c")], {"x": [2, 2]}, {"y": 2}, {"c": np.array([1e-39, 2e38], np.float32)})
    x = {"x": np.array([[1e-3, 1], [1e-2, 3e38]], np.float32)}
    np.testing.assert_allclose(evaluate_graph(load(model).graph, x)["y"], golden(model, x)["y"], rtol=1e-6)


def test_golden_helper_disables_the_optimiser():
    model = single("Relu", (1, 2))
    assert list(golden(model, {"x": random(1, 2)})) == ["y"]
