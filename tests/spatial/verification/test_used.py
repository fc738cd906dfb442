"""Tests that every computed value is read."""

import pytest

from raptor.common.errors import VerifyError
from raptor.spatial import verify_spatial
from tests.pipeline import check, count_ops, passes, thesis_model
from tests.tiny_models import make_model, node, random
from tests.values import replace


def depthwise(pads: list[int]):
    weights = {"w": random(4, 1, 3, 3)}
    conv = node("Conv", "x w", "y", group=4, pads=pads, kernel_shape=[3, 3])
    return make_model([conv], {"x": (1, 4, 12, 12)}, ["y"], weights)


def test_a_depthwise_convolution_with_outputs_in_the_padding_is_computed_once():
    """Lines whose window lies in the padding cannot be computed by line; what was begun is not kept."""
    model = depthwise([1, 1, 4, 1])
    result = passes(model, mapping="rows", cores=8)
    plain = passes(model, mapping="raptor", cores=8)
    assert count_ops(result.streams)["vvmul"] == count_ops(plain.streams)["vvmul"]
    check(model, mapping="rows", cores=8)


def test_one_that_fits_is_computed_by_line():
    model = depthwise([1, 1, 1, 1])
    assert len(set(passes(model, mapping="rows", cores=8).partition.positions)) == 12


def test_a_result_that_nobody_reads_is_refused():
    result = passes(thesis_model(4, 8), xbar=3, xbars_per_core=5, cores=16)
    graph = result.spatial
    vector = next(c for c in graph.computes if c.body)
    op = vector.body[-1]
    spare = replace(op, result=replace(op.result, name="nobody"))
    twice = replace(graph, computes=(*graph.computes, replace(vector, body=(*vector.body[:-1], spare))))
    with pytest.raises(VerifyError, match=r"nobody.* is computed, and nobody reads it"):
        verify_spatial(twice, result.arch)


def test_a_copy_of_the_references_that_nobody_reads_is_no_fault():
    """Found by the campaign: by pixels, a tensor may be put together that is then read in pieces."""
    from tests.fuzz.graphs import MOST_NODES, made, through_everything

    through_everything(made(125209, MOST_NODES))
