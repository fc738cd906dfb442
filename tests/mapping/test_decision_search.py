"""The search of `rows` over evaluated decisions: corrected work, fewer cores, and what makes a decision better."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

import models
import raptor
from benchmarks.programs.block_models import BlockBuilder
from benchmarks.programs.slow_models import build_model, layer, layers
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.codegen.pimsim.program_cost import simulate_objective
from raptor.compiler.pipeline import MappedGraph, complete, generate_code, prepare_graph, rewrite_and_map, run_lowering
from raptor.frontend import load
from raptor.mapping import decision_search, evaluated_decisions
from raptor.mapping.decision import Decision
from raptor.mapping.decision_search import search_rows
from raptor.mapping.evaluated_decisions import ComparedDecisions
from raptor.mapping.evaluation.evaluate import evaluate
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.row_mapping import RowMapper, map_rows
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, OrderObjective, StepOrder
from raptor.mapping.scheduling.schedule_kernel import SampleWork
from raptor.mapping.search_trial import ProgramCost
from raptor.mapping.strategies import ROWS
from raptor.mapping.work_corrections import next_corrections
from raptor.options import ChipOptions
from raptor.target.arch import Target, load_chip
from tests.pipeline import by_line, check, line_flow


def bench(cores: int, **options: int) -> Target:
    return load_chip(ChipOptions(arch="bench", cores=cores, **options))


def first_mapping(name: str, chip: Target, **options: int) -> MappedGraph:
    """A model with all rewrites, and the decision before the search."""
    model = models.build(name, **options) if name in models.MODELS else build_model(name)
    return rewrite_and_map(prepare_graph(load(model).graph, chip), chip, ROWS.without_search())


def searched(mapped: MappedGraph, chip: Target) -> Decision:
    return search_rows(mapped.graph, chip, PlanCache(), DEFAULT_KNOBS)[0]


def compared(mapped: MappedGraph, chip: Target) -> tuple[Decision, ComparedDecisions]:
    """The best decision, and those that are worth comparing."""
    best, others = search_rows(mapped.graph, chip, PlanCache(), DEFAULT_KNOBS)
    assert others is not None
    return best, others


def simulated(mapped: MappedGraph, decision: Decision, chip: Target) -> ProgramCost:
    layers = {key: record or decision.layers[key] for key, record in mapped.decision.rewrites.layers.items()}
    chosen = replace(decision, layers=layers, pace=mapped.decision.pace)
    done = complete(replace(mapped, decision=chosen, compared=None), chip, aim=BALANCED_OBJECTIVE)
    lowered = run_lowering(done.mapped, chip, known=done.known)
    return simulate_objective("throughput", lowered.program, generate_code(lowered, PIMSIM_BACKEND), chip)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_found_decisions_take_less_time(name: str) -> None:
    chip = bench(100)
    mapped = first_mapping(name, chip, image_size=64)
    before, after = (simulated(mapped, found, chip) for found in (mapped.decision, searched(mapped, chip)))
    assert after.latency_ns * after.interval_ns <= 0.95 * before.latency_ns * before.interval_ns
    assert max(after.latency_ns / before.latency_ns, after.interval_ns / before.interval_ns) < 1.15


def test_two_lanes_of_all_high_layers_have_shorter_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes gain where neighbours share cores, too: without these pairs, other divisions gain as much as lanes."""
    chip = bench(64)
    mapped = first_mapping("nested_patches", chip)
    laned = searched(mapped, chip)
    monkeypatch.setattr(decision_search, "FEWEST_LINES", 10**6)
    monkeypatch.setattr(decision_search, "LIGHT_PAIR", 1.0)
    found = [laned, searched(mapped, chip)]
    assert [{len(layer.grid.lanes) for layer in by_line(decision).values()} for decision in found] == [{0, 2}, {0}]
    after, before = (evaluate(mapped.graph, decision, chip) for decision in found)
    assert after.latency_ns < 0.85 * before.latency_ns
    assert after.interval_ns < 0.9 * before.interval_ns


