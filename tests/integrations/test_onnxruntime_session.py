"""`raptor.session.InferenceSession` beside onnxruntime's, called alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import raptor
from raptor.integrations.onnxruntime_session import InferenceSession
from tests.tiny_models import make_model, node

X, Z = (np.random.default_rng(i).standard_normal((1, 6)).astype(np.float32) for i in (1, 2))


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Two inputs, two outputs; their orders are not those of the alphabet."""
    nodes = [node("Gemm", "x w", "h"), node("Relu", "h", "y"), node("Sub", "y a", "b")]
    weights = {"w": np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)}
    return make_model(nodes, {"x": (1, 6), "a": (1, 4)}, {"y": 2, "b": 2}, weights)


@pytest.fixture(scope="module")
def session(model: onnx.ModelProto) -> InferenceSession:
    return InferenceSession(model, providers=["CPUExecutionProvider"], cores=4, xbar=8)


def feeds() -> dict[str, Any]:
    return {"a": Z[:, :4], "x": X}


def test_it_answers_as_onnxruntime_does(model: onnx.ModelProto, session: InferenceSession) -> None:
    golden = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found, wanted = session.get_inputs(), golden.get_inputs()
    assert [(arg.name, arg.shape, arg.type) for arg in found] == [(arg.name, arg.shape, arg.type) for arg in wanted]
    found, wanted = session.get_outputs(), golden.get_outputs()
    assert [(arg.name, arg.type) for arg in found] == [(arg.name, arg.type) for arg in wanted]
    assert [arg.shape for arg in found] == [[1, 4], [1, 4]]
    for names in (None, [], ["b"], ["b", "y", "b"]):
        for got, want in zip(session.run(names, feeds()), golden.run(names, feeds()), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.run(["c"], feeds()), "'c': no such output; there are: y, b"),
        (lambda s: s.run("y", feeds()), r"output_names='y': expected a list of names, such as \['y'\]"),
        (lambda s: s.run(None, {"x": X}), "input 'a' is missing"),
        (lambda s: s.run(None, feeds() | {"c": X}), "'c': no such input; there are: x, a"),
        (
            lambda s: s.run(None, feeds() | {"x": X.astype(float)}),
            r"input 'x': expected tensor\(float\), got an array of float64",
        ),
        (lambda s: s.run(None, feeds() | {"x": X[0]}), r"input 'x': expected shape \[1, 6\], got \[6\]"),
        (lambda s: s.run(None, [X]), "input_feed: expected arrays by name of the input"),
        (lambda s: InferenceSession(b"\x08\x99nonsense"), "bytes that are not an ONNX model"),
        (lambda s: InferenceSession("nowhere.onnx"), "nowhere.onnx"),
        (lambda s: InferenceSession(s.program, cores=4), "cores: only with a model that is compiled"),
    ],
)
def test_errors_are_sentences(call: Callable[[InferenceSession], Any], message: str, session: InferenceSession) -> None:
    with pytest.raises(raptor.UserError, match=message):
        call(session)


def test_a_program_in_segments() -> None:
    """The host finds how many values are positive, so nobody knows the shape before; ids stay integers."""
    nodes = [node("Gemm", "x w", "h"), node("NonZero", "h", "where"), node("Relu", "h", "y")]
    weights = {"w": np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)}
    model = make_model(nodes, {"x": (1, 6)}, {"y": 2, "where": 2}, weights)
    model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    session = InferenceSession(model, cores=4, xbar=8, host=True)
    assert [(arg.name, arg.shape, arg.type) for arg in session.get_outputs()] == [
        ("y", [1, 4], "tensor(float)"),
        ("where", [2, None], "tensor(int64)"),
    ]
    golden = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got, want = (s.run(["where", "y"], {"x": X}) for s in (session, golden))
    assert got[0].dtype == np.int64
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], atol=1e-5)


def test_where_a_program_may_come_from(model: onnx.ModelProto, session: InferenceSession, tmp_path: Path) -> None:
    out = raptor.compile(model, cores=4, xbar=8).save(tmp_path / "out")
    onnx.save(model, tmp_path / "model.onnx")
    others = [
        InferenceSession(out),
        InferenceSession(raptor.load(out)),
        InferenceSession(str(tmp_path / "model.onnx"), cores=4, xbar=8),
        InferenceSession(model.SerializeToString(), cores=4, xbar=8),
    ]
    wanted = session.run(None, feeds())
    assert all(np.array_equal(a, b) for other in others for a, b in zip(other.run(None, feeds()), wanted, strict=True))
