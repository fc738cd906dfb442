"""Shares of multiply-accumulates are those of what runs where, or are said to be unknown (trial of real models, B5)."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, TypeProto, helper

from raptor.compiler.analysis.inspection import format_totals, inspect
from raptor.frontend.segments.mac_counts import count_node_macs
from raptor.frontend.segments.submodel import TensorTypes
from tests.segmented_models import cut_of, sandwich
from tests.tiny_models import Array, make_model, node, random

CONTRIB = "com.microsoft"


def with_domain(model: ModelProto, domain: str = CONTRIB) -> ModelProto:
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def between_products(middle: Any, constants: dict[str, Array], columns: int) -> ModelProto:
    """x -> a product 4x16x32 -> the node -> a product with 8 columns -> y."""
    weights = {"w1": random(16, 32), "w2": random(columns, 8)}
    nodes = [node("MatMul", "x w1", "a", name="first"), middle, node("MatMul", "b w2", "y", name="last")]
    return with_domain(make_model(nodes, {"x": [4, 16]}, {"y": 2}, {**weights, **constants}))


def packed_product() -> ModelProto:
    """A product 4x32x64 with weights of 4 bits in blocks of 16."""
    attributes = {"K": 32, "N": 64, "quant_type": 1, "block_size": 16}
    middle = node("MatMulBnb4", "a q s", "b", name="packed", domain=CONTRIB, **attributes)
    packed = np.random.default_rng(0).integers(0, 256, 64 * 2 * 8).astype(np.uint8)
    return between_products(middle, {"q": packed, "s": random(64 * 2)}, 64)


def test_a_packed_product_counts():
    found = cut_of(packed_product())
    assert [(s.kind, s.macs) for s in found.segments] == [
        ("chip", 4 * 16 * 32),
        ("host", 4 * 32 * 64),
        ("chip", 4 * 64 * 8),
    ]
    shown = dict(format_totals(inspect(packed_product(), host=True)))
    assert shown["chip"] == "2 nodes, 4,096 MACs (33.3%)"
    assert shown["host"] == "1 node, 8,192 MACs (66.7%)"


def test_an_attention_of_onnxruntime_counts():
    """Its own product makes query, key and value; then come the scores, and their product with the values."""
    attention = node("Attention", "x w b", "y", name="attention", domain=CONTRIB, num_heads=2)
    graph = make_model([attention], {"x": [1, 6, 16]}, {"y": 3}, {"w": random(16, 48), "b": random(48)}).graph
    assert count_node_macs(attention, TensorTypes({}).enter_graph(graph)) == 6 * 16 * 48 + 2 * 6 * 6 * 16


def test_a_deformable_convolution_counts():
    middle = [node("DeformConv", "a dw off", "b", name="deform", pads=[1] * 4)]
    model = sandwich(middle, {"dw": random(4, 4, 3, 3), "off": random(1, 18, 6, 6)})
    model.opset_import[0].version = 19
    assert [s.macs for s in cut_of(model).segments] == [36 * 4 * 27, 36 * 4 * 36, 36 * 2 * 36]


def behind_an_open_shape() -> ModelProto:
    """A convolution on what an operator makes of which nobody knows the shape: the host's, of unknown size."""
    spread = node("CDist", "a2 a2", "d", name="spread", domain=CONTRIB, metric="euclidean")
    middle = [
        node("Reshape", "a flat", "a2", name="flatten"),
        spread,
        node("Unsqueeze", "d front", "e", name="up"),
        node("Conv", "e inner", "b", name="inner", pads=[1] * 4),
    ]
    constants = {"flat": np.array([12, 12]), "front": np.array([0, 1]), "inner": random(4, 1, 3, 3)}
    return with_domain(sandwich(middle, constants))


def test_an_unknown_count_is_no_share():
    """A3: everything on the chip was said of a model with most convolutions on the host."""
    found = cut_of(behind_an_open_shape())
    assert found.chip_share is None
    assert sum(s.uncounted for s in found.segments) == 2  # both convolutions behind
    shown = dict(format_totals(inspect(behind_an_open_shape(), host=True)))
    assert shown["host"].endswith("and those of 2 nodes, which are not known")
    assert "%" not in shown["chip"]


