"""Rounding, signs and trigonometric functions: values where the easy formula fails, in the instruction streams."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import raptor
from raptor.integrations.onnx_backend import RaptorBackend
from tests.pipeline import check
from tests.tiny_models import golden, single

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


@pytest.mark.parametrize("most", [0.5, 127.0, 2.0**22, 2.0**23])
def test_integers_of_clipped_numbers_are_exact(most: float):
    """Up to 2^22, two additions round them, and a cast to integers that hold them changes nothing."""
    model = clipped(most, TensorProto.INT32)
    x = np.concatenate([EDGES, -EDGES])
    (got,) = RaptorBackend.run_model(model, [x])
    np.testing.assert_array_equal(got, golden(model, {"x": x})["y"])
    instructions = raptor.compile(model, cores=1).report.instructions
    assert (sum(n for name, n in instructions.items() if name.startswith("v")) <= 6) == (most <= 2**22)


def clipped(most: float, kind: int) -> ModelProto:
    """Clip to -most..most, Round, Cast."""
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["bounded"]),
        helper.make_node("Round", ["bounded"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["y"], to=kind),
    ]
    ends = [numpy_helper.from_array(np.asarray(v, np.float32), n) for v, n in ((-most, "low"), (most, "high"))]
    values = [helper.make_tensor_value_info(n, k, [2 * len(EDGES)]) for n, k in (("x", TensorProto.FLOAT), ("y", kind))]
    graph = helper.make_graph(nodes, "clipped", values[:1], values[1:], ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_rounding_needs_no_extended_instruction():
    check(single("Floor", (2, 3, 4)), base_isa=True)


WIDE = np.linspace(-1000, 1000, 411, dtype=np.float32)
UNIT = np.linspace(-1, 1, 41, dtype=np.float32)
SMALL = np.concatenate([10.0 ** np.arange(-40, 0, 2), -(10.0 ** np.arange(-39, 0, 2))]).astype(np.float32)
ENDS = np.array([1e19, -1e30, 3.4e38, np.inf, -np.inf], np.float32)
FUNCTIONS = {
    **dict.fromkeys(("Sin", "Cos"), np.concatenate([WIDE, SMALL])),
    "Tan": np.concatenate([np.linspace(-1.5, 1.5, 41, dtype=np.float32), SMALL]),
    "Atan": np.concatenate([WIDE, UNIT, SMALL, ENDS]),
    **dict.fromkeys(("Asin", "Acos"), np.concatenate([UNIT, SMALL])),
    **dict.fromkeys(("Sinh", "Cosh"), np.concatenate([UNIT * 89.3, SMALL, ENDS])),
    "Asinh": np.concatenate([WIDE, UNIT, SMALL, ENDS]),
    "Acosh": np.concatenate([1 + abs(UNIT), abs(ENDS)]),
    "Atanh": np.concatenate([UNIT, SMALL]),
}
INEXACT_NEAR_ZERO = ("Sin", "Cos", "Acos", "Acosh")
"""Functions of which results near 0 come from arguments near 1 or near pi, where float32 has few bits."""


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_trigonometry(op_type: str):
    """Results near 0 have all their digits; those of infinities and of the largest numbers are as onnxruntime's."""
    x = FUNCTIONS[op_type]
    (got,) = RaptorBackend.run_model(single(op_type, x.shape), [x])
    want = golden(single(op_type, x.shape), {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=5e-7 if op_type in INEXACT_NEAR_ZERO else 1e-44)


@pytest.mark.parametrize("op_type", ["Sin", "Cos", "Tan"])
def test_angles_beyond_their_own_precision_stay_on_the_circle(op_type: str):
    x = np.array([1e8, -1e10, 1e19, 3.4e38], np.float32)
    (got,) = RaptorBackend.run_model(single(op_type, x.shape), [x])
    assert (np.abs(got) <= (1e8 if op_type == "Tan" else 1)).all()
