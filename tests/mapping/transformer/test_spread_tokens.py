"""Transformers spread over all cores: each core has matrices of all chains, and the values are right."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from onnx import ModelProto

import models
import raptor
from raptor.graph.layers import find_filters
from raptor.mapping.decision import DotGrid, LineUnfolding
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs
from raptor.mapping.modes import line_unfolding
from raptor.mapping.modes.epilogue_cost import find_epilogues
from raptor.mapping.modes.line_streaming import cut_channels, even_ranges
from raptor.mapping.transformer import spread_tokens, token_choice
from raptor.mapping.transformer.spread_tokens import (
    ModelCopies,
    SpreadChoice,
    cut_query_steps,
    deal_queries,
    spread_groups,
)
from raptor.mapping.transformer.token_cores import (
    AttentionProduct,
    TokenLayerShape,
    TokenStages,
    group_stages,
    separate_stages,
)
from raptor.mapping.transformer.token_cuts import TokenCut, enumerate_cuts
from raptor.mapping.transformer.token_stages import find_stages
from raptor.spatial.operations import Overlap
from raptor.target import arch
from raptor.target.arch import Target
from tests.pipeline import Passes, by_line, check, faults, line_flow, passes
from validator.simulate.simulation_report import SimulationReport

TOKENS = 16
CHIP: dict[str, Any] = {"xbar": 32, "xbars_per_core": 48, "cores": 40, "knobs": {"latency": 8}}
MODEL = models.build("bert_tiny", seed=0, depth=6, dim=64, heads=2, tokens=TOKENS)


@pytest.fixture(scope="module")
def compiled() -> Passes:
    return passes(MODEL, **CHIP, mapping="rows")


@pytest.fixture(scope="module")
def stages(compiled: Passes) -> TokenStages:
    return stages_of(compiled)


def stages_of(compiled: Passes) -> TokenStages:
    graph = compiled.chosen
    after = {key: work.elements_ns for key, work in find_epilogues(graph, compiled.arch).items()}
    found = find_stages(graph, compiled.arch, after)
    assert found is not None
    return found


def test_all_cores_of_a_copy_serve_distant_chains(compiled: Passes):
    """The cores that hold the first layers hold the last ones, too, and take part in the attentions."""
    layers = list(by_line(compiled.decision).values())
    first, last = (set[int]().union(*(layer.cores for layer in some)) for some in (layers[:4], layers[-4:]))
    assert len(first & last) > len(first) / 2
    for grid in line_flow(compiled.decision).products.values():
        assert set(grid.cores) & first & last


def test_the_decision_is_right_and_every_token_is_computed_once(compiled: Passes):
    assert not list(faults(compiled.decision, compiled.graph, compiled.arch))
    for layer in by_line(compiled.decision).values():
        assert (layer.grid.cols[0][0], layer.grid.cols[-1][1]) == (0, TOKENS)


def test_the_program_is_right():
    check(MODEL, tolerance=1e-4, **CHIP)


def latency_ns() -> float:
    found: SimulationReport = raptor.compile(MODEL, **CHIP).simulate()
    assert found.latency_ns is not None
    return found.latency_ns


def nothing(*_: object) -> None:
    """Is no choice."""


def test_a_sample_takes_less_time_than_in_groups(monkeypatch: pytest.MonkeyPatch):
    spread_ns = latency_ns()
    monkeypatch.setattr(token_choice, "spread_groups", nothing)
    assert spread_ns < 0.8 * latency_ns()


def shape(outputs: int, inputs: int, chip: Target) -> TokenLayerShape:
    return TokenLayerShape(outputs, cut_channels(inputs, chip.xbar_rows), chip)


@pytest.mark.parametrize("cores", [1, 2, 5, 30])
def test_each_cut_has_every_weight_once(cores: int):
    chip = arch.load(cores=4, xbar=32)
    for cut in enumerate_cuts(shape(100, 70, chip), cores):
        assert len(cut.xbars) == len(cut.ins) * len(cut.outs) <= cores
        assert [part for group in cut.ins for part in group] == [(0, 32), (32, 64), (64, 70)]
        assert [cut.outs[0][0], *(stop for _, stop in cut.outs)] == sorted({0, *(b for _, b in cut.outs)})
        assert cut.outs[-1][1] == 100
        assert cut.homes <= len(cut.xbars)


def test_homes_are_the_cores_that_have_sums(compiled: Passes):
    """The output tiles of a copy are on as many cores as the cut says."""
    core_of = {
        op.result.name: core
        for compute, core in zip(compiled.spatial.computes, compiled.partition.cores, strict=True)
        for op in compute.body
    }
    filters = find_filters(compiled.chosen)
    for key, layer in by_line(compiled.decision).items():
        homes: defaultdict[object, set[int]] = defaultdict(set)
        for part in compiled.spatial.tensors[key].parts:
            homes[part.region.cols].add(core_of[part.tile.name])
        ins, outputs = (part for group in layer.grid.ins for part in group), filters[key].weights.shape[2]
        cut = TokenCut.from_ranges(TokenLayerShape(outputs, tuple(ins), compiled.arch), layer.grid.ins, layer.grid.outs)
        assert {len(cores) for cores in homes.values()} == {cut.homes}, key


def test_the_matrices_of_a_copy_are_spread_evenly(compiled: Passes, stages: TokenStages):
    """No two cores of a copy differ by more crossbars than one core has of a layer."""
    found = spread_groups(stages, compiled.arch, CHIP["cores"], even_ranges(len(stages.products), 1), DEFAULT_KNOBS)
    assert found is not None
    used, largest = Counter[int](), 0
    for layer in (layer for chain in stages.chains for layer in chain.layers):
        grid = found.layers[layer.key].grid
        xbars = TokenCut.from_ranges(layer.shape, grid.ins, grid.outs).xbars
        used.update(dict(zip(found.layers[layer.key].cores, xbars, strict=False)))  # the first copy
        largest = max(largest, *xbars)
    assert used.total() == sum(
        sum(TokenCut.from_ranges(s, (s.parts,), ((0, s.outputs),)).xbars) for s in shapes(stages)
    )
    assert max(used.values()) - min(used.values()) <= largest


def shapes(stages: TokenStages) -> list[TokenLayerShape]:
    return [layer.shape for chain in stages.chains for layer in chain.layers]


def test_a_chip_that_is_too_small_has_no_such_choice(compiled: Passes, stages: TokenStages):
    assert (
        spread_groups(
            stages, compiled.arch.with_xbars_per_core(1), 2, even_ranges(len(stages.products), 1), DEFAULT_KNOBS
        )
        is None
    )


def test_groups_share_no_core(compiled: Passes, stages: TokenStages):
    """Each layer and each attention is on the cores of its group, and each group takes a part of the time of all."""
    found = spread_groups(stages, compiled.arch, CHIP["cores"], even_ranges(len(stages.products), 3), DEFAULT_KNOBS)
    assert found is not None
    for i, (low, high) in enumerate(pairwise(CHIP["cores"] * i // 3 for i in range(4))):
        chains = stages.chains[0 if i == 0 else 2 * i + 1 : 2 * i + 3]
        layers = [found.layers[layer.key] for chain in chains for layer in chain.layers]
        products = [found.products[each.key] for together in stages.products[2 * i : 2 * i + 2] for each in together]
        assert len(products) == 2
        assert all(low <= core < high for record in (*layers, *products) for core in record.cores)
    assert found.latency_ns / 3 <= found.interval_ns < found.latency_ns / 2


def test_a_program_in_groups_is_right(monkeypatch: pytest.MonkeyPatch):
    def in_three(
        stages: TokenStages, chip: Target, cores: int, _: object, knobs: TuningKnobs, layer_ns: Mapping[str, float]
    ):
        return spread_groups(stages, chip, cores, even_ranges(len(stages.products), 3), knobs, layer_ns)

    for name in ("group_stages", "separate_stages"):
        monkeypatch.setattr(token_choice, name, nothing)
    monkeypatch.setattr(token_choice, "spread_groups", in_three)
    check(MODEL, tolerance=1e-4, **CHIP)


def test_with_cores_of_their_own_all_chains_and_attentions_take_about_as_long():
    """An attention does not get cores for the time in which others send it keys and values."""
    cores = 100
    model = models.build("bert_tiny", seed=0, depth=2, dim=64, heads=2, tokens=64)
    compiled = passes(model, **CHIP | {"cores": cores}, mapping="rows")
    stages, chip = stages_of(compiled), compiled.arch
    found = separate_stages(stages, chip, cores, DEFAULT_KNOBS)
    assert found is not None
    items = len(stages.products) + sum(1 for chain in stages.chains if chain.layers)
    assert found.interval_ns < 1.3 * found.latency_ns / items
    grouped = [group_stages(stages, chip, cores, cut, DEFAULT_KNOBS) for cut in stages.cuts()]
    assert found.interval_ns < 0.8 * min(each.interval_ns for each in grouped if each is not None)


def test_steps_of_an_attention_have_all_its_queries():
    chip = arch.load(cores=4)
    grid, found = DotGrid(((0, 1), (1, 2)), ((0, 5), (5, 8)), (3, 1, 2, 0)), AttentionProduct("scores", 2, 8, 128, 64)
    stepped = cut_query_steps(grid, found, chip, 25_000)
    assert stepped.cols == ((0, 2), (2, 4), (4, 5), (5, 7), (7, 8))
    assert stepped.cores == (3, 3, 3, 1, 1, 2, 2, 2, 0, 0)
    assert cut_query_steps(grid, found, chip, 1e9) == replace(grid)


def test_cores_take_the_queries_of_a_copy_in_turns():
    """Two of four cores of a head have all queries of a copy, and each has as many as before."""
    queries = tuple((x, x + 1) for x in range(8))
    before = DotGrid(((0, 1), (1, 2)), queries, (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7))
    found = deal_queries(before, copies=2)
    assert found.cores == (0, 2, 0, 2, 1, 3, 1, 3, 4, 6, 4, 6, 5, 7, 5, 7)
    assert found == replace(before, cores=found.cores)
    assert deal_queries(before, copies=1).cores[:8] == (0, 1, 2, 3, 0, 1, 2, 3)


def test_attentions_send_the_first_tokens_of_each_copy_early(monkeypatch: pytest.MonkeyPatch):
    """If layers pass on their tokens in segments, neighbouring queries of a copy are on different cores of a head."""
    model = models.build("bert_tiny", seed=0, depth=2, dim=64, heads=2, tokens=64)
    found = in_segments(monkeypatch, model, cores=20)
    shared = [
        grid.cores[first : first + len(grid.cols)]
        for grid in line_flow(found.decision).products.values()
        for first in range(0, len(grid.cores), len(grid.cols))
    ]
    shared = [cores for cores in shared if len(set(cores)) > 1]
    assert any(len(set(cores)) < len(cores) for cores in shared)
    assert all(cores[0] != cores[1] for cores in shared)
    assert all(max(counts) - min(counts) <= 1 for counts in (Counter(cores).values() for cores in shared))


def test_cores_that_share_a_layer_put_its_input_together_in_turns():
    """No core gets the results of all heads of an attention for all others: here two cores share those of two heads."""
    model = models.build("bert_tiny", seed=0, depth=1, dim=128, heads=8, tokens=TOKENS)
    compiled = passes(model, **CHIP | {"xbar": 16, "xbars_per_core": 96}, mapping="rows")
    core_of = {
        op.result.name: core
        for compute, core in zip(compiled.spatial.computes, compiled.partition.cores, strict=True)
        for op in compute.body
    }
    shared = 0
    for node in (node for node in compiled.chosen.nodes if node.output in by_line(compiled.decision)):
        layer, name = by_line(compiled.decision)[node.output], node.inputs[0]
        if name not in compiled.spatial.views:
            continue
        for part in compiled.spatial.tensors[name].parts:
            region = part.region
            assert region.cols is not None
            s = next(s for s, cols in enumerate(layer.grid.cols) if region.cols[0] < cols[1])
            assert core_of[part.tile.name] == layer.receiving_core(s, region.channels), part.tile.name
        for group in layer.grid.ins:
            each = min(len(group), len(layer.grid.outs))
            assert len({layer.receiving_core(0, channels) for channels in group}) == each
            shared += each > 1
    assert shared


def in_segments(monkeypatch: pytest.MonkeyPatch, model: ModelProto = MODEL, **options: Any) -> Passes:
    """Compiles with segments of as few tokens as can be."""
    monkeypatch.setattr(spread_tokens, "SEGMENT_NS", 1)
    chip = CHIP | options
    knobs = {"chains": token_choice.SPREAD, **chip.get("knobs", {})}
    return passes(model, **chip | {"knobs": knobs}, mapping="rows")


def test_cores_pass_on_their_tokens_in_segments(monkeypatch: pytest.MonkeyPatch):
    """Each core of a copy comes once for each segment, and has its matrices once."""
    found = in_segments(monkeypatch)
    assert not list(faults(found.decision, found.graph, found.arch))
    layer = next(iter(by_line(found.decision).values()))
    assert len(layer.grid.cols) == 4 * (TOKENS // 4), "four copies, each with as many segments as all have tokens"
    assert len(set(layer.cores)) < len(layer.cores)
    held = Counter(group for core in found.program.cores.values() for group in ((core.core, g) for g in core.groups))
    assert set(held.values()) == {1}
    check(MODEL, tolerance=1e-4, **CHIP)


def test_many_partial_sums_are_added_in_bundles(monkeypatch: pytest.MonkeyPatch):
    """Some cores add a bundle each, and one of them adds the sums: no core adds all, and nothing is lost."""
    monkeypatch.setattr(line_unfolding, "MOST_ADDED", 2)
    found = passes(MODEL, **CHIP, mapping="rows")
    groups = max(len(layer.grid.ins) for layer in by_line(found.decision).values())
    assert groups > 2
    core_of: dict[str, int] = {}
    for compute, core in zip(found.spatial.computes, found.partition.cores, strict=True):
        for op in (op for op in compute.body if isinstance(op, Overlap)):
            away = [tile for tile in op.sources if core_of.get(tile.name, core) != core]
            assert len(away) <= line_unfolding.most_additions(groups) < groups - 1
            own = [tile for tile in op.sources if core_of.get(tile.name) == core]
            assert own or not away, op.result
        core_of |= dict.fromkeys((tile.name for tile in compute.results), core)
    check(MODEL, tolerance=1e-4, **CHIP)


@pytest.mark.parametrize("groups", [1, 2, 8, 9, 16, 24, 100])
def test_bundles_have_each_group_once(groups: int):
    found = line_unfolding.bundle_sums(groups)
    assert [group for bundle in found for group in bundle] == list(range(groups))
    assert max(len(found), *map(len, found)) <= max(line_unfolding.MOST_ADDED, groups // 3)


def test_the_work_of_a_block_belongs_to_its_layers(stages: TokenStages):
    """Norms behind a shortcut belong to the layers of their own block, not to the first layers of the model."""
    works = [[layer.extra_ns for layer in chain.layers] for chain in stages.chains[1:-1]]
    assert len(works) > 2
    assert all(work == works[0] for work in works)


def spreads(stages: TokenStages, chip: Target, share: tuple[int, int]) -> list[SpreadChoice]:
    return list(ModelCopies(stages, chip, CHIP["cores"], *share).choices())


def test_wide_products_take_less_of_all_cores(compiled: Passes, stages: TokenStages):
    """If layers may take longer, they take fewer cores, and then all cores work less together."""
    quickest, *others = spreads(stages, compiled.arch, (3, 13))
    assert min(sum(map(sum, other.works_ns)) for other in others) < 0.8 * sum(map(sum, quickest.works_ns))


def test_an_attention_is_on_the_cores_that_work_least(compiled: Passes, stages: TokenStages):
    together = 13
    for found in spreads(stages, compiled.arch, (3, together)):
        for i, (product,) in enumerate(stages.products):
            helping = set(found.attention_cores(i + 1, product))
            works_ns = [*found.works_ns[i + 1] * 3, 0.0]
            assert len(works_ns) == CHIP["cores"] == 3 * together + 1
            others = set(range(len(works_ns))) - helping
            assert max(works_ns[core] for core in helping) <= min((works_ns[core] for core in others), default=math.inf)


def test_the_report_counts_copies_and_not_segments(monkeypatch: pytest.MonkeyPatch):
    layers = by_line(in_segments(monkeypatch).decision).values()
    copies = {len(set(layer.cores)) // (layer.grid.cores // len(layer.grid.cols)) for layer in layers}
    assert len(copies) == 1
    knobs = {"chains": token_choice.SPREAD, **CHIP["knobs"]}
    reported = raptor.compile(MODEL, **CHIP | {"knobs": knobs}).report.layers
    assert {layer.replicas for layer in reported if layer.replicas and ".mlp.fc" in layer.node} == copies


def test_a_core_twice_in_a_segment_is_refused(compiled: Passes):
    key, layer = next((k, layer) for k, layer in by_line(compiled.decision).items() if len(layer.grid.outs) > 1)
    refused(compiled, key, replace(layer, cores=(layer.cores[1], *layer.cores[1:])), "one core twice for columns 0:")


def test_a_core_with_other_matrices_for_another_segment_is_refused(compiled: Passes):
    key, layer = next(iter(by_line(compiled.decision).items()))
    own = layer.cores[: layer.grid.cores // len(layer.grid.cols)]
    grid = replace(layer.grid, cols=((0, 1), (1, TOKENS)))
    refused(compiled, key, LineUnfolding(grid, own + own[::-1]), "has other matrices for columns 1:")


def refused(compiled: Passes, key: str, layer: LineUnfolding, fault: str) -> None:
    decision = replace(compiled.decision, layers={**compiled.decision.layers, key: layer})
    assert any(fault in found for found in faults(decision, compiled.graph, compiled.arch))
