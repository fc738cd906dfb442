"""The model in float64: what computes a node, that it is right, and what the errors put in amount to."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from tests.recurrent_models import OP_TYPES, STEPS, recurrent
from tests.tiny_models import Array, golden, make_model, node, random
from validator.model.float64 import Float64Model, NoFloat64Error, kernels, load_float64
from validator.model.float64.kernels import HALF_UNIT
from validator.model.float64.recurrent import Recurrence, RecurrentLayer


def loaded(model: onnx.ModelProto, folder: Path) -> Float64Model:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return load_float64(path, {})


def computed(model: onnx.ModelProto, folder: Path, x: Array) -> tuple[Array, Array]:
    """Returns the results of float64 and of onnxruntime in float32."""
    return loaded(model, folder).run({"x": x}, ["y"])["y"], golden(model, {"x": x})["y"]


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((2, 4, 9, 7), (6, 4, 3, 2), {"strides": [2, 1], "pads": [1, 0, 2, 1]}),
        ((1, 4, 9, 7), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1]}),
        ((1, 4, 9, 8), (4, 1, 2, 3), {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
        ((1, 4, 9, 8), (4, 4, 2, 4), {"auto_pad": "SAME_LOWER"}),
        ((1, 3, 9), (5, 3, 4), {"auto_pad": "VALID"}),
        ((1, 2, 5, 4, 3), (3, 2, 2, 2, 2), {"pads": [1, 0, 0, 0, 1, 0]}),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(
    tmp_path: Path, shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], bias: bool
) -> None:
    constants = {"w": random(*kernel), "b": random(kernel[0], seed=1)}
    nodes = [node("Conv", "x w b" if bias else "x w", **attributes)]
    x = random(*shape, seed=2)
    y, single = computed(make_model(nodes, {"x": shape}, {"y": len(shape)}, constants), tmp_path, x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, single, rtol=1e-5, atol=1e-5)
    assert (y != single).any()


@pytest.mark.parametrize(
    ("op", "inputs", "scale", "attributes"),
    [
        ("InstanceNormalization", "x s b", (4,), {"epsilon": 0.01}),
        ("LayerNormalization", "x s b", (3, 5), {"axis": -2}),
        ("LayerNormalization", "x s", (5,), {"epsilon": 0.1}),
        ("LayerNormalization", "x s", (1,), {}),
        ("MeanVarianceNormalization", "x", (), {"axes": [1, 3]}),
        ("MeanVarianceNormalization", "x", (), {}),
    ],
)
def test_normalisations_in_steps(
    tmp_path: Path, op: str, inputs: str, scale: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """Each step rounds: little is known of two nearly equal numbers after the mean is subtracted."""
    constants = {"s": random(*scale), "b": random(*scale, seed=1)}
    model = make_model([node(op, inputs, **attributes)], {"x": (2, 4, 3, 5)}, ["y"], constants)
    x = random(2, 4, 3, 5)
    exact = loaded(model, tmp_path)
    y = exact.run({"x": x}, ["y"])["y"]
    np.testing.assert_allclose(y, golden(model, {"x": x})["y"], rtol=1e-5, atol=1e-5)
    far = x + np.float32(1000)
    apart = exact.run({"x": far}, ["y"], np.random.default_rng(0))["y"] - exact.run({"x": far}, ["y"])["y"]
    assert 1e-6 < np.abs(apart).max() < 1e-2


@pytest.mark.parametrize(
    ("op", "attributes", "function"),
    [
        ("Sigmoid", {}, lambda x: 1 / (1 + np.exp(-x))),
        ("Softplus", {}, lambda x: np.log1p(np.exp(x))),
        ("Elu", {"alpha": 0.5}, lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
        ("Atan", {}, np.arctan),
        ("Tanh", {}, np.tanh),
    ],
)
def test_functions_have_the_digits_of_float64(tmp_path: Path, op: str, attributes: Any, function: Any) -> None:
    x = random(3, 40)
    y, _ = computed(make_model([node(op, "x", **attributes)], {"x": (3, 40)}, {"y": 2}), tmp_path, x)
    np.testing.assert_allclose(y, function(x.astype(np.float64)), rtol=1e-14)


def test_a_wrong_kernel_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime's float32 kernel serves then."""
    monkeypatch.setattr(kernels, "convolve", lambda *_: np.zeros((1, 2, 3, 3)))
    model = make_model([node("Conv", "x w")], {"x": (1, 1, 3, 3)}, ["y"], {"w": random(2, 1, 1, 1)})
    y, single = computed(model, tmp_path, random(1, 1, 3, 3))
    assert (y.astype(np.float32) == single).all()


