"""Rounding, signs and trigonometric functions: values where the easy formula fails, in the instruction streams."""

import numpy as np
import pytest

from raptor.backend import RaptorBackend
from tests.frontend.support import golden, single
from tests.pipeline import check

EDGES = np.array(
    [
        *(0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.4999998, 1e-45, 1e-30, 0.99999994),
        *(2**22 + 0.5, 2**23 - 0.5, 2**23 + 1, 2**24 - 1, 2**25 + 4, 2**47 + 2**24, 2**48 - 2**24),
        *(2.0**100, 3.4e38, np.inf),
    ],
    np.float32,
)


@pytest.mark.parametrize("op_type", ["Floor", "Ceil", "Round", "Sign"])
def test_rounding_is_exact(op_type: str):
    x = np.concatenate([EDGES, -EDGES])
    (got,) = RaptorBackend.run_model(single(op_type, x.shape), [x])
    np.testing.assert_array_equal(got, golden(single(op_type, x.shape), {"x": x})["y"])


def test_rounding_needs_no_extended_instruction():
    check(single("Floor", (2, 3, 4)), base_isa=True)


WIDE = np.linspace(-1000, 1000, 411, dtype=np.float32)
UNIT = np.linspace(-1, 1, 41, dtype=np.float32)
FUNCTIONS = {
    **dict.fromkeys(("Sin", "Cos"), WIDE),
    "Tan": np.linspace(-1.5, 1.5, 41, dtype=np.float32),
    "Atan": np.concatenate([WIDE, UNIT, np.array([1e20, -1e20, np.inf], np.float32)]),
    **dict.fromkeys(("Asin", "Acos"), UNIT),
    **dict.fromkeys(("Sinh", "Cosh"), UNIT * 80),
    "Asinh": np.concatenate([WIDE, UNIT, np.array([1e30, -1e30], np.float32)]),
    "Acosh": np.concatenate([1 + abs(UNIT), np.array([1e30], np.float32)]),
    "Atanh": UNIT[1:-1],
}


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_trigonometry(op_type: str):
    x = FUNCTIONS[op_type]
    (got,) = RaptorBackend.run_model(single(op_type, x.shape), [x])
    np.testing.assert_allclose(got, golden(single(op_type, x.shape), {"x": x})["y"], rtol=2e-6, atol=5e-7)
