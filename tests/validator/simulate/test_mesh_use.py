"""Account of the links of the mesh: by hand, against a walk link by link, and beside everything else unchanged."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.validator.simulate import generator
from tests.validator.simulate.programs import SETBW, load, mvmul, recv, send, write
from validator.simulate import builtin
from validator.simulate.analysis import mesh_use
from validator.simulate.cycle.cycle_model import CycleModel

EAST, WEST, SOUTH, NORTH, CORE = range(5)


def test_a_message_by_hand(tmp_path: Path):
    """256 bytes are 8 flits of 32, after a request of one; the permission of one flit comes back."""
    streams = [[SETBW, send(3, 256)], [SETBW], [SETBW], [SETBW, recv(0, 256)]]
    machine = load(write(tmp_path / "out", *streams))
    router, memory = mesh_use.count_link_flits(machine, machine.chip.target, np.ones(4))
    assert router[:4, EAST].tolist() == [9, 9, 9, 0]
    assert router[:4, WEST].tolist() == [0, 1, 1, 1]
    assert router[:4, CORE].tolist() == [1, 0, 0, 9]
    assert not router[:, [SOUTH, NORTH]].any()
    assert not memory.any()


def test_answers_of_global_memory_take_links(tmp_path: Path):
    load_of = {"op": "ld", "rd": 1, "rs1": 2, "size": 100}
    store = {"op": "st", "rd": 2, "rs1": 1, "size": 64}
    machine = load(write(tmp_path / "out", [SETBW], [SETBW, load_of, store]))
    router, memory = mesh_use.count_link_flits(machine, machine.chip.target, np.ones(2))
    assert memory.tolist() == [3, 4]  # a request and two flits of data, then an answer of four
    assert router[1, WEST] == 3
    assert (router[0, EAST], router[1, CORE]) == (4, 4)


def walk(machine: CycleModel) -> Counter[tuple[int, int]]:
    """Counts the flits of each link by a walk from router to router, one message at a time."""
    cols, flit = machine.chip.target.mesh_cols, machine.chip.target.network.flit_bytes
    links: Counter[tuple[int, int]] = Counter()

    def pass_links(at: int, to: int, flits: int) -> None:
        while at != to:
            step = (at % cols < to % cols) - (at % cols > to % cols)
            after = at + step if step else at + (cols if at < to else -cols)
            links[at, after] += flits
            at = after

    for i, core in enumerate(machine.cores.tolist()):
        for pc in range(machine.first[i], machine.first[i + 1]):
            name = machine.instruction_text(pc).split()[0]
            partner, size = int(machine.words[pc, 1]), -(-int(machine.words[pc, 4]) // flit)
            if name in ("send", "recv", "sync"):
                pass_links(core, partner, 1 + size if name == "send" else 1)
            elif name == "ld":
                pass_links(core, 0, 1)
                pass_links(0, core, size)
            elif name == "st":
                pass_links(core, 0, size)
    return links


@pytest.mark.parametrize("seed", range(12))
def test_links_of_random_programs(seed: int, tmp_path: Path):
    generator.write(generator.random_case(seed), tmp_path)
    machine = load(tmp_path)
    target = machine.chip.target
    router, _ = mesh_use.count_link_flits(machine, target, np.ones(machine.core_count))
    ways = {EAST: 1, WEST: -1, SOUTH: target.mesh_cols, NORTH: -target.mesh_cols}
    found = {(at, at + step): router[at, way] for way, step in ways.items() for at in np.flatnonzero(router[:, way])}
    assert found == dict(+walk(machine))


def test_a_crowded_link_is_a_warning(tmp_path: Path):
    # With fast memories little else than messages takes time: 129 flits of 2 ns over each link for 4096 bytes.
    fast = {"data_width": 4096, "read_latency_cycle": 1, "write_latency_cycle": 1}
    streams = [[SETBW, *[send(1, 4096)] * 20], [SETBW, *[recv(0, 4096)] * 20]]
    crowded = builtin.simulate(write(tmp_path / "crowded", *streams, local_memory_config=fast))
    assert crowded.mesh_links is not None
    assert crowded.mesh_links.hottest[0].share > mesh_use.CROWDED_SHARE
    assert any("the link of core 0 east is used" in warning for warning in crowded.warnings)
    calm = builtin.simulate(write(tmp_path / "calm", [SETBW, *[mvmul()] * 20, send(1, 32)], [SETBW, recv(0, 32)]))
    assert calm.mesh_links is not None
    assert not any("link" in warning for warning in calm.warnings)
    assert calm.mesh_links.flit_ns == 2