def test_large_results_of_the_reference_come_from_the_float32_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "REFERENCE_ELEMENTS", 10)
    y, single = computed(make_model([node("Atan", "x")], {"x": (3, 4)}, {"y": 2}), tmp_path, random(3, 4))
    assert (y.astype(np.float32) == single).all()


def test_what_follows_from_constants_is_what_float32_says(tmp_path: Path) -> None:
    """A tenth times thirty is 3 in float32 and a little more in float64: sizes come of such numbers."""
    nodes = [node("Mul", "tenth thirty", "t"), node("Ceil", "t", "c"), node("Add", "x c")]
    constants = {"tenth": np.float32(0.1), "thirty": np.float32(30)}
    y, single = computed(make_model(nodes, {"x": (2,)}, {"y": 1}, constants), tmp_path, np.zeros(2, np.float32))
    assert y.tolist() == single.tolist()


@pytest.mark.parametrize("given", ["sizes", "scales"])
def test_empty_operands_are_none(tmp_path: Path, given: str) -> None:
    """Exporters give a tensor without elements for a parameter of Resize that they do not mean."""
    constants = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32), "sizes": np.zeros(0, np.int64)}
    constants |= {"sizes": np.array([1, 1, 6, 8])} if given == "sizes" else {"scales": np.float32([1, 1, 2, 2])}
    nodes = [node("Resize", "x roi scales sizes" if given == "sizes" else "x roi scales", mode="linear")]
    model = make_model(nodes, {"x": (1, 1, 3, 4)}, ["y"], constants)
    y, single = computed(model, tmp_path, random(1, 1, 3, 4))
    np.testing.assert_allclose(y, single, rtol=1e-5, atol=1e-6)


