"""Trial A1, A8: elements are selected exactly, in the streams: infinities, NaN, -0, subnormal numbers are values.

The judge is onnxruntime, to the bit but for the form of a NaN.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import raptor
from raptor.common.errors import UserError
from raptor.frontend.proto.onnx_wrappers import infer_shapes
from raptor.integrations.onnx_backend import RaptorBackend
from tests.tiny_models import Array, golden, node, random

INF, NAN = np.array(np.inf, np.float32), np.array(np.nan, np.float32)
LARGEST, TINY = np.array(np.finfo(np.float32).max), np.array(1e-45, np.float32)
HARD = np.array([1.5, -INF, -LARGEST, INF, -0.0, TINY, -TINY, LARGEST, 0.0, -1.5, INF, -INF], np.float32)
WITH_NAN = np.array([*HARD, NAN, 2.0, -NAN, -INF], np.float32)
BOTH = pytest.mark.parametrize("base_isa", [False, True], ids=["full", "base"])


def _type_of(values: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(values.dtype)


def model_of(
    nodes: Sequence[NodeProto], inputs: dict[str, Array], constants: dict[str, Array], opset: int
) -> ModelProto:
    outputs = [o for o in nodes[-1].output if o]
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(n, _type_of(a), a.shape) for n, a in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def compare(
    nodes: NodeProto | Sequence[NodeProto],
    inputs: dict[str, Array],
    constants: dict[str, Array] | None = None,
    *,
    opset: int = 18,
    base_isa: bool = False,
    signs: bool = True,
) -> None:
    """Runs a model on the chip and in onnxruntime; all outputs of the last node must be equal to the bit.

    signs: also those of zeros.
    """
    listed = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
    for i, each in enumerate(listed):
        each.name = f"{each.name}_{i}"
    model: ModelProto = model_of(listed, inputs, constants or {}, opset)
    wanted = golden(model, inputs)
    found = RaptorBackend.run_model(model, list(inputs.values()), base_isa=base_isa)
    for got, (name, right) in zip(found, wanted.items(), strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_array_equal(got, right, err_msg=name)
        if right.dtype == np.float32 and signs:
            there = ~np.isnan(right)
            np.testing.assert_array_equal(np.signbit(got)[there], np.signbit(right)[there], err_msg=f"signs of {name}")


@BOTH
@pytest.mark.parametrize("op_type", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
def test_all_pairs_of_hard_values_are_compared(op_type: str, base_isa: bool):
    x, y = np.meshgrid(HARD, HARD)
    compare(node(op_type, "x z"), {"x": x, "z": y}, base_isa=base_isa)
    compare(node(op_type, "x c"), {"x": x}, {"c": HARD}, base_isa=base_isa)
    compare(node(op_type, "c x"), {"x": x}, {"c": np.array(-INF)}, base_isa=base_isa)


@pytest.mark.parametrize("op_type", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
def test_numbers_that_are_none_are_neither_above_nor_below_nor_equal(op_type: str):
    """Division makes them: 0 / 0."""
    x, y = np.meshgrid(WITH_NAN, WITH_NAN)
    one = np.ones_like(x)
    compare([node("Div", "x o", "q"), node(op_type, "q z")], {"x": x, "o": one, "z": y})


@BOTH
@pytest.mark.parametrize("value", [-INF, INF, np.array(3, np.float32)])
def test_padding_keeps_every_value(value: Array, base_isa: bool):
    pads = np.array([0, 1, 0, 2])
    compare(node("Pad", "x p v"), {"x": HARD.reshape(3, 4)}, {"p": pads, "v": value}, base_isa=base_isa)


@BOTH
def test_the_maximum_of_a_padded_vector_is_gathered(base_isa: bool):
    """The model of the report: Pad with -inf, ArgMax, GatherElements by the result."""
    nodes = [
        node("Pad", "x p v", "padded"),
        node("ArgMax", "padded", "best", axis=1, keepdims=1),
        node("GatherElements", "padded best", "y", axis=1),
    ]
    if base_isa:
        nodes[-1] = node("Identity", "best", "y")
    x = np.array([[-3.0, -1, -2], [-INF, -INF, -INF], [1, INF, 2]], np.float32)
    compare(nodes, {"x": x}, {"p": np.array([0, 2, 0, 1]), "v": -INF}, base_isa=base_isa)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_of_hard_values_by_computed_indices(axis: int):
    x, ids = WITH_NAN.reshape(4, 4), np.array([[3, 0, -1, 2], [1, 1, -4, -2]])
    compare(node("GatherElements", "x i", axis=axis), {"x": x, "i": ids if axis == 0 else ids.T.repeat(2, 1)})
    compare(node("Gather", "x i", axis=axis), {"x": x, "i": ids})
    compare(node("Gather", "x i", axis=axis), {"x": x, "i": np.array(2)})
    compare(node("Gather", "x i", axis=0), {"x": WITH_NAN, "i": np.arange(16)[::-1].copy() - 8})


def test_what_was_found_is_gathered():
    x, z = HARD.reshape(3, 4), HARD[::-1].reshape(3, 4).copy()
    top = node("TopK", "x k", "v i", axis=1)
    compare([top, node("GatherElements", "z i", axis=1)], {"x": x, "z": z}, {"k": np.array([2])})
    best = node("ArgMax", "x", "best", axis=0, keepdims=0)
    images = np.stack([x, z, x[::-1]])
    compare([best, node("Gather", "z best", axis=0)], {"x": np.array([1, -INF, INF], np.float32), "z": images})


def test_an_index_out_of_range_is_no_element():
    x = node("GatherElements", "x i", axis=0)
    ids = [node("Mul", "n t", "m"), node("Cast", "m", "i", to=TensorProto.INT64)]
    model = model_of([*ids, x], {"x": HARD, "n": np.zeros(3, np.float32)}, {"t": np.array(2, np.float32)}, 18)
    (got,) = RaptorBackend.run_model(model, [HARD, np.array([1, 50, -3], np.float32)])
    np.testing.assert_array_equal(got, np.array([-LARGEST, NAN, HARD[-6]], np.float32))


@BOTH
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin", "Hardmax"])
def test_positions_of_extremes_beside_infinities(op_type: str, base_isa: bool):
    rows = [HARD, np.full(12, -INF), np.full(12, INF), np.where(HARD == INF, -INF, HARD)]
    rows += [np.where(np.arange(12) == 7, -LARGEST, -INF), np.where(np.arange(12) == 7, LARGEST, INF)]
    rows += [np.where(np.arange(12) == 5, INF, LARGEST), np.where(np.arange(12) == 5, TINY, -0.0)]
    compare(node(op_type, "x", axis=1), {"x": np.array(rows, np.float32)}, base_isa=base_isa)


@BOTH
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_top_k_of_infinities(count: int, largest: int, base_isa: bool):
    rows = [HARD[HARD != 0], np.full(10, -INF), [-LARGEST, *[-INF] * 9], [*[INF] * 8, LARGEST, -INF]]
    x = np.array(rows, np.float32)
    top = node("TopK", "x k", "v i", axis=1, largest=largest)
    compare(top, {"x": x}, {"k": np.array([min(count, 10)])}, base_isa=base_isa)


@BOTH
def test_where_of_infinities(base_isa: bool):
    x, y = np.meshgrid(HARD, HARD)
    condition = random(12, 12) > 0
    # onnxruntime loses the sign of a zero.
    compare(node("Where", "c x z"), {"c": condition, "x": x, "z": y}, base_isa=base_isa, signs=False)
    model = model_of([node("Where", "c x z")], {"c": condition, "x": x, "z": y}, {}, 18)
    (got,) = RaptorBackend.run_model(model, [condition, x, y], base_isa=base_isa)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(np.where(condition, x, y)))
    compare(node("Where", "c x m"), {"c": condition, "x": x}, {"m": np.array(-INF)}, base_isa=base_isa, signs=False)
    compare(node("Where", "c m n"), {"c": condition}, {"m": np.array(-INF), "n": np.array(INF)}, base_isa=base_isa)


def test_where_replaces_what_a_division_by_zero_makes():
    """A safe division: 0 / 0 is no number, and is not wanted."""
    x = np.array([[1, 0, -2, 0], [0, 0, 3, INF]], np.float32)
    d = np.array([[2, 0, 0, 5], [0, 1, 0, INF]], np.float32)
    zero = {"n": np.array(0, np.float32), "f": np.array(-7, np.float32)}
    nodes = [node("Div", "x d", "q"), node("Greater", "d n", "c"), node("Where", "c q f")]
    compare(nodes, {"x": x, "d": d}, zero)
    wanted = [node("Div", "x d", "q"), node("Greater", "d n", "c"), node("Where", "c f q")]
    compare(wanted, {"x": x, "d": d}, zero)


@pytest.mark.parametrize("op_type", ["IsNaN", "IsInf"])
def test_what_is_no_number_and_what_is_infinite(op_type: str):
    compare(node(op_type, "x"), {"x": WITH_NAN.reshape(4, 4)}, opset=20)


@pytest.mark.parametrize(("positive", "negative"), [(0, 0), (0, 1), (1, 0)])
def test_infinities_of_a_sign(positive: int, negative: int):
    op = node("IsInf", "x", detect_positive=positive, detect_negative=negative)
    compare(op, {"x": WITH_NAN}, opset=20)


def test_masked_attention_of_exporters():
    """Trial A8: a row of which a mask leaves nothing is no number behind the softmax, and becomes 0."""
    mask = np.array([[0, -INF, -INF, -INF], [0, 0, -INF, 0], [-INF] * 4, [0, 0, 0, 0]], np.float32)
    nodes = [
        node("Add", "x m", "scores"),
        node("Softmax", "scores", "p", axis=-1),
        node("IsNaN", "p", "none"),
        node("Where", "none zero p", "safe"),
        node("MatMul", "safe v", "y"),
    ]
    inputs = {"x": random(2, 4, 4), "m": mask, "v": random(2, 4, 3, seed=1)}
    model = model_of(nodes, inputs, {"zero": np.array(0, np.float32)}, 18)
    (got,) = RaptorBackend.run_model(model, list(inputs.values()))
    np.testing.assert_allclose(got, golden(model, inputs)["y"], rtol=1e-6, atol=1e-6)
    assert not got[:, 2].any()


def test_nan_to_num_of_exporters():
    """A logarithm where there is one."""
    nodes = [node("Log", "x", "l"), node("IsNaN", "l", "n"), node("Not", "n", "k"), node("Where", "k l zero")]
    x = np.array([[1, -1, 0, INF], [1, -INF, NAN, 1]], np.float32)
    compare(nodes, {"x": x}, {"zero": np.array(0, np.float32)})


def test_an_image_is_cropped_and_extrapolated_beside_infinities():
    """Elements that lie outside are chosen: -inf times 0 would be no number."""
    x = np.array([[1, -INF, 2, 3], [INF, 4, 5, -INF], [6, 7, -INF, 8], [9, 1, 2, INF]], np.float32)[None, None]
    op = node("Resize", "x roi - sizes", coordinate_transformation_mode="tf_crop_and_resize", mode="nearest")
    op.attribute.append(helper.make_attribute("extrapolation_value", -3.0))
    constants = {"roi": np.array([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], np.float32), "sizes": np.array([1, 1, 6, 6])}
    compare(op, {"x": x}, constants, base_isa=True)


@BOTH
def test_one_hot_vectors_of_infinities(base_isa: bool):
    values = np.array([-INF, 0], np.float32)
    op = node("OneHot", "x d v")
    compare(op, {"x": np.array([2, 0, -1])}, {"d": np.array(4), "v": values}, base_isa=base_isa)


@BOTH
@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
def test_sums_up_to_each_element_before_an_infinite_one(attributes: dict[str, Any], base_isa: bool):
    x = np.array([[1, 2, INF, 3, 4], [1, -INF, 5, 6, 7], [-INF, 1, INF, 1, 2]], np.float32)
    compare(node("CumSum", "x a", **attributes), {"x": x}, {"a": np.array(1)}, base_isa=base_isa)
    compare(node("CumSum", "x a", **attributes), {"x": x}, {"a": np.array(0)}, base_isa=base_isa)


def test_logarithms_of_sums_of_infinities():
    x = np.array([[-INF] * 3, [-INF, 1, -INF], [INF, 1, 2], [LARGEST, -LARGEST, 0]], np.float32)
    compare(node("ReduceLogSumExp", "x", keepdims=0, axes=[1]), {"x": x}, opset=13)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_extremes_of_pairs(op_type: str):
    x, y = np.meshgrid(HARD[HARD != 0], HARD[HARD != 0])
    compare(node(op_type, "x z"), {"x": x, "z": y}, base_isa=True)


@BOTH
def test_a_slope_that_is_infinite_is_no_factor_of_positive_numbers(base_isa: bool):
    """A mask as the slope of PRelu: seeds 3010427 and 3014534 of the campaign."""
    x, slope = np.meshgrid(HARD[np.isfinite(HARD)], HARD[:6])
    compare(node("PRelu", "x s"), {"x": x, "s": slope}, base_isa=base_isa, signs=False)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("Transpose", {}), ("Trilu", {}), ("ReduceMax", {}), ("Slice", {}), ("Concat", {"axis": 0})],
)
def test_moves_keep_every_value(op_type: str, attributes: dict[str, Any]):
    constants = {"Slice": {"a": np.array([1]), "b": np.array([3])}}.get(op_type, {})
    given = {"Slice": "x a b", "Concat": "x x"}.get(op_type, "x")
    compare(node(op_type, given, **attributes), {"x": HARD.reshape(3, 4)}, constants, base_isa=True)


@pytest.mark.parametrize("op_type", ["Where", "ArgMax", "TopK", "Greater", "Gather"])
def test_a_selection_of_published_values_needs_no_extension_or_says_so(op_type: str, tmp_path: Path):
    """Programs of published instructions stay such, but for Gather by computed indices."""
    x, ids = HARD.reshape(3, 4), np.array([0, 1])
    cases: dict[str, tuple[NodeProto, dict[str, Array], dict[str, Array]]] = {
        "Where": (node("Where", "c x x"), {"c": x > 0, "x": x}, {}),
        "ArgMax": (node("ArgMax", "x"), {"x": x}, {}),
        "TopK": (node("TopK", "x k", "v i"), {"x": x}, {"k": np.array([2])}),
        "Greater": (node("Greater", "x z"), {"x": x, "z": x}, {}),
        "Gather": (node("Gather", "x i"), {"x": x, "i": ids}, {}),
    }
    op, inputs, constants = cases[op_type]
    program = raptor.compile(model_of([op], inputs, constants, 18))
    text = "".join(p.read_text() for p in program.save(tmp_path / "out").rglob("*.json"))
    assert ("vvmask" in text) == (op_type == "Gather")


NAN_FILLS: dict[str, tuple[list[NodeProto], dict[str, Array]]] = {
    "all": ([node("Where", "c nan x")], {}),
    "or": ([node("Where", "c x nan")], {}),
    "some": ([node("Where", "c m x")], {"m": np.array([NAN, 2, INF, -INF, NAN, -0.0] * 2, np.float32)}),
    "both": ([node("Where", "c m nan")], {"m": np.array([1, 2, INF] * 4, np.float32)}),
    "is not": ([node("Where", "c nan x", "w"), node("IsNaN", "w")], {}),
    "replaced": (
        [node("Where", "c nan x", "w"), node("IsNaN", "w", "n"), node("Where", "n five w")],
        {"five": np.array(5, np.float32)},
    ),
    "compared": ([node("Where", "c nan x", "w"), node("Greater", "w zero")], {"zero": np.array(0, np.float32)}),
    "equal": ([node("Where", "c nan x", "w"), node("Equal", "w w")], {}),
    "moved": ([node("Where", "k nan x", "w"), node("IsNaN", "w")], {"k": np.arange(12) % 3 > 1}),
    "spread": (
        [node("Expand", "nan s", "e"), node("Where", "c e x", "w"), node("Where", "c x w")],
        {"s": np.array([12])},
    ),
    "one of two": ([node("Where", "c p nan", "w"), node("IsNaN", "w")], {"p": np.array(7, np.float32)}),
    "kept": ([node("Where", "k nan x", "w"), node("Relu", "w")], {"k": np.zeros(12, bool)}),
}


@pytest.mark.parametrize("case", NAN_FILLS)
def test_a_masked_fill_with_what_is_no_number(case: str):
    """Exporters fill what a mean is not to count with NaN, which other nodes look for."""
    nodes, constants = NAN_FILLS[case]
    read = {name for n in nodes for name in n.input}
    inputs: dict[str, Array] = {"c": np.arange(12) % 2 > 0, "x": HARD}
    compare(
        nodes,
        {name: a for name, a in inputs.items() if name in read},
        constants | ({"nan": NAN} if "nan" in read else {}),
        signs=False,
    )


@pytest.mark.parametrize("op_type", ["MatMul", "Add", "Mul", "Max", "Concat"])
def test_what_is_no_number_is_no_weight(op_type: str):
    op = node("Concat", "x w", axis=0) if op_type == "Concat" else node(op_type, "x w")
    model = model_of([op], {"x": random(2, 2)}, {"w": np.array([[1, NAN], [2, 3]], np.float32)}, 18)
    with pytest.raises(UserError, match="weights 'w': 1 of 4 values are not finite"):
        raptor.compile(model)
