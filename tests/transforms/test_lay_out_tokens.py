"""Sequences laid out as tokens: other images, the same values."""

from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

import models
from benchmarks.programs import slow_models
from benchmarks.programs.block_models import BLOCKS, BlockBuilder
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import ChannelSum, ConstantTensor, Dot, Graph, Map, Move, Pool
from raptor.graph.streaming_layout import is_token_layout
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.split_rows import split_rows
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from raptor.transforms.use_vector_unit import find_means, use_vector_unit
from tests import tiny_models
from tests.pipeline import check, chip, passes, streamed
from tests.tiny_models import make_model, random

SMALL: dict[str, dict[str, Any]] = {
    "bert_tiny": {"tokens": 6, "dim": 16, "depth": 1},
    "vit_tiny": {"image_size": 32, "dim": 24, "depth": 1, "classes": 10},
    "lstm": {"steps": 3, "features": 4, "hidden": 5},
}


def imported(name: str) -> Graph:
    return passes(models.build(name, **SMALL[name]), mapping="raptor", cores=200).graph


@pytest.mark.parametrize("name", [*SMALL, *BLOCKS])
def test_the_values_stay(name: str):
    graph = imported(name) if name in SMALL else load(BLOCKS[name]()).graph
    laid = streamed(use_vector_unit(graph, RewriteChoice(streaming=True, layers=find_means(graph, chip()))))
    laid.verify()
    shapes = {n: graph.tensors[n].shape for n in graph.inputs}
    given = {n: np.random.default_rng(0).standard_normal(shape) for n, shape in shapes.items()}
    before, after = evaluate_graph(graph, given), evaluate_graph(laid, given)
    assert before.keys() & after.keys() >= set(graph.outputs)
    for tensor in before.keys() & after.keys():
        np.testing.assert_allclose(after[tensor], before[tensor], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "lengths"),
    [
        (partial(slow_models.merged_patches, side=8, channels=6), {6, 24, 48}),
        (partial(slow_models.nested_patches, side=2, inside=2, channels=6), {6, 24}),
    ],
)
def test_norms_tell_which_of_two_lengths_tokens_have(build: slow_models.Build, lengths: set[int]):
    """A reshape makes tokens of several pixels each. The norms before and behind it are sums over their channels."""
    builder = BlockBuilder()
    graph = load(builder.finish("tokens", build(builder))).graph
    laid = lay_out_tokens(graph)
    laid.verify()
    sums = [node for node in laid.nodes if isinstance(node.operator, ChannelSum)]
    assert {laid.tensors[node.inputs[0]].image.channels for node in sums} == lengths
    assert all(is_token_layout(laid.tensors[node.inputs[0]].image) for node in sums)
    pools = [node for node in laid.nodes if isinstance(node.operator, Pool)]
    assert all(isinstance(node.operator, Pool) and node.operator.window.out_pixels == 1 for node in pools)
    given = {n: np.random.default_rng(0).standard_normal(graph.tensors[n].shape) for n in graph.inputs}
    before, after = evaluate_graph(graph, given), evaluate_graph(laid, given)
    for tensor in graph.outputs:
        np.testing.assert_allclose(after[tensor], before[tensor], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert_tiny", "vit_tiny"])
def test_means_of_tokens_are_sums_over_channels(name: str):
    laid = lay_out_tokens(imported(name))
    assert any(isinstance(node.operator, ChannelSum) for node in laid.nodes)
    assert not any(isinstance(node.operator, Pool) for node in laid.nodes)


@pytest.mark.parametrize("name", ["bert_tiny", "vit_tiny"])
def test_nothing_moves_between_a_layer_and_an_attention_but_a_choice_of_channels(name: str):
    laid = lay_out_tokens(imported(name))
    made = {node.output: node for node in laid.nodes}
    for node in (node for node in laid.nodes if isinstance(node.operator, Dot)):
        for operand in node.inputs:
            before = made[operand]
            assert not isinstance(before.operator, Move) or is_token_layout(laid.tensors[before.inputs[0]].image)


def test_pieces_of_pixels_are_tokens_in_the_lines_of_the_image():
    """All anchors of a large image would be a line that is too long."""
    laid = lay_out_tokens(load(BLOCKS["yolo_head"]()).graph)
    assert laid.tensors["t4.0"].image.shape == (3 * 12, 12, 10)


def test_what_is_joined_to_a_sequence_is_tokens():
    """The boxes of anchors are joined from pieces, eight numbers each: then they are tokens of eight channels."""
    laid = lay_out_tokens(load(BLOCKS["anchors"]()).graph)
    joined = [node.output for node in laid.nodes if isinstance(node.operator, Move) and len(node.inputs) > 1]
    assert any(laid.tensors[name].image.channels == 8 for name in joined)
    assert all(is_token_layout(laid.tensors[name].image) for name in (*joined, *laid.outputs))


def test_lines_that_come_from_images_are_cut_to_their_width():
    """Pixels of images of 16 and 8 columns become lines of 32: each is 2 lines of one, or 4 of the other."""
    graph = lay_out_tokens(load(BLOCKS["anchor_free"]()).graph)
    laid = split_rows(graph)
    cut = {n: t.image for n, t in laid.tensors.items() if t.image != graph.tensors[n].image}
    assert {image.width for image in cut.values()} == {32}
    assert {image.rows for image in cut.values()} == {8, 2, 10, 20, 40}
    assert all(a is b for a, b in zip(graph.nodes, laid.nodes, strict=True) if not cut.keys() & {*a.inputs, a.output})


def test_lines_are_cut_in_a_graph_with_a_constant():
    nodes = [
        tiny_models.node("Conv", "x w", "a", pads=[1] * 4),
        tiny_models.node("Reshape", "a line", "b"),
        tiny_models.node("Sigmoid", "b", "y"),
        tiny_models.node("Reshape", "b square", "c", name="square"),
        tiny_models.node("EyeLike", "c", "z"),
    ]
    constants = {"w": random(2, 2, 3, 3), "line": np.array([1, 2, 128]), "square": np.array([16, 16])}
    graph = load(make_model(nodes, {"x": (1, 2, 8, 16)}, {"y": 3, "z": 2}, constants)).graph
    laid = split_rows(graph)
    assert laid.tensors["y"].image.shape == (1, 2, 2, 64)
    laid.verify()


@pytest.mark.parametrize("columns", [15, 61])
def test_lines_stay_that_have_no_width_in_common_with_an_image(columns: int):
    nodes = [
        tiny_models.node("Conv", "x w", "a", pads=[1] * 4),
        tiny_models.node("Reshape", "a line", "b"),
        tiny_models.node("Concat", "b more", "c", axis=2),
        tiny_models.node("Sigmoid", "c", "y"),
    ]
    constants = {"w": random(2, 2, 3, 3), "line": np.array([1, 2, -1])}
    inputs = {"x": (1, 2, 7, 16), "more": (1, 2, columns)}
    graph = load(make_model(nodes, inputs, {"y": 3}, constants)).graph
    assert split_rows(graph) is graph


def test_a_graph_of_images_is_returned_as_it_is():
    graph = passes(models.build("lenet5"), mapping="raptor").graph
    assert split_rows(lay_out_tokens(graph)) is graph


def test_sums_for_whose_pixels_something_is_repeated_stay_pools():
    """A product wants the tokens of x as lines; the sum of each has one channel then, and the addend has three."""
    nodes = [
        tiny_models.node("MatMul", "x w", "y"),
        tiny_models.node("GlobalAveragePool", "x", "mean"),
        tiny_models.node("Slice", "addends begin end", "addend"),
        tiny_models.node("Add", "mean addend", "z"),
    ]
    constants = {"w": random(4, 5), "begin": np.array([1]), "end": np.array([2])}
    inputs = {"x": (3, 3, 4), "addends": (7,)}
    check(make_model(nodes, inputs, {"y": 3, "z": 3}, constants), xbar=(8, 58), xbars_per_core=2, cores=28)


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [("ReduceMax", (1, 16), {"axes": [1], "keepdims": 0}), ("Hardmax", (1, 6, 16), {"axis": 1})],
)
def test_a_layer_whose_tokens_something_else_reads_is_computed_by_line(
    op: str, shape: tuple[int, ...], attributes: dict[str, Any]
):
    """Layouts stay where something takes tokens for channels, and this one is right as it is."""
    model = models.build("bert_tiny", **SMALL["bert_tiny"])
    read = "layer.0.attention.proj.product_output"
    model.graph.node.append(onnx.helper.make_node(op, [read], ["seen"], name="seen", **attributes))
    model.graph.output.append(onnx.helper.make_tensor_value_info("seen", onnx.TensorProto.FLOAT, shape))
    check(model, tolerance=1e-4, xbar=16, xbars_per_core=48, cores=40)


