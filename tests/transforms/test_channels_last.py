"""Images with the channels last, between two transpositions: the same pixels, so nothing moves and lines stream."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto

import raptor
from raptor.compiler.analysis.explain import explain
from raptor.graph.ir import ChannelSum, Graph, Move, Pool, Rename
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from tests.pipeline import check, passes
from tests.quantised_models import quantise
from tests.tiny_models import add_layer, make_model, node, random

CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 16, "cores": 24}
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
NORMS = "operator", "decomposed"
CONSTANTS = {
    "scale": random(6) + 2,
    "shift": random(6, seed=1),
    "two": np.array(2, np.float32),
    "tiny": np.array(1e-5, np.float32),
    "w": random(6, 3, 3, 3),
    "up": random(6, 12),
    "down": random(12, 6),
}
"""`w`: a convolution; `up` and `down`: the matrices of a perceptron."""


def transpose(given: str, made: str, perm: list[int]) -> NodeProto:
    return node("Transpose", given, made, name=made, perm=perm)


def norm(kind: str, given: str, made: str) -> list[NodeProto]:
    """A norm over the channels, which are last, as one operator or as PyTorch wrote it before."""
    if kind == "operator":
        return [node("LayerNormalization", f"{given} scale shift", made, name=made, axis=-1)]
    a, b, c, d, e, f, g = (f"{made}.{letter}" for letter in "abcdefg")
    return [
        node("ReduceMean", given, a, name=a, axes=[-1]),
        node("Sub", f"{given} {a}", b, name=b),
        node("Pow", f"{b} two", c, name=c),
        node("ReduceMean", c, d, name=d, axes=[-1]),
        node("Add", f"{d} tiny", e, name=e),
        node("Sqrt", e, f, name=f),
        node("Div", f"{b} {f}", g, name=g),
        node("Mul", f"{g} scale", f"{made}.h", name=f"{made}.h"),
        node("Add", f"{made}.h shift", made, name=made),
    ]


def model_of(nodes: list[NodeProto], outputs: dict[str, int] | None = None) -> ModelProto:
    """A convolution of an image of 5 x 7 pixels, `c`, and behind it `nodes`."""
    conv = node("Conv", "x w", "c", name="conv", pads=[1] * 4)
    read = {name for n in nodes for name in n.input} | {"w"}
    constants = {name: array for name, array in CONSTANTS.items() if name in read}
    return make_model([conv, *nodes], {"x": (1, 3, 5, 7)}, outputs or {"y": 4}, constants)


def laid(model: ModelProto, **options: Any) -> Graph:
    return lay_out_tokens(passes(model, **{**CHIP, **options}).graph)


def moved(graph: Graph) -> list[str]:
    """The tensors whose elements move; a channel that is repeated in all channels does not count."""
    moves = {n.output: n.operator.sources for n in graph.nodes if isinstance(n.operator, Move)}
    return [name for name, sources in moves.items() if sources.shape[1] == 1 or (sources != sources[:, :1]).any()]


def perceptron(kind: str, given: str = "c", made: str = "y") -> list[NodeProto]:
    """The nodes behind the depthwise layer in a block of a ConvNeXt."""
    return [
        transpose(given, "last", LAST),
        *norm(kind, "last", "n"),
        node("MatMul", "n up", "u", name="up"),
        node("Relu", "u", "r", name="relu"),
        node("MatMul", "r down", "d", name="down"),
        transpose("d", "first", FIRST),
        node("Add", f"first {given}", made, name="sum"),
    ]


def blocks(kind: str, *, matrices: bool) -> ModelProto:
    """Two stages of two blocks as in a ConvNeXt; with `matrices`, the layers of a block have the channels last, too."""
    constants = {n: CONSTANTS[n] for n in ("two", "tiny")} | {"scale": random(8) + 2, "shift": random(8)}
    nodes: list[NodeProto] = []
    conv, matrix = (partial(add_layer, nodes, constants, op_type) for op_type in ("Conv", "MatMul"))

    def turned(given: str, name: str, perm: list[int]) -> str:
        nodes.append(transpose(given, name, perm))
        return name

    x = conv("x", "stem", (8, 3, 4, 4), strides=[4, 4])
    for stage in range(2):
        if stage:
            x = conv(x, f"down{stage}", (8, 8, 2, 2), strides=[2, 2])
        for block in (f"{stage}.0", f"{stage}.1"):
            y = turned(conv(x, f"{block}.depthwise", (8, 1, 7, 7), pads=[3] * 4, group=8), f"{block}.last", LAST)
            nodes.extend(norm(kind, y, f"{block}.norm"))
            if matrices:
                y = matrix(matrix(f"{block}.norm", f"{block}.expand", (8, 32)), f"{block}.project", (32, 8))
                y = turned(y, f"{block}.first", FIRST)
            else:
                y = turned(f"{block}.norm", f"{block}.first", FIRST)
                y = conv(conv(y, f"{block}.expand", (32, 8, 1, 1)), f"{block}.project", (8, 32, 1, 1))
            nodes.append(node("Add", f"{x} {y}", f"{block}.sum", name=f"{block}.sum"))
            x = f"{block}.sum"
    return make_model(nodes, {"x": (1, 3, 32, 64)}, [x], constants)


@pytest.mark.parametrize(("kind", "matrices"), [("operator", True), ("decomposed", True), ("operator", False)])
def test_blocks_stream(kind: str, matrices: bool, tmp_path: Path):
    program = raptor.compile(blocks(kind, matrices=matrices), xbar=64, cores=40)
    found = explain(program.save(tmp_path / "out", weight_format="npz"))
    assert found.interval_ns is not None
    assert found.interval_ns < 4 * found.bounds.average
    assert program.validate().passed


@pytest.mark.parametrize("kind", NORMS)
def test_nothing_moves_and_means_are_sums_over_channels(kind: str):
    model = model_of(perceptron(kind))
    graph = laid(model)
    graph.verify()
    assert not moved(graph)
    assert sum(isinstance(n.operator, ChannelSum) for n in graph.nodes) == 2
    assert not any(isinstance(n.operator, Pool) for n in graph.nodes)
    assert {n.output for n in graph.nodes if isinstance(n.operator, Rename)} >= {"last", "first"}
    check(model, **CHIP)


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_alone(kind: str):
    """No matrix wants the channels last, as in front of a layer that shrinks images."""
    model = model_of([transpose("c", "last", LAST), *norm(kind, "last", "n"), transpose("n", "y", FIRST)])
    assert not moved(laid(model))
    check(model, **CHIP)


@pytest.mark.parametrize("kind", NORMS)
def test_an_output_has_the_channels_last(kind: str):
    nodes = [transpose("c", "last", LAST), *norm(kind, "last", "n"), node("MatMul", "n up", "y", name="up")]
    assert not moved(laid(model_of(nodes)))
    check(model_of(nodes), **CHIP)
    check(model_of(nodes, {"y": 4, "last": 4, "n": 4}), **CHIP)


def test_an_input_has_the_channels_last():
    nodes = [
        transpose("x", "first", FIRST),
        node("Conv", "first w", "c", name="conv", pads=[1] * 4),
        transpose("c", "last", LAST),
        node("MatMul", "last up", "y", name="up"),
    ]
    model = make_model(nodes, {"x": (1, 5, 7, 3)}, {"y": 4}, {n: CONSTANTS[n] for n in ("w", "up")})
    assert not moved(laid(model))
    check(model, **CHIP)


def test_both_orders_are_read():
    """The image is read as it is and with the channels last, and so is what the norm makes."""
    nodes = [
        *perceptron("operator", made="sum"),
        node("Relu", "n", "rn", name="rn"),
        transpose("rn", "back", FIRST),
        node("Add", "sum back", "y", name="y"),
        node("Relu", "last", "z", name="z"),
    ]
    model = model_of(nodes, {"y": 4, "z": 4})
    assert not moved(laid(model))
    check(model, **CHIP)


def test_a_norm_over_pixels_too_is_none_over_channels():
    """Over the last two axes, columns and channels: such a sum is a pool of each line."""
    nodes = [
        transpose("c", "last", LAST),
        node("LayerNormalization", "last wide", "n", name="n", axis=-2),
        node("MatMul", "n up", "y", name="up"),
    ]
    model = model_of(nodes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(random(7, 6), "wide"))
    assert not any(isinstance(n.operator, ChannelSum) for n in laid(model).nodes)
    assert {"last", "n.laid"} <= set(moved(laid(model)))
    check(model, **CHIP)


def test_columns_that_become_channels_are_moved():
    """Another transposition, of columns and channels: each pixel has other elements then."""
    turned = {"up": random(7, 4)}
    nodes = [
        node("Conv", "x w", "c", name="conv", pads=[1] * 4),
        transpose("c", "t", [0, 3, 2, 1]),
        node("Relu", "t", "r", name="relu"),
        transpose("r", "u", [0, 2, 1, 3]),
        transpose("u", "v", [0, 1, 3, 2]),
        node("MatMul", "v up", "y", name="up"),
    ]
    model = make_model(nodes, {"x": (1, 3, 5, 7)}, {"y": 4}, {"w": CONSTANTS["w"], **turned})
    check(model, **CHIP)


@pytest.mark.parametrize("dims", [(9,), (3, 4, 5)])
def test_signals_and_volumes(dims: tuple[int, ...]):
    last, first = [0, *range(2, len(dims) + 2), 1], [0, len(dims) + 1, *range(1, len(dims) + 1)]
    nodes = [
        node("Conv", "x w", "c", name="conv"),
        transpose("c", "last", last),
        *norm("operator", "last", "n"),
        node("MatMul", "n up", "u", name="up"),
        node("MatMul", "u down", "d", name="down"),
        transpose("d", "first", first),
        node("Add", "first c", "s", name="sum"),
        node("Conv", "s v", "y", name="last conv"),
    ]
    constants = {n: CONSTANTS[n] for n in ("scale", "shift", "up", "down")}
    constants |= {"w": random(6, 3, *(2 for _ in dims)), "v": random(4, 6, *(2 for _ in dims))}
    model = make_model(nodes, {"x": (1, 3, *dims)}, {"y": len(dims) + 2}, constants)
    assert not moved(laid(model))
    check(model, **CHIP)


def flat(given: str, made: str) -> list[NodeProto]:
    """The perceptron on a matrix of all pixels, with a bias."""
    return [
        node("Reshape", f"{given} pixels", "m", name="flat"),
        node("Gemm", "m up bias", "u", name="up"),
        node("Relu", "u", "r", name="relu"),
        node("MatMul", "r down", "d", name="down"),
        node("Reshape", "d image", made, name="image"),
    ]


def flat_model() -> ModelProto:
    nodes = [
        node("Conv", "x w", "c", name="conv", pads=[1] * 4),
        transpose("c", "last", LAST),
        *flat("last", "i"),
        transpose("i", "first", FIRST),
        node("Add", "first c", "s", name="sum"),
        node("Conv", "s v", "y", name="behind"),
    ]
    constants = {n: CONSTANTS[n] for n in ("w", "up", "down")} | {"bias": random(12), "v": random(4, 6, 3, 3)}
    shapes = {"pixels": np.array([35, 6]), "image": np.array([1, 5, 7, 6])}
    return make_model(nodes, {"x": (1, 3, 5, 7)}, {"y": 4}, constants | shapes)


def test_pixels_in_one_dimension_are_those_of_the_image():
    assert not moved(laid(flat_model()))
    check(flat_model(), **CHIP)


@pytest.mark.parametrize("per_channel", [False, True])
def test_integers(per_channel: bool, tmp_path: Path):
    model = quantise(flat_model(), tmp_path, per_channel=per_channel)
    graph = laid(model)
    graph.verify()
    assert not moved(graph)
    assert raptor.compile(model, **CHIP).validate(layers=True).passed


def test_the_reference_mappings_get_the_graph_as_it_was():
    for mapping in ("raptor", "pixelwise"):
        check(model_of(perceptron("operator")), mapping=mapping, **CHIP)
