"""The ONNX backend interface: what is compiled when, what becomes a constant, what comes back."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from raptor.common.errors import UnsupportedError, UserError
from raptor.integrations import onnx_backend
from raptor.integrations.onnx_backend import RaptorBackend
from tests.tiny_models import golden, make_model, node, random


def _typed(inputs: dict[str, tuple[int, list[Any]]], *nodes: Any, opset: int = 17, ir_version: int = 8) -> ModelProto:
    """A model from typed inputs to `y`."""
    infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph(list(nodes), "tiny", infos, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def test_weights_may_be_inputs() -> None:
    model = make_model([node("Conv", "x w")], {"x": [1, 3, 5, 5], "w": [4, 3, 3, 3]}, ["y"])
    x, w = random(1, 3, 5, 5), random(4, 3, 3, 3)
    rep = RaptorBackend.prepare(model)
    (y,) = rep.run([x, w])
    assert rep.bound == ("w",)
    np.testing.assert_allclose(y, golden(model, {"x": x, "w": w})["y"], rtol=1e-4, atol=1e-5)


def test_operands_are_not_bound() -> None:
    model = make_model([node("Add", "a b")], {"a": [1, 3, 5, 5], "b": [1, 3, 5, 5]}, ["y"])
    rep = RaptorBackend.prepare(model)
    np.testing.assert_array_equal(rep.run([random(1, 3, 5, 5)] * 2).y, 2 * random(1, 3, 5, 5))
    assert rep.bound == ()


def test_shapes_are_bound_for_their_type() -> None:
    floats, integers = (TensorProto.FLOAT, [2, 6]), (TensorProto.INT64, [2])
    rep = RaptorBackend.prepare(_typed({"x": floats, "shape": integers}, node("Reshape", "x shape")))
    x = random(2, 6)
    for shape in ([3, 4], [4, 3], [4, 3]):
        np.testing.assert_array_equal(rep.run([x, np.array(shape)])[0], x.reshape(shape))
    assert rep.bound == ("shape",)


def test_what_a_constant_follows_from_is_bound() -> None:
    nodes = [node("Transpose", "w", "t", perm=[1, 0], name="t"), node("Gemm", "x t")]
    model = make_model(nodes, {"x": [2, 5], "w": [3, 5]}, {"y": 2})
    rep = RaptorBackend.prepare(model)
    x, w = random(2, 5), random(3, 5)
    np.testing.assert_allclose(rep.run({"w": w, "x": x}).y, x @ w.T, rtol=1e-4, atol=1e-5)
    assert "x" not in rep.bound


def test_compiled_once_for_equal_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    original = onnx_backend.api.compile
    monkeypatch.setattr(onnx_backend.api, "compile", lambda *a, **k: compiled.append(a) or original(*a, **k))
    rep = RaptorBackend.prepare(make_model([node("Relu", "x")], {"x": [1, 3, 2, 2]}, ["y"]))
    for seed in range(3):
        rep.run([random(1, 3, 2, 2, seed=seed)])
    assert len(compiled) == 1


def test_open_dimensions_are_those_of_the_inputs() -> None:
    rep = RaptorBackend.prepare(make_model([node("Relu", "x")], {"x": ["n", 3, 2, 2]}, ["y"]))
    for batch in (1, 2):
        x = random(batch, 3, 2, 2)
        np.testing.assert_array_equal(rep.run(x).y, np.maximum(x, 0))


def test_chip_grows_with_the_model() -> None:
    model = make_model([node("Gemm", "x w")], {"x": [1, 64]}, {"y": 2}, {"w": random(64, 512)})
    (y,) = RaptorBackend.run_model(model, [random(1, 64)], xbar=8, xbars_per_core=16)
    np.testing.assert_allclose(y, random(1, 64) @ random(64, 512), rtol=1e-3, atol=1e-4)
    with pytest.raises(UserError, match="cores: need"):
        RaptorBackend.run_model(model, [random(1, 64)], xbar=8, xbars_per_core=16, cores=4)


@pytest.mark.parametrize("opset", [7, 13, 26, 28])
def test_operator_sets(opset: int) -> None:
    model = _typed({"x": (TensorProto.FLOAT, [1, 3])}, node("Relu", "x"), opset=opset, ir_version=14)
    np.testing.assert_array_equal(RaptorBackend.run_model(model, [np.array([[1, -1, 0]], np.float32)]).y, [[1, 0, 0]])


def test_run_node() -> None:
    x = random(2, 3)
    info = [(np.dtype(np.float32), (2, 3))]
    for outputs in (info, None):
        (y,) = onnx_backend.run_node(
            helper.make_node("Relu", ["x"], ["y"]), [x], outputs_info=outputs, opset_version=14
        )
        np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_devices() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA")
    with pytest.raises(UserError, match="device='CUDA': expected CPU"):
        onnx_backend.prepare(make_model([node("Relu", "x")], {"x": [1, 3]}, {"y": 2}), "CUDA")


def test_refusals() -> None:
    model = make_model([node("Relu", "x")], {"x": [1, 3]}, {"y": 2})
    with pytest.raises(UserError, match="has 1 inputs, 2 are given"):
        onnx_backend.run_model(model, [random(1, 3)] * 2)
    with pytest.raises(UserError, match="input 'x' is missing"):
        onnx_backend.run_model(model, {})
    with pytest.raises(UserError, match="sizes must be at least 1"):
        onnx_backend.run_model(
            make_model([node("Relu", "x")], {"x": ["n", 3]}, {"y": 2}), [np.zeros((0, 3), np.float32)]
        )


def test_data_never_becomes_a_constant() -> None:
    """Otherwise the constant folder would compute the output."""
    model = make_model([node("Det", "x")], {"x": [1, 5, 5]}, {"y": 1})
    with pytest.raises(UnsupportedError, match="Det"):
        onnx_backend.run_model(model, [random(1, 5, 5)])


def test_an_order_of_channels_that_older_versions_have_not() -> None:
    """SpaceToDepth has a mode since opset 28, which the version converter refuses."""
    blocks = node("SpaceToDepth", "x", "b", blocksize=2, mode="CRD")
    model = _typed({"x": (TensorProto.FLOAT, [1, 3, 4, 6])}, blocks, node("Relu", "b"), opset=28, ir_version=14)
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 6)).astype(np.float32)
    (y,) = onnx_backend.run_model(model, [x])
    wanted = x.reshape(1, 3, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 12, 2, 3)
    np.testing.assert_array_equal(y, np.maximum(wanted, 0))


def test_integers_beyond_the_chip_go_to_the_host() -> None:
    """The chip has bits of integers of at most 2 ** 14 here; the host has all of them."""
    kind = TensorProto.INT32
    infos = [helper.make_tensor_value_info(n, kind, [3]) for n in "aby"]
    graph = helper.make_graph([helper.make_node("BitwiseAnd", ["a", "b"], ["y"])], "bits", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    a, b = np.array([2**30 + 5, -7, 12], np.int32), np.array([2**30 + 6, 9, 10], np.int32)
    with pytest.raises(UserError, match="holds 1073741829, outside"):
        RaptorBackend.run_model(model, [a, b])
    rep = RaptorBackend.prepare(model, host=True)
    for values in ([a, b], [a % 8, b % 8], [a, a]):
        np.testing.assert_array_equal(rep.run(values)[0], values[0] & values[1])
