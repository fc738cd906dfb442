"""Rules of `Graph.verify`, each on a graph that breaks it."""

from dataclasses import replace

import numpy as np
import pytest

from raptor.common.errors import VerifyError
from raptor.graph.ir import (
    Concat,
    Constant,
    ConstantTensor,
    Dot,
    Filter,
    Graph,
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
from raptor.graph.window import Window
from raptor.target.layout import Image

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