def test_a_layer_shares_cores_with_the_one_whose_rearranged_result_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of a patch become a token on the cores that made them. Without light pairs, they are sent to others."""
    chip, times = bench(64), list[ProgramCost]()
    mapped = first_mapping("nested_patches", chip)
    for factor in (decision_search.LIGHT_PAIR, 1.0):
        monkeypatch.setattr(decision_search, "LIGHT_PAIR", factor)
        best, compared = search_rows(mapped.graph, chip, PlanCache(), DEFAULT_KNOBS)
        done = complete(replace(mapped, decision=best, compared=compared), chip, aim=BALANCED_OBJECTIVE)
        times.append(simulated(mapped, done.mapped.decision, chip))
    light, plain = times
    assert light.latency_ns < 0.85 * plain.latency_ns
    assert light.interval_ns < 0.9 * plain.interval_ns


@pytest.mark.parametrize(("name", "share"), [("spectrum_bands", 0.8)])
def test_cores_move_to_layers_that_others_wait_for(name: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores go where they shorten the latency. For the interval alone, none move. No more pairs than planned share."""
    monkeypatch.setattr(decision_search, "LIGHT_PAIR", 1.0)
    chip = bench(64)
    mapped = first_mapping(name, chip)
    quick = replace(DEFAULT_KNOBS, latency=0.0)
    moved, unmoved = (search_rows(mapped.graph, chip, PlanCache(), knobs)[0] for knobs in (DEFAULT_KNOBS, quick))
    monkeypatch.setattr(decision_search, "MOST_REBALANCED_STEPS", -1)
    fixed, same = (search_rows(mapped.graph, chip, PlanCache(), knobs)[0] for knobs in (DEFAULT_KNOBS, quick))
    before, after = (evaluate(mapped.graph, decision, chip) for decision in (fixed, moved))
    assert unmoved == same
    assert after.latency_ns * after.interval_ns < share * before.latency_ns * before.interval_ns
    assert after.interval_ns < 1.02 * before.interval_ns


def test_decisions_are_compared_by_their_interval_with_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second decision is said to take 1 ns with up to three stages: it stays, alone. Without stages, none is."""
    chip, knobs, most = bench(32), replace(DEFAULT_KNOBS, latency=0.0), list[int]()

    def estimate(_work: SampleWork, _base: StepOrder, stages: int) -> float:
        most.append(stages)
        return 1.0 if len(most) == 2 else np.inf

    monkeypatch.setattr(evaluated_decisions, "estimate_staged_interval", estimate)
    mapped = first_mapping("lenet5", chip)
    mapper = RowMapper(mapped.graph, chip, PlanCache())
    first = mapper.plan(knobs)
    bounds = evaluate(mapped.graph, first.decision, chip).bounds
    second = mapper.plan(knobs, next_corrections({}, first, bounds))
    found = [search_rows(mapped.graph, chip, PlanCache(), replace(knobs, stages=n)) for n in (3, 1)]
    assert found[0] == (second.decision, None)
    assert found[1][0] != second.decision
    assert {*most} == {3}
    assert len(most) > 2


def test_a_search_finds_the_same_again() -> None:
    chip = bench(60)
    mapped = first_mapping("squeezenet", chip, image_size=64)
    assert str(searched(mapped, chip)) == str(searched(mapped, chip))


def test_a_correction_moves_cores() -> None:
    """A layer whose work is said to be four times as long gets more cores, and others fewer."""
    chip = bench(64)
    mapped = first_mapping("squeezenet", chip, image_size=64)
    mapper = RowMapper(mapped.graph, chip, PlanCache())
    plain = mapper.plan(DEFAULT_KNOBS)
    key = next(name for name, layer in by_line(plain.decision).items() if len(layer.cores) > 2)
    slow = mapper.plan(DEFAULT_KNOBS, {key: 4.0})
    before, after = (len({*by_line(found.decision)[key].cores}) for found in (plain, slow))
    assert plain.decision == map_rows(mapped.graph, chip, PlanCache())
    assert after > before
    assert slow.planned_ns[key] < 4 * plain.planned_ns[key]


def test_inputs_without_loaders_share_the_time_at_the_port() -> None:
    """The work of a layer is corrected by its busiest core."""
    mapped = first_mapping("lenet5", bench(32))
    mapper = RowMapper(mapped.graph, bench(32), PlanCache())
    planned = mapper.plan(DEFAULT_KNOBS, {"input": 1 / 32})
    assert line_flow(planned.decision).loaders == {}
    key = next(iter(by_line(planned.decision)))
    own = by_line(planned.decision)[key].cores
    assert isinstance(own, tuple)
    ns = {key: 100.0, "input": 30.0, "second": 10.0}
    bounds = replace(evaluate(mapped.graph, planned.decision, bench(32)).bounds, busy_ns={own[-1]: 50.0}, port_ns=20.0)
    found = next_corrections({"second": 3.0}, replace(planned, planned_ns=ns), bounds)
    assert found == {key: 0.5, "input": 0.5, "second": 1.5}


def attended() -> ModelProto:
    """Layers whose results are scaled by a function of their means: two phases."""
    b = BlockBuilder()
    x = layers(b, b.input("x", 1, 3, 24, 24), (3, 16, 16, 16, 32, 32, 32, 32), 3, 3)
    means = b.op("Relu", layer(b, b.op("GlobalAveragePool", x), 32, 8, 1, 1))
    scaled = b.op("Mul", x, b.op("Sigmoid", layer(b, means, 8, 32, 1, 1)))
    return b.finish("attended", layer(b, scaled, 32, 32, 1, 1))


@pytest.mark.parametrize("worth", [0.8, 1.0])
def test_groups_of_phases_are_compared(worth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search begins without shared cores, which is better by 2 %, if that is enough."""
    monkeypatch.setattr(decision_search, "WORTH_REGROUPING", worth)
    monkeypatch.setattr(decision_search, "PRODUCT_FACTORS", ())
    monkeypatch.setattr(decision_search, "EVEN_SHARE", 0.0)
    monkeypatch.setattr(decision_search, "MOST_REBALANCED_STEPS", -1)
    chip = bench(32)
    mapped = rewrite_and_map(prepare_graph(load(attended()).graph, chip), chip, ROWS.without_search())
    shared, apart = (map_rows(mapped.graph, chip, PlanCache(), replace(DEFAULT_KNOBS, latency=n)) for n in (1.0, 0.0))
    costs = [
        times.latency_ns * times.interval_ns for d in (shared, apart) if (times := evaluate(mapped.graph, d, chip))
    ]
    assert 0.9 * costs[0] < costs[1] < 0.99 * costs[0]
    assert searched(mapped, chip) == (apart if worth == 1.0 else shared)