def test_graphs_inside_of_nodes_and_functions(tmp_path: Path) -> None:
    """A branch that reads a tensor and a constant from outside, and has a constant of its own."""
    third = numpy_helper.from_array(np.float32(1 / 3), "third")
    branches = [
        helper.make_graph(
            [helper.make_node("twice", ["x"], ["d"], domain="own"), helper.make_node("Mul", ["d", "third"], ["r"])]
            if taken
            else [helper.make_node("Neg", ["x"], ["r"])],
            "branch",
            [],
            [helper.make_tensor_value_info("r", TensorProto.FLOAT, [3])],
            [third] if taken else [],
        )
        for taken in (True, False)
    ]
    model = make_model(
        [node("If", "yes", "y", then_branch=branches[0], else_branch=branches[1])],
        {"x": (3,)},
        {"y": 1},
        {"yes": np.array(True)},
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    twice = helper.make_node("Add", ["a", "a"], ["b"])
    model.functions.append(helper.make_function("own", "twice", ["a"], ["b"], [twice], model.opset_import[:1]))
    x = random(3)
    y, _ = computed(model, tmp_path, x)
    np.testing.assert_allclose(y, 2 * x.astype(np.float64) * np.float64(np.float32(1 / 3)), rtol=1e-15)


def test_errors_are_those_of_one_rounding(tmp_path: Path) -> None:
    """A product of two numbers: two operands and the result, each off by half a unit at most, evenly."""
    exact = loaded(make_model([node("Mul", "x w")], {"x": (1000,)}, {"y": 1}, {"w": random(1000)}), tmp_path)
    x = random(1000, seed=1)
    y = exact.run({"x": x}, ["y"])["y"]
    moved = exact.run({"x": x}, ["y"], np.random.default_rng(0))["y"]
    off = (moved - y) / y
    assert np.abs(off).max() <= 3 * HALF_UNIT
    assert off.std() == pytest.approx(HALF_UNIT, rel=0.1)  # sqrt(3) of HALF_UNIT / sqrt(3)


def test_what_rounds_nothing_has_no_errors(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Transpose", "r", "t"), node("Concat", "t t", axis=0)]
    exact = loaded(make_model(nodes, {"x": (4, 5)}, {"y": 2}), tmp_path)
    one, two = (exact.run({"x": random(4, 5)}, ["y"], rng)["y"] for rng in (None, np.random.default_rng(0)))
    assert (one == two).all()


def test_inner_tensors_and_only_what_they_need(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "e"), node("NoSuchOperator", "e", "n"), node("Neg", "e")]
    exact = loaded(make_model(nodes, {"x": (3,)}, {"y": 1}), tmp_path)
    found = exact.run({"x": random(3)}, ["e", "y"])
    np.testing.assert_allclose(found["e"], np.exp(random(3).astype(np.float64)), rtol=1e-14)
    assert (found["y"] == -found["e"]).all()
    with pytest.raises(NoFloat64Error, match="NoSuchOperator"):
        exact.run({"x": random(3)}, ["n"])


def test_models_that_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\xff\xff broken")
    with pytest.raises(NoFloat64Error, match="DecodeError"):
        load_float64(broken, {})
    sparse = make_model([node("Neg", "x")], {"x": (3,)}, {"y": 1})
    values, indices = (
        numpy_helper.from_array(np.ones(1, np.float32), "s"),
        numpy_helper.from_array(np.zeros(1, np.int64)),
    )
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    with pytest.raises(NoFloat64Error, match="sparse"):
        loaded(sparse, tmp_path)
    assert not issubclass(NoFloat64Error, UserError)


ACTIVATIONS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("RNN", ["Relu"], {}),
    ("RNN", ["Softplus"], {}),
    ("RNN", ["Softsign"], {}),
    ("RNN", ["LeakyRelu"], {"activation_alpha": [0.2]}),
    ("RNN", ["Elu"], {"activation_alpha": [0.7]}),
    ("RNN", ["ThresholdedRelu"], {"activation_alpha": [0.5]}),
    ("RNN", ["ScaledTanh"], {"activation_alpha": [0.8], "activation_beta": [0.7]}),
    ("GRU", ["HardSigmoid", "Affine"], {"activation_alpha": [0.3, 0.4], "activation_beta": [0.6, 0.1]}),
    ("LSTM", ["Sigmoid", "Softsign", "Elu"], {"activation_alpha": [0.3]}),
    ("LSTM", ["hardsigmoid", "tanh", "relu"], {}),
]


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        *((op, {"extra": "Bh", "direction": d}) for op in OP_TYPES for d in ("forward", "reverse", "bidirectional")),
        *((op, {"extra": "B", "outputs": outputs}) for op in OP_TYPES for outputs in ("y", "- h_n")),
        *((op, {"clip": 0.4}) for op in OP_TYPES),
        *((op, {"activations": names, **more}) for op, names, more in ACTIVATIONS),
        ("GRU", {"extra": "Bh", "linear_before_reset": 1}),
        ("GRU", {"direction": "bidirectional", "activations": ["Sigmoid", "Tanh", "HardSigmoid", "Relu"]}),
        ("LSTM", {"extra": "BhcP", "direction": "bidirectional"}),
        ("LSTM", {"extra": "Pc", "input_forget": 1}),
        ("LSTM", {"outputs": "- - c_n", "lengths": [STEPS, STEPS]}),
    ],
)
def test_recurrent_layers_in_steps(tmp_path: Path, op_type: str, attributes: Any) -> None:
    model = recurrent(op_type, **attributes)
    x, names = random(3, 2, 4), [o.name for o in model.graph.output]
    exact = loaded(model, tmp_path)
    found, single = exact.run({"x": x}, names), golden(model, {"x": x})
    assert isinstance(next(iter(exact.evaluators.values())), Recurrence)
    for name in names:
        np.testing.assert_allclose(found[name], single[name], rtol=1e-5, atol=1e-5)
        assert (found[name] != single[name]).any()


