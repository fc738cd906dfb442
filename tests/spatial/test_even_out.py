"""Long work without matrices moves from the busiest core to others, and the program stays right."""

from dataclasses import replace

import numpy as np

from raptor.spatial.even_out import even_out
from raptor.spatial.placed import Partition
from tests.frontend.support import make_model, node, random
from tests.pipeline import Passes, check, line_flow, passes

CHIP = {"xbar": 16, "xbars_per_core": 16, "cores": 12}


def detector():
    """A convolution, and behind it moves and softmax of whole tensors, one after another."""
    constants = {"w": random(16, 4, 3, 3), "four": np.array([1, 4, 4, 256]), "flat": np.array([1, 4, 1024])}
    nodes = [
        node("Conv", "x w", "c", name="conv", pads=[1] * 4),
        node("Reshape", "c four", "r", name="boxes"),
        node("Transpose", "r", "t", name="turn", perm=[0, 2, 1, 3]),
        node("Softmax", "t", "s", name="softmax", axis=1),
        node("Transpose", "s", "u", name="back", perm=[0, 3, 2, 1]),
        node("Reshape", "u flat", "y", name="rows"),
    ]
    return make_model(nodes, {"x": (1, 4, 16, 16)}, ["y"], constants)


def all_on_one(found: Passes) -> Partition:
    """The partition with all that needs no matrices on the core of the first matrix."""
    home = next(core for core, c in zip(found.partition.cores, found.spatial.computes, strict=True) if c.matrices)
    pairs = zip(found.partition.cores, found.spatial.computes, strict=True)
    return Partition(found.spatial, tuple(core if c.matrices else home for core, c in pairs), found.partition.positions)


def changed(before: Partition, after: Partition) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(before.cores, after.cores, strict=True)) if a != b]


def test_long_work_leaves_the_busiest_core():
    found = passes(detector(), **CHIP, mapping="rows")
    before = all_on_one(found)
    after = even_out(before, found.decision, found.arch)
    moved = changed(before, after)
    assert moved
    assert not any(before.graph.computes[i].matrices for i in moved)
    assert len({after.cores[i] for i in moved}) > 1


def test_layer_by_layer_nothing_moves():
    found = passes(detector(), **CHIP, mapping="rows")
    before = all_on_one(found)
    by_layer = replace(found.decision, flow=replace(line_flow(found.decision), streamed=False))
    assert even_out(before, by_layer, found.arch) is before


def test_the_program_is_right():
    check(detector(), **CHIP)
