"""Cores that talk sit close; what a message takes is what the simulator says."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
from raptor.spatial import Partition, PlacedGraph
from raptor.spatial.mesh_placement import MOST_SWEEPS, find_placement, list_messages
from raptor.target import arch as architectures
from raptor.target import isa
from raptor.target.arch import FlitCostTable, Target, make_mesh_table
from raptor.target.avoid_defects import avoid_defects
from raptor.target.chip_file import ChipFile, make_chip
from raptor.target.timing import message_times
from raptor.tools.repair.chip_writer import make_size
from tests.mesh_walks import walk
from tests.pipeline import chip, conv_model, passes
from tests.values import replace

Ints = npt.NDArray[np.int64]


def way_ns(messages: Ints, places: Ints, arch: Target) -> int:
    """Returns the time of all flits, by the table that the simulator reads."""
    table = make_mesh_table(arch)["latency"]
    return sum(flits * table[str(places[a])][str(places[b])] for a, b, flits in messages.tolist())


@given(st.integers(2, 9), st.data())
def test_no_swap_of_two_cores_is_shorter(cores: int, data: st.DataObject):
    core = st.integers(0, cores - 1)
    message = st.tuples(core, core, st.integers(1, 50)).filter(lambda m: m[0] != m[1])
    messages = np.array(data.draw(st.lists(message, min_size=1, max_size=20)), np.int64)
    arch = chip(cores=cores)
    places = find_placement(messages, arch)
    assert sorted(places.tolist()) == list(range(cores))
    found = way_ns(messages, places, arch)
    assert found <= way_ns(messages, np.arange(cores), arch)
    for i, j in combinations(range(cores), 2):
        swapped = places.copy()
        swapped[[i, j]] = places[[j, i]]
        assert way_ns(messages, swapped, arch) >= found


@pytest.mark.parametrize("seed", range(12))
def test_swaps_leave_dead_links_unused(seed: int):
    """No message crosses a dead link, and no swap of two cores that keeps it so is shorter."""
    rng = np.random.default_rng(seed)
    size = make_size(arch := chip(cores=16), 1)
    links = tuple(sorted(size.list_links()[k] for k in rng.choice(24, 2, replace=False)))
    file = ChipFile(version=1, name="die", source="a test", size=size, dead_links=links)
    arch = avoid_defects(arch, make_chip(file), "here")
    pairs = rng.choice(12, (14, 2))
    messages = np.concatenate([pairs, rng.integers(1, 50, (14, 1))], axis=1)[pairs[:, 0] != pairs[:, 1]]

    def is_clear(places: Ints) -> bool:
        ways = [(int(places[a]), int(places[b])) for a, b, _ in messages.tolist()]
        return not any((walk(a, b, 4) | walk(b, a, 4)) & set(links) for a, b in ways)

    places = find_placement(messages, arch)
    assert sorted(places.tolist()) == list(range(16))
    assert is_clear(places)
    found = way_ns(messages, places, arch)
    for i, j in combinations(range(16), 2):
        swapped = places.copy()
        swapped[[i, j]] = places[[j, i]]
        assert way_ns(messages, swapped, arch) >= found or not is_clear(swapped)


def _swapped_peer_by_peer(messages: Ints, distance: npt.NDArray[np.float64], sweeps: int) -> list[int]:
    """The rule of the swaps as it is defined: every gain from all messages, in order of the peers."""
    peers: list[Counter[int]] = [Counter() for _ in distance]
    for a, b, flits in messages.tolist():
        peers[a][b] += flits
        peers[b][a] += flits
    places = list(range(len(distance)))

    def gain(i: int, j: int) -> float:
        here, there, total = places[i], places[j], 0.0
        for peer, flits in sorted(peers[i].items()):
            if peer != j:
                total += flits * (distance[here, places[peer]] - distance[there, places[peer]])
        return total

    for _ in range(sweeps):
        before = list(places)
        for i in (i for i in range(len(places)) if peers[i]):
            gains = [gain(i, j) + gain(j, i) for j in range(len(places))]
            best = int(np.argmax(gains))  # the first of equal ones
            if gains[best] > 0:
                places[i], places[best] = places[best], places[i]
        if places == before:
            break
    return places


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("network", ["mesh", "whole", "fractions", "ties"])
def test_the_swaps_are_those_of_all_gains_computed_anew(network: str, seed: int):
    """The latencies include fractions, whose sums depend on their order, and few values, where many gains are equal."""
    rng = np.random.default_rng([seed, len(network)])
    cores = int(rng.integers(3, 40))
    messages = rng.integers(0, cores, (4 * cores, 3))
    messages[:, 2] += rng.integers(1, 500)
    messages = messages[messages[:, 0] != messages[:, 1]]
    arch = chip(cores=cores)
    if network == "mesh":
        rows, cols = np.divmod(np.arange(cores), arch.mesh_cols)
        distance = abs(rows - rows[:, None]) + abs(cols - cols[:, None]) * 1.0
    else:
        ways = {
            "whole": lambda n: rng.integers(1, 90, n) * 1.0,
            "fractions": lambda n: rng.random(n) * 90,
            "ties": lambda n: np.round(rng.integers(1, 4, n) * 0.1, 1),
        }[network]((cores + 1, cores + 1))
        np.fill_diagonal(ways, 0)
        table = FlitCostTable(Path("network.json"), b"", ways, ways)
        arch = replace(arch, network=replace(arch.network, table=table))
        distance = (ways + ways.T)[:-1, :-1]
    assert find_placement(messages, arch).tolist() == _swapped_peer_by_peer(messages, distance, MOST_SWEEPS)


def test_the_cores_of_a_model_move_together():
    model = models.build("squeezenet", seed=0, width=0.25, image_size=64)
    result = passes(model, mapping="rows")
    before, after = result.partition, result.on_chip
    moved = set(zip(before.cores, after.cores, strict=True))
    assert len({b for _, b in moved}) == len({a for a, _ in moved}) == len(moved)
    assert _way(after, result.arch) < 0.8 * _way(before, result.arch)


def _way(placed: Partition | PlacedGraph, arch: Target) -> int:
    return way_ns(list_messages(placed, arch), np.arange(arch.core_count), arch)


def test_the_messages_counted_are_those_sent():
    model = models.build("googlenet", seed=0, width=0.125, image_size=64)
    result = passes(model, mapping="rows")
    wanted: Counter[tuple[int, int]] = Counter()
    for core, stream in result.streams.cores.items():
        for record in stream.records[stream.records["opcode"] == isa.OPCODE["send"]]:
            wanted[core, int(record["a"])] += -(-int(record["d"]) // 32)  # bytes of a flit
    found: Counter[tuple[int, int]] = Counter()
    for source, to, flits in list_messages(result.on_chip, result.arch).tolist():
        found[source, to] += flits
    assert found == wanted


def test_other_mappings_stay_where_they_are():
    result = passes(conv_model((1, 8, 4, 4), 4), xbar=4, xbars_per_core=4, cores=9)
    assert result.on_chip.cores == result.partition.cores


@pytest.mark.parametrize(("to", "size", "start", "sent", "received"), [(1, 64, 4, 33, 71), (3, 256, 4, 101, 285)])
def test_a_message_takes_what_the_simulator_says(to: int, size: int, start: int, sent: int, received: int):
    """Cases of docs/developers/target.md, 4.5, in which both ends begin at the same time; it ends a cycle after its
    last phase."""
    ends = (np.array([n]) for n in (0, to, size))
    times = message_times(architectures.load("bench"), *ends)
    granted = start + 2 * times.request_ns
    assert granted + times.sender_ns + 1 == sent
    assert granted + times.receiver_ns + 1 == received