def test_steps_of_a_recurrent_layer_round(tmp_path: Path) -> None:
    """A state that doubles in each step makes errors of the first ones large."""
    weights = {"w": np.ones((1, 1, 1), np.float32), "r": np.full((1, 1, 1), 2, np.float32)}
    layer = node("RNN", "x w r", hidden_size=1, activations=["Relu"])
    exact = loaded(make_model([layer], {"x": (20, 1, 1)}, ["y"], weights), tmp_path)
    x = random(20, 1, 1) ** 2
    apart = exact.run({"x": x}, ["y"], np.random.default_rng(0))["y"] / exact.run({"x": x}, ["y"])["y"] - 1
    assert 1e-8 < np.abs(apart[-1]).max() < 1e-6


def test_an_unstable_layer_of_softplus_is_not_judged_by_onnxruntime(tmp_path: Path) -> None:
    """onnxruntime's log(1 + exp(x)) is 0 for x = -20. Large weights show that in the next step."""
    weights = {"w": np.ones((1, 1, 1), np.float32), "r": np.full((1, 1, 1), 1e9, np.float32)}
    layer = node("RNN", "x w r", hidden_size=1, activations=["Softplus"])
    model = make_model([layer], {"x": (2, 1, 1)}, ["y"], weights)
    x = np.array([-20, 0], np.float32).reshape(2, 1, 1)
    first = np.log1p(np.exp(-20))
    found, single = loaded(model, tmp_path).run({"x": x}, ["y"])["y"], golden(model, {"x": x})["y"]
    np.testing.assert_allclose(found.ravel(), [first, np.log1p(np.exp(1e9 * first))], rtol=1e-9)
    assert single.ravel().tolist() == [0, np.float32(np.log(2))]


@pytest.mark.parametrize("odd", [{"lengths": [STEPS, 1]}, {"activations": ["Swish"]}, {"layout": 1}])
def test_other_recurrent_layers_have_no_steps(odd: Any) -> None:
    layer = recurrent("RNN", **odd)
    operands = {t.name: numpy_helper.to_array(t) for t in layer.graph.initializer} | {"x": random(3, 2, 4)}
    assert RecurrentLayer.from_node(layer.graph.node[0], operands) is None


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_a_constant_decides_is_computed_node_by_node(tmp_path: Path, taken: bool) -> None:
    """Rounding of the whole If would move the exponent, too, and make powers of negative numbers NaN."""
    branches: dict[str, onnx.GraphProto] = {}
    for name, exponent in (("then_branch", "two"), ("else_branch", "own")):
        nodes = [node("Pow", f"x {exponent}", f"{name}.p"), node("Add", f"{name}.p one", f"{name}.y", name="add")]
        own = [numpy_helper.from_array(np.array(4, np.float32), "own")] if exponent == "own" else []
        result = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [result], own)
    constants = {"is_odd": np.array(taken), "two": np.array(2, np.float32), "one": np.array(1, np.float32)}
    model = make_model([node("If", "is_odd", **branches)], {"x": (3, 4)}, {"y": 2}, constants)
    x = random(3, 4)
    exact = loaded(model, tmp_path)
    y = exact.run({"x": x}, ["y"])["y"]
    np.testing.assert_allclose(y, x.astype(np.float64) ** (2 if taken else 4) + 1, rtol=1e-12)
    apart = np.abs(exact.run({"x": x}, ["y"], np.random.default_rng(0))["y"] / y - 1)
    assert (apart > 0).all()
    assert (apart < 1e-6).all()
