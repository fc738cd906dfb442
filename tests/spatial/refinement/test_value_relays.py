"""Values that are kept for long pass through idle cores, and the program stays right."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import raptor
from raptor.mapping.modes.step_replication import find_relay_steps
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.ir import Copy
from raptor.spatial.operations import ApplyFilters, Vector
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import move_computes
from raptor.spatial.refinement.value_relays import choose_relays, move_to_first_readers, relay_values
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, has_distant_chains
from raptor.spatial.tiles import Tile
from raptor.spatial.verification.copy_sources import CopySources
from raptor.target.arch import Target
from tests.pipeline import THESIS_CHIP, Passes, check, conv_model, line_flow, passes
from tests.recurrent_models import recurrent
from tests.spatial.verification.test_verify_lines import refused
from tests.tiny_models import make_model, node, random
from tests.values import replace

LATE_WORK = import_module("raptor.spatial.refinement.late_work")
CHIP: dict[str, Any] = {"xbar": 16, "xbars_per_core": 1, "cores": 60}
TILES: dict[str, Any] = {"xbar": (3, 12), "xbars_per_core": 1, "cores": 100, "cell_bits": 8}
LAYERS = 24


@pytest.fixture(scope="module", autouse=True)
def without_shared_relays() -> Iterator[None]:
    """No value passes through cores with other work, and no block of work moves, as where that does not pay."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LATE_WORK, "_move_late_work", lambda *_: ())
        patched.setattr(LATE_WORK, "choose_shared_relays", lambda *_: ())
        yield


def deep(skip: str = "t0"):
    """Dense layers, one behind another; the last result is added to an early one."""
    names = ["x", *(f"t{i}" for i in range(LAYERS))]
    nodes = [
        made
        for i in range(LAYERS)
        for made in (
            node("MatMul", f"{names[i]} w{i}", f"m{i}", name=f"dense{i}"),
            node("Tanh", f"m{i}", f"t{i}", name=f"tanh{i}"),
        )
    ]
    weights = {f"w{i}": random(16, 16, seed=i) * 0.3 for i in range(LAYERS)}
    return make_model([*nodes, node("Add", f"{names[-1]} {skip}", "y", name="skip")], {"x": (1, 16)}, ["y"], weights)


def both_ways(op_type: str = "GRU", steps: int = 24):
    return recurrent(op_type, sizes=(steps, 1, 8, 8), outputs="y -", direction="bidirectional")


def behind(model: ModelProto, steps: int, batch: int, width: int) -> None:
    """Adds a dense layer that reads both states of a step, `width` numbers, from output `y` of a layer."""
    graph = model.graph
    nodes = [
        node("Transpose", "y", "turned", name="turn", perm=[0, 2, 1, 3]),
        node("Reshape", "turned shape", "states", name="join"),
        node("MatMul", "states weights", "z", name="dense"),
    ]
    graph.node.extend(nodes)
    constants = {"shape": np.array([steps, batch, width]), "weights": random(width, 8, seed=9)}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [steps, batch, 8]))


def relays(partition: Partition) -> list[tuple[int, Copy[Any]]]:
    """Returns the copies to relays, and from there to the readers, with their cores."""
    pairs = zip(partition.cores, partition.graph.computes, strict=True)
    return [(core, op) for core, c in pairs for op in c.body if isinstance(op, Copy) and ".kept" in op.result.name]


def relayed(partition: Partition, arch: Target) -> Partition:
    near, chosen = choose_relays(partition, arch)
    return relay_values(move_computes(partition, near), chosen)


def interval_ns(program: raptor.Program) -> float:
    found = program.simulate(mode="throughput", samples=8).interval_ns
    assert found is not None
    return found


def far_below(program: raptor.Program, share: float) -> bool:
    """Tells whether the interval is less than so much of the latency."""
    latency_ns = program.simulate().latency_ns
    assert latency_ns is not None
    return interval_ns(program) < share * latency_ns


@pytest.fixture(scope="module")
def skipped() -> Passes:
    return passes(deep(), **CHIP, mapping="rows")


def test_a_skip_connection_over_many_layers_passes_from_core_to_core(skipped: Passes):
    ops = relays(skipped.partition)
    hops = [op for _, op in ops[:-1]]
    assert len(hops) > 4
    assert all(a.result == b.source for a, b in pairwise(hops))
    assert ops[-1][1].source == hops[-1].result
    of_layers = {
        c for c, x in zip(skipped.partition.cores, skipped.partition.graph.computes, strict=True) if x.matrices
    }
    assert of_layers.isdisjoint(core for core, _ in ops[:-1])
    assert len({core for core, _ in ops[:-1]}) == len(hops)


