"""All node cases of ONNX's backend suite for inference, and what running one of them gives.

Each case is compiled and executed with its first data set. Tolerances are those of the suite, and types are compared.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.pool import Pool
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from raptor.common.errors import RaptorError
from raptor.integrations.onnx_backend import RaptorBackend
from tests.conformance.suite import explain

Array = npt.NDArray[Any]
ROUNDING = 1e-6
"""Differences below this part of the largest element are those of rounding, in us or in the suite."""
OTHERS = ("ai.onnx.preview.training", "ai.onnx.ml")
"""Domains of the cases that are left out: training, and trees of decisions."""
PARAMETERS_ONLY = frozenset(
    ("ConstantOfShape", "Range", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "AffineGrid")
)
"""Operators all of whose inputs may become constants: they compute what the model's author could have stored."""


@cache
def node_cases() -> Mapping[str, TestCase]:
    """The cases by name. Takes seconds: onnx computes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    return {c.name: c for c in found if not _is_left_out(c)}


def _is_left_out(case: TestCase) -> bool:
    assert case.model is not None
    domains = {o.domain for o in case.model.opset_import}
    return not domains.isdisjoint(OTHERS)


def ops_of(case: TestCase) -> str:
    """Operators of a case, as the page shows them; those of subgraphs are left out."""
    assert case.model is not None
    return "+".join(sorted({node.op_type for node in case.model.graph.node}))


def run_node(name: str) -> str:
    """Runs a case on the chip alone. Returns why it does not pass; empty if it does."""
    case = node_cases()[name]
    rep = RaptorBackend.prepare(case.model)
    return _tried(case, rep.run) or _bound_data(case, rep.bound)


def run_with_host(name: str) -> str:
    """Runs a case of which the host may compute all that the chip does not."""
    case = node_cases()[name]
    return _tried(case, lambda inputs: RaptorBackend.prepare(case.model, host=True).run(inputs))


def run_in_onnxruntime(name: str) -> str:
    """Runs a case in onnxruntime alone, without RAPTOR."""
    case = node_cases()[name]
    return _tried(case, lambda inputs: _computed(case.model, inputs))


def _computed(model: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), inputs, strict=True)))


def _tried(case: TestCase, run: Callable[[Sequence[Any]], Sequence[Any]]) -> str:
    assert case.data_sets is not None
    warnings.simplefilter("ignore")
    inputs, wanted = case.data_sets[0]
    try:
        for want, got in zip(wanted, run([_value(x) for x in inputs]), strict=True):
            _compare(_value(want), got, case.rtol, case.atol)
    except (RaptorError, AssertionError) as error:
        return explain(error)
    except Exception as error:  # a case that fails outside of the compiler, such as a sequence instead of an array
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _bound_data(case: TestCase, bound: Sequence[str]) -> str:
    """Says which data became constants: the first input of a model, unless its operators have parameters only.

    An input without elements has no data.
    """
    assert case.model is not None
    assert case.data_sets is not None
    graph = case.model.graph
    first = next((v.name for v in graph.input), "")
    if first not in bound or not PARAMETERS_ONLY.isdisjoint(n.op_type for n in graph.node):
        return ""
    if not np.size(_value(case.data_sets[0][0][0])):
        return ""
    return f"compiled as constants, but are data: {first}"


def _value(value: Any) -> Any:
    """Returns an array, a list of arrays, or None for an optional value that is not there."""
    if value is None or isinstance(value, list):
        return value and [_value(v) for v in value]
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _compare(wanted: Any, found: Any, rtol: float, atol: float) -> None:
    if isinstance(wanted, list):
        assert isinstance(found, list), "no sequence"
        for one, other in zip(wanted, found, strict=True):
            _compare(one, other, rtol, atol)
        return
    assert found.dtype == wanted.dtype, f"type {found.dtype}, wanted {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape}, wanted {wanted.shape}"
    if wanted.dtype.kind in "fV":
        _compare_floats(wanted, found, rtol, atol)
    else:
        np.testing.assert_array_equal(found, wanted)


def _compare_floats(wanted: Array, found: Array, rtol: float, atol: float) -> None:
    """Compares as the suite does, which allows two units in the last place of bfloat16."""
    if wanted.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    exact, other = wanted.astype(np.float64), found.astype(np.float64)
    scale = np.abs(exact).max(initial=0.0)
    try:
        np.testing.assert_allclose(other, exact, rtol=rtol, atol=atol)
    except AssertionError:
        assert not np.abs(other - exact).max() < ROUNDING * scale, f"by less than {ROUNDING} of the largest element"
        raise


@dataclass(frozen=True, slots=True)
class Found:
    """Reasons why a case does not pass; empty where it does.

    `reason`: on the chip alone; `hosted`: with the host, for cases that fail without; `alone`: in onnxruntime, for
    those that fail with the host.
    """

    reason: str
    hosted: str = ""
    alone: str = ""


def run_all(jobs: int) -> dict[str, Found]:
    """Runs all cases; the host gets only those that fail without it."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        chip = _reasons(pool, run_node, list(node_cases()))
        host = _reasons(pool, run_with_host, [n for n, reason in chip.items() if reason])
        alone = _reasons(pool, run_in_onnxruntime, [n for n, reason in host.items() if reason])
    return {name: Found(reason, host.get(name, ""), alone.get(name, "")) for name, reason in chip.items()}


def _reasons(pool: Pool, run: Callable[[str], str], names: Sequence[str]) -> dict[str, str]:
    return dict(zip(names, pool.imap(run, names, chunksize=8), strict=True))
