"""Scatter at places that are computed or given at run time, compared with onnxruntime."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import raptor
from tests import fused_decoders


def scatter(op_type: str, x: Sequence[int], ids: Sequence[int], updates: Sequence[int], **more: Any) -> ModelProto:
    """Returns a model of one scatter, whose operands are all inputs."""
    last = op_type == "TensorScatter"
    names = ["x", "updates", "ids"] if last else ["x", "ids", "updates"]
    values = {
        "x": helper.make_tensor_value_info("x", TensorProto.FLOAT, x),
        "updates": helper.make_tensor_value_info("updates", TensorProto.FLOAT, updates),
        "ids": helper.make_tensor_value_info("ids", TensorProto.INT64, ids),
    }
    node = helper.make_node(op_type, names, ["y"], name="tested", **more)
    graph = helper.make_graph(
        [node], "one", [*values.values()], [helper.make_tensor_value_info("y", TensorProto.FLOAT, x)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


CASES: Mapping[str, tuple[ModelProto, Sequence[Any]]] = {
    "rows": (scatter("ScatterND", [5, 4], [2, 1], [2, 4]), [[[3], [0]], [[-1], [1]], [[2], [-5]]]),
    "pairs": (scatter("ScatterND", [3, 5, 4], [2, 2], [2, 4]), [[[2, 4], [0, 1]], [[-1, -5], [1, 0]]]),
    "elements": (scatter("ScatterElements", [2, 5, 3], [2, 1, 3], [2, 1, 3], axis=1), [np.full((2, 1, 3), 4)]),
    "some elements": (
        scatter("ScatterElements", [2, 5, 3], [1, 2, 2], [1, 2, 2], axis=1),
        [[[[0, -1], [3, 2]]], [[[1, 4], [0, 0]]]],
    ),
    "the last of two wins": (scatter("ScatterElements", [5, 2], [2, 2], [2, 2]), [[[3, 1], [3, -4]]]),
    **{
        f"rows, {reduction}": (
            scatter("ScatterND", [3, 4, 5], [3, 2], [3, 5], reduction=reduction),
            [[[1, 2], [-1, 0], [1, -2]]],
        )
        for reduction in ("add", "mul", "max", "min")
    },
    "linear cache": (scatter("TensorScatter", [2, 3, 6, 4], [2], [2, 3, 2, 4]), [[0, 4], [3, 1]]),
    "circular cache": (
        scatter("TensorScatter", [2, 6, 4], [2], [2, 3, 4], axis=1, mode="circular"),
        [[5, 4], [0, 3]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_elements_go_where_the_indices_say(case: str) -> None:
    proto, places = CASES[case]
    program = raptor.compile(proto, cores=8)
    for ids in places:
        rng = np.random.default_rng(1)
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
        given = {n: rng.standard_normal(shapes[n]).astype(np.float32) for n in ("x", "updates")}
        verdict = program.validate(inputs={**given, "ids": np.asarray(ids, np.int64)})
        assert verdict.passed, verdict.outputs


def test_the_host_rejects_a_place_outside_the_cache() -> None:
    program = raptor.compile(scatter("TensorScatter", [1, 6, 4], [1], [1, 2, 4]), cores=8)
    x, new = np.zeros((1, 6, 4), np.float32), np.zeros((1, 2, 4), np.float32)
    with pytest.raises(raptor.UserError, match="ids"):
        program.validate(inputs={"x": x, "updates": new, "ids": np.array([5])})


@pytest.mark.parametrize(
    "proto",
    [
        scatter("ScatterND", [99, 4], [65, 1], [65, 4], reduction="max"),
        scatter("ScatterND", [99, 4], [65, 1], [65, 4]),
    ],
    ids=["many to be compared", "many updates"],
)
def test_other_scatters_need_constant_places(proto: ModelProto) -> None:
    with pytest.raises(raptor.UnsupportedError, match="'ids' must be a constant"):
        raptor.compile(proto, cores=8)


Form = Literal["ScatterND", "ScatterElements", "Where", "TensorScatter"]


@pytest.mark.parametrize("form", get_args(Form))
def test_a_static_cache_is_written_at_its_position(form: Form) -> None:
    """The states are compared with those of onnxruntime after each step."""
    program = raptor.compile(fused_decoders.static_cache_decoder(form), states="auto", cores=32)
    verdict = program.validate(samples=4)
    assert verdict.passed, verdict.outputs
    assert verdict.samples == 4
