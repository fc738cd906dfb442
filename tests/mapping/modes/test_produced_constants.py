"""Constants that crossbars produce because the port of global memory binds."""

import pytest
from onnx import ModelProto

from raptor.mapping.modes.produced_constants import (
    PORT_SHARE,
    fit_constants,
    loads_at_port_ns,
    product_ns,
    relieve_port,
)
from raptor.spatial.refinement import make_constants
from raptor.target.timing import global_port_ns
from tests.pipeline import Passes, check, chip, passes
from tests.tiny_models import make_model, node, random

ARCH = chip((128, 128), cores=60)
LONG = {"a": 128, "b": 128}
"""Constants of a core whose loads take longer at the port than the load of the input of a product."""


def test_the_largest_constants_come_first():
    assert fit_constants({"a": 100, "b": 120, "c": 20}, 1, ARCH) == {"b"}
    assert fit_constants({"a": 100, "b": 120, "c": 20}, 2, ARCH) == {"a", "b", "c"}


def test_cores_with_least_work_come_first_until_the_port_does_not_bind():
    saved_ns = loads_at_port_ns(LONG.values(), ARCH) - global_port_ns(ARCH, 1)
    busy_ns, enough_ns = {0: 9000.0, 1: 100.0, 2: 300.0, 3: 200.0}, PORT_SHARE * 9000.0
    spare = dict.fromkeys(range(4), LONG)
    assert relieve_port(spare, busy_ns, enough_ns, ARCH) == []
    assert relieve_port(spare, busy_ns, enough_ns + saved_ns, ARCH) == [1]
    assert relieve_port(spare, busy_ns, enough_ns + 1.5 * saved_ns, ARCH) == [1, 3]
    assert relieve_port(spare, busy_ns, 99000.0, ARCH) == [1, 3, 2, 0]


def test_a_product_counts_as_work_of_its_core():
    """The core becomes the busiest, so the port no longer binds; never for longer than the port did."""
    many = {str(i): 128 for i in range(16)}
    longest = 1000.0 + product_ns(many.values(), ARCH)
    saved_ns = loads_at_port_ns(many.values(), ARCH) - global_port_ns(ARCH, 1)
    assert PORT_SHARE * 1000.0 < longest - saved_ns <= PORT_SHARE * longest
    assert relieve_port({0: many, 1: many}, {0: 1000.0, 1: 1000.0}, longest, ARCH) == [0]
    assert relieve_port({0: many, 1: many}, {0: 1000.0, 1: 1000.0}, longest - 1, ARCH) == []


def test_a_constant_as_short_as_the_input_of_a_product_is_loaded():
    assert relieve_port({0: {"a": 1}}, {0: 1.0}, 1e6, ARCH) == []
    assert relieve_port({0: {"a": 1, "b": 1}}, {0: 1.0}, 1e6, ARCH) == [0]


def layers() -> ModelProto:
    """Short layers of many channels: each core loads a bias of its own, and works for less time than all loads take."""
    constants = {
        f"{n}{i}": random(*shape, seed=i) for i in range(3) for n, shape in (("w", (128, 128, 3)), ("b", (128,)))
    }
    nodes = [
        node("Conv", f"t{i} w{i} b{i}", f"t{i + 1}" if i < 2 else "y", name=f"layer{i}", pads=[1, 1]) for i in range(3)
    ]
    return make_model(nodes, {"t0": (1, 128, 24)}, ["y"], constants)


def port_ns(done: Passes) -> float:
    return float(make_constants.partition_work(done.partition, done.arch).memory_ns.sum())


def test_a_program_whose_port_binds_is_relieved(monkeypatch: pytest.MonkeyPatch):
    done = passes(layers(), mapping="rows", cores=60)
    assert done.decision.refinement is not None
    made = sum(run.stop - run.first for run in done.decision.refinement.constants)
    monkeypatch.setattr(make_constants, "relieve_port", lambda *_: [])
    loaded = passes(layers(), mapping="rows", cores=60)
    assert loaded.decision.layers == done.decision.layers
    assert made > 0
    assert port_ns(done) < 0.8 * port_ns(loaded)


def test_a_product_makes_constants_of_several_pixels():
    """A core loads a constant for each of its lines; one product makes all of them."""
    nodes = [node("Conv", "x w", "t", name="conv"), node("Mul", "t rows", "y", name="weighed")]
    constants = {"w": random(20, 3, 1, 1), "rows": random(1, 1, 16, 24)}
    model = make_model(nodes, {"x": (1, 3, 16, 24)}, ["y"], constants)
    done = passes(model, mapping="rows", cores=30)
    assert any(constant.pixels > 1 for constant in done.partition.graph.made.values())
    check(model, mapping="rows", cores=30)