def test_more_cores_do_not_slow_a_table_with_many_readers() -> None:
    """Twelve layers read the rows of one table: on 400 cores, one core must not send all of them."""
    times = [raptor.compile(build_model("characters_12"), arch="bench", cores=n).simulate() for n in (64, 400)]
    assert times[1].latency_ns <= 1.1 * times[0].latency_ns


def test_the_best_of_several_decisions_by_their_computes_is_kept() -> None:
    chip = bench(64)
    mapped = first_mapping("squeezenet", chip, image_size=32, width=1)
    slow, slower = (map_rows(mapped.graph, chip.with_places(range(n)), PlanCache()) for n in (16, 8))
    slow, slower = (replace(each, pace=mapped.decision.pace) for each in (slow, slower))
    best = mapped.decision
    for chosen, *others in ((best, slow, slower), (slow, best, slower), (slower, slow, best), (slow,)):
        done = complete(
            replace(mapped, decision=slow, compared=ComparedDecisions((chosen, *others))), chip, aim=BALANCED_OBJECTIVE
        )
        assert {*done.mapped.decision.cores} == {*(best if best in (chosen, *others) else slow).cores}
        assert done.mapped.compared is None


def test_others_are_the_first_decision_and_those_near_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = bench(64)
    mapped = first_mapping("sequence", chip)
    best, found = compared(mapped, chip)
    assert 2 <= len(found.decisions) <= 1 + evaluated_decisions.MOST_COMPARED
    assert len({*map(str, found.decisions)}) == len(found.decisions)
    assert best in found.decisions
    assert (found.decisions[0], found.reference_ns) == (map_rows(mapped.graph, chip, PlanCache()), None)
    monkeypatch.setattr(evaluated_decisions, "MOST_COMPARED_STEPS", 0)
    assert search_rows(mapped.graph, chip, PlanCache(), DEFAULT_KNOBS) == (best, None)


def test_a_hopeless_first_decision_is_a_reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its computes need not be known."""
    chip = bench(64)
    mapped = first_mapping("lenet5", chip)
    first = map_rows(mapped.graph, chip, PlanCache())
    best, found = compared(mapped, chip)
    assert found.decisions[0] == best
    assert first not in found.decisions
    assert found.reference_ns is not None
    times = evaluate(mapped.graph, best, chip)
    worth = evaluated_decisions.WORTH_COMPARING
    assert np.prod(found.reference_ns) > worth * times.latency_ns * times.interval_ns
    monkeypatch.setattr(evaluated_decisions, "WORTH_COMPARING", 100.0)
    _, found = compared(mapped, chip)
    assert (found.decisions[0], found.reference_ns) == (first, None)


def test_growth_of_a_time_counts_twice_if_both_count() -> None:
    both, latency = OrderObjective("both"), OrderObjective("latency")
    assert both.is_better((90.0, 100.0), (100.0, 100.0))
    assert not both.is_better((99.0, 100.0), (100.0, 100.0))
    assert both.is_better((70.0, 120.0), (100.0, 100.0))
    assert both.is_better((120.0, 70.0), (100.0, 100.0))
    assert not both.is_better((75.0, 126.0), (100.0, 100.0))
    assert latency.is_better((75.0, 126.0), (100.0, 100.0))


def test_growth_counts_beyond_the_times_of_the_reference() -> None:
    """A decision with a third of the interval is better than one that is 1.5 times as fast, if neither is slower."""
    both, slow_ns, fast_ns, short_ns = OrderObjective("both"), (400.0, 400.0), (200.0, 200.0), (300.0, 100.0)
    assert both.is_better(short_ns, fast_ns, slow_ns)
    assert not both.is_better(fast_ns, short_ns, slow_ns)
    assert not both.is_better(short_ns, fast_ns)
    assert not both.is_better(short_ns, fast_ns, fast_ns)


@pytest.mark.parametrize("seed", range(3))
def test_searched_programs_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, cores = int(rng.integers(24, 40)), int(rng.integers(20, 90))
    check(models.build("resnet18", image_size=size, width=0.25, seed=seed), arch="bench", cores=cores)
