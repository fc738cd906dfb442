"""Operators that the standard defines by functions, against onnxruntime."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from raptor.common.errors import UnsupportedError, UserError
from raptor.frontend import load
from raptor.integrations.onnx_backend import RaptorBackend
from tests.pipeline import check
from tests.tiny_models import Array, compare, golden, make_model, node, random

MASK = np.where(np.tri(4, 6, 1) > 0, np.float32(0), -np.inf).astype(np.float32)
EMPTY_ROW = np.where(np.arange(4)[:, None] == 2, -np.inf, MASK).astype(np.float32)
ATTENTIONS: dict[str, tuple[dict[str, Any], dict[str, Array]]] = {
    "plain": ({}, {}),
    "causal": ({"is_causal": 1}, {}),
    "scaled": ({"scale": 0.25, "softcap": 2.0}, {}),
    "mask with -inf": ({}, {"m": MASK}),
    "mask of bool": ({}, {"m": MASK == 0}),
}


def attention(attributes: dict[str, Any], constants: dict[str, Array], heads: int = 4, opset: int = 23):
    inputs = {"q": (2, heads, 4, 8), "k": (2, 2, 6, 8), "v": (2, 2, 6, 5)}
    attend = node("Attention", "q k v" + (" m" if constants else ""), name="attend", **attributes)
    return make_model([attend], inputs, ["y"], constants, opset=opset, ir_version=10)


@pytest.mark.parametrize("case", ATTENTIONS)
@pytest.mark.parametrize("heads", [2, 4])
def test_attention(case: str, heads: int):
    compare(attention(*ATTENTIONS[case], heads=heads), 1e-5)


def test_a_mask_that_leaves_nothing_of_a_row_gives_zeros():
    model = attention({}, {"m": EMPTY_ROW})
    (got,) = RaptorBackend.run_model(model, [random(2, 4, 4, 8), random(2, 2, 6, 8), random(2, 2, 6, 5)])
    assert not got[:, :, 2].any()
    assert np.isfinite(got).all()


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    "mask",
    [random(4, 6), MASK, EMPTY_ROW, MASK == 0, EMPTY_ROW == 0, random(2, 4, 4, 6)],
    ids=["floats", "-inf", "empty row", "bool", "bool with an empty row", "by head"],
)
def test_attention_with_a_constant_mask_in_every_version(mask: Array, opset: int):
    """Trial B11: version 24 pads the mask by an infinity that a function makes."""
    model = attention({}, {"m": mask}, opset=opset)
    given = {"q": random(2, 4, 4, 8), "k": random(2, 2, 6, 8, seed=1), "v": random(2, 2, 6, 5, seed=2)}
    (got,) = RaptorBackend.run_model(model, list(given.values()))
    wanted = golden(model, given)["y"]
    if not np.isfinite(wanted).all():  # version 23 of onnxruntime divides 0 by 0
        wanted = np.where(np.isfinite(wanted), wanted, 0)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_attention_on_the_chip_names_the_users_node():
    loaded = load(attention(*ATTENTIONS["mask with -inf"]))
    assert {n.name for n in loaded.graph.nodes} == {"attend"}
    assert {n for n, t in loaded.graph.tensors.items() if t.in_model} == {"q", "k", "v", "y"}
    check(attention(*ATTENTIONS["mask with -inf"]))


def test_rotary_embedding():
    constants = {"c": random(8, 3), "s": random(8, 3, seed=1), "p": np.array([[1, 4, 2, 7], [0, 3, 5, 6]])}
    rotate = node("RotaryEmbedding", "x c s p", rotary_embedding_dim=6, interleaved=1)
    compare(make_model([rotate], {"x": (2, 3, 4, 8)}, ["y"], constants, opset=23, ir_version=10))


def test_a_refused_part_of_a_function_names_the_users_node():
    nodes = [node("Attention", "x x x m", "y", name="mine"), node("NonZero", "x", "m", name="other")]
    model = make_model(nodes[::-1], {"x": (1, 2, 4, 4)}, ["y"], opset=23, ir_version=10)
    with pytest.raises(UnsupportedError, match="other"):
        load(model)


@pytest.mark.parametrize("op_type", ["Mul", "MatMul"])
def test_infinite_weights_of_products_are_refused(op_type: str):
    model = make_model([node(op_type, "x w")], {"x": (1, 2, 4, 4)}, ["y"], {"w": np.full((4, 4), -np.inf, np.float32)})
    with pytest.raises(UserError, match="weights 'w': 16 of 16 values are not finite"):
        load(model)


def test_a_range_that_shapes_decide_is_computed():
    """Swin's masks: a tensor of zeros whose size comes from computed padding, and positions along its rows.

    The function of Range is a loop, which only constants could resolve.
    """
    nodes = [
        node("Shape", "x", "shape", name="shape"),
        node("Mod", "shape two", "odd", name="odd"),
        node("Concat", "before odd", "pads", axis=0, name="pads"),
        node("Pad", "x pads", "padded", name="pad"),
        node("Shape", "padded", "size", name="size"),
        node("ConstantOfShape", "size", "zeros", name="zeros"),
        node("Shape", "zeros", "again", name="again"),
        node("Gather", "again last", "n", name="n"),
        node("Range", "zero n one", "places", name="places"),
        node("Cast", "places", "p", to=TensorProto.FLOAT, name="p"),
        node("Mul", "padded p", "y", name="y"),
    ]
    whole = {"zero": 0, "one": 1, "two": 2, "last": 3, "before": [0, 0, 0, 0]}
    constants: dict[str, Any] = {k: np.array(v, np.int64) for k, v in whole.items()}
    compare(make_model(nodes, {"x": (1, 2, 3, 4)}, ["y"], constants))


def test_a_function_of_what_is_not_supported():
    """The standard defines it by random numbers, in all of its versions: a later one would not help."""
    model = make_model([node("Bernoulli", "x")], {"x": (2, 3)}, ["y"], opset=22)
    with pytest.raises(UnsupportedError, match=r"my_bernoulli \(Bernoulli\): not supported$"):
        load(model)
