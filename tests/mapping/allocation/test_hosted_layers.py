"""Layers that do not stream, on the cores of the layers before them."""

from typing import Any

import pytest

import raptor
from raptor.mapping.allocation import hosted_layers
from raptor.mapping.allocation.hosted_layers import find_hosts
from raptor.mapping.allocation.whole_layers import number_neighbourhoods
from raptor.mapping.decision import Decision, record_cores
from raptor.mapping.knobs import TuningKnobs
from raptor.target import arch as architectures
from raptor.target.arch import Target
from tests.mapping.allocation.test_phase_sharing import prepared, squeezing
from tests.pipeline import by_line, check, faults, map_by_rows
from tests.tiny_models import make_model, node, random

BLOCKS = 4
APART, GUESTS = TuningKnobs(latency=0.0), TuningKnobs(latency=0.0, guests=1.0)


def chip(xbars: int = 40) -> Target:
    return architectures.load(xbar=16, xbars_per_core=xbars, cores=24)


def streaming(decision: Decision) -> set[int]:
    """The cores of the layers that stream."""
    return {core for layer in by_line(decision).values() for core in layer.cores}


def test_the_host_is_the_layer_by_line_before():
    graph = prepared(squeezing(BLOCKS))
    streamed = [key for key in number_neighbourhoods(graph, ()) if "squeeze" not in key]
    layers = number_neighbourhoods(graph, streamed)
    hosts = find_hosts(graph, streamed, layers)
    assert [hosts[number] for number in layers.values()] == [key for key in streamed if "wide" in key]
    assert find_hosts(graph, (), number_neighbourhoods(graph, ())) == {}


def test_small_layers_share_cores_with_the_layer_before():
    """So layers that stream have all cores."""
    graph, arch = prepared(squeezing(BLOCKS)), chip()
    apart, hosted = (map_by_rows(graph, arch, knobs) for knobs in (APART, GUESTS))
    assert not [*faults(hosted, graph, arch)]
    assert (len(streaming(apart)), len(streaming(hosted))) == (20, 24)
    for i in range(BLOCKS):
        guest, host = (hosted.layers[name] for name in (f"squeeze{i}", f"wide{i}"))
        assert {*record_cores(guest)} <= {*record_cores(host)}


def test_layers_that_do_not_fit_have_cores_of_their_own():
    """A host with few free crossbars, and a layer that takes longer than all that stream."""
    graph, arch = prepared(squeezing(BLOCKS)), chip(xbars=6)
    hosted = map_by_rows(graph, arch, GUESTS)
    assert not [*faults(hosted, graph, arch)]
    wide = make_model(
        [
            node("Conv", "x a", "wide", name="wide", pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", "wide", "mean"),
            node("Conv", "mean s", "y", name="tall"),
        ],
        {"x": (1, 4, 4, 4)},
        ["y"],
        {"a": random(4, 4, 3, 3), "s": random(900, 4, 1, 1)},
    )
    graph = prepared(wide)
    apart, hosted = (map_by_rows(graph, chip(), knobs) for knobs in (APART, GUESTS))
    assert hosted.layers == apart.layers


def test_a_search_for_throughput_hosts_small_layers(monkeypatch: pytest.MonkeyPatch):
    options: dict[str, Any] = {"xbar": 16, "xbars_per_core": 40, "cores": 24, "optimize": "throughput", "effort": 1}
    hosted = raptor.compile(squeezing(BLOCKS), overlap=1, **options).simulate(mode="throughput")
    monkeypatch.setattr(hosted_layers, "find_hosts", lambda *_: {})
    apart = raptor.compile(squeezing(BLOCKS), overlap=1, **options).simulate(mode="throughput")
    print(hosted.interval_ns, apart.interval_ns)
    assert (hosted.interval_ns or 0.0) < 0.95 * (apart.interval_ns or 0.0)


@pytest.mark.parametrize("cores", [12, 24, 60])
def test_answers_are_right(cores: int):
    knobs = {"latency": 0.0, "guests": 1.0}
    check(squeezing(BLOCKS), xbar=16, xbars_per_core=40, cores=cores, mapping="rows", knobs=knobs)