def test_samples_follow_sooner_with_idle_cores():
    check(deep(), **CHIP)
    chips: tuple[dict[str, Any], ...] = (CHIP | {"cores": LAYERS}, CHIP)
    alone, relayed = (interval_ns(raptor.compile(deep(), **chip)) for chip in chips)
    assert relayed < 0.5 * alone


@pytest.mark.parametrize("skip", [f"t{LAYERS - 2}", f"t{LAYERS - 4}"])
def test_a_short_skip_connection_is_left_alone(skip: str):
    assert not relays(passes(deep(skip), **CHIP, mapping="rows").partition)


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_a_layer_that_is_recurrent_in_both_directions(op_type: str):
    """The interval is far shorter than the time of a sample, which one core of each direction would be occupied for."""
    chip: dict[str, Any] = {"xbar": 16, "xbars_per_core": 12, "cores": 100}
    check(both_ways(op_type), **chip)
    assert far_below(raptor.compile(both_ways(op_type), **chip), 0.3)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))])
def test_random_layers_on_random_chips(seed: int):
    rng = Random(seed)
    op_type = rng.choice(["RNN", "GRU", "LSTM"])
    steps, batch, inputs, hidden = rng.randint(8, 24), rng.randint(1, 2), rng.randint(1, 20), rng.randint(1, 20)
    model = recurrent(
        op_type,
        extra=rng.choice(["", "B", "Bh", "h"]),
        outputs=rng.choice(["y h_n", "y -"]) + (" c_n" if op_type == "LSTM" else ""),
        sizes=(steps, batch, inputs, hidden),
        direction="bidirectional",
    )
    behind(model, steps, batch, 2 * hidden)
    size, arrays = rng.choice([8, 16, 32]), rng.randint(8, 24)
    check(model, xbar=size, xbars_per_core=arrays, cores=rng.randint(40, 200), bits=8, cell_bits=rng.choice([4, 8]))


def by_tiles() -> ModelProto:
    """A layer in both directions, and a grouped transposed convolution, whose products read all of its results."""
    model = recurrent("RNN", sizes=(10, 1, 5, 1), outputs="y -", direction="bidirectional")
    options: dict[str, Any] = {"group": 2, "kernel_shape": [3, 2], "strides": [1, 2]}
    model.graph.node.append(node("ConvTranspose", "y kernel", "z", name="up", **options))
    model.graph.initializer.append(numpy_helper.from_array(random(2, 3, 3, 2, seed=7), "kernel"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [10, 6, 3, 2]))
    return model


def of_one_kernel_position() -> ModelProto:
    """A convolution on a chip where cores multiply kernel positions of whole images, and pass sums on."""
    return conv_model((1, 5, 4, 4), 4, pads=(1, 1, 1, 1), bias=True, relu=True)


@pytest.mark.parametrize(("model", "chip"), [(by_tiles, TILES), (of_one_kernel_position, THESIS_CHIP)])
def test_products_and_sums_of_what_was_relayed(model: Callable[[], ModelProto], chip: dict[str, Any]):
    check(model(), **chip)


@pytest.mark.parametrize(
    ("model", "chip", "reader", "fault"),
    [
        (by_tiles, TILES, ApplyFilters, "from channel 0 on is not"),
        (of_one_kernel_position, THESIS_CHIP, ApplyFilters, "from channel 0 on is not"),
        (of_one_kernel_position, THESIS_CHIP, Vector, "which is no sum of products"),
    ],
)
def test_a_wrong_value_from_a_relay_is_no_operand(
    model: Callable[[], ModelProto], chip: dict[str, Any], reader: type[BodyOp], fault: str
):
    """The last copy, to the core that reads it, leaves out an element, swaps the halves, or comes twice."""
    graph = passes(model(), **chip, mapping="rows").spatial
    computes = list(graph.computes)
    read = {tile.name for c in computes for op in c.body if isinstance(op, reader) for tile in op.reads}
    last = [(i, op) for i, c in enumerate(computes) for op in c.body if isinstance(op, Copy) and op.result.name in read]
    i, op = next((i, op) for i, op in last if ".kept" in op.source.name)
    half = op.elements // 2
    swapped = replace(op, elements=half, at=half), replace(op, elements=half, first=op.first + half)
    for wrong in ((replace(op, elements=op.elements - 1),), swapped, (op, op)):
        computes[i] = replace(computes[i], body=wrong)
        refused(replace(graph, computes=tuple(computes)), fault)


