"""One division gives cores to layers by line, fully connected layers, and steps of recurrent layers."""

from collections import Counter
from itertools import pairwise

import pytest

from raptor.graph.layers import graph_tile_channels
from raptor.mapping.allocation.core_division import CoreDivision, CoreOption, plan_options
from raptor.mapping.allocation.whole_layers import number_neighbourhoods, slowest_dense_ns, whole_options
from raptor.mapping.decision import FullyConnected
from raptor.mapping.modes.dense_unfolding import dense_latency_ns, spread_matrices, unfold_dense
from tests.mapping.allocation.test_idle_cores import mapped, perceptron
from tests.mapping.modes.test_plan_choice import plan_of
from tests.mapping.test_decision_search import bench, first_mapping

STREAMED = plan_options("slow", [plan_of(n, 5, 100.0 / n) for n in (1, 2, 4, 8)])
WHOLE = [CoreOption(n, 60.0 / n, whole={"last": FullyConnected((), tuple(range(n)))}) for n in (1, 2, 3)]


def test_the_slowest_unit_grows_whatever_it_is():
    """Seven cores: four for the layer by line (25 ns), three for the fully connected one (20 ns)."""
    division = CoreDivision.with_fewest_cores([STREAMED, WHOLE]).grown(7)
    assert [option.cores for option in division.chosen_options] == [4, 3]
    whole, placed = division.placed()
    assert placed["slow"].cores == (0, 1, 2, 3)
    assert whole["last"].cores == (4, 5, 6)


def test_one_unit_after_another_gets_faster():
    """The slowest unit that has a next option is next, until none has one."""
    division, found = CoreDivision.with_fewest_cores([STREAMED, WHOLE]), list[tuple[int, ...]]()
    while (faster := division.with_faster_unit()) is not None:
        division = faster
        found.append(tuple(option.cores for option in division.chosen_options))
    assert found == [(2, 1), (2, 2), (4, 2), (4, 3), (8, 3)]


@pytest.mark.parametrize("cores", [6, 60])
def test_fully_connected_layers_are_spread_until_they_are_no_faster(cores: int):
    """With more cores, the busiest one has less work; no core holds more matrices than it has crossbars for."""
    arch = bench(cores)
    graph = mapped(perceptron(784, 1024, 10), arch).graph
    ((*options,),), step_ns = whole_options(graph, number_neighbourhoods(graph, ()), {}, arch, 2.0)
    assert step_ns == 0.0
    assert len(options) > (3 if cores == 60 else 1)
    assert all(a.cores < b.cores and a.core_ns > b.core_ns for a, b in pairwise(options))
    for option in options:
        held = Counter[int]()
        for layer in option.whole.values():
            for matrix, core in zip(layer.matrices, layer.cores, strict=True):
                held[core] += matrix.xbars
        assert sorted(held) == list(range(option.cores))
        assert max(held.values()) <= arch.xbars_per_core
        assert option.core_ns == 2 * slowest_dense_ns(graph, option.whole, arch)
    assert options[-1].cores <= arch.usable_cores


def test_a_layer_is_spread_no_further_than_it_must():
    arch = bench(60)
    graph = mapped(perceptron(784, 1024), arch).graph
    tile = graph_tile_channels(graph, arch)
    (operator,) = (node.operator for node in graph.nodes if hasattr(node.operator, "weights"))
    matrices = tuple(unfold_dense(operator, arch, tile, 1))
    quickest = spread_matrices(matrices, 0, len(matrices), arch, tile)
    assert quickest is not None
    enough_ns = 2 * dense_latency_ns(matrices, quickest, arch, tile)
    found = spread_matrices(matrices, 0, len(matrices), arch, tile, enough_ns)
    assert found is not None
    assert len({*found}) < len({*quickest})
    assert dense_latency_ns(matrices, found, arch, tile) <= enough_ns


def test_layers_around_a_recurrent_one_share_no_cores():
    """A layer reads another one and its steps: on shared cores, it would wait for the last step."""
    chip = bench(24)
    records = first_mapping("conv_gru", chip).decision.layers
    around = [{*records[key].cores} for key in ("t5.0.inputs", "t8.0")]
    assert not around[0] & around[1]