def test_a_sum_of_everything_beside_a_layer_of_tokens():
    """It is a sum over the channels of each token first, then one over the tokens, which nothing has laid out anew."""
    nodes = [
        tiny_models.node("Sigmoid", "x", "s"),
        tiny_models.node("Mul", "s other", "t"),
        tiny_models.node("MatMul", "t w", "y"),
        tiny_models.node("ReduceSum", "s axes", "z", keepdims=1),
    ]
    constants = {"w": random(4, 5), "other": random(1, 3, 4), "axes": np.array([0, 1, 2])}
    check(make_model(nodes, {"x": (1, 3, 4)}, {"y": 3, "z": 3}, constants), xbar=8, xbars_per_core=4, cores=12)


def test_a_sequence_of_fewer_tokens_than_there_are_heads():
    """The scores of 8 heads, with a normalisation of two sequences: each has one mean, and the heads have 8 lines."""
    nodes = [
        tiny_models.node("MatMul", "q k", "scores", name="scores"),
        tiny_models.node("Reshape", "scores two", "rows", name="rows"),
        tiny_models.node("LayerNormalization", "rows scale", "y", name="norm", axis=-3),
    ]
    constants = {"two": np.array([2, 32, 1, 1]), "scale": random(32, 1, 1)}
    model = make_model(nodes, {"q": (4, 2, 4, 5), "k": (4, 2, 5, 2)}, ["y"], constants)
    check(model, xbar=16, xbars_per_core=8, cores=20)


