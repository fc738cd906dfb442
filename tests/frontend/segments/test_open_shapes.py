"""Operators of which nobody knows the shapes: every segment loads in onnxruntime (trial of real models, A3)."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from raptor.common.errors import InternalError
from raptor.frontend.proto.onnx_wrappers import infer_types
from raptor.frontend.segments.cut_model import ModelCutter
from tests.segmented_models import checked, cut_of, kinds, sandwich
from tests.tiny_models import make_model, node, random

CONTRIB = "com.microsoft"


def distances(*middle: NodeProto, **constants: Any) -> ModelProto:
    """A convolution, distances of its rows from others (onnxruntime infers no shape), other nodes, a convolution."""
    first = [
        node("Reshape", "a flat", "a2", name="flatten"),
        node("CDist", "a2 rows", "d", name="spread", domain=CONTRIB, metric="euclidean"),
    ]
    model = sandwich([*first, *middle], {"flat": np.array([12, 12]), "rows": random(12, 12), **constants})
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return model


def sliced() -> ModelProto:
    bounds = {"from": np.array([0]), "to": np.array([4]), "axis": np.array([1])}
    nodes = [
        node("Slice", "d from to axis", "s", name="slice"),
        node("Concat", "s s s", "c", name="join", axis=1),
        node("Reshape", "c back", "b", name="back"),
    ]
    return distances(*nodes, back=np.array([1, 4, 6, 6]), **bounds)


def convolved() -> ModelProto:
    return distances(
        node("Unsqueeze", "d front", "e", name="up"),
        node("Conv", "e inner", "b", name="inner", pads=[1] * 4),
        front=np.array([0, 1]),
        inner=random(4, 1, 3, 3) / 9,
    )


def crossing() -> ModelProto:
    """The open shape crosses a border between two segments of the host."""
    model = distances(
        node("Reshape", "d back", "e", name="back"),
        node("Conv", "e inner", "f", name="inner", pads=[1] * 4),
        node("ReduceMax", "d", "m", name="most", keepdims=0),
        node("Selu", "f", "g", name="selu"),
        node("CDist", "a2 d", "d2", name="again", domain=CONTRIB, metric="euclidean"),
        node("ReduceMax", "d2", "m2", name="second", keepdims=0),
        node("Add", "m m2", "n", name="sum"),
        node("Mul", "g n", "b", name="scaled"),
        back=np.array([1, 4, 6, 6]),
        inner=random(4, 4, 3, 3) / 9,
    )
    return model


@pytest.mark.parametrize("model", [sliced, convolved, crossing])
def test_every_segment_loads(model: Any, tmp_path: Path):
    found = cut_of(model())
    for segment in found.segments:
        ort.InferenceSession(segment.onnx_bytes)
    checked(model(), tmp_path / "out")


def test_a_scalar_and_an_unknown_shape_differ(tmp_path: Path):
    """onnxruntime writes no sizes for both."""
    nodes = [
        node("CDist", "x x", "d", name="spread", domain=CONTRIB, metric="euclidean"),
        node("ReduceMax", "x", "m", name="most", keepdims=0),
        node("Add", "d m", "y", name="sum"),
    ]
    model = make_model(nodes, {"x": [3, 4]}, {"y": 2})
    model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    found = infer_types(model, ["d", "m"], tmp_path)
    assert not found["d"].tensor_type.HasField("shape")
    assert found["d"].tensor_type.elem_type == TensorProto.FLOAT
    assert found["m"].tensor_type.HasField("shape")
    assert not found["m"].tensor_type.shape.dim


def test_a_segment_that_does_not_load_is_no_output(monkeypatch: pytest.MonkeyPatch):
    """A fault of ours is reported while compiling, not left in the output."""

    whole = ModelCutter._piece  # pyright: ignore[reportPrivateUsage]

    def piece(self: Any, nodes: Any, makes: Any, what: str) -> ModelProto:
        found = whole(self, nodes, makes, what)
        if what == "segment_001":
            found.graph.node[0].op_type = "Nonsense"
        return found

    monkeypatch.setattr(ModelCutter, "_piece", piece)
    with pytest.raises(InternalError, match=r"segment 1 of the host \(middle\): onnxruntime refuses it"):
        cut_of(sandwich([node("Relu", "a", "b", name="middle")]), "middle")


def test_a_known_shape_behind_keeps_the_chip():
    """Behind a Reshape to constant sizes, layers are for the chip again."""
    assert [kind for kind, _ in kinds(cut_of(sliced()))] == ["chip", "host", "chip"]
