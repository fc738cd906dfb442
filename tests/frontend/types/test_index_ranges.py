"""Integers that were floats: what bounds them where they are indices, or are bounded themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

import raptor
from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.types.index_ranges import UNBOUNDED, compute_selection_range
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.evaluate import evaluate_graph
from tests.pipeline import check, validate
from tests.tiny_models import golden, make_model, node, random

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
    found = evaluate_graph(load(model).graph, {"x": x})["y"]
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
    found = evaluate_graph(load(model).graph, {"x": x})["y"]
    np.testing.assert_array_equal(found, golden(model, {"x": x})["y"])
    np.testing.assert_array_equal(found[0], TABLE[[299, 0, 299, 298]])


def test_a_sum_that_nothing_bounds_is_still_refused():
    nodes = [CAST, node("Add", "i i", "j"), node("Cast", "j", "y", to=TensorProto.FLOAT, name="back")]
    with pytest.raises(UnsupportedError, match=r"my_add \(Add\): its integers have no known bound"):
        load(make_model(nodes, {"x": (1, 4)}, {"y": 2}))


def test_ranges_of_what_is_chosen():
    def of(op_type: str, *ranges: IntegerInterval | None) -> IntegerInterval | None:
        names = tuple("abc"[: len(ranges)])
        view = NodeView("n", op_type, 17, names, ("y",), {})
        return compute_selection_range(view, dict(zip(names, ranges, strict=True)))

    assert of("Clip", UNBOUNDED, IntegerInterval(0, 0), IntegerInterval(9, 9)) == IntegerInterval(0, 9)
    assert of("Clip", UNBOUNDED, IntegerInterval(0, 0)) == IntegerInterval(0, UNBOUNDED.high)
    assert of("Max", UNBOUNDED, IntegerInterval(2, 3)) == IntegerInterval(2, UNBOUNDED.high)
    assert of("Min", IntegerInterval(1, 5), UNBOUNDED) == IntegerInterval(UNBOUNDED.low, 5)
    assert of("Relu", IntegerInterval(-7, 3)) == IntegerInterval(0, 3)
    assert of("Concat", IntegerInterval(1, 2), IntegerInterval(-5, 0)) == IntegerInterval(-5, 2)
    assert of("Where", None, UNBOUNDED, IntegerInterval(0, 1)) == UNBOUNDED
    assert of("Pad", IntegerInterval(3, 4)) == IntegerInterval(0, 4)
    assert of("Add", UNBOUNDED, IntegerInterval(0, 1)) is None


def attention(*, rank: int = 4, causal: int = 0) -> ModelProto:
    """An Attention whose input `n` says how many of six keys count in each of two sequences."""
    shape = (2, 2, 6, 8) if rank == 4 else (2, 6, 16)
    heads = {} if rank == 4 else {"q_num_heads": 2, "kv_num_heads": 2}
    mine = node("Attention", "q k v - - - n", is_causal=causal, **heads)
    model = make_model([mine], dict.fromkeys("qkv", shape) | {"n": (2,)}, {"y": rank}, opset=24, ir_version=10)
    model.graph.input[3].type.tensor_type.elem_type = TensorProto.INT64
    return model


@pytest.mark.parametrize("rank", [4, 3])
@pytest.mark.parametrize("causal", [0, 1])
def test_trial_a15_lengths_of_a_cache_at_run_time(rank: int, causal: int):
    model = attention(rank=rank, causal=causal)
    loaded = load(model)
    coding = loaded.graph.tensors["n"].coding
    assert coding is not None
    assert (coding.low, coding.high) == (0, 6)
    inputs = {name: random(*loaded.graph.tensors[name].shape, seed=i) for i, name in enumerate("qkv")}
    inputs["n"] = np.array([6, 6] if causal else [3, 6], np.int64)
    held = {n: v.astype(np.float32) for n, v in inputs.items()}
    found = evaluate_graph(loaded.graph, held)["y"]
    np.testing.assert_allclose(found, golden(model, inputs)["y"], rtol=1e-5, atol=1e-5)


def test_trial_a15_a_program_is_judged_by_lengths_that_there_are(tmp_path: Path):
    program = raptor.compile(attention(), cores=16)
    program.save(tmp_path / "out")
    assert validate(tmp_path / "out").verdict == "pass"


def test_a_number_added_to_an_input_before_it_is_an_index():
    """The sum is an index of the table, so the host refuses what makes another one."""
    model = make_model([node("Add", "x one", "i"), node("Gather", "t i")], {"x": (1, 4)}, {"y": 3}, {"t": TABLE[:30]})
    model.graph.initializer.append(numpy_helper.from_array(np.array(2), "one"))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    coding = load(model).graph.tensors["x"].coding
    assert coding is not None
    assert (coding.low, coding.high) == (-32, 27)
