"""Random graphs over every operator, compiled, executed and compared with onnxruntime tensor by tensor."""

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.frontend.operator_sets import QUANTISED_OPS
from raptor.frontend.registry import importers
from raptor.graph.evaluate import evaluate_graph
from raptor.transforms.fuse_parallel_branches import find_branches, fuse_parallel_branches
from raptor.transforms.rewrite_choices import RewriteChoice
from tests.all_graphs.builder import FAMILIES
from tests.all_graphs.cases import Case, build, cases, make_case
from tests.fuzz.quantised import made
from tests.pipeline import streamed

FOCUSES = (*FAMILIES, "all")
CI, SLOW = 100, 2000
# The phase that explains runs others after the smallest that fails, and would overwrite the files that it leaves.
SHRUNK = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=set(Phase) - {Phase.explain},
)


def share(count: int, focus: str) -> int:
    """Examples of one focus, of so many in all."""
    return count * (FOCUSES.index(focus) + 1) // len(FOCUSES) - count * FOCUSES.index(focus) // len(FOCUSES)


@pytest.mark.parametrize("focus", FOCUSES)
def test_random_graphs(focus: str):
    for i in range(share(CI, focus)):
        make_case(Random(i), focus).check()


def lay_out(case: Case):
    """Lays a graph out by line, and compares every tensor that is still there."""
    try:
        graph = load(case.model).graph
    except UnsupportedError:
        return
    summed = fuse_parallel_branches(graph, RewriteChoice(streaming=True, layers=find_branches(graph)))
    laid = streamed(summed)
    laid.verify()
    given = {name: case.inputs[name].astype(np.float64) for name in graph.inputs}
    before, after = evaluate_graph(graph, given), evaluate_graph(laid, given)
    parts = {node.output for node in summed.nodes} - {name for name, t in summed.tensors.items() if t.in_model}
    for tensor in before.keys() & after.keys() - (parts if summed is not graph else set()):
        np.testing.assert_allclose(after[tensor], before[tensor], rtol=1e-4, atol=1e-5, err_msg=tensor)


@pytest.mark.parametrize("focus", FOCUSES)
def test_the_layout_by_line_changes_no_value(focus: str):
    for i in range(share(CI, focus)):
        lay_out(make_case(Random(i), focus))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 4000, 100))
def test_the_layout_by_line_changes_no_value_of_many(seed: int):
    for i in range(seed, seed + 100):
        lay_out(make_case(Random(i), FOCUSES[i % len(FOCUSES)]))


@pytest.mark.slow
@pytest.mark.parametrize("focus", FOCUSES)
def test_many_random_graphs(focus: str, request: pytest.FixtureRequest):
    """Runs with hypothesis, which searches a small failing graph. `--graphs-seed` gives other graphs."""

    @seed(request.config.getoption("--graphs-seed"))
    @settings(SHRUNK, max_examples=share(SLOW, focus))
    @given(cases(focus))
    def check(case: Case):
        case.check()

    check()


@pytest.mark.slow
def test_every_operator_is_drawn():
    """Here or, if it is about integers, by the part of the fuzzer that makes quantised models."""
    # onnxruntime cuts 1 / scale of QLinearSoftmax, and has no CumProd: tested with whole scales, and against numpy, in
    # tests/frontend/operators/quantised/test_qlinear.py
    # tests/frontend/operators/test_argmax_topk.py
    missing = {i.op_type for i in importers()} - {"QLinearSoftmax", "CumProd"}
    for i in range(2000):
        missing -= {n.op_type for n in made(i)[0].model.graph.node}
        if missing.isdisjoint(QUANTISED_OPS):
            break
    for i in range(10_000):  # onnxruntime has a Swish in operator set 24 alone, which few graphs have
        missing -= {n.op_type for n in build(Random(i), FOCUSES[i % len(FOCUSES)]).nodes}
        if not missing:
            return
    pytest.fail(f"not drawn: {sorted(missing)}")


@given(st.data())
@settings(max_examples=3)
def test_a_case_is_a_valid_model_with_commands(data: st.DataObject):
    case = data.draw(cases("all"))
    assert {v.name for v in case.model.graph.input} == set(case.inputs)
