"""Work on model inputs alone is done where its results are read first, and the program stays right."""

import numpy as np
import pytest

from raptor.mapping.decision import Matrix
from raptor.spatial.ir import Compute, Copy, TensorPart, TensorParts
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import move_computes
from raptor.spatial.refinement.sink_input_work import sink_to_readers
from raptor.target.tensor_layout import Image, TensorRegion
from tests.pipeline import check, passes
from tests.spatial.refinement.test_first_readers import compute, graph, relu, tile
from tests.tiny_models import make_model, node, random
from tests.values import replace

CHIP = {"xbar": 16, "xbars_per_core": 16, "cores": 12}


def gated():
    """Four convolutions; behind the third one, channels are weighed by a softmax of another input."""
    constants = {f"w{i}": random(8, 8 if i else 4, 3, 3) for i in range(4)} | {"shape": np.array([1, 8, 1, 1])}
    given = "x", "c0", "c1", "a"
    convolutions = [
        node("Conv", f"{name} w{i}", f"c{i}", name=f"conv{i}", pads=[1] * 4) for i, name in enumerate(given)
    ]
    gate = [
        node("Softmax", "m", "s", name="gate", axis=1),
        node("Reshape", "s shape", "t", name="reshape"),
        node("Mul", "c2 t", "a", name="weigh"),
    ]
    return make_model(convolutions[:3] + gate + convolutions[3:], {"x": (1, 4, 8, 8), "m": (1, 8)}, ["c3"], constants)


def cores_of(found: Partition, node: str) -> set[int]:
    return {core for core, compute in zip(found.cores, found.graph.computes, strict=True) if compute.node == node}


def on_the_first_core(found: Partition) -> Partition:
    """The partition with the gate on the first core, where nothing else reads it."""
    pairs = zip(found.cores, found.graph.computes, strict=True)
    return replace(found, cores=tuple(0 if compute.node == "gate" else core for core, compute in pairs))


def sunk(found: Partition) -> Partition:
    return move_computes(found, sink_to_readers(found))


def test_a_gate_is_made_where_it_is_read():
    found = passes(gated(), **CHIP, mapping="rows")
    before = on_the_first_core(found.partition)
    after = sunk(before)
    assert cores_of(before, "gate") == {0}
    assert cores_of(found.partition, "gate") | cores_of(after, "gate") <= cores_of(after, "weigh")
    assert all(
        cores_of(before, name) == cores_of(after, name) for name in ("conv0", "conv1", "conv2", "weigh", "conv3")
    )


def test_what_the_first_core_reads_stays_there():
    found = passes(gated(), **CHIP, mapping="rows")
    before = on_the_first_core(found.partition)
    made = {tile.name for compute in before.graph.computes if compute.node == "gate" for tile in compute.results}
    readers = [i for i, c in enumerate(before.graph.computes) if made & {v.name for op in c.body for v in op.operands}]
    assert len(readers) > 1
    cores = tuple(0 if i == readers[-1] else core for i, core in enumerate(before.cores))
    assert cores_of(sunk(replace(before, cores=cores)), "gate") == {0}


def moved(*computes: tuple[int, Compute]) -> list[int]:
    """The cores of computes after the move, from what they were on. The model input is the tile `input`."""
    image = Image((8,), 0)
    given = TensorParts("input", "", (8,), image, True, (TensorPart(TensorRegion((0, 8), (0, 1)), tile("input")),))
    made = replace(graph(*(c for _, c in computes)), inputs=("input",), tensors={"input": given})
    before = Partition(made, tuple(core for core, _ in computes), (0.0,) * len(computes))
    return list(sunk(before).cores)


MASK = relu("mask", "input")


def test_one_behind_another_move_together_to_the_first_reader():
    second, third = relu("second", "mask"), relu("third", "second")
    readers = (5, relu("y", "third")), (4, relu("z", "third"))
    assert moved((0, MASK), (0, second), (0, third), *readers) == [5, 5, 5, 5, 4]


def test_only_work_of_the_first_core_moves():
    readers = (5, relu("y", "mask")), (6, relu("z", "other"))
    assert moved((0, MASK), (2, relu("other", "input")), *readers) == [5, 2, 5, 6]


def test_what_reads_results_of_layers_stays():
    layer, later, last = relu("layer", "input"), relu("later", "layer"), relu("last", "later")
    readers = (5, relu("y", "mask")), (6, relu("z", "last"))
    assert moved((0, MASK), (3, layer), (0, later), (0, last), *readers) == [5, 3, 0, 0, 5, 6]


def test_what_nobody_reads_stays():
    assert moved((0, MASK), (0, relu("y", "input")), (5, relu("z", "mask"))) == [5, 0, 5]


MULTIPLIES = replace(relu("layer", "input"), matrices=(Matrix(0, (0, 8), (0, 8), 1),))
COPY = compute(Copy(tile("layer"), tile("input"), 0, 0, 8))


@pytest.mark.parametrize("layer", [MULTIPLIES, COPY], ids=["matrix", "copy"])
def test_what_belongs_to_its_core_stays(layer: Compute):
    assert moved((0, MASK), (0, layer), (5, relu("y", "mask")), (6, relu("z", "layer"))) == [5, 0, 5, 6]


def test_the_program_is_right():
    check(gated(), **CHIP)
