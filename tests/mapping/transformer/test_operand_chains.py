"""Chains of cores that pass keys and values on: same values, and few messages for the cores that make them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import ModelProto

from benchmarks.programs.slow_models import build_model
from raptor.compiler.pipeline import MappedGraph, prepare_graph, rewrite_and_map
from raptor.frontend import load
from raptor.mapping.decision import Decision, DotGrid
from raptor.mapping.evaluation.decision_work import decision_work
from raptor.mapping.evaluation.work_schedule import LONGEST_STEP_NS, schedule_work
from raptor.mapping.mapping_file import make_mapping_file
from raptor.mapping.strategies import ROWS
from raptor.mapping.transformer.operand_chains import chain_products
from raptor.options import ChipOptions
from raptor.spatial.operation_costs import CostModel
from raptor.spatial.operations import Dot
from raptor.target.arch import Target, load_chip
from tests.mapping.evaluation.test_decision_work import counted, sent
from tests.mapping.transformer.test_attention_forms import of_an_image, one_head
from tests.pipeline import check, faults, line_flow, passes

MODELS: dict[str, Callable[[], ModelProto]] = {
    "of an image": lambda: of_an_image(size=9),
    "of tokens": one_head,
}


def bench(cores: int = 60) -> Target:
    return load_chip(ChipOptions(arch="bench", cores=cores))


def mapped(model: ModelProto, arch: Target) -> MappedGraph:
    return rewrite_and_map(prepare_graph(load(model).graph, arch), arch, ROWS.without_search())


def stored(model: ModelProto, length: int, folder: Path) -> tuple[Path, Decision]:
    """Writes the first decision about a model with chains of a length to a file."""
    arch = bench()
    first = mapped(model, arch)
    decision = chain_products(first.graph, first.decision, length)
    path = folder / "mapping.json"
    path.write_bytes(make_mapping_file(decision, prepare_graph(load(model).graph, arch), arch).to_json())
    return path, decision


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_values(name: str, length: int, tmp_path: Path):
    model = MODELS[name]()
    path, decision = stored(model, length, tmp_path)
    assert {grid.chain for grid in line_flow(decision).products.values() if isinstance(grid, DotGrid)} == {length}
    assert len(line_flow(decision).products) == 2
    check(model, arch="bench", cores=60, mapping=str(path))


@pytest.mark.parametrize("name", MODELS)
def test_messages_of_chains_are_counted_between_the_cores_that_exchange_them(name: str, tmp_path: Path):
    path, _ = stored(MODELS[name](), 3, tmp_path)
    done = passes(MODELS[name](), arch="bench", cores=60, mapping=str(path))
    expected, found = sent(done), counted(done)
    assert {pair: count for pair, (count, _) in found.items()} == {p: count for p, (count, _) in expected.items()}


def count_sent(decision: Decision, first: MappedGraph, arch: Target) -> Counter[int]:
    """Returns the evaluated number of messages that each core sends."""
    found = Counter[int]()
    for work in decision_work(first.graph, decision, arch):
        for (core, _), message in work.messages.items():
            found[core] += round(message.count)
    return found


def test_the_evaluated_messages_of_makers_fall_by_the_length():
    arch = bench()
    first = mapped(of_an_image(size=9), arch)
    before, after = (count_sent(chain_products(first.graph, first.decision, n), first, arch) for n in (1, 4))
    maker = max(before, key=before.__getitem__)
    assert after[maker] <= 0.3 * before[maker]


def test_a_product_with_few_cores_keeps_its_makers():
    arch = bench(4)
    first = mapped(one_head(), arch)
    assert chain_products(first.graph, first.decision, 64) == first.decision


def test_a_chain_without_cores_is_refused():
    arch, model = bench(), one_head()
    first = mapped(model, arch)
    flow = line_flow(first.decision)
    broken = {n: replace(grid, chain=0) for n, grid in flow.products.items() if isinstance(grid, DotGrid)}
    decision = replace(first.decision, flow=replace(flow, products=broken))
    found = [*faults(decision, prepare_graph(load(model).graph, arch), arch)]
    assert any("chain: 0, expected 1 or more" in fault for fault in found)


def test_a_core_multiplies_without_a_pause():
    """A product of some queries with all keys is one compute, so it is one step however long it takes."""
    done = passes(build_model("attention_few"), arch="bench", cores=64, mapping="rows")
    costs = CostModel(done.arch, done.spatial.filters)
    products = (op for compute in done.spatial.computes for op in compute.body if isinstance(op, Dot))
    longest_ns = max(costs.op_ns(op, done.spatial.computes[0]) for op in products)
    assert longest_ns > 2 * LONGEST_STEP_NS
    steps = schedule_work(decision_work(done.chosen, done.decision, done.arch), done.arch, most=1)
    assert steps.work_ns.max() >= 0.9 * longest_ns
