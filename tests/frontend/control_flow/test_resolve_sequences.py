"""Sequences of tensors whose lengths and positions constants decide, against onnxruntime; those that they do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from raptor.common.errors import UnsupportedError, UserError
from raptor.frontend import load
from tests.frontend.control_flow.test_eliminate_control_flow import BOOL, FLOAT, INT64, body, check, model, op, value

SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))


def parts(attributes: dict[str, Any], *split: int | list[int], opset: int = 17) -> ModelProto:
    """y: the last part of x [6, 4], and the number of parts."""
    constants = {"s": np.array(split[0])} if split else {}
    nodes = [
        op("SplitToSequence", "x s" if split else "x", "q", **attributes),
        op("SequenceAt", "q last", "a"),
        op("SequenceLength", "q", "n"),
        op("Cast", "n", "f", to=FLOAT),
        op("Mul", "a f", "y"),
    ]
    return model(nodes, [value("x", shape=[6, 4])], ["y"], {**constants, "last": np.array(-1)}, opset)


@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize(
    ("attributes", "split"),
    [
        ({}, []),
        ({"axis": -1, "keepdims": 0}, []),
        ({"keepdims": 0}, [1]),
        ({"axis": 1}, [3]),
        ({"axis": 0}, [[1, 3, 2]]),
    ],
)
def test_parts_of_a_tensor(attributes: dict[str, Any], split: list[Any], opset: int):
    check(parts(attributes, *split, opset=opset))


def test_lengths_that_are_computed_from_the_shape():
    """The first lengths are larger by one; how many, only the shape tells. `torch.tensor_split` is exported so."""
    nodes = [
        op("Shape", "x", "dims"),
        op("Gather", "dims zero", "rows"),
        op("Div", "rows four", "small"),
        op("Add", "small one", "large"),
        op("Mod", "rows four", "count"),
        op("Tile", "large count", "first"),
        op("Sub", "four count", "others"),
        op("Tile", "small others", "last"),
        op("Concat", "first last", "lengths", axis=0),
        op("SplitToSequence", "x lengths", "q"),
        op("SequenceAt", "q one", "y"),
    ]
    constants = {name: np.array([number]) for name, number in {"zero": 0, "one": 1, "four": 4}.items()}
    check(model(nodes, [value("x", shape=[6, 4])], ["y"], constants))


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("attributes", [{"axis": 0}, {"axis": -1}, {"axis": 1, "new_axis": 1}])
def test_joined_sequences(attributes: dict[str, int], opset: int):
    """Tensors that are put in at the end, at the front and before the last, and one that is taken out."""
    nodes = [
        op("Neg", "x", "a"),
        op("Relu", "x", "b"),
        op("SequenceConstruct", "x a", "q"),
        op("SequenceInsert", "q b", "q1"),
        op("SequenceInsert", "q1 b front", "q2"),
        op("SequenceInsert", "q2 x last", "q3"),
        op("SequenceErase", "q3 second", "q4"),
        op("SequenceErase", "q4", "q5"),
        op("Identity", "q5", "q6") if opset >= 16 else op("SequenceInsert", "q5 x", "q6"),
        op("ConcatFromSequence", "q6", "y", **attributes),
    ]
    constants = {"front": np.array(0), "last": np.array(-1), "second": np.array(1)}
    proto = model(nodes, [value("x", shape=[2, 3])], ["y"], constants, opset)
    if "new_axis" in attributes:
        proto.graph.output[0].CopyFrom(value("y", shape=[None] * 3))
    check(proto)


def rows(reads: Callable[[str], list[Any]]) -> ModelProto:
    """A loop that puts each row of x [3, 4] into a sequence, as exporters write lists; then what `reads` makes."""
    turn = body(
        [op("Gather", "x i", "row"), op("SequenceInsert", "given row", "longer"), op("Identity", "goes", "on")],
        [value("i", INT64, []), value("goes", BOOL, []), helper.make_value_info("given", SEQUENCE)],
        [value("on", BOOL, []), helper.make_value_info("longer", SEQUENCE)],
    )
    nodes = [
        op("SequenceEmpty", "", "none"),
        helper.make_node("Loop", ["count", "", "none"], ["all"], "repeat", body=turn),
        *reads("all"),
    ]
    return model(nodes, [value("x", shape=[3, 4])], ["y"], {"count": np.array(3), "two": np.array(2)})


def test_a_loop_that_fills_a_sequence():
    assert "Concat" in check(
        rows(lambda q: [op("ConcatFromSequence", q, "c", axis=0, new_axis=1), op("Exp", "c", "y")])
    )
    check(rows(lambda q: [op("SequenceAt", f"{q} two", "r"), op("Mul", "x r", "y")]))


def test_a_computed_position_is_refused():
    nodes = [op("ReduceMax", "x", "m", keepdims=0), op("Cast", "m", "i", to=INT64)]
    nodes += [op("SequenceConstruct", "x x", "q"), op("SequenceAt", "q i", "y")]
    with pytest.raises(UnsupportedError, match=r"n_y \(SequenceAt\): only supported .* not the input 'x'"):
        load(model(nodes, [value("x", shape=[2, 3])], ["y"]))


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (op("SequenceAt", "q three", "y"), r"n_y \(SequenceAt\): position 3 of a sequence of 2"),
        (op("SequenceErase", "q three", "y"), r"n_y \(SequenceErase\): position 3 of a sequence of 2"),
        (op("SequenceInsert", "q x three", "y"), r"n_y \(SequenceInsert\): position 3 of a sequence of 2"),
    ],
)
def test_positions_outside_are_errors_that_name_the_node(last: Any, fault: str):
    proto = model(
        [op("SequenceConstruct", "x x", "q"), last, op("Relu", "x", "z")],
        [value("x", shape=[2, 3])],
        ["z"],
        {"three": np.array(3)},
    )
    with pytest.raises(UserError, match=fault):
        load(proto)


@pytest.mark.parametrize("size", [0, -2])
def test_parts_without_length_are_refused(size: int):
    with pytest.raises(
        UnsupportedError, match=r"n_q \(SplitToSequence\): only supported .* not 's', which is no length"
    ):
        load(parts({}, size))


def test_tensors_of_an_unused_sequence_are_not_computed():
    nodes = [op("SplitToSequence", "x", "q"), op("SequenceConstruct", "x", "p"), op("Relu", "x", "y")]
    assert len(check(model(nodes, [value("x", shape=[2, 3])], ["y"]))) == 1


def test_sequences_of_integers():
    nodes = [
        op("SequenceEmpty", "", "none", dtype=TensorProto.INT64),
        op("SequenceInsert", "none k", "q"),
        op("ConcatFromSequence", "q", "at", axis=0),
        op("Gather", "x at", "y"),
    ]
    check(model(nodes, [value("x", shape=[4, 3])], ["y"], {"k": np.array([2, 0])}))
