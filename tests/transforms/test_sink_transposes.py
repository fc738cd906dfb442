"""Element-wise functions of turned tokens: computed before the transposition, which then is a view."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from benchmarks.programs.block_models import BLOCKS
from raptor.compiler.pipeline import prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Dot, Elementwise, Graph, Map, Move, Node
from raptor.graph.streaming_layout import is_token_layout
from raptor.mapping.modes.line_streaming import can_stream_product, find_views, line_channel_ranges
from raptor.mapping.strategies import ROWS
from raptor.options import ChipOptions
from raptor.target.arch import load_chip
from raptor.target.tensor_layout import Image
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from raptor.transforms.tokens.sink_transposes import sink_transposes
from tests.pipeline import check, chip
from tests.quantised_models import compare, quantise
from tests.tiny_models import make_model, node, random


def attention(*behind: Any, outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    """Queries and keys of one layer; the nodes `behind` make `k` of the turned keys `t`."""
    nodes = [
        node("MatMul", "x w", "both", name="layer"),
        node("Split", "both", "q keys", axis=2),
        node("Transpose", "keys", "t", perm=[0, 2, 1]),
        *behind,
        node("MatMul", "q k", "s", name="scores"),
        node("Softmax", "s", "y", axis=-1, name="shares"),
    ]
    constants = {
        "w": random(8, 12),
        "factor": np.array(0.25, np.float32),
        "factors": random(6, 1),
    }
    return make_model(nodes, {"x": (1, 10, 8)}, dict.fromkeys(outputs, 3), constants, opset=12)


def laid(model: ModelProto) -> tuple[Graph, Graph]:
    """The graph with its tokens laid out, and then with early functions."""
    before = lay_out_tokens(load(model).graph)
    after = sink_transposes(before)
    after.verify()
    return before, after


def product(graph: Graph) -> Node:
    return next(n for n in graph.nodes if isinstance(n.operator, Dot))


def streams(graph: Graph) -> bool:
    parts = line_channel_ranges(graph, chip((16, 16)))
    return can_stream_product(graph, product(graph), parts, find_views(graph, parts))


@pytest.mark.parametrize("op_type", ["Mul", "Relu", "Sigmoid"])
def test_a_function_of_turned_keys_is_one_of_the_keys(op_type: str):
    model = attention(node(op_type, "t factor" if op_type == "Mul" else "t", "k"))
    before, after = laid(model)
    assert not streams(before)
    assert streams(after)
    (early,) = (n for n in after.nodes if isinstance(n.operator, Map) and n.output.endswith(".early"))
    assert is_token_layout(after.tensors[early.output].image)
    given = {"x": random(1, 10, 8, seed=3).astype(np.float64)}
    one, two = evaluate_graph(before, given), evaluate_graph(after, given)
    assert one.keys() & two.keys() >= {"k", "s", "y"}
    assert all(np.array_equal(one[name], two[name]) for name in one.keys() & two.keys())
    check(model, xbar=(16, 16), xbars_per_core=4, cores=8)


def test_keys_of_one_head_are_renamed_and_a_function_of_them_is_one_of_the_keys():
    """No element moves in the transposition of keys that a layer makes alone."""
    nodes = [
        node("MatMul", "x v", "q", name="queries"),
        node("MatMul", "x w", "keys", name="layer"),
        node("Transpose", "keys", "t", perm=[0, 2, 1]),
        node("Mul", "t factor", "k"),
        node("MatMul", "q k", "y", name="scores"),
    ]
    constants = {"v": random(8, 6, seed=1), "w": random(8, 6), "factor": np.array(0.25, np.float32)}
    model = make_model(nodes, {"x": (1, 10, 8)}, ["y"], constants)
    before, after = laid(model)
    assert not streams(before)
    assert streams(after)
    check(model, xbar=(16, 16), xbars_per_core=4, cores=8)


def test_only_the_channels_that_are_moved_get_the_function():
    _, after = laid(attention(node("Mul", "t factor", "k")))
    (early,) = (n for n in after.nodes if n.output.endswith(".early"))
    assert after.tensors[early.output].image.channels == 6
    made = {n.output: n for n in after.nodes}
    assert isinstance(made[early.inputs[0]].operator, Move)


@pytest.mark.parametrize(
    ("behind", "outputs"),
    [
        ([node("Mul", "t factors", "k")], ("y",)),
        ([node("Mul", "t factor", "k")], ("y", "k")),
        ([node("Mul", "t factor", "k"), node("Softmax", "k", "z", axis=1)], ("y", "z")),
        ([node("Transpose", "q", "u", perm=[0, 2, 1], name="turned"), node("Mul", "t u", "k")], ("y",)),
    ],
    ids=["another factor for each channel", "an output", "read by something else", "of two operands"],
)
def test_others_stay_where_they_are(behind: list[Any], outputs: tuple[str, ...]):
    model = attention(*behind, outputs=outputs)
    before, after = laid(model)
    assert after is before
    check(model, xbar=(16, 16), xbars_per_core=4, cores=8)


@pytest.mark.parametrize("name", ["sdpa", "image_attention"])
def test_attention_as_pytorch_exports_it_streams(name: str):
    before, after = laid(BLOCKS[name]())
    assert not streams(before)
    assert streams(after)


def heads_of_codes(folder: Path) -> ModelProto:
    """Attention of two heads in integers: codes of keys and values are turned, and functions of them multiplied."""
    nodes = [
        *(node("MatMul", f"x w{each}", each, name=f"layer {each}") for each in "qkv"),
        *(node("Reshape", f"{each} heads", f"{each}r", name=f"heads {each}") for each in "qkv"),
        node("Transpose", "qr", "qt", name="turn q", perm=[0, 2, 1, 3]),
        node("Transpose", "kr", "kt", name="turn k", perm=[0, 2, 3, 1]),
        node("Transpose", "vr", "vt", name="turn v", perm=[0, 2, 1, 3]),
        node("MatMul", "qt kt", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p vt", "y", name="shares"),
    ]
    constants = {f"w{name}": random(8, 8, seed=seed) for seed, name in enumerate("qkv")}
    constants["heads"] = np.array([1, 10, 2, 4])
    return quantise(make_model(nodes, {"x": (1, 10, 8)}, {"y": 4}, constants, opset=13), folder)


def test_functions_of_codes_are_functions_of_tokens(tmp_path: Path):
    model = heads_of_codes(tmp_path)
    arch = load_chip(ChipOptions(xbar=(16, 16), xbars_per_core=4, cores=24))
    done = rewrite_and_map(prepare_graph(load(model).graph, arch), arch, ROWS.without_search())
    parts = line_channel_ranges(done.graph, arch)
    views = find_views(done.graph, parts)
    assert all(can_stream_product(done.graph, n, parts, views) for n in done.graph.nodes if isinstance(n.operator, Dot))
    names = [n.output for n in done.graph.nodes if isinstance(n.operator, Elementwise)]
    names += [name for n in done.graph.nodes if n.output in views for name in n.inputs]
    assert all(is_token_layout(done.graph.tensors[name].image) for name in names)
    compare(model)
    check(model, xbar=16, xbars_per_core=4, cores=24)


def test_keys_that_are_channels_of_an_image_stay_an_image():
    """The function is computed where the image is, for 32 of its 96 channels."""
    _, after = laid(BLOCKS["image_attention"]())
    (early,) = (n for n in after.nodes if isinstance(n.operator, Map) and n.output.endswith(".early"))
    assert after.tensors[early.output].image == Image((1, 32, 8, 8), 1)
