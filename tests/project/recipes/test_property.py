"""A property of the target that no file has, added to a copy of the sources by following CONTRIBUTING.md alone."""

from pathlib import Path

import pytest

from tests.project.recipes.recipe import copied, followed, run

# A chip whose vector unit starts slowly, made in Python: mappings and simulation know it, those for fixed times do not.
TRIED = """
import sys
from dataclasses import replace
from pathlib import Path

import models
import raptor
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import apply_pace
from raptor.mapping.row_mapping import map_rows
from raptor.compiler.pipeline import MappedGraph, complete, generate_code, run_lowering
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE
from raptor.target.arch import arch_json, load
from tests.pipeline import passes

assert Path(raptor.__file__).is_relative_to(sys.argv[1])
bench = load("bench", cores=40)
slow = replace(bench, core=replace(bench.core, vector_start_ns=5_000.0))
assert arch_json(slow) == arch_json(bench)
graph = passes(models.build("lenet5", seed=0), cores=40).graph


def mapped(chip, pace):
    decision = replace(map_rows(graph, apply_pace(chip, pace), PlanCache()), pace=pace)
    completed = complete(MappedGraph(graph, decision), chip, aim=BALANCED_OBJECTIVE)
    made = run_lowering(completed.mapped, chip, known=completed.known)
    return decision, simulate_objective("latency", made.program, generate_code(made, PIMSIM_BACKEND), chip).latency_ns


(own, own_ns), (fixed, fixed_ns) = mapped(slow, "own"), mapped(slow, "bench")
quick, quick_ns = mapped(bench, "bench")
assert fixed == quick
assert own != replace(quick, pace="own")
assert own_ns < fixed_ns
assert fixed_ns > 10 * quick_ns
print("followed")
"""


@pytest.mark.slow
def test_a_property_is_added_by_following_the_page(tmp_path: Path) -> None:
    sources = copied(tmp_path / "sources")
    followed(sources, "A property of the target, step by step")
    assert run(sources, ["-c", TRIED, sources]).endswith("followed\n")
    tests = ["tests/target", "tests/validator/simulate/test_opcodes.py"]
    run(sources, ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests])
