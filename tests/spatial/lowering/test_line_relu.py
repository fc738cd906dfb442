"""Layers with a folded ReLU, computed by line: the sums are clipped where they are made."""

import pytest
from onnx import ModelProto

from raptor.common.errors import VerifyError
from raptor.graph.ir import Filter
from raptor.spatial import verify_spatial
from raptor.spatial.operations import ApplyLine, Vector
from tests.pipeline import check, passes
from tests.tiny_models import make_model, node, random
from tests.values import replace


def clipped_layers(form: str) -> ModelProto:
    """Builds layers without bias and with a ReLU, which one product makes where it is not computed by line."""
    if form == "tokens":
        weights = {"w": random(12, 20), "v": random(20, 6)}
        nodes = [node("MatMul", "x w", "a", name="first"), node("Relu", "a", "b"), node("MatMul", "b v", name="second")]
        return make_model(nodes, {"x": (1, 9, 12)}, {"y": 3}, weights)
    joined = [
        node("Conv", "x u", "p", name="left"),
        node("Conv", "x t", "q", name="right", pads=[1] * 4),
        node("Concat", "p q", "c", axis=1),
    ]
    weights = {"u": random(5, 3, 1, 1), "t": random(7, 3, 3, 3), "w": random(9, 12, 1, 1), "v": random(4, 9, 3, 3)}
    last = node("Conv", "b v", pads=[1] * 4, name="second")
    nodes = [node("Conv", "c w", "a", name="first"), node("Relu", "a", "b"), last]
    return make_model([*joined, *nodes], {"x": (1, 3, 7, 8)}, ["y"], weights)


@pytest.mark.parametrize("cores", [4, 20])
@pytest.mark.parametrize("form", ["tokens", "an image of two ranges"])
def test_a_layer_with_a_relu_is_computed_by_line(form: str, cores: int):
    model = clipped_layers(form)
    compiled = passes(model, mapping="rows", xbar=16, cores=cores)
    assert sum(isinstance(n.operator, Filter) and n.operator.relu for n in compiled.graph.nodes) == 1
    assert {c.node for c in compiled.spatial.computes if isinstance(c.body[0], ApplyLine)} >= {"first", "second"}
    check(model, mapping="rows", xbar=16, cores=cores)


@pytest.mark.parametrize("function", ["exp", None])
def test_a_layer_that_does_not_clip_is_refused(function: str | None):
    """Its sums are taken for its results, or something else is computed of them."""
    compiled = passes(clipped_layers("tokens"), mapping="rows", xbar=16, cores=20)
    graph = compiled.spatial
    computes = list(graph.computes)
    at, op = next((i, c.body[0]) for i, c in enumerate(computes) if isinstance(c.body[0], Vector))
    assert isinstance(op, Vector)
    if function is None:
        tensor = graph.tensors["b"]
        parts = tuple(replace(p, tile=op.sources[0]) if p.tile.name == op.result.name else p for p in tensor.parts)
        broken = replace(graph, tensors={**graph.tensors, "b": replace(tensor, parts=parts)})
    else:
        computes[at] = replace(computes[at], body=(replace(op, function="exp"),))
        broken = replace(graph, computes=tuple(computes))
    with pytest.raises(VerifyError, match="is not clipped by the layer's ReLU"):
        verify_spatial(broken, compiled.arch)
