"""Decoders whose layers have no cores of their own share all cores; rows of caches move while their cores wait."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import raptor
from raptor.common.errors import VerifyError
from raptor.mapping.check_decision import decision_faults
from raptor.mapping.decision import FullyConnected, SharedDot
from raptor.mapping.modes.dense_unfolding import summing_cores
from raptor.mapping.scheduling.order_selection import StepOrder, named_order
from raptor.mapping.transformer.cache_cores import place_decoder
from raptor.spatial import verify_spatial
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import Overlap
from raptor.spatial.scheduling.idle_gaps import IdleGaps, delay_moves
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from tests import decoder_models as decoders
from tests import values
from tests.pipeline import Passes, line_flow, passes

CAPACITY = 6
CHIP: Mapping[str, Any] = MappingProxyType({"states": "auto", "cores": 12, "mapping": "rows"})
WIDE: Mapping[str, Any] = MappingProxyType({"heads": 4, "size": 160, "vocabulary": 200})
"""Sizes for which a layer has five row tiles and five column tiles."""


@pytest.fixture(scope="module")
def shared() -> Passes:
    return passes(decoders.plain_decoder(**WIDE), capacity=CAPACITY, **CHIP)


def dense_layers(found: Passes) -> dict[str, FullyConnected]:
    return {k: layer for k, layer in found.decision.layers.items() if isinstance(layer, FullyConnected)}


def test_tokens_are_those_of_onnxruntime() -> None:
    verdict = raptor.compile(decoders.plain_decoder(**WIDE), capacity=CAPACITY, **CHIP).validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert verdict.decoding.equal == CAPACITY


def test_layers_of_different_attentions_share_cores(shared: Passes) -> None:
    layers = dense_layers(shared)
    assert {*layers["layer.0.added"].cores} & {*layers["layer.1.added"].cores}
    for layer in layers.values():
        rows = {matrix.rows for matrix in layer.matrices}
        assert len(rows) == 5
        groups = [{core for m, core in zip(layer.matrices, layer.cores, strict=True) if m.rows == r} for r in rows]
        assert all(a.isdisjoint(b) for k, a in enumerate(groups) for b in groups[:k]), "one row tile a core"


def test_no_core_has_more_matrices_than_crossbars(shared: Passes) -> None:
    held = Counter[int]()
    for layer in dense_layers(shared).values():
        for matrix, core in zip(layer.matrices, layer.cores, strict=True):
            held[core] += matrix.xbars
    assert max(held.values()) <= shared.arch.xbars_per_core
    assert not list(decision_faults(shared.decision, shared.chosen, shared.arch))


def test_an_attention_has_other_cores_than_those_that_complete_what_it_waits_for() -> None:
    found = passes(decoders.plain_decoder(heads=4, size=64), capacity=CAPACITY, **{**CHIP, "cores": 14})
    placed = place_decoder(found.chosen, found.decision, found.arch)
    for n in range(2):
        made = [placed.layers[f"layer.{n}.{kind}.flat"] for kind in ("query", "key", "value")]
        feeding = {
            core
            for layer in made
            if isinstance(layer, FullyConnected)
            for core in summing_cores(layer.matrices, layer.cores, placed.tile)
        }
        grid = line_flow(placed).products[f"layer.{n}.scores"]
        assert isinstance(grid, SharedDot)
        assert len(feeding) == 6
        assert feeding.isdisjoint(grid.cores)


def sums(found: Passes, layer: str) -> list[Overlap[Any]]:
    return [op for c in found.spatial.computes for op in c.body if c.layer == layer and isinstance(op, Overlap)]


def test_many_sums_are_added_as_a_tree(shared: Passes) -> None:
    """With five partial sums, no result waits for more than three additions, one after another."""
    made = {op.result.name: op for op in sums(shared, "layer.0.added")}
    copied = {op.result.name: op.source.name for c in shared.spatial.computes for op in c.body if isinstance(op, Copy)}

    def depth(name: str) -> int:
        op = made.get(copied.get(name, name))
        return 0 if op is None else 1 + max(depth(source.name) for source in op.sources)

    depths = [depth(name) for name in made]
    assert max(depths) == 3


def test_equal_columns_give_equal_outputs() -> None:
    """All columns are added in one order, whichever core adds them up."""
    model = decoders.plain_decoder(**WIDE)
    head = next(t for t in model.graph.initializer if t.name == "head")
    weights = numpy_helper.to_array(head).copy()
    weights[:, 140:190] = weights[:, 20:70]
    head.CopyFrom(numpy_helper.from_array(weights, "head"))
    logits = raptor.Session(raptor.compile(model, capacity=CAPACITY, **CHIP)).step(3)["logits"].reshape(-1)
    assert np.array_equal(logits[140:190], logits[20:70])


def test_a_sum_of_another_tree_node_is_refused(shared: Passes) -> None:
    computes = list(shared.spatial.computes)
    overlaps = ((k, op) for k, c in enumerate(computes) for op in c.body if isinstance(op, Overlap))
    at, op = next((k, op) for k, op in overlaps if ".sum" in op.result.name)
    computes[at] = values.replace(computes[at], body=(values.replace(op, sources=op.sources[1:] * 2),))
    with pytest.raises(VerifyError, match=r"adds a product twice|adds 2"):
        verify_spatial(values.replace(shared.spatial, computes=tuple(computes)), shared.arch)


def problem(found: Passes) -> ScheduleProblem:
    return ScheduleProblem.from_graph(found.arch, found.on_chip, range(len(found.on_chip.cores)))


def test_states_are_on_the_chip_when_a_step_begins() -> None:
    """So a copy of an old row is no load from global memory."""
    found = problem(passes(decoders.grouped_decoder(), capacity=12, **{**CHIP, "cores": 48}))
    step, *_ = found.memory_transfers()
    copied = np.flatnonzero((found.needs.taken >= 0) & found.moves_state)
    assert len(copied)
    assert not np.isin(copied, step).any()


def test_moves_of_states_wait_until_their_core_does(shared: Passes) -> None:
    """They could all be first. The order stays one in which each step comes after those that it needs."""
    found = problem(shared)
    early = named_order(found.sample_work(), StepOrder(line_flow(shared.decision).patience_ns, 0))
    late = delay_moves(found.sample_work(), found.moves_state, early)
    place, before = np.argsort(late), np.argsort(early)
    assert np.array_equal(np.sort(late), np.arange(len(early)))
    assert (place[found.needs.edges[:, 0]] < place[found.needs.edges[:, 1]]).all()
    assert place[found.moves_state].mean() > before[found.moves_state].mean()


def no_time(_gaps: IdleGaps, _core: int, _after: int, _needed_ns: float) -> None:
    """Finds no time for rows of caches."""


def test_rows_of_caches_move_before_the_end_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoders.plain_decoder(**WIDE)
    times: list[float] = []
    for _ in range(2):
        times.append(raptor.compile(model, capacity=30, **CHIP).simulate().latency_ns or 0.0)
        monkeypatch.setattr(IdleGaps, "take_first", no_time)
    assert 0 < times[0] < 0.99 * times[1]


def test_masks_are_needed_later_than_what_is_before_them(shared: Passes) -> None:
    """Each layer's mask could be loaded first; the lookup of the first layer's is the most urgent."""
    found = problem(shared)
    flow, needed = found.needs.flow, found.needed()
    takes = [i for i in flow.computes_with_class(TakeRows) if "mask" in flow.nodes[i]]
    assert len(takes) == 2
    assert needed[takes[0]] != needed[takes[1]]
    assert needed[takes].max() > np.median(needed)
