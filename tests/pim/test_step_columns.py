"""Operations of steps as objects, which texts and checks are made of; streams come from the columns."""

from tests.pipeline import passes
from tests.tiny_models import make_model, node, random


def test_operations_multiply_with_every_array_group():
    """Several computes of a core have the same form: each has its own groups."""
    nodes = [node("Conv", "x w", "c", name="first", pads=[1, 1, 1, 1]), node("Conv", "c v", "y", name="second")]
    constants = {"w": random(6, 3, 3, 3), "v": random(5, 6, 2, 2)}
    model = make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"], constants)
    program = passes(model, xbar=4, xbars_per_core=12, cores=60, mapping="raptor").program
    assert any(len(core.groups) > 1 for core in program.cores.values())
    for core in program.cores.values():
        used = {number for i in range(len(core.steps)) for number in core.steps.operation(i).matrices}
        assert used == set(range(len(core.groups)))
