"""Operators of integers on the cases of ONNX's own suite, with everything but the data made constant."""

import functools
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from raptor.common.errors import RaptorError
from raptor.frontend import load
from raptor.frontend.proto.opset_conversion import upgrade_opset
from tests.quantised_models import run

OPERATORS = ("quantizelinear", "dequantizelinear", "qlinearconv", "qlinearmatmul", "convinteger", "matmulinteger")
NO_INTEGERS = ("e4m3fn", "e5m2", "float4e2m1")


@functools.cache
def cases() -> dict[str, Any]:
    from onnx.backend.test.case.node import collect_testcases

    found = {case.name.removeprefix("test_"): case for case in collect_testcases(None)}  # pyright: ignore[reportArgumentType]
    return {name: case for name, case in found.items() if name.startswith(OPERATORS)}


def array(value: Any) -> np.ndarray[Any, Any]:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def with_constants(model: ModelProto, values: dict[str, Any]) -> ModelProto:
    """The model with every input but the first as a constant."""
    copy = ModelProto.FromString(model.SerializeToString())
    for value in list(copy.graph.input)[1:]:
        given = values[value.name]
        tensor = given if isinstance(given, TensorProto) else numpy_helper.from_array(np.asarray(given))
        copy.graph.initializer.add().CopyFrom(tensor)
        copy.graph.initializer[-1].name = value.name
        copy.graph.input.remove(value)
    return upgrade_opset(copy)


@pytest.mark.filterwarnings("ignore")
def test_cases_of_the_standard():
    assert len(cases()) > 30
    for name, case in cases().items():
        (given, wanted), *_ = case.data_sets
        values = dict(zip((v.name for v in case.model.graph.input), given, strict=True))
        model = with_constants(case.model, values)
        if any(kind in name for kind in NO_INTEGERS):
            with pytest.raises(RaptorError, match=r"float8|float4|FLOAT4|QuantizeLinear"):
                load(model)
            continue
        loaded = load(model)
        first = model.graph.input[0].name
        found = run(loaded, {first: array(values[first])})
        for value, expected in zip(case.model.graph.output, wanted, strict=True):
            result = array(expected).astype(np.float64)
            assert found[value.name].shape == result.shape, name
            np.testing.assert_allclose(found[value.name].astype(np.float64), result, rtol=1e-6, err_msg=name)
