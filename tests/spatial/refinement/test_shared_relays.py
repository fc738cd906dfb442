"""Values that wait long pass through cores with other work, and the program stays right."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import raptor
from benchmarks.programs.block_models import BlockBuilder
from benchmarks.programs.slow_models import gated_signal, skipped_signal
from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.refinement import RefinementError, Relay
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, compare_times
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement import shared_relays
from raptor.spatial.refinement.shared_relays import choose_shared_relays
from raptor.spatial.refinement.value_relays import check_relays, relay_values
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, partition_work
from raptor.target.arch import Target
from tests.pipeline import passes

CHIP: dict[str, Any] = {"arch": "bench", "cores": 64, "mapping": "rows"}
BUILT = {"skipped": (skipped_signal, 512), "gated": (gated_signal, 1024, 24)}


def pyramid(b: BlockBuilder, size: int, channels: int) -> str:
    """Image layers as in a detector: a wide one is read again behind twelve narrow ones, and each works for long."""
    skip = b.op("Relu", b.conv(b.input("x", 1, 3, size, size), 3, channels))
    x = b.conv(skip, channels, channels, stride=2, pads=[1, 1, 1, 1])
    for _ in range(12):
        x = b.conv(b.op("Relu", x), channels, channels)
    scales = b.floats([1, 1, 2, 2])
    x = b.op("Resize", b.op("Relu", x), "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    return b.op("Relu", b.conv(b.op("Concat", x, skip, axis=1), 2 * channels, channels))


def model_of(name: str) -> Any:
    builder, (build, *sizes) = BlockBuilder(), (BUILT | {"pyramid": (pyramid, 32, 16)})[name]
    return builder.finish(name, build(builder, *sizes))


def alap_times(partition: Partition, arch: Target) -> AlapSchedule:
    return AlapSchedule.from_partition(partition, chip_patience_ns(arch), arch)


@cache
def lowered(name: str) -> tuple[Partition, Target, tuple[Relay, ...]]:
    """Returns a model without relays, the chip, and the relays that are chosen."""
    done = passes(model_of(name), **CHIP)
    partition, arch = lower_graph(done.chosen, done.decision, done.arch), done.arch
    return partition, arch, choose_shared_relays(partition, alap_times(partition, arch), arch)


def longest_ns(partition: Partition, arch: Target) -> float:
    return alap_times(partition, arch).longest_occupancy_ns()


@pytest.mark.parametrize("name", BUILT)
def test_values_wait_on_cores_that_have_other_work(name: str):
    partition, arch, relays = lowered(name)
    check_relays(partition, relays, arch)
    assert {core for relay in relays for core in relay.cores} <= {*partition.cores}
    assert longest_ns(relay_values(partition, relays), arch) < 0.8 * longest_ns(partition, arch)


def compared_ns(partition: Partition, arch: Target) -> tuple[float, float]:
    return compare_times(partition_work(partition, arch), chip_patience_ns(arch), BALANCED_OBJECTIVE.patiences)


def test_layers_that_work_for_long_keep_nothing_for_longer():
    """No core could be occupied for less than the layers work, yet values that wait make the interval longer."""
    partition, arch, relays = lowered("pyramid")
    check_relays(partition, relays, arch)
    (before_ns, slow_ns), (after_ns, fast_ns) = (
        compared_ns(each, arch) for each in (partition, relay_values(partition, relays))
    )
    assert fast_ns < 0.8 * slow_ns
    assert after_ns < 1.03 * before_ns


def test_a_pyramid_with_relays_is_right():
    assert raptor.compile(model_of("pyramid"), **CHIP).validate(samples=3).verdict == "pass"


@pytest.mark.parametrize("name", BUILT)
def test_programs_with_shared_relays_are_right(name: str):
    refinement = passes(model_of(name), **CHIP).decision.refinement
    assert refinement is not None
    assert refinement.relays
    assert raptor.compile(model_of(name), **CHIP).validate(samples=3).verdict == "pass"


@pytest.mark.parametrize("name", [*BUILT, "pyramid"])
def test_no_core_is_on_the_way_twice_nor_makes_or_reads_what_passes(name: str):
    partition, _, relays = lowered(name)
    makers = {
        t.name: core for core, c in zip(partition.cores, partition.graph.computes, strict=True) for t in c.results
    }
    for relay in relays:
        ends = {makers[each.tile] for each in relay.tiles} | {partition.cores[each.reader] for each in relay.tiles}
        assert len({*relay.cores}) == len(relay.cores)
        assert ends.isdisjoint(relay.cores)


def test_a_model_with_little_to_gain_is_not_searched(monkeypatch: pytest.MonkeyPatch):
    partition, arch, relays = lowered("pyramid")
    assert relays
    monkeypatch.setattr(shared_relays, "WORTH_SEARCHING", 2.0)
    assert not choose_shared_relays(partition, alap_times(partition, arch), arch)


def test_a_small_local_memory_keeps_no_values_of_others():
    partition, arch, _ = lowered("skipped")
    memory = replace(arch.core.memory, size_bytes=64)
    small = replace(arch, core=replace(arch.core, memory=memory))
    assert not choose_shared_relays(partition, alap_times(partition, small), small)


def test_a_relay_to_the_wrong_reader_is_refused():
    partition, arch, relays = lowered("skipped")
    each = relays[0].tiles[0]
    wrong = replace(relays[0], tiles=(replace(each, reader=int(np.argmin(partition.positions))),))
    with pytest.raises(RefinementError, match="does not take"):
        check_relays(partition, (wrong,), arch)
