"""The time to repeat short operands counts once for each core, and is what the simulator takes."""

from typing import Any

import numpy as np
import pytest

from raptor.spatial.operations import Vector
from raptor.spatial.repeated_operands import repeated_shape, repetition_ns
from raptor.spatial.tiles import Tile
from raptor.target.arch import load
from raptor.target.timing import repeat_ns
from tests.pipeline import Passes, passes
from tests.tiny_models import make_model, node, random

CHIP: dict[str, Any] = {"arch": "bench", "mapping": "rows"}
LINES, WIDTH, CHANNELS = 6, 5, 8


@pytest.fixture(scope="module")
def scaled() -> Passes:
    """Each line of an image is multiplied by a constant and by the mean of each channel."""
    nodes = [
        node("Conv", "x w", "a", name="layer"),
        node("GlobalAveragePool", "a", "m", name="mean"),
        node("Mul", "a m", "s", name="scale"),
        node("Mul", "s c", "y", name="constant"),
    ]
    constants = {"w": random(CHANNELS, 4, 1, 1), "c": random(CHANNELS, 1, 1, seed=1)}
    return passes(make_model(nodes, {"x": (1, 4, LINES, WIDTH)}, ["y"], constants), **CHIP, cores=4)


def test_operands_are_repeated_once_on_a_core(scaled: Passes):
    flow, arch = scaled.spatial.dataflow, load("bench")
    values = np.arange(len(flow.tiles) + len(flow.constants))
    one_core, two_cores = np.zeros(len(flow.nodes), np.int64), np.arange(len(flow.nodes)) % 2
    once = repeat_ns(arch, CHANNELS, WIDTH * CHANNELS)
    assert repetition_ns(flow, one_core, values, arch).sum() == 2 * once
    assert repetition_ns(flow, two_cores, values, arch).sum() == 4 * once
    assert repetition_ns(flow, one_core, np.full_like(values, -1), arch).sum() == 0


def test_operands_as_long_as_a_row_are_not_repeated():
    row = Tile("row", 1, WIDTH, CHANNELS)
    result = Tile("result", 2, WIDTH, CHANNELS)
    assert repeated_shape(Vector(result, "add", (row, row)), row) is None
