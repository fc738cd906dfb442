"""Late work leaves the core of its early operand if a sample would else occupy that for long, and stays right."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import raptor
from benchmarks.programs.slow_models import build_model
from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, compare_times
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement import late_work
from raptor.spatial.refinement.late_work import choose_moves_and_relays
from raptor.spatial.refinement.move_computes import check_moves, move_computes
from raptor.spatial.refinement.value_relays import relay_values
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, partition_work
from raptor.target.arch import Target
from tests.pipeline import passes

CHIP: dict[str, Any] = {"arch": "bench", "cores": 64, "mapping": "rows"}


@cache
def lowered(name: str) -> tuple[Partition, Target]:
    """Returns a model as it is lowered, and the chip."""
    done = passes(build_model(name), **CHIP)
    return lower_graph(done.chosen, done.decision, done.arch), done.arch


def compared_ns(partition: Partition, arch: Target) -> tuple[float, float]:
    return compare_times(partition_work(partition, arch), chip_patience_ns(arch), BALANCED_OBJECTIVE.patiences)


def test_norms_of_skips_occupy_no_core_from_the_skip_on():
    before, arch = lowered("skipped_norms")
    near, relays = choose_moves_and_relays(before, arch)
    check_moves("near", near, before, arch)
    after = relay_values(move_computes(before, near), relays)
    (latency_ns, interval_ns), (later_ns, shorter_ns) = (compared_ns(each, arch) for each in (before, after))
    assert shorter_ns < 0.6 * interval_ns
    assert later_ns < 1.15 * latency_ns


def test_steps_of_a_decoder_occupy_cores_of_their_own():
    """Keys and state were made before the first step; their cores were occupied until the last one."""
    before, arch = lowered("attending_decoder")
    near, relays = choose_moves_and_relays(before, arch)
    after = relay_values(move_computes(before, near), relays)
    (latency_ns, interval_ns), (later_ns, shorter_ns) = (compared_ns(each, arch) for each in (before, after))
    assert shorter_ns < 0.6 * interval_ns
    assert later_ns < 1.15 * latency_ns


@pytest.mark.parametrize(
    ("limit_ns", "blocks"),
    [(4, [(0, 2), (2, 5), (5, 6)]), (10, [(0, 2), (2, 5), (5, 6)]), (14, [(0, 5), (5, 6)]), (0.5, None), (40, None)],
)
def test_blocks_end_at_the_last_long_wait(limit_ns: float, blocks: list[tuple[int, int]] | None):
    at_ns = np.array([0.0, 1, 10, 11.5, 13, 30])
    found = [*late_work.cut_blocks(at_ns, at_ns + 1, limit_ns)]
    assert found == (blocks or ([(i, i + 1) for i in range(6)] if limit_ns < 1 else [(0, 6)]))


@pytest.mark.parametrize("limit_ns", [2000, 8000, 20000])
def test_computes_with_matrices_stay(limit_ns: float):
    """Every core keeps a block, also if all of its computes could leave."""
    before, arch = lowered("attending_decoder")
    times = AlapSchedule.from_partition(before, chip_patience_ns(arch), arch)
    moved = {int(i) for block in late_work.moving_blocks(before, times, limit_ns) for i in block}
    assert moved
    assert not any(before.graph.computes[i].matrices for i in moved)
    assert {core for i, core in enumerate(before.cores) if i not in moved} == {*before.cores}


@pytest.mark.parametrize("name", ["skipped_norms", "attending_decoder"])
def test_a_program_with_moved_late_work_is_right(name: str):
    model = build_model(name)
    refinement = passes(model, **CHIP).decision.refinement
    assert refinement is not None
    assert refinement.near
    assert raptor.compile(model, **CHIP).validate(samples=3).verdict == "pass"
