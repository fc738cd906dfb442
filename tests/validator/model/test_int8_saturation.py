"""Products of bytes that onnxruntime saturates without VNNI: the judge's models avoid them, on every machine."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import raptor
from validator.model import int8_saturation
from validator.model import ort_session as sessions
from validator.model.int8_saturation import avoid_saturation, with_unsigned_weights
from validator.model.ort_session import create_session
from validator.validate import validate

Array = npt.NDArray[Any]
RNG = np.random.default_rng(4)
X = RNG.integers(200, 256, (1, 8, 5, 5)).astype(np.uint8)
"""Codes so large that pairs of products leave 16 bits."""
A = RNG.integers(200, 256, (6, 16)).astype(np.uint8)
W = RNG.integers(90, 128, (4, 8, 3, 3)).astype(np.int8) * np.array([1, -1, 1, -1], np.int8)[:, None, None, None]
B = RNG.integers(90, 128, (16, 4)).astype(np.int8) * np.array([1, -1, 1, -1], np.int8)
ZERO = np.uint8(0)
MINUS = np.int8(-3)
PLUS = np.uint8(7)
ONE, SMALL = np.float32(1), np.float32(2**-15)
PATCHES = np.lib.stride_tricks.sliding_window_view(X[0], (3, 3), (1, 2)).astype(np.int64)
KINDS: dict[str, tuple[list[Array | np.generic | None], Array]] = {
    "ConvInteger": ([X, W], np.einsum("cyxij,fcij->fyx", PATCHES, W.astype(int))[None]),
    "MatMulInteger": ([A, B], A.astype(int) @ B.astype(int)),
    "MatMulInteger with zero points": ([A, B, PLUS, MINUS], (A.astype(int) - 7) @ (B.astype(int) + 3)),
    "MatMulInteger with one zero point": ([A, B, None, MINUS], A.astype(int) @ (B.astype(int) + 3)),
    "QLinearConv": (
        [X, ONE, ZERO, W, np.full(4, SMALL), np.zeros(4, np.int8), ONE, np.uint8(100)],
        np.rint(np.einsum("cyxij,fcij->fyx", PATCHES, W.astype(int))[None] * 2.0**-15 + 100),
    ),
    "QLinearMatMul": (
        [A, ONE, PLUS, B, SMALL, MINUS, ONE, np.uint8(100)],
        np.rint((A.astype(int) - 7) @ (B.astype(int) + 3) * 2.0**-15 + 100),
    ),
    "QGemm": (
        [A, ONE, PLUS, B, np.full(4, SMALL), np.zeros(4, np.int8), None, ONE, np.uint8(100)],
        np.rint((A.astype(int) - 7) @ B.astype(int) * 2.0**-15 + 100),
    ),
}


def product(kind: str, operands: list[Array | np.generic | None]) -> tuple[NodeProto, list[onnx.TensorProto]]:
    """A node and the constants that it reads behind its first input, `x`."""
    names = ["x", *("" if value is None else f"c{i}" for i, value in enumerate(operands[1:]))]
    constants = [
        numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, operands, strict=True) if n[:1] == "c"
    ]
    op = kind.split()[0]
    return helper.make_node(op, names, ["y"], domain="com.microsoft" if op == "QGemm" else ""), constants


def model_of(graph: GraphProto) -> ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def model(name: str) -> tuple[ModelProto, Array, Array]:
    """A model of one product, its input and its exact result."""
    operands, wanted = KINDS[name]
    node, constants = product(name, operands)
    x = np.asarray(operands[0])
    info = helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)
    kind = TensorProto.INT32 if "Integer" in node.op_type else TensorProto.UINT8
    y = helper.make_tensor_value_info("y", kind, wanted.shape)
    return model_of(helper.make_graph([node], "product", [info], [y], constants)), x, wanted


def ran(changed: ModelProto, feeds: dict[str, Array]) -> Array:
    return create_session(changed.SerializeToString(), Path("changed")).run(["y"], feeds)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_judge_is_exact(kind: str) -> None:
    """On machines where onnxruntime saturates, only the changed model is; on others both are."""
    given, x, wanted = model(kind)
    assert np.array_equal(ran(given, {"x": x}), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_model_means_the_same(kind: str) -> None:
    given, x, wanted = model(kind)
    changed = with_unsigned_weights(given)
    assert len(changed.graph.node) > 1
    assert with_unsigned_weights(changed) is changed, "no product of unsigned by signed bytes is left"
    onnx.checker.check_model(changed)
    assert np.array_equal(ran(changed, {"x": x}), wanted)
    assert [o.name for o in changed.graph.output] == ["y"]


@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
def test_other_products_stay(kinds: tuple[type[Any], type[Any]]) -> None:
    node, constants = product("MatMulInteger", [A.astype(kinds[0]), B.astype(kinds[1])])
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kinds[0])), A.shape)
    given = model_of(helper.make_graph([node], "product", [info], [onnx.ValueInfoProto(name="y")], constants))
    assert with_unsigned_weights(given) is given


def test_a_product_in_a_branch_is_changed() -> None:
    """Its weights are of the graph around it, and a second product reads them as well."""
    operands, wanted = KINDS["QLinearMatMul"]
    node, constants = product("QLinearMatMul", operands)
    twice = NodeProto.FromString(node.SerializeToString())
    twice.output[0] = "z"
    branches = [helper.make_graph([n], "branch", [], [onnx.ValueInfoProto(name=n.output[0])]) for n in (node, twice)]
    chosen = helper.make_node("If", ["choice"], ["y"], then_branch=branches[0], else_branch=branches[1])
    infos = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, A.shape),
        helper.make_tensor_value_info("choice", TensorProto.BOOL, ()),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.UINT8, wanted.shape)
    given = model_of(helper.make_graph([chosen], "choice", infos, [y], constants))
    changed = with_unsigned_weights(given)
    for choice in (False, True):
        assert np.array_equal(ran(changed, {"x": A, "choice": np.array(choice)}), wanted)
    inner = [a.g for a in changed.graph.node[0].attribute]
    assert [len(g.node) for g in inner] == [7, 7]


def test_names_that_a_model_uses_are_left_alone() -> None:
    given, x, wanted = model("MatMulInteger")
    given.graph.node[0].input[1] = given.graph.initializer[0].name = "unsigned_0"
    assert np.array_equal(ran(with_unsigned_weights(given), {"x": x}), wanted)


def test_files_and_content_are_changed_alike(tmp_path: Path) -> None:
    given, _, _ = model("QLinearConv")
    onnx.save(given, tmp_path / "model.onnx")
    content = with_unsigned_weights(given).SerializeToString()
    assert avoid_saturation(str(tmp_path / "model.onnx")) == avoid_saturation(given.SerializeToString()) == content
    floats = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "floats", [], [])
    onnx.save(model_of(floats), tmp_path / "floats.onnx")
    assert avoid_saturation(str(tmp_path / "floats.onnx")) == str(tmp_path / "floats.onnx")
    (tmp_path / "empty.onnx").touch()
    assert avoid_saturation(str(tmp_path / "empty.onnx")) == str(tmp_path / "empty.onnx")


@pytest.mark.parametrize("saturates", [False, True])
def test_a_model_is_changed_only_where_onnxruntime_saturates(saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's result decides, so a wrong result of the probe must be seen."""
    probed, feeds, wanted = int8_saturation.make_saturation_probe()
    right = sessions._opened(avoid_saturation(probed)).run(None, feeds)[0]
    assert np.array_equal(right, wanted)
    monkeypatch.setattr(
        int8_saturation, "make_saturation_probe", lambda: (avoid_saturation(probed), feeds, wanted + saturates)
    )
    sessions._saturates.cache_clear()
    opened: list[bytes] = []
    original = sessions._opened

    def spied(content: bytes) -> Any:
        opened.append(content)
        return original(content)

    monkeypatch.setattr(sessions, "_opened", spied)
    given = model("QGemm")[0]
    create_session(given.SerializeToString(), Path("given"))
    sessions._saturates.cache_clear()
    assert opened[-1] == (with_unsigned_weights(given) if saturates else given).SerializeToString()


def test_a_right_program_passes_where_onnxruntime_saturates(tmp_path: Path) -> None:
    given, _, _ = model("QLinearConv")
    raptor.compile(given, cores=2, xbar=64).save(tmp_path / "out")
    assert validate(tmp_path / "out").verdict == "pass"
