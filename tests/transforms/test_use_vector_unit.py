"""Depthwise convolutions go where they take less time, and say so in the report."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from raptor.graph.ir import Filter, Stencil
from raptor.spatial.operations import Stencil as StencilTile
from raptor.target import arch as architectures
from raptor.target.timing import mvmul_ns, vector_ns
from tests.pipeline import check, count_ops, passes
from tests.tiny_models import make_model, node, random

SIZES = {"xbar": 8, "xbars_per_core": 16, "cores": 20}
FEW = {**SIZES, "cores": 3}
"""A chip of so few cores that each has several columns."""


def model(*, group: int = 10, outs: int = 10, relu: bool = False, batch: int = 1, **attributes: Any):
    constants = {"w": random(outs, 10 // group, 3, 3), "b": random(outs)}
    nodes = [node("Conv", "x w b", "c" if relu else "y", group=group, name="conv", **attributes)]
    nodes += [node("Relu", "c")] if relu else []
    return make_model(nodes, {"x": (batch, 10, 5, 6)}, ["y"], constants)


@pytest.fixture
def slow_vectors(tmp_path: Path) -> Path:
    """A chip whose vector unit takes longer than its crossbars."""
    raw = json.loads((resources.files("raptor.target") / "presets" / "bench.json").read_text())
    raw["chip_config"]["core_config"]["vector_latency_cycle"] = 5000
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(raw))
    return path


def unfolding(program: Any) -> str:
    return program.report.layers[0].unfolding


@pytest.mark.parametrize("attributes", [{}, {"pads": [1] * 4, "strides": [2, 1]}, {"batch": 2}, {"relu": True}])
def test_vectors_are_cheaper_on_the_bench_chip(attributes: dict[str, Any]):
    program = check(model(**attributes), **SIZES)
    assert unfolding(program) == "vector"
    assert program.report.matrices == 0


@pytest.mark.parametrize("attributes", [{}, {"pads": [1] * 4, "strides": [2, 1]}])
def test_crossbars_are_cheaper_where_vectors_are_slow(attributes: dict[str, Any], slow_vectors: Path):
    program = check(model(**attributes), arch=slow_vectors, mapping="raptor", **SIZES)
    assert unfolding(program) == "kernel"
    # 2 tiles, each a block of the diagonal for each of 9 positions.
    assert program.report.matrices == 18
    assert "vvmul" not in program.report.instructions
    by_line = check(model(**attributes), arch=slow_vectors, **SIZES)
    assert unfolding(by_line).startswith("line")
    assert "vvmul" not in by_line.report.instructions


@pytest.mark.parametrize("channels", [2, 5, 20])
@pytest.mark.parametrize("attributes", [{"pads": [1] * 4}, {"pads": [2, 2, 2, 2], "dilations": [2, 2]}, {}])
def test_neighbouring_pixels_are_weighted_at_once(channels: int, attributes: dict[str, Any]):
    weights = random(channels, 1, 3, 3)
    weights[:, :, 0, 1], weights[:, :, 2, 2] = 1, 0
    shallow = make_model(
        [node("Conv", "x w", "c", name="first"), node("Conv", "c d", "y", group=channels, name="conv", **attributes)],
        {"x": (1, 3, 7, 11)},
        ["y"],
        {"w": random(channels, 3, 1, 1), "d": weights},
    )
    found = passes(shallow, **FEW, mapping="rows")
    together = {op.together for c in found.spatial.computes for op in c.body if isinstance(op, StencilTile)}
    assert max(together) > 1
    check(shallow, **FEW, mapping="rows")


@pytest.mark.parametrize(("group", "outs"), [(10, 20), (5, 10), (1, 10)])
def test_only_depthwise_ones_go_to_the_vector_unit(group: int, outs: int):
    assert unfolding(check(model(group=group, outs=outs), mapping="raptor", **SIZES)) == "kernel"


def test_the_pass_changes_only_the_operator():
    result = passes(model(), **SIZES)
    before, after = result.graph.nodes, result.chosen.nodes
    assert isinstance(before[0].operator, Filter)
    assert isinstance(after[0].operator, Stencil)
    assert [(n.name, n.inputs, n.output) for n in before] == [(n.name, n.inputs, n.output) for n in after]
    assert count_ops(result.streams)["vvmul"] > 0


def test_times_are_those_the_simulator_measured():
    """The one or two cycles that the pipeline adds are left out (docs/developers/target.md, 4.2)."""
    bench = architectures.load("bench", cell_bits=2)
    assert [mvmul_ns(bench, xbars) for xbars in (1, 4, 64)] == [1655, 1685, 2585]
    wide = architectures.load("bench", cell_bits=2, bits=16)
    assert mvmul_ns(wide, 4) == 3301
    # 1255 with fetch, decode and the loads of its registers.
    assert vector_ns(bench, 1024, operands=2) == 1248
