"""Lines that are gathered from many lines of model inputs, each core some columns."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.graph.ir import Move
from raptor.mapping.decision import Decision
from raptor.mapping.modes.line_streaming import find_gathers, line_channel_ranges
from tests.pipeline import check, chip, faults, line_flow, passes, streamed
from tests.quantised_models import quantise
from tests.tiny_models import Array, make_model, node, random

CHIP = {"cores": 24, "xbar": 16}


def made(nodes: list[Any], given: dict[str, tuple[int, ...]], rank: int = 4, **more: Array) -> ModelProto:
    constants = {"w": random(4, 3, 3, 3), "thin": random(4, 1, 3, 3)}
    return make_model(nodes, given, {"y": rank}, constants | more, opset=13)


def layer(x: str, weights: str = "w") -> Any:
    return node("Conv", f"{x} {weights}", "y", name="layer", strides=[2, 2])


TURNED = made([node("Transpose", "x", "t", perm=[0, 1, 3, 2]), layer("t")], {"x": (1, 3, 20, 24)})
MODELS = {
    "lines and columns exchanged": (TURNED, {"t"}),
    "real and imaginary parts": (
        made(
            [
                node("Gather", "x zero", "re", axis=3, name="re"),
                node("Gather", "x first", "im", axis=3, name="im"),
                node("Mul", "re re", "a", name="a"),
                node("Mul", "im im", "b", name="b"),
                node("Add", "a b", "y"),
            ],
            {"x": (1, 34, 40, 2)},
            3,
            zero=np.array(0),
            first=np.array(1),
        ),
        {"re", "im"},
    ),
    "several inputs and zeros": (
        made(
            [
                node("Concat", "x z", "c", axis=1),
                node("Pad", "c pads", "p"),
                node("Transpose", "p", "t", perm=[0, 1, 3, 2]),
                layer("t"),
            ],
            {"x": (1, 2, 20, 24), "z": (1, 1, 20, 24)},
            pads=np.array([0, 0, 0, 3, 0, 0, 0, 0]),
        ),
        {"t"},
    ),
    "an input that is read elsewhere, too": (
        made(
            [
                node("Transpose", "x", "t", perm=[0, 1, 3, 2]),
                node("Conv", "t w", "a", name="turned"),
                node("Conv", "x w", "b", name="straight"),
                node("Add", "a b", "y"),
            ],
            {"x": (1, 3, 20, 20)},
        ),
        {"t"},
    ),
}


def decided(model: ModelProto) -> Decision:
    return passes(model, mapping="rows", **CHIP).decision


@pytest.mark.parametrize("name", MODELS)
def test_several_cores_gather(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("raptor.mapping.decide.WORTH_TURNING", 0)  # pairs of parts are a high image
    model, gathered = MODELS[name]
    loaders = line_flow(decided(model)).loaders
    assert loaders.keys() >= gathered
    assert all(len({core for _, core in loaders[n]}) > 1 for n in gathered)
    check(model, **CHIP)


def test_searches_know_the_work_of_gatherers():
    """Without a layer, they are all the work that the search of the latency divides."""
    model, _ = MODELS["real and imaginary parts"]
    check(model, optimize="latency", **CHIP)


def test_each_source_line_is_loaded_once_by_a_core():
    """A core with some columns of turned lines loads as many lines of the input, each at once."""
    found = passes(TURNED, mapping="rows", **CHIP)
    loaders = line_flow(found.decision).loaders["t"]
    copies = [op for c in found.spatial.computes for op in c.body if op.result.name.startswith("x.")]
    assert len(copies) == sum(stop - start for (start, stop), _ in loaders)


def test_few_lines_need_no_gathering():
    """Some lines of an image, each of which is made of one."""
    nodes = [node("Slice", "x start end axis", "t", name="slice"), layer("t")]
    ints = {"start": np.array([3]), "end": np.array([17]), "axis": np.array([2])}
    graph = streamed(passes(made(nodes, {"x": (1, 3, 20, 24)}, **ints)).graph)
    assert [n for n in graph.nodes if isinstance(n.operator, Move)]
    assert not find_gathers(graph, line_channel_ranges(graph, chip((16, 16))))


def test_a_stored_decision_gathers_in_the_same_way(tmp_path: Path):
    program = raptor.compile(TURNED, **CHIP)
    first = program.save(tmp_path / "a", stream_format="pim")
    again = raptor.compile(TURNED, mapping=first / "mapping.json", **CHIP).save(tmp_path / "b", stream_format="pim")
    for file in sorted(path.relative_to(first) for path in first.rglob("*.pim")):
        assert (first / file).read_bytes() == (again / file).read_bytes()
    assert (first / "mapping.json").read_bytes() == (again / "mapping.json").read_bytes()


def test_gatherers_of_another_tensor_are_refused():
    found = passes(TURNED, mapping="rows", **CHIP)
    flow = line_flow(found.decision)
    wrong = replace(flow, loaders={"y.products": flow.loaders["t"]})
    told = list(faults(replace(found.decision, flow=wrong), found.graph, found.arch))
    assert told == ["flow.loaders: y.products is not an input that is read by line"]


def test_integers(tmp_path: Path):
    model = quantise(TURNED, tmp_path)
    assert raptor.compile(model, **CHIP).validate(samples=8).verdict == "pass"