def test_copies():
    """A tile is the copy of another one if one copy after another holds all of its elements, in order."""
    whole, part, other = (Tile(name, 1, 4, 2) for name in ("whole", "part", "other"))
    beside = Tile("beside", 1, 8, 2)
    first, second, third = Copy(beside, whole, 0, 8, 8), Copy(part, beside, 8, 0, 8), Copy(other, beside, 0, 0, 8)
    copies = CopySources({op.result.name: [(at, op)] for at, op in enumerate((first, second, third))})
    assert copies.source(whole, {whole}, 3) == whole
    assert copies.source(part, {whole}, 3) == whole
    assert copies.source(part, {whole}, 1) is None, "it is read before it is there"
    assert copies.source(part, {other}, 3) is None
    assert copies.source(other, {whole}, 3) is None, "nothing fills what it takes"
    wide, end, middle = Tile("wide", 1, 8, 2), Tile("end", 1, 4, 2), Tile("middle", 1, 6, 2)
    steps = [Copy(end, wide, 8, 0, 8), Copy(middle, beside, 4, 0, 12), Copy(part, middle, 4, 0, 8)]
    cut = CopySources(
        {"beside": copies.filling["beside"], **{op.result.name: [(at, op)] for at, op in enumerate(steps, 1)}}
    )
    assert cut.source(end, {wide}, 9) is None, "it is half of the other one"
    assert cut.source(part, {whole}, 9) == whole
    late = CopySources({"beside": [(2, first)], "part": [(1, second)]})
    assert late.source(part, {whole}, 3) is None, "the copy takes it before it is there"


def test_one_behind_another():
    """The second layer lays out its input where one of its directions reads it first."""
    first, second = (recurrent("GRU", sizes=(12, 1, n, 8), outputs="y -", direction="bidirectional") for n in (8, 16))
    weights = {
        f"{t.name}{i}": random(*t.dims, seed=i) for i, m in enumerate((first, second)) for t in m.graph.initializer
    }
    weights["shape"] = np.array([12, 1, 16])
    nodes = [
        node("GRU", "x W0 R0", "y0", name="first", hidden_size=8, direction="bidirectional"),
        node("Transpose", "y0", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t shape", "c"),
        node("GRU", "c W1 R1", "y", name="second", hidden_size=8, direction="bidirectional"),
    ]
    model = make_model(nodes, {"x": (12, 1, 8)}, ["y"], weights)
    chip: dict[str, Any] = {"xbar": 16, "xbars_per_core": 12, "cores": 120}
    check(model, **chip)
    assert far_below(raptor.compile(model, **chip), 0.4)


@pytest.fixture(scope="module")
def far_back() -> Passes:
    """Without idle cores, hence relays. A `Tanh` that the second layer needs is done by the core that needs it last."""
    found = passes(deep(), **CHIP | {"cores": LAYERS}, mapping="rows")
    cores = list(found.partition.cores)
    cores[made_early(found.partition)] = cores[-1]
    return replace(found, partition=replace(found.partition, cores=tuple(cores)))


def made_early(partition: Partition) -> int:
    return next(i for i, c in enumerate(partition.graph.computes) if c.node == "tanh0")


def core_of(partition: Partition, node: str) -> int:
    """The core of all work of a node, besides relays."""
    pairs = zip(partition.cores, partition.graph.computes, strict=True)
    (core,) = {core for core, compute in pairs if compute.node == node and ".kept" not in compute.results[0].name}
    return core


def test_what_is_read_early_elsewhere_moves_there(far_back: Passes):
    before = far_back.partition
    times = AlapSchedule.from_partition(before, line_flow(far_back.decision).patience_ns, far_back.arch)
    after = move_computes(before, move_to_first_readers(before, times))
    tanh, cores = made_early(before), list(before.cores)
    cores[tanh] = core_of(before, "dense1")
    assert list(after.cores) == cores


def test_what_has_moved_is_relayed_from_there(far_back: Passes, skipped: Passes):
    """Work that did not wait for another core does so where it is now."""
    after = relayed(far_back.partition, skipped.arch)
    hops = relays(after)
    assert after.cores[made_early(after)] == core_of(after, "dense1")
    assert hops[0][1].source.name == "t0.0"
    assert hops[-1][0] == core_of(after, "skip")
    assert len(hops) > 4


STATES = np.arange(48).reshape(6, 8)
"""Numbers of the elements of all states of three steps in both directions, state by state."""


def of_states(elements: npt.NDArray[np.int64], shape: Sequence[int]) -> ModelProto:
    """A recurrent layer of which some elements of the states are the output `z`, in another order."""
    model = both_ways("RNN", steps=3)
    model.graph.node.extend([node("Reshape", "y flat", "r"), node("Gather", "r elements", "z", name="some", axis=0)])
    constants = {"flat": np.array([-1]), "elements": elements.reshape(shape)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, shape))
    return model


