"""ONNX's own cases of quantised operators: every result is equal to the wanted one, bit for bit."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from raptor.common.errors import UserError
from raptor.integrations.onnx_backend import RaptorBackend

QUANTISED = ("quantizelinear", "dequantizelinear", "qlinearconv", "qlinearmatmul", "convinteger", "matmulinteger")
FLOATS = ("e4m3fn", "e5m2", "float4e2m1")
"""Types of floats below 16 bits, which a chip of integers has not."""


@cache
def _cases() -> dict[str, TestCase]:
    found = load_model_tests(kind="node")
    return {c.name: c for c in found if c.name.removeprefix("test_").startswith(QUANTISED)}


def _run(case: TestCase) -> list[tuple[Any, Any]]:
    """Returns pairs of a wanted output and the one that the streams compute, for each data set."""
    assert case.model is not None
    model = RaptorBackend.prepare(case.model)
    sets = [([_array(x) for x in inputs], [_array(y) for y in wanted]) for inputs, wanted in case.data_sets or []]
    return [pair for inputs, wanted in sets for pair in zip(wanted, model.run(inputs), strict=True)]


def _array(value: Any) -> Any:
    """Returns an array; onnx stores data of fewer than 8 bits as a message."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _is_small_float(name: str) -> bool:
    return any(kind in name for kind in FLOATS)


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")  # those of the suite's own code
def test_every_result_is_equal() -> None:
    checked = 0
    for name in (n for n in _cases() if not _is_small_float(n)):
        for wanted, found in _run(_cases()[name]):
            np.testing.assert_array_equal(found, wanted, err_msg=name, strict=True)
            checked += 1
    assert checked == 31


@pytest.mark.conformance
@pytest.mark.filterwarnings("ignore")  # those of the suite's own code
def test_small_floats_are_refused() -> None:
    refused = [n for n in _cases() if _is_small_float(n)]
    assert len(refused) == 8
    for name in refused:
        with pytest.raises(UserError, match=r"float[48]e"):
            _run(_cases()[name])
