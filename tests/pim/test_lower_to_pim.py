"""SpatialIR to PimIR: which core does what, and what goes between them."""

from collections.abc import Iterator

from raptor.pim.ir import CoreProgram, PimProgram
from raptor.pim.operations import Load, Receive, Repeat, Send, Store
from raptor.spatial.operations import Gather
from tests.pipeline import THESIS_CHIP, passes, thesis_model
from tests.tiny_models import make_model, node, random

ONE_CORE = {"xbar": 4, "xbars_per_core": 16, "cores": 1}


def operations(core: CoreProgram, *kinds: type) -> list[object]:
    return [s.operation for s in core.steps if isinstance(s.operation, kinds)]


def transfers(program: PimProgram) -> Iterator[tuple[int, int, int]]:
    """(channel, sender, receiver)."""
    for core in program.cores.values():
        yield from ((op.channel, core.core, op.core) for op in operations(core, Send))


def test_every_channel_goes_one_way_between_two_cores():
    program = passes(thesis_model(4, 8), **THESIS_CHIP).placed
    # Listing 4.1: compute i+1 adds to what compute i sends; 5, 7 and 9 also take a partial sum of the first input tile.
    assert sorted((a, b) for _, a, b in transfers(program)) == sorted(
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 5), (5, 6), (6, 7), (3, 7), (7, 8), (5, 9), (9, 10)]
    )
    received = {op.channel for core in program.cores.values() for op in operations(core, Receive)}
    assert received == set(range(program.channel_count)) == {channel for channel, _, _ in transfers(program)}


def test_cores_meet_their_channels_in_the_global_order():
    program = passes(thesis_model(8, 4), **THESIS_CHIP).placed
    for core in program.cores.values():
        channels = [op.channel for op in operations(core, Send, Receive)]
        assert channels == sorted(channels)


def test_a_tile_is_loaded_once_a_core():
    program = passes(thesis_model(4, 4), xbar=4, xbars_per_core=16, cores=1).placed
    assert len(operations(program.cores[0], Load)) == 1


def test_a_tile_is_received_once_a_core():
    """A second core has two layers that read one tensor."""
    nodes = [node("Conv", "x u", "c", name="1"), node("Conv", "c v", "d", name="2"), node("Conv", "c w", "e", name="3")]
    constants = {"u": random(4, 4, 1, 1), "v": random(4, 4, 1, 1, seed=1), "w": random(4, 4, 1, 1, seed=2)}
    model = make_model([*nodes, node("Add", "d e", "y")], {"x": (1, 4, 2, 2)}, ["y"], constants)
    program = passes(model, xbar=4, xbars_per_core=2, cores=2).placed
    # Core 0 holds two layers, core 1 the third: c goes over, and one of d and e to where the sum is.
    assert len(list(transfers(program))) == 2


def test_a_core_without_matrices_does_nothing_unless_needed():
    program = passes(make_model([node("Relu", "x")], {"x": (1, 4, 2, 2)}, ["y"]), xbar=4, cores=9).program
    assert list(program.cores) == [0]


def test_outputs_are_stored_where_they_are_made():
    program = passes(thesis_model(4, 8), **THESIS_CHIP).placed
    stores = {i: operations(core, Store) for i, core in program.cores.items()}
    assert {i: len(found) for i, found in stores.items() if found} == {7: 1, 8: 1, 10: 1}


def test_a_constant_of_one_pixel_is_repeated_to_a_row():
    model = make_model([node("Add", "x c")], {"x": (1, 4, 3, 5)}, ["y"], {"c": random(4, 1, 1)})
    program = passes(model, **ONE_CORE).placed
    (repeat,) = operations(program.cores[0], Repeat)
    assert (repeat.source.elements, repeat.result.elements) == (4, 20)


SCALED = make_model(
    [node("GlobalAveragePool", "x", "m"), node("Mul", "x m", "y", name="scale")], {"x": (1, 8, 6, 5)}, ["y"]
)
"""Each line of an image is multiplied by the same mean of each channel."""


def test_a_computed_operand_is_repeated_once_on_a_core():
    program = passes(SCALED, **ONE_CORE, mapping="rows").placed
    found = operations(program.cores[0], Repeat)
    assert [(each.source.elements, each.result.elements) for each in found] == [(4, 20), (4, 20)]


def test_equal_constants_are_loaded_once():
    nodes = [node("Add", "x c", "t", name="1"), node("Mul", "t d", "y", name="2")]
    constant = random(1, 4, 3, 5)
    model = make_model(nodes, {"x": (1, 4, 3, 5)}, ["y"], {"c": constant, "d": constant})
    compiled = passes(model, **ONE_CORE)
    assert compiled.memory.constant_values.tolist() == constant[0].transpose(1, 2, 0).ravel().tolist()
    assert len(operations(compiled.placed.cores[0], Load)) == 2


def test_global_memory_holds_inputs_constants_and_outputs_side_by_side():
    nodes = [node("Add", "x c", "t"), node("Add", "t z", "y", name="2")]
    model = make_model(nodes, {"x": (1, 6, 1, 3), "z": (1, 6, 1, 3)}, ["t", "y"], {"c": random(1, 6, 1, 3)})
    memory = passes(model, **ONE_CORE).memory
    # Tiles of four and two channels, three pixels.
    assert memory.inputs == {"x": (0, 12), "z": (18, 30)}
    assert memory.constants_address == 36
    assert memory.outputs == {"t": (54, 66), "y": (72, 84)}
    assert memory.size_bytes == 90


def test_a_gather_names_the_channels_it_takes():
    model = make_model([node("Concat", "a b", axis=1)], {"a": (1, 3, 2, 2), "b": (1, 1, 2, 2)}, ["y"])
    (gather,) = operations(passes(model, **ONE_CORE).placed.cores[0], Gather)
    pieces = [(p.value.name, p.source, p.value.channels, p.target, p.channels) for p in gather.pieces]
    assert pieces == [("a.0", 0, 3, 0, 3), ("b.0", 0, 1, 3, 1)]
