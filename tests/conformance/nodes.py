"""All node cases of ONNX's backend suite for inference, and what running one of them gives.

Each case is compiled and executed with its first data set. Tolerances are those of the suite, and types are compared.
"""

import multiprocessing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from raptor.backend import RaptorBackend
from raptor.common.errors import RaptorError
from tests.conformance.suite import explain

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
    """Runs a case. Returns why it does not pass; empty if it does."""
    case = node_cases()[name]
    assert case.model is not None
    assert case.data_sets is not None
    warnings.simplefilter("ignore")
    inputs, wanted = case.data_sets[0]
    try:
        rep = RaptorBackend.prepare(case.model)
        found = rep.run([_array(x) for x in inputs])
        for want, got in zip(wanted, found, strict=True):
            _compare(_array(want), got, case.rtol, case.atol)
    except (RaptorError, AssertionError) as error:
        return explain(error)
    except Exception as error:  # a case that fails outside of the compiler, such as a sequence instead of an array
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return _bound_data(case, rep.bound)


def _bound_data(case: TestCase, bound: Sequence[str]) -> str:
    """Says which data became constants: the first input of a model, unless its operators have parameters only."""
    assert case.model is not None
    graph = case.model.graph
    first = next((v.name for v in graph.input), "")
    if first not in bound or not PARAMETERS_ONLY.isdisjoint(n.op_type for n in graph.node):
        return ""
    return f"compiled as constants, but are data: {first}"


def _array(value: Any) -> npt.NDArray[Any]:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _compare(wanted: npt.NDArray[Any], found: npt.NDArray[Any], rtol: float, atol: float) -> None:
    assert found.dtype == wanted.dtype, f"type {found.dtype}, wanted {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape}, wanted {wanted.shape}"
    if wanted.dtype.kind in "fV":
        wide = [a.astype(np.float64) for a in (found, wanted)]
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(found, wanted)


def run_all(names: Sequence[str], jobs: int) -> Iterator[tuple[str, str]]:
    """Yields name and reason of each case, in order."""
    if jobs == 1:
        yield from ((name, run_node(name)) for name in names)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from zip(names, pool.imap(run_node, names, chunksize=8), strict=True)
