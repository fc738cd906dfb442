"""Models with barriers: layers of different phases share cores."""

from collections import Counter
from itertools import combinations

import pytest
from onnx import ModelProto

from raptor.graph.ir import Graph
from raptor.mapping.allocation.phase_sharing import number_phases
from raptor.mapping.knobs import TuningKnobs
from raptor.target import arch as architectures
from tests.pipeline import by_line, check, map_by_rows, passes
from tests.tiny_models import make_model, node, random

CHIP = {"xbar": 16, "xbars_per_core": 40, "cores": 24, "mapping": "rows"}
BLOCKS = 3


def squeezing(blocks: int = BLOCKS, channels: int = 8, size: int = 10) -> ModelProto:
    """Blocks of two convolutions, the second weighed by factors from the mean of the first, and a shortcut."""
    nodes, weights, x = [], {}, "x"
    for i in range(blocks):
        weights |= {
            f"a{i}": random(channels, channels, 3, 3, seed=i),
            f"b{i}": random(channels, channels, 1, 1, seed=i),
        }
        weights[f"s{i}"] = random(channels, channels, 1, 1, seed=i + blocks)
        nodes += [
            node("Conv", f"{x} a{i}", f"wide{i}", name=f"wide{i}", pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", f"wide{i}", f"mean{i}", name=f"mean{i}"),
            node("Conv", f"mean{i} s{i}", f"squeeze{i}", name=f"squeeze{i}"),
            node("Sigmoid", f"squeeze{i}", f"gate{i}", name=f"gate{i}"),
            node("Mul", f"wide{i} gate{i}", f"weighed{i}", name=f"weighed{i}"),
            node("Conv", f"weighed{i} b{i}", f"narrow{i}", name=f"narrow{i}"),
            node("Add", f"{x} narrow{i}", f"sum{i}", name=f"sum{i}"),
        ]
        x = f"sum{i}"
    return make_model(nodes, {"x": (1, channels, size, size)}, {x: 4}, weights)


def prepared(model: ModelProto) -> Graph:
    return passes(model, **CHIP).graph


def test_a_mean_of_an_image_ends_a_phase():
    wanted = {f"wide{i}": i for i in range(BLOCKS)} | {f"narrow{i}": i + 1 for i in range(BLOCKS)}
    found = number_phases(prepared(squeezing()))
    assert {key: found[key] for key in wanted} == wanted
    assert found["squeeze0"] == 1


def test_layers_of_different_phases_share_cores():
    """With one group, a core serves several phases, but one layer of each; the answers are right."""
    graph, arch = prepared(squeezing()), architectures.load(xbar=16, xbars_per_core=40, cores=24)
    layers = by_line(map_by_rows(graph, arch, TuningKnobs(latency=8.0)))
    number = number_phases(graph)
    assert max(Counter(core for layer in layers.values() for core in {*layer.cores}).values()) > 1
    for (a, first), (b, second) in combinations(layers.items(), 2):
        assert number[a] != number[b] or not {*first.cores} & {*second.cores}


@pytest.mark.parametrize("latency", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("cores", [9, 24, 60])
def test_answers_of_shared_cores(latency: float, cores: int):
    check(squeezing(), **{**CHIP, "cores": cores}, knobs={"latency": latency})


def test_the_latency_decides_how_much_is_shared():
    """Groups of cores are fewer, and serve more phases each, where the latency counts more."""
    graph, arch = prepared(squeezing(6)), architectures.load(xbar=16, xbars_per_core=200, cores=24)

    def most_layers(latency: float) -> int:
        layers = by_line(map_by_rows(graph, arch, TuningKnobs(latency=latency)))
        return max(Counter(core for layer in layers.values() for core in {*layer.cores}).values())

    assert most_layers(0.0) < most_layers(8.0)


def test_a_model_without_barriers_has_cores_for_each_layer():
    nodes = [node("Conv", "x w", "t", name="t"), node("Conv", "t w", "y", name="y")]
    model = make_model(nodes, {"x": (1, 8, 9, 9)}, {"y": 4}, {"w": random(8, 8, 1, 1)})
    layers = by_line(passes(model, **CHIP).decision).values()
    assert max(Counter(core for layer in layers for core in {*layer.cores}).values()) == 1