@pytest.mark.parametrize(
    ("elements", "shape", "stored"),
    [
        pytest.param(STATES[[5, 1, 2, 0, 4, 3]], [6, 8, 1], True, id="all"),
        pytest.param(STATES[[1, 0, 0, 5]], [4, 8, 1], True, id="one of them twice"),
        pytest.param(STATES[[5, 1, 2, 0, 4, 3]], [6, 8], False, id="beside one another"),
        pytest.param(STATES[[1, 0]][:, [0, 2, 1, 3, 4, 5, 6, 7]], [2, 8, 1], False, id="channels in another order"),
        pytest.param(STATES[[1, 0], :4], [2, 4, 1], False, id="the first half of them"),
        pytest.param(STATES[[1, 0], 4:], [2, 4, 1], False, id="the second half of them"),
        pytest.param(STATES.reshape(3, 16)[[1, 0]], [2, 16, 1], False, id="two as one"),
    ],
)
def test_an_output_of_some_states(elements: npt.NDArray[np.int64], shape: Sequence[int], stored: bool):
    """States are stored where they are only if each row of the output is one of them as it is."""
    model = of_states(elements, shape)
    chip: dict[str, Any] = {"xbar": 16, "xbars_per_core": 12, "cores": 100, "mapping": "rows"}
    check(model, **chip)
    assert stored == all(compute.node != "some" for compute in passes(model, **chip).spatial.computes)


def test_an_output_of_all_states_is_put_together_if_its_form_differs():
    check(of_states(STATES, [6, 8]), xbar=16, xbars_per_core=12, cores=100)


def test_an_output_of_the_first_pixel():
    """It is one pixel, but what it is a part of has more."""
    nodes = [node("Conv", "x w", "c", name="conv"), node("Slice", "c start end axes", "y", name="corner")]
    constants = {"w": random(8, 4, 1, 1), "start": np.array([0, 0]), "end": np.array([1, 1]), "axes": np.array([2, 3])}
    check(make_model(nodes, {"x": (1, 4, 3, 3)}, ["y"], constants), **CHIP, mapping="rows")


def test_an_order_of_a_late_sample_is_found_for_relays():
    found = passes(both_ways("LSTM"), xbar=16, xbars_per_core=12, cores=140, mapping="rows")
    assert line_flow(found.decision).sample > 1


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(("direction", "waits"), [("forward", False), ("reverse", False), ("bidirectional", True)])
def test_cores_are_left_for_relays(monkeypatch: pytest.MonkeyPatch, op_type: str, direction: str, waits: bool):
    """A pixel of the input is needed early by one direction and late by the other; in one direction nothing waits."""
    found: list[bool] = []

    def noted(*args: Any) -> Any:
        left = find_relay_steps(*args)
        found.append(left is not None)
        return left

    monkeypatch.setattr("raptor.mapping.allocation.whole_layers.find_relay_steps", noted)
    model = recurrent(
        op_type, sizes=(24, 1, 8, 8), outputs="y - -" if op_type == "LSTM" else "y -", direction=direction
    )
    raptor.compile(model, xbar=16, xbars_per_core=12, cores=100)
    assert set(found) == {waits}


def test_nothing_is_relayed_without_idle_cores():
    found = passes(deep(), **CHIP | {"cores": LAYERS + 2}, mapping="rows")
    assert not relays(found.partition)


def test_chains(skipped: Passes):
    """The layers are a chain, on a core each; the core of the skip connection has both ends of it without relays."""
    plain = passes(deep(), **CHIP | {"cores": LAYERS}, mapping="rows").partition
    assert has_distant_chains(plain, 2)
    assert not has_distant_chains(plain, LAYERS)


def test_the_latest_times_keep_the_end_and_the_order(skipped: Passes):
    times = AlapSchedule.from_partition(skipped.partition, line_flow(skipped.decision).patience_ns, skipped.arch)
    assert all(each.made_ns <= each.read_ns for each in times.waiting_tiles())
    first, users = times.work.first_user, times.work.users
    for i in range(len(times.at_ns)):
        assert all(times.end_ns[i] <= times.at_ns[j] + 1e-6 for j in users[first[i] : first[i + 1]])


def test_a_wrong_value_from_a_relay_is_refused():
    """The verifier follows each element through the relays."""
    found = passes(both_ways("RNN"), xbar=16, xbars_per_core=12, cores=100, mapping="rows")
    graph = found.spatial
    computes = list(graph.computes)
    i, op = next(
        (i, op)
        for i, compute in enumerate(computes)
        for op in compute.body
        if isinstance(op, Copy) and ".kept" in op.source.name and op.source.elements > op.elements
    )
    wrong = replace(op, first=op.elements if op.first == 0 else 0)
    computes[i] = replace(computes[i], body=(wrong, *computes[i].body[1:]))
    refused(replace(graph, computes=tuple(computes)), "multiplies|belongs elsewhere")