SIZES = {"b": 2, "h": 3, "s": 5, "t": 7, "k": 4, "v": 6}
CASES: list[tuple[str, str, str, dict[str, Any], int]] = [
    ("Einsum", "", "bsk,bkv->bsv", {"equation": "bsk,bkv->bsv"}, 2 * 5 * 4 * 6),
    ("Einsum", "", "bsk,kv->bsv", {"equation": "...k,kv->...v"}, 2 * 5 * 4 * 6),
    ("Einsum", "", "sk->ks", {"equation": "ij->ji"}, 0),
    ("Attention", "", "bhsk,bhtk,bhtv->bhsv", {}, 2 * 3 * 5 * 7 * (4 + 6)),
    ("MultiHeadAttention", CONTRIB, "bsk,btk,btv->bsv", {"num_heads": 2}, 2 * 5 * 7 * (4 + 6)),
    ("GroupQueryAttention", CONTRIB, "bsk,btk,btk->bsk", {"num_heads": 2, "kv_num_heads": 1}, 2 * 2 * 5 * 5 * 4),
    ("FusedMatMul", CONTRIB, "ks,kv->sv", {"transA": 1}, 5 * 4 * 6),
    ("DynamicQuantizeMatMul", CONTRIB, "sk,kv->sv", {}, 5 * 4 * 6),
    ("MatMulBnb4", CONTRIB, "sk,v->sv", {"K": 4, "N": 6}, 5 * 4 * 6),
    ("LinearClassifier", "ai.onnx.ml", "sk->s", {"coefficients": [0.5] * 4 * 6}, 5 * 4 * 6),
    ("BiasGelu", CONTRIB, "sk,k->sk", {}, 0),
    ("TreeEnsembleClassifier", "ai.onnx.ml", "sk->s", {}, 0),
]


@pytest.mark.parametrize(("op_type", "domain", "shapes", "attributes", "wanted"), CASES, ids=lambda c: str(c)[:24])
def test_products_that_the_host_has(op_type: str, domain: str, shapes: str, attributes: dict[str, Any], wanted: int):
    inputs, output = shapes.split("->")
    names = inputs.split(",")
    known = {f"{k}": [SIZES[c] for c in n] for k, n in enumerate(names)} | {"y": [SIZES[c] for c in output]}
    made = helper.make_node(op_type, [str(k) for k in range(len(names))], ["y"], domain=domain, **attributes)
    assert count_node_macs(made, types(known)) == wanted
    if wanted:
        assert count_node_macs(made, types({})) is None


@pytest.mark.parametrize("op_type", ["MoE", "LongformerAttention", "NotYetInvented"])
def test_an_operator_that_is_in_no_table_is_unknown(op_type: str):
    made = helper.make_node(op_type, ["0"], ["y"], domain=CONTRIB)
    assert count_node_macs(made, types({"0": [2, 3], "y": [2, 3]})) is None


def types(shapes: dict[str, list[int]]) -> TensorTypes:
    found: dict[str, TypeProto] = {n: helper.make_tensor_type_proto(TensorProto.FLOAT, s) for n, s in shapes.items()}
    return TensorTypes(found)


def test_a_loop_with_products_is_unknown():
    """The number of its turns depends on values; a loop without products has none."""
    for op_type, wanted in (("MatMul", None), ("Add", 0)):
        infos = [helper.make_tensor_value_info(n, k, s) for n, k, s in (("i", 7, []), ("c", 9, []), ("a", 1, [3, 3]))]
        outs = [helper.make_tensor_value_info(n, k, s) for n, k, s in (("d", 9, []), ("e", 1, [3, 3]))]
        body = helper.make_graph([node(op_type, "a a", "e"), node("Identity", "c", "d")], "body", infos, outs)
        loop = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
        assert count_node_macs(loop, types({"x": [3, 3]})) == wanted
