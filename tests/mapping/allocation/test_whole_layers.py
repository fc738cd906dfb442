"""Layers that do not stream: which of them share cores."""

from collections import defaultdict
from pathlib import Path

import pytest

import raptor
from raptor.graph.ir import Graph
from raptor.mapping.allocation.whole_layers import fold_neighbourhoods, number_neighbourhoods
from raptor.mapping.decision import record_cores
from raptor.mapping.knobs import TuningKnobs
from raptor.target import arch as architectures
from tests.mapping.allocation.test_phase_sharing import prepared, squeezing
from tests.pipeline import by_line, map_by_rows
from validator.load.output_directory import load_output
from validator.validate import validate

BLOCKS = 6


def apart(graph: Graph) -> dict[str, int]:
    """The neighbourhoods of the layers that compute the weights of channels: one in each block."""
    streamed = {key for key in number_neighbourhoods(graph, ()) if not key.startswith("squeeze")}
    return number_neighbourhoods(graph, streamed)


@pytest.mark.parametrize(("stages", "distance"), [(1, 6), (2, 3), (3, 2), (4, 2), (6, 1), (9, 1)])
def test_neighbourhoods_that_share_cores_are_far_apart(stages: int, distance: int):
    layers = apart(prepared(squeezing(BLOCKS)))
    assert len({*layers.values()}) == BLOCKS
    shared = defaultdict[int, list[int]](list)
    for place, (key, number) in enumerate(fold_neighbourhoods(prepared(squeezing(BLOCKS)), layers, stages).items()):
        shared[number].append([*layers].index(key))
        assert number == [*shared][-1], f"{key} at {place} does not follow the layers of its number"
    assert [*shared.values()] == [[*range(first, BLOCKS, distance)] for first in range(distance)]


def test_with_stages_a_core_weighs_the_channels_of_several_blocks():
    """Without stages, no core has layers of two blocks, because it would wait for the block between."""
    graph, arch = prepared(squeezing(BLOCKS)), architectures.load(xbar=16, xbars_per_core=40, cores=24)
    counts: list[int] = []
    for stages in (1.0, 4.0):
        decision = map_by_rows(graph, arch, TuningKnobs(latency=0.0, stages=stages))
        whole = {key: layer for key, layer in decision.layers.items() if key not in by_line(decision)}
        counts.append(len({core for layer in whole.values() for core in record_cores(layer)}))
    assert counts == [BLOCKS, BLOCKS // 3]


def test_each_block_works_on_its_own_sample(tmp_path: Path):
    options = {"xbar": 16, "xbars_per_core": 40, "cores": 24, "knobs": {"latency": 0.0, "stages": 4.0}}
    programs = [raptor.compile(squeezing(BLOCKS), **options, overlap=most) for most in (1, 4)]
    apart_ns, staged_ns = (program.simulate(mode="throughput").interval_ns or 0.0 for program in programs)
    assert staged_ns < 0.5 * apart_ns
    programs[1].save(tmp_path / "out")
    delay = max(load_output(tmp_path / "out").delays.values())
    assert delay >= 1
    assert validate(tmp_path / "out", samples=delay + 4).verdict == "pass"
