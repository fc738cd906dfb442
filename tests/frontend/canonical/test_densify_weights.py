"""Sparse weights."""

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, SparseTensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend import load
from tests.pipeline import check
from tests.tiny_models import Array, compare, make_model, node


def sparse(values: Array, places: list[int] | list[list[int]], dims: tuple[int, ...], name: str = "w"):
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, name), numpy_helper.from_array(np.array(places, np.int64), f"{name}.i"), dims
    )


def model_of(weights: SparseTensorProto, *nodes: NodeProto) -> ModelProto:
    model = make_model(nodes or (node("MatMul", "x w"),), {"x": (3, 6)}, {"y": 2}, {"s": np.float32(0.5)})
    model.graph.sparse_initializer.append(weights)
    return model


NUMBERS = np.array([1.5, -2, 3], np.float32)


@pytest.mark.parametrize("places", [[0, 7, 23], [[0, 0], [1, 3], [5, 3]]])
def test_trial_b1_a_matrix(places: list[int] | list[list[int]]):
    compare(model_of(sparse(NUMBERS, places, (6, 4))))


def test_trial_b1_a_constant():
    constant = helper.make_node("Constant", [], ["w"], name="c", sparse_value=sparse(NUMBERS, [0, 7, 23], (6, 4)))
    compare(make_model([constant, node("MatMul", "x w")], {"x": (3, 6)}, {"y": 2}))


def test_trial_b1_nothing_but_zeros():
    compare(model_of(sparse(np.zeros(0, np.float32), [], (6, 4))))


def test_trial_b1_a_large_one_is_compiled():
    generator = np.random.default_rng(5)
    places = np.sort(generator.choice(6 * 300, 99, replace=False))
    check(model_of(sparse(generator.standard_normal(99).astype(np.float32), places.tolist(), (6, 300))), xbar=64)


def test_trial_b1_quantised_weights():
    codes = sparse(np.array([5, -7], np.int8), [3, 11], (6, 4))
    compare(model_of(codes, node("DequantizeLinear", "w s", "wd"), node("MatMul", "x wd")))


def test_trial_b1_one_that_is_larger_than_the_chip_can_hold_is_named():
    with pytest.raises(UserError, match="sparse weights 'w' have 1099511627776 elements"):
        load(model_of(sparse(NUMBERS[:1], [0], (2**20, 2**20))))
