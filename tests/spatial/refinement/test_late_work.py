"""Late work leaves the core of its early operand if a sample would else occupy that for long, and stays right."""

from functools import cache
from typing import Any

import raptor
from benchmarks.programs.slow_models import build_model
from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, compare_times
from raptor.spatial.lowering.lower_graph import lower_graph
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.late_work import choose_moves_and_relays
from raptor.spatial.refinement.move_computes import check_moves, move_computes
from raptor.spatial.refinement.value_relays import relay_values
from raptor.spatial.scheduling.alap_schedule import partition_work
from raptor.target.arch import Target
from tests.pipeline import passes

CHIP: dict[str, Any] = {"arch": "bench", "cores": 64, "mapping": "rows"}


@cache
def lowered() -> tuple[Partition, Target]:
    """Returns a U-Net with norms of its skips as it is lowered, and the chip."""
    done = passes(build_model("skipped_norms"), **CHIP)
    return lower_graph(done.chosen, done.decision, done.arch), done.arch


def compared_ns(partition: Partition, arch: Target) -> tuple[float, float]:
    return compare_times(partition_work(partition, arch), chip_patience_ns(arch), BALANCED_OBJECTIVE.patiences)


def test_norms_of_skips_occupy_no_core_from_the_skip_on():
    before, arch = lowered()
    near, relays = choose_moves_and_relays(before, arch)
    check_moves("near", near, before, arch)
    after = relay_values(move_computes(before, near), relays)
    (latency_ns, interval_ns), (later_ns, shorter_ns) = (compared_ns(each, arch) for each in (before, after))
    assert shorter_ns < 0.6 * interval_ns
    assert later_ns < 1.15 * latency_ns


def test_late_work_of_a_core_stays_together():
    before, arch = lowered()
    near, _ = choose_moves_and_relays(before, arch)
    ways = {(core, move.core) for move in near for core in before.cores[move.first : move.stop]}
    assert len(ways) == len({core for core, _ in ways})


def test_a_program_with_moved_late_work_is_right():
    model = build_model("skipped_norms")
    refinement = passes(model, **CHIP).decision.refinement
    assert refinement is not None
    assert refinement.near
    assert raptor.compile(model, **CHIP).validate(samples=3).verdict == "pass"
