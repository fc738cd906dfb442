"""Integers that were floats: what bounds them where they are indices, or are bounded themselves."""

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.frontend.demands import ANY, chosen
from raptor.frontend.nodes import NodeView
from raptor.frontend.ranges import Range
from raptor.graph.evaluate import evaluate
from tests.frontend.support import golden, make_model, node, random
from tests.pipeline import check

TABLE = random(300, 4)
CAST = node("Cast", "x", "i", to=TensorProto.INT64)
CHAINS: dict[str, tuple[list[NodeProto], dict[str, Any]]] = {
    "itself": ([], {}),
    "reshape": ([node("Reshape", "i to", "j")], {"to": np.array([2, 3])}),
    "unsqueeze": ([node("Unsqueeze", "i to", "j")], {"to": np.array([0])}),
    "slice": ([node("Slice", "i one three one", "j")], {"one": np.array([1]), "three": np.array([3])}),
    "concat": ([node("Concat", "i more", "j", axis=1)], {"more": np.array([[7, -3]])}),
    "where": ([node("Greater", "i k", "c"), node("Where", "c k i", "j")], {"k": np.array(200)}),
    "clip": ([node("Clip", "i low high", "j")], {"low": np.array(3), "high": np.array(250)}),
    "max_min": ([node("Max", "i low", "m"), node("Min", "m high", "j")], {"low": np.array(3), "high": np.array(250)}),
    "add": ([node("Add", "i k", "j")], {"k": np.array(5)}),
    "sub": ([node("Sub", "k i", "j")], {"k": np.array(295)}),
    "mul": ([node("Div", "i k", "d"), node("Mul", "d k", "j")], {"k": np.array(3)}),
    "add_and_reshape": (
        [node("Reshape", "i to", "r"), node("Add", "r k", "j")],
        {"to": np.array([6]), "k": np.array(-2)},
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_trial_a10_ids_that_were_floats(chain: str, kind: int):
    nodes, constants = CHAINS[chain]
    dtype = np.int32 if kind == TensorProto.INT32 else np.int64
    kept = ("to", "one", "three")
    constants = {n: v if n in kept else v.astype(dtype) for n, v in constants.items()}
    first = node("Cast", "x", "i", to=kind)
    last = node("Gather", f"t {'j' if nodes else 'i'}")
    model = make_model([first, *nodes, last], {"x": (1, 6)}, {"y": 3}, {"t": TABLE, **constants})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.array([[0.25, 17.9, 290.0, 4.5, 203.99, 101.5]], np.float32)
    found = evaluate(load(model).graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, golden(model, {"x": x})["y"])


def test_trial_a10_a_program_of_ids_that_were_floats():
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Mul", "s most", "m"),
        node("Cast", "m", "i", to=TensorProto.INT64),
        node("Add", "i one", "j"),
        node("Gather", "t j", "g"),
        node("MatMul", "g w"),
    ]
    constants = {"t": TABLE[:30], "most": np.float32(28), "one": np.array(1), "w": random(4, 5)}
    check(make_model(nodes, {"x": (1, 6)}, {"y": 3}, constants), xbar=8, cores=8)


def test_integers_of_any_size_are_exact_where_they_are_only_chosen():
    """A number far beyond 2**24 is bounded by a Clip, whatever it was."""
    nodes = [CAST, node("Clip", "i low high", "j"), node("Gather", "t j")]
    model = make_model(nodes, {"x": (1, 4)}, {"y": 3}, {"t": TABLE, "low": np.array(0), "high": np.array(299)})
    x = np.array([[1e12, -1e12, 2.0**25 + 4, 298.5]], np.float32)
    found = evaluate(load(model).graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, golden(model, {"x": x})["y"])
    np.testing.assert_array_equal(found[0], TABLE[[299, 0, 299, 298]])


def test_a_sum_that_nothing_bounds_is_still_refused():
    nodes = [CAST, node("Add", "i i", "j"), node("Cast", "j", "y", to=TensorProto.FLOAT, name="back")]
    with pytest.raises(UnsupportedError, match=r"my_add \(Add\): its integers have no known bound"):
        load(make_model(nodes, {"x": (1, 4)}, {"y": 2}))


def test_ranges_of_what_is_chosen():
    def of(op_type: str, *ranges: Range | None) -> Range | None:
        names = tuple("abc"[: len(ranges)])
        view = NodeView("n", op_type, 17, names, ("y",), {})
        return chosen(view, dict(zip(names, ranges, strict=True)))

    assert of("Clip", ANY, Range(0, 0), Range(9, 9)) == Range(0, 9)
    assert of("Clip", ANY, Range(0, 0)) == Range(0, ANY.high)
    assert of("Max", ANY, Range(2, 3)) == Range(2, ANY.high)
    assert of("Min", Range(1, 5), ANY) == Range(ANY.low, 5)
    assert of("Relu", Range(-7, 3)) == Range(0, 3)
    assert of("Concat", Range(1, 2), Range(-5, 0)) == Range(-5, 2)
    assert of("Where", None, ANY, Range(0, 1)) == ANY
    assert of("Pad", Range(3, 4)) == Range(0, 4)
    assert of("Add", ANY, Range(0, 1)) is None
