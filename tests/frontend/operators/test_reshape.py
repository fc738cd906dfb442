"""Renames, concatenation, normalisation, and graphs of unusual form, against onnxruntime."""

from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Move, Rename, Softmax
from tests.tiny_models import Array, compare, golden, make_model, node, random, single


@pytest.mark.parametrize("op_type", ["Identity", "Dropout", "Flatten"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3), (3, 1, 1)])
def test_nothing_but_a_rename(op_type: str, shape: tuple[int, ...]):
    graph = compare(single(op_type, shape, rank=2 if op_type == "Flatten" else len(shape))).graph
    assert isinstance(graph.nodes[0].operator, Rename)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, 4])
def test_flatten_axis(axis: int):
    compare(single("Flatten", (2, 3, 4, 5), rank=2, axis=axis))


@pytest.mark.parametrize("target", [(2, -1), (-1,), (0, 0, 20), (6, 4, 5), (1, 2, 3, 4, 5), (2, 3, 4, 5)])
def test_reshape(target: tuple[int, ...]):
    compare(make_model([node("Reshape", "x s")], {"x": [2, 3, 4, 5]}, {"y": len(target)}, {"s": np.array(target)}))


def test_shape_computations_are_folded():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "nn"),
        node("Concat", "nn minus", "t", axis=0),
        node("Reshape", "x t", "f"),
        node("MatMul", "f w"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1]), "w": random(60, 3)}
    compare(make_model(nodes, {"x": [2, 3, 4, 5]}, {"y": 2}, constants))


@pytest.mark.parametrize("opset", [11, 13])
def test_squeeze_and_unsqueeze_a_channel_vector(opset: int):
    pool, conv = node("GlobalAveragePool", "x", "g"), node("Conv", "u w")
    if opset == 11:
        middle = [
            node("Squeeze", "g", "s", axes=[2, 3]),
            node("Relu", "s", "r"),
            node("Unsqueeze", "r", "u", axes=[2, 3]),
        ]
    else:
        middle = [node("Squeeze", "g a", "s"), node("Relu", "s", "r"), node("Unsqueeze", "r a", "u")]
    constants = {"w": random(2, 3, 1, 1)} | ({"a": np.array([2, 3])} if opset == 13 else {})
    graph = compare(make_model([pool, *middle, conv], {"x": [1, 3, 4, 4]}, ["y"], constants, opset=opset)).graph
    assert graph.tensors["s"].image.shape == (1, 3)


@pytest.mark.parametrize("opset", [11, 17])
def test_there_and_back_again(opset: int):
    nodes = [node("Flatten", "x", "f"), node("Reshape", "f s", "z"), node("GlobalMaxPool", "z")]
    compare(make_model(nodes, {"x": [2, 3, 4, 5]}, ["y"], {"s": np.array([2, 3, 4, 5])}, opset=opset))


@pytest.mark.parametrize("axis", [1, -3])
def test_concat_channels(axis: int):
    compare(make_model([node("Concat", "a b a", axis=axis)], {"a": [2, 3, 4, 5], "b": [2, 1, 4, 5]}, ["y"]))


@pytest.mark.parametrize("inputs", ["m", "m m"])
def test_concat_channels_of_pixels_that_were_counted_otherwise(inputs: str):
    """A normalisation leaves the pixels 3x4 where ONNX's shape shows 12x1."""
    norm = node("MeanVarianceNormalization", "x", "m", axes=[0, 2, 3])
    compare(make_model([norm, node("Concat", inputs, axis=1)], {"x": (3, 4, 4, 1)}, ["y"], opset=19))


def test_concat_of_flattened_images_concatenates_their_channels():
    nodes = [
        node("Relu", "a", "p"),
        node("Flatten", "p", "f"),
        node("Flatten", "b", "g", name="other"),
        node("Concat", "f g", "c", axis=1),
        node("MatMul", "c w"),
    ]
    constants = {"w": random(5 * 6, 4)}
    compare(make_model(nodes, {"a": [2, 3, 2, 3], "b": [2, 2, 2, 3]}, {"y": 2}, constants))


def test_concat_of_flattened_images_of_different_pixels_moves_them():
    nodes = [node("Flatten", "a", "f"), node("Flatten", "b", "g", name="other"), node("Concat", "f g", axis=1)]
    graph = compare(make_model(nodes, {"a": [1, 2, 2, 3], "b": [1, 2, 3, 2]}, {"y": 2})).graph
    assert isinstance(graph.nodes[-1].operator, Move)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 6), (2, 3, 4)])
@pytest.mark.parametrize("opset", [9, 14, 17])
def test_batch_normalization_of_an_input(shape: tuple[int, ...], opset: int):
    c = shape[1]
    constants = {"g": random(c), "b": random(c, seed=1), "m": random(c, seed=2), "v": random(c, seed=3) ** 2}
    bn = node("BatchNormalization", "x g b m v", epsilon=1e-3)
    compare(make_model([bn], {"x": shape}, {"y": len(shape)}, constants, opset=opset))


