"""Scattered and chosen elements, determinants: against onnxruntime, in the streams."""

import numpy as np
import pytest
from onnx import TensorProto

from tests.frontend.operators.test_argmax_topk import compare as compare_typed
from tests.tiny_models import compare, make_model, node, random

TWICE = np.array([[0, 2, 1, 0], [0, 1, 1, 2]])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements_with_repeated_places(reduction: str):
    at = TWICE if reduction != "none" else TWICE[:, :2]
    op = node("ScatterElements", "x i u", axis=1, reduction=reduction)
    compare(make_model([op], {"x": (2, 5), "u": at.shape}, {"y": 2}, {"i": at}, opset=18))


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_scatter_nd_of_slices(reduction: str):
    at = np.array([[1], [-1], [1]])
    op = node("ScatterND", "x i u", reduction=reduction)
    compare(make_model([op], {"x": (4, 3), "u": (3, 3)}, {"y": 2}, {"i": at}, opset=18))


def test_computed_indices_choose_elements():
    ids = np.array([[[2, -1, 0]], [[1, -3, 2]]], np.int64)
    constants = {"d": random(4, 3, 5)}
    compare_typed(node("GatherElements", "d x", axis=1), constants, ids, TensorProto.FLOAT)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 4, 4), (2, 2, 3, 3)])
def test_determinants(shape: tuple[int, ...]):
    compare(make_model([node("Det", "x")], {"x": shape}, {"y": len(shape) - 2}, opset=11), 1e-5)
