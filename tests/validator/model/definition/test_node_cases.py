"""onnx's own cases of operators on quantised tensors: the definition gives exactly their results."""

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from validator.model.definition.evaluator import load_definition
from validator.model.definition.exact_values import ExactReal

FLOAT8 = ("e4m3", "e5m2", "float4")
"""Types without integers."""
PARTS = ("quantizelinear", "qlinear", "convinteger", "matmulinteger")


@cache
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {case.name: case for case in load_model_tests(kind="node")}
    wanted = {n: c for n, c in found.items() if any(p in n for p in PARTS) and not any(f in n for f in FLOAT8)}
    return {n: c for n, c in wanted.items() if "dynamic" not in n}


def array(value):
    """Returns an array; those of 4 bits and less come as tensors."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def test_there_are_cases():
    assert len(cases()) >= 26


@pytest.mark.parametrize("name", cases())
def test_equal(name):
    case = cases()[name]
    definition = load_definition(case.model)
    for inputs, wanted in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        known = definition.run(dict(zip(names, map(array, inputs), strict=True)))
        for output, want in zip(known.outputs.values(), map(array, wanted), strict=True):
            got = output.to_floats() if isinstance(output, ExactReal) else output
            assert got.shape == want.shape
            np.testing.assert_array_equal(got.astype(want.dtype), want)
            assert isinstance(output, ExactReal) or got.dtype == want.dtype
