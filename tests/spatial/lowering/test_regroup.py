"""Lines that an operator reads with other channel ranges are put together where their pixels are."""

from raptor.spatial.operations import Softmax
from tests.pipeline import check, passes
from tests.tiny_models import make_model, node, random

CHIP = {"xbar": 16, "xbars_per_core": 24, "cores": 40}


def classes():
    """Tokens, each with a softmax over more classes than a channel range has."""
    nodes = [node("MatMul", "x w", "t", name="classes"), node("Softmax", "t", "y", axis=2, name="softmax")]
    return make_model(nodes, {"x": (1, 24, 8)}, ["y"], {"w": random(8, 40)})


def test_a_softmax_over_several_ranges_runs_on_all_cores_of_its_layer():
    found = passes(classes(), **CHIP, mapping="rows")
    pairs = list(zip(found.partition.cores, found.spatial.computes, strict=True))
    layer = {core for core, c in pairs if c.node == "classes" and c.matrices}
    softmax = {core for core, c in pairs if any(isinstance(op, Softmax) for op in c.body)}
    assert len(softmax) > 1
    assert softmax <= layer


def test_the_program_is_right():
    check(classes(), **CHIP)
