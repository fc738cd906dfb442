"""Work goes to the core that reads its result first if it may run there, and is worth it."""

from collections.abc import Sequence

import numpy as np
import pytest

from raptor.mapping.decision import Matrix
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy, SpatialGraph
from raptor.spatial.operations import Vector
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import find_movable, move_computes
from raptor.spatial.refinement.value_relays import move_to_first_readers
from raptor.spatial.scheduling.alap_schedule import AlapSchedule
from raptor.spatial.tiles import Tile
from tests.pipeline import chip
from tests.values import replace

FIRST, SECOND, OWN = 10.0, 12.0, 20.0
"""Times at which cores 1, 2 and 0 read what core 0 makes."""


def tile(name: str) -> Tile:
    return Tile(name, 1, 1, 8)


def compute(op: BodyOp) -> Compute:
    return Compute("node", "Op", "", (), (op,), (op.result,))


def relu(result: str, source: str) -> Compute:
    return compute(Vector(tile(result), "relu", (tile(source),)))


MADE = relu("made", "x")
READERS = relu("first", "made"), relu("second", "made"), relu("own", "made")


def graph(*computes: Compute) -> SpatialGraph:
    return SpatialGraph("graph", "float", (), (), {}, {}, {}, {}, {}, {}, computes)


def partition(*made: Compute, cores: Sequence[int] = (1, 2, 0)) -> Partition:
    """Puts what core 0 makes, and its readers, on cores."""
    both = *made, *READERS
    return Partition(graph(*both), (0,) * len(made) + tuple(cores), (0.0,) * len(both))


def times_of(found: Partition, begins_ns: Sequence[float]) -> AlapSchedule:
    """Times at which computes begin; each takes 1 ns, and messages nothing."""
    plain = [replace(each, matrices=()) for each in found.graph.computes]
    times = AlapSchedule.from_partition(replace(found, graph=graph(*plain)), 0.0, chip())
    at_ns, took_ns = np.zeros(len(times.at_ns)), np.zeros(len(times.at_ns))
    at_ns[: len(begins_ns)], took_ns[: len(begins_ns)] = begins_ns, 1.0
    return replace(times, at_ns=at_ns, end_ns=at_ns + took_ns)


def core_of_made(found: Partition, readers_ns: Sequence[float] = (FIRST, SECOND, OWN)) -> int:
    """The core to which the work of core 0 goes; all of it goes to one, and its readers stay."""
    count = len(found.cores) - len(READERS)
    after = move_computes(found, move_to_first_readers(found, times_of(found, [0.0] * count + list(readers_ns))))
    assert after.cores[count:] == found.cores[count:]
    (core,) = set(after.cores[:count])
    return core


def test_it_goes_to_the_first_of_its_readers():
    assert core_of_made(partition(MADE)) == 1
    assert core_of_made(partition(MADE), (SECOND, FIRST, OWN)) == 2


def test_it_stays_if_its_own_core_reads_it_soon():
    """Core 0 works for 2 ns, of which twice as much passes after the first reader."""
    assert core_of_made(partition(MADE), (FIRST, SECOND, FIRST + 4)) == 0
    assert core_of_made(partition(MADE), (FIRST, SECOND, FIRST + 5)) == 1
    assert core_of_made(partition(MADE), (FIRST, SECOND, FIRST - 5)) == 0


def test_it_stays_if_its_own_core_does_not_read_it():
    assert core_of_made(partition(MADE, cores=(1, 2, 3)), (FIRST, SECOND, OWN)) == 0


def test_the_first_of_the_reads_of_its_own_core_counts():
    assert core_of_made(partition(MADE, cores=(1, 0, 0)), (FIRST, FIRST + 4, 100.0)) == 0


COPY = compute(Copy(tile("made"), tile("x"), 0, 0, 8))
MULTIPLIES = replace(MADE, matrices=(Matrix(0, (0, 8), (0, 8), 1),))


@pytest.mark.parametrize("made", [[COPY], [MULTIPLIES], [MADE, relu("made", "z")]], ids=["copy", "matrix", "shared"])
def test_what_belongs_to_its_core_stays(made: list[Compute]):
    """Matrices, copies and tiles that several computes fill have their places from elsewhere."""
    found = partition(*made)
    assert find_movable(found).tolist() == [False] * len(made) + [True] * len(READERS)
    assert core_of_made(found) == 0
