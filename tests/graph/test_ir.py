"""Rules of `Graph.verify`, each on a graph that breaks it."""

from dataclasses import replace

import numpy as np
import pytest

from raptor.common.errors import VerifyError
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import (
    Bound,
    Concat,
    Constant,
    ConstantTensor,
    Dot,
    Filter,
    Graph,
    Lookup,
    Map,
    Move,
    Node,
    Operator,
    Pool,
    Rename,
    Softmax,
    Stencil,
    Tensor,
)
from raptor.graph.requantise.definition import Requantise, RequantiseTerm
from raptor.graph.window import Window
from raptor.target.chip_elements import FLOAT32, ElementType, integer_type
from raptor.target.tensor_layout import Image

WINDOW = Window((4, 4), (4, 4), (3, 3), (1, 1), (1, 1), (1, 1))
SHAPE = (1, 3, 4, 4)


def tensor(name: str, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return Tensor(name, shape, Image(shape, 1))


def graph(operator: Operator, *, inputs: int = 1, result: tuple[int, ...] = SHAPE) -> Graph:
    """x0, x1, ... -> operator -> y."""
    names = tuple(f"x{i}" for i in range(inputs))
    tensors = {name: tensor(name) for name in names} | {"y": tensor("y", result)}
    return Graph("tiny", tensors, (Node("n", "Op", operator, names, "y"),), names, ("y",))


def weights(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def filter_graph(operator: Filter | None = None) -> Graph:
    return graph(operator or Filter(weights(9, 3, 5), WINDOW), result=(1, 5, 4, 4))


GOOD = {
    "filter": filter_graph(),
    "grouped filter": graph(Filter(weights(9, 1, 3), WINDOW, groups=3)),
    "pool": graph(Pool("max", WINDOW)),
    "stencil": graph(Stencil(weights(1, 9, 1), WINDOW)),
    "map": graph(Map("add", (0, Constant(weights(1, 1, 3))))),
    "concat": graph(Concat(), inputs=2, result=(1, 6, 4, 4)),
    "dot": graph(Dot(1, 16, 16), inputs=2, result=(1, 16, 4, 4)),
    "move": graph(Move(np.zeros((16, 3), np.int64))),
    "softmax": graph(Softmax()),
    "rename": graph(Rename()),
    "rename of rows": graph(Rename(), result=(1, 3, 2, 8)),
}


def channels_last(operator: Operator) -> Graph:
    """x -> operator -> y, with the channels of y behind its pixels."""
    good = graph(operator)
    last = replace(good.tensors["y"], shape=(1, 4, 4, 3), image=Image((1, 4, 4, 3), 3))
    return replace(good, tensors={**good.tensors, "y": last})


GOOD["rename with channels last"] = channels_last(Rename())


@pytest.mark.parametrize("name", GOOD)
def test_accepted(name: str):
    GOOD[name].verify()


SHAPES_DISAGREE = {
    "taps": filter_graph(Filter(weights(4, 3, 5), WINDOW)),
    "input channels": filter_graph(Filter(weights(9, 2, 5), WINDOW)),
    "groups": filter_graph(Filter(weights(9, 3, 5), WINDOW, groups=2)),
    "output channels": filter_graph(Filter(weights(9, 3, 4), WINDOW)),
    "input pixels": filter_graph(Filter(weights(9, 3, 5), replace(WINDOW, in_dims=(4, 5)))),
    "output pixels": filter_graph(Filter(weights(9, 3, 5), replace(WINDOW, out_dims=(4, 3)))),
    "batch": filter_graph(Filter(weights(9, 3, 5), replace(WINDOW, batch=2))),
    "pool channels": graph(Pool("max", WINDOW), result=(1, 4, 4, 4)),
    "pool pixels": graph(Pool("sum", replace(WINDOW, out_dims=(2, 4)))),
    "stencil taps": graph(Stencil(weights(1, 4, 3), WINDOW)),
    "dot": graph(Dot(1, 16, 8), inputs=2, result=(1, 16, 4, 4)),
    "concat channels": graph(Concat(), inputs=2, result=(1, 5, 4, 4)),
    "concat pixels": graph(Concat(), inputs=2, result=(1, 6, 4, 2)),
    "move shape": graph(Move(np.zeros((16, 2), np.int64))),
    "move outside": graph(Move(np.full((16, 3), 48))),
    "constant": graph(ConstantTensor(weights(4, 4, 2)), inputs=0),
    "softmax": graph(Softmax(), result=(1, 3, 4, 3)),
    "rename": graph(Rename(), result=(1, 4, 4, 3)),
}


@pytest.mark.parametrize("name", SHAPES_DISAGREE)
def test_shapes_that_disagree(name: str):
    with pytest.raises(VerifyError, match=r"n \(Op\): shapes disagree"):
        SHAPES_DISAGREE[name].verify()


def test_a_rename_with_channels_last_is_a_transposition():
    x = np.arange(48, dtype=np.float32).reshape(SHAPE)
    found = evaluate_graph(channels_last(Rename()), {"x0": x})["y"]
    np.testing.assert_array_equal(found, x.transpose(0, 2, 3, 1))


def test_a_rename_whose_shape_does_not_fill_its_image():
    good = graph(Rename())
    tensors = {**good.tensors, "y": replace(good.tensors["y"], shape=(1, 3, 4, 5))}
    with pytest.raises(VerifyError, match="shapes disagree"):
        replace(good, tensors=tensors).verify()


@pytest.mark.parametrize(("function", "operands"), [("add", (0,)), ("relu", (0, 0))])
def test_wrong_number_of_operands(function: str, operands: tuple[int, ...]):
    with pytest.raises(VerifyError, match=rf"n \(Op\): {function} takes \d operands, not {len(operands)}"):
        graph(Map(function, operands)).verify()


def test_a_constant_that_does_not_broadcast():
    with pytest.raises(VerifyError, match=r"constant \(1, 2, 3\) does not broadcast to \(4, 4, 3\)"):
        graph(Map("mul", (0, Constant(weights(1, 2, 3))))).verify()


def test_an_operand_of_another_image():
    with pytest.raises(VerifyError, match=r"operand .* differs from result"):
        graph(Map("relu", (0,)), result=(1, 3, 4, 2)).verify()


def test_used_before_it_is_defined():
    good = graph(Softmax())
    node = replace(good.nodes[0], inputs=("z",))
    with pytest.raises(VerifyError, match="n: z is used before it is defined"):
        replace(good, nodes=(node,)).verify()


def test_defined_twice():
    good = graph(Softmax())
    with pytest.raises(VerifyError, match="n: y is defined twice"):
        replace(good, nodes=good.nodes * 2).verify()


def test_an_output_that_is_never_defined():
    with pytest.raises(VerifyError, match="output z is never defined"):
        replace(graph(Softmax()), outputs=("z",)).verify()


def integers_graph(
    operator: Operator, source: ElementType, result: ElementType, shape: tuple[int, ...] = SHAPE
) -> Graph:
    """x -> operator -> y, of integers."""
    tensors = {"x0": replace(tensor("x0"), element=source), "y": replace(tensor("y", shape), element=result)}
    return Graph("tiny", tensors, (Node("n", "Op", operator, ("x0",), "y"),), ("x0",), ("y",))


def requantise(multiplier: float, offset: int = 0) -> Requantise:
    one = np.full((1, 1, 1), multiplier, np.float32), np.full((1, 1, 1), offset, np.int64)
    return Requantise((RequantiseTerm(*one, -128, 127),), np.zeros(4, np.intp), 2, -20, 20)


INT8, INT16 = integer_type(8), integer_type(16)
TYPED = {
    "bound": integers_graph(Bound(-128, None), INT8, INT16),
    "lookup": integers_graph(Lookup(np.arange(256, dtype=np.int32)), INT8, INT16),
    "requantise": integers_graph(requantise(0.5), INT16, INT8),
    "filter": integers_graph(Filter(weights(9, 3, 5).astype(np.int16), WINDOW), INT8, INT16, (1, 5, 4, 4)),
    "float": integers_graph(Map("float", (0,)), INT8, FLOAT32),
    "round": integers_graph(Map("round", (0,)), FLOAT32, INT8),
}
UNTYPED = {
    "lookup of 16 bits": integers_graph(Lookup(np.arange(256, dtype=np.int32)), INT16, INT8),
    "sum in a wider type": integers_graph(Pool("sum", WINDOW), INT8, INT16),
    "sum of another type": integers_graph(Map("add", (0, Constant(weights(1, 1, 1).astype(np.int16)))), INT8, INT16),
    "integers of floats": integers_graph(requantise(0.5), FLOAT32, INT8),
    "softmax of integers": integers_graph(Softmax(), INT8, INT8),
    "floats of a filter of integers": integers_graph(
        Filter(weights(9, 3, 5).astype(np.int16), WINDOW), INT8, FLOAT32, (1, 5, 4, 4)
    ),
}


@pytest.mark.parametrize("name", TYPED)
def test_types_accepted(name: str):
    TYPED[name].verify()


@pytest.mark.parametrize("name", UNTYPED)
def test_types_disagree(name: str):
    with pytest.raises(VerifyError, match="makes no"):
        UNTYPED[name].verify()


def test_numbers_of_a_graph():
    assert (GOOD["map"].arithmetic, TYPED["bound"].arithmetic, TYPED["float"].arithmetic) == ("float", "int", "mixed")


@pytest.mark.parametrize(("x", "y"), [(1, 2), (2, 3), (3, 4), (5, 4), (-1, 2), (-3, 0), (100, 20), (-100, -20)])
def test_requantise_rounds_ties_to_even(x: int, y: int):
    """y = clamp(round(x / 2) + 2, -20, 20)."""
    graph = integers_graph(requantise(0.5), INT16, INT8)
    assert (evaluate_graph(graph, {"x0": np.full(SHAPE, x)})["y"] == y).all()
    shifted = integers_graph(requantise(0.5, offset=-40), INT16, INT8)
    assert (evaluate_graph(shifted, {"x0": np.full(SHAPE, x + 40)})["y"] == y).all()


def test_evaluation_of_bound_and_lookup():
    values = np.arange(48).reshape(SHAPE) - 24
    bounded = evaluate_graph(integers_graph(Bound(-3, 5), INT8, INT8), {"x0": values})["y"]
    np.testing.assert_array_equal(bounded, np.clip(values, -3, 5))
    found = evaluate_graph(TYPED["lookup"], {"x0": values})["y"]
    np.testing.assert_array_equal(found, values + 128)


def test_evaluation_beyond_the_type_is_an_error():
    large = integers_graph(Filter(weights(9, 3, 5).astype(np.int16) * 100, WINDOW), INT8, INT16, (1, 5, 4, 4))
    with pytest.raises(VerifyError, match=r"y reaches .* beyond int16"):
        evaluate_graph(large, {"x0": np.full(SHAPE, 127)})