def test_a_sum_over_sequences_whose_tokens_have_two_axes():
    """A token is one of 2 rows of 4 elements. The pixels of the sum are elements of a token, not in their order."""
    nodes = [
        tiny_models.node("Softmax", "x", "s", axis=1),
        tiny_models.node("ReduceSumSquare", "s", "y", axes=[0, 2], keepdims=1),
    ]
    check(make_model(nodes, {"x": (2, 2, 1, 4)}, ["y"], opset=12), xbar=8, xbars_per_core=4, cores=4)


def test_a_product_over_several_pixels_with_a_result_like_tokens():
    """A batch of images is flattened and multiplied; another layer of tokens has the tensors laid out."""
    nodes = [
        tiny_models.node("Reshape", "x flat", "t", name="flat"),
        tiny_models.node("MatMul", "t w", "y", name="whole"),
        tiny_models.node("MatMul", "s v", "z", name="tokens"),
    ]
    constants = {"flat": np.array([1, 2, 12]), "w": random(12, 6), "v": random(4, 5)}
    model = make_model(nodes, {"x": (2, 2, 1, 3, 2), "s": (1, 6, 4)}, {"y": 3, "z": 3}, constants)
    check(model, xbar=16, xbars_per_core=4, cores=8)


def test_a_pool_with_more_results_than_operands_is_no_sum_over_channels():
    """An average over padding alone still is a result."""
    nodes = [
        tiny_models.node("AveragePool", "x", "p", kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
        tiny_models.node("MatMul", "p w", "y"),
    ]
    graph = load(make_model(nodes, {"x": (1, 1, 1, 3)}, ["y"], {"w": random(4, 6)})).graph
    assert lay_out_tokens(graph).outputs == graph.outputs


def test_the_largest_element_of_a_token_is_no_sum():
    """Random graphs found it: `ReduceLogSumExp` adds the largest element of a token to a sum over its elements."""
    nodes = [
        tiny_models.node("Reshape", "x s", "t", name="tokens"),
        tiny_models.node("MatMul", "t w", "y", name="layer"),
        tiny_models.node("ReduceLogSumExp", "t", "z", axes=[2], keepdims=0, name="sum"),
    ]
    graph = load(make_model(nodes, {"x": (12,)}, ["y", "z"], {"w": random(3, 3), "s": np.array([2, 2, 3])})).graph
    given = {"x": random(12, seed=3)}
    before, after = evaluate_graph(graph, given), evaluate_graph(streamed(graph), given)
    for name in before.keys() & after.keys():
        np.testing.assert_allclose(after[name], before[name], rtol=1e-5)


def test_tokens_that_are_added_to_a_constant_are_tokens():
    nodes = [
        tiny_models.node("MatMul", "x w", "a", name="layer"),
        tiny_models.node("GatherND", "a from", "g", name="gather"),
        tiny_models.node("ScatterND", "c to g", "s", name="scatter", reduction="add"),
        tiny_models.node("Add", "a s", "y"),
    ]
    constants = {"w": random(3, 4), "c": random(1, 6, 4, seed=2)}
    constants |= {"from": np.array([[0, 1], [0, 1], [0, 3]]), "to": np.array([[0, 2], [0, 5], [0, 5]])}
    graph = load(make_model(nodes, {"x": (1, 6, 3)}, ["y"], constants, opset=18)).graph
    laid = lay_out_tokens(graph)
    laid.verify()
    assert all(is_token_layout(laid.tensors[node.output].image) for node in laid.nodes)
    assert any(isinstance(node.operator, ConstantTensor) for node in laid.nodes)
    given = {"x": random(1, 6, 3, seed=5)}
    np.testing.assert_allclose(evaluate_graph(laid, given)["y"], evaluate_graph(graph, given)["y"], rtol=1e-5)


@pytest.mark.parametrize(("rows", "wanted"), [(64, True), (8, False)])
def test_large_tensors_that_no_layer_fixes_are_tokens_of_their_channels(rows: int, wanted: bool):
    """Rows that computed indices select, of a tensor that no layer makes: all were work of one core."""
    nodes = [tiny_models.node("Gather", "x ids", "g", name="gather"), tiny_models.node("Exp", "g", "y")]
    model = make_model(nodes, {"x": (rows, 4), "ids": (rows,)}, ["y"], {})
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    graph = load(model).graph
    laid = lay_out_tokens(graph)
    (mask,) = [n for n in graph.nodes if isinstance(n.operator, Map) and n.operator.function == "mask"]
    assert is_token_layout(laid.tensors[mask.output].image) == wanted