def test_batch_normalization_behind_a_convolution_is_folded():
    constants = {"w": random(4, 3, 3, 3), "g": random(4), "b": random(4), "m": random(4), "v": random(4) ** 2}
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c g b m v")]
    graph = compare(make_model(nodes, {"x": [1, 3, 5, 5]}, ["y"], constants)).graph
    assert [n.name for n in graph.nodes] == ["my_conv", "my_conv"]
    assert "c" not in graph.tensors


@pytest.mark.parametrize(
    ("opset", "shape", "attributes"),
    [
        (11, (2, 5), {}),
        (11, (1, 5, 1, 1), {}),
        (13, (2, 5), {}),
        (13, (2, 5, 3, 4), {"axis": 1}),
        (13, (2, 5, 3, 4), {"axis": -3}),
        (11, (5,), {"axis": 0}),
    ],
)
def test_softmax(opset: int, shape: tuple[int, ...], attributes: dict[str, Any]):
    graph = compare(single("Softmax", shape, opset=opset, **attributes)).graph
    assert isinstance(graph.nodes[0].operator, Softmax)


@pytest.mark.parametrize(
    ("nodes", "shapes", "constants", "opset", "reason"),
    [
        (
            [node("Dropout", "x - t")],
            {"x": (1, 2, 3, 4)},
            {"t": np.array(True)},
            17,
            "training_mode must be the constant false",
        ),
        (
            [node("BatchNormalization", "x c c c c", "y m v", training_mode=1)],
            {"x": (1, 2, 3, 4)},
            {"c": random(2) ** 2},
            17,
            "training_mode must be 0: export",
        ),
    ],
)
def test_refusals(
    nodes: list[Any], shapes: dict[str, tuple[int, ...]], constants: dict[str, Array], opset: int, reason: str
):
    with pytest.raises(UnsupportedError, match=reason):
        load(make_model(nodes, shapes, ["y"], constants, opset=opset))


def test_several_outputs_one_of_them_inside():
    nodes = [node("Relu", "x", "r"), node("Sigmoid", "r", "y"), node("Identity", "r", "z")]
    graph = compare(make_model(nodes, {"x": [1, 2, 3, 3]}, ["r", "y", "z"])).graph
    assert graph.outputs == ("r", "y", "z")


def test_outputs_of_no_computation():
    nodes = [
        node("Identity", "x", "a"),
        node("Identity", "a", "y", name="second"),
        node("Identity", "x", "z", name="third"),
    ]
    graph = compare(make_model(nodes, {"x": [1, 2, 3, 3]}, ["y", "z"])).graph
    assert all(isinstance(n.operator, Rename) for n in graph.nodes)


def test_unused_inputs_stay():
    graph = compare(make_model([node("Relu", "x")], {"x": [1, 2, 3, 3], "u": [1, 2]}, ["y"])).graph
    assert graph.inputs == ("x", "u")


@pytest.mark.parametrize("nodes", [[node("Relu", "x", "z")], [node("Relu", "x", "z"), node("Identity", "c", "y")]])
def test_outputs_that_do_not_depend_on_a_node(nodes: list[Any]):
    outputs = ["z", "y"] if len(nodes) == 2 else ["z", "x"]
    model = make_model(nodes, {"x": [1, 2, 3, 3]}, outputs, {"c": random(1, 2, 3, 3)})
    graph, x = load(model).graph, {"x": random(1, 2, 3, 3)}
    found = evaluate_graph(graph, x)
    for name, wanted in golden(model, x).items():
        assert name in graph.outputs
        np.testing.assert_array_equal(found[name], wanted)


def test_what_the_optimiser_fuses_keeps_its_names_and_values():
    constants = {
        "w": random(4, 3, 3, 3),
        "v": random(4, 4, 1, 1),
        "s": random(4, 1, 1),
        "p": np.array([0, 0, 1, 1, 0, 0, 1, 2]),
    }
    constants |= {"lo": np.float32(0.1), "hi": np.float32(2)}
    nodes = [
        node("Pad", "x p", "xp"),
        node("Conv", "xp w", "c"),
        node("Mul", "c s", "cm"),
        node("Add", "cm s", "ca"),
        node("Relu", "ca", "r"),
        node("Clip", "r lo hi", "k"),
        node("Transpose", "k", "t", perm=[0, 2, 3, 1]),
        node("Tanh", "t", "u"),
        node("Transpose", "u", "z", perm=[0, 3, 1, 2], name="back"),
        node("Conv", "z v", name="last"),
    ]
    graph = compare(make_model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants)).graph
    known = [n for n, t in graph.tensors.items() if t.in_model]
    assert known == ["x", "ca", "k", "y"]
    assert list(dict.fromkeys(n.name for n in graph.nodes)) == ["my_conv", "my_clip", "my_tanh", "last"]
    for n in nodes:
        n.name = ""
    graph = compare(make_model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants)).graph
    assert graph.nodes[0].name == "Add -> ca"


def test_a_matrix_product_and_a_tensor_are_added_apart():
    for op_type, product in (("Add", "MatMul"), ("Sum", "Gemm"), ("Add", "Gemm")):
        nodes = [node(product, "x w", "m"), node(op_type, "m z")]
        graph = compare(make_model(nodes, {"x": [2, 3], "z": [2, 4]}, {"y": 2}, {"w": random(3, 4)})).graph
        assert [n.output for n in graph.nodes] == ["m", "y"]
