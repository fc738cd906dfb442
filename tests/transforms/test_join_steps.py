"""Layers of equal weights that read parts of a tensor, as the steps of an unrolled loop, are one layer of tokens."""

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Filter
from raptor.mapping.strategies import STRATEGIES
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.tokens.join_steps import LEAST_STEPS, find_steps, join_steps
from tests.pipeline import passes
from tests.tiny_models import make_model, node, random, rename_tensor

STEPS = 6
CONSTANTS = {
    "w": random(4, 2, 3, 3),
    "flat": np.array([1, 12, STEPS]),
    "reads": random(12, 8),
    "bias": random(8),
    "keeps": random(8, 8),
    "back": np.arange(8)[::-1].copy(),
    **{f"at{i}": np.array(i) for i in range(STEPS)},
}


def loop(steps: int = STEPS, reads: str = "reads", last: str = "y") -> ModelProto:
    """A layer of 3 lines and 6 columns, the steps of a loop: each adds its layer to one of the turned state."""
    nodes = [
        node("Conv", "x w", "image", pads=[1, 1, 1, 1], name="conv"),
        node("Reshape", "image flat", "columns"),
    ]
    state = ""
    for i in range(steps):
        made = last if i == steps - 1 else f"h{i}"
        nodes.append(node("Gather", f"columns at{i}", f"x{i}", axis=2, name=f"take{i}"))
        nodes.append(node("Gemm", f"x{i} {reads} bias", f"read{i}", name=f"read{i}"))
        if state:
            nodes.append(node("Gather", f"{state} back", f"turned{i}", axis=1, name=f"turn{i}"))
            nodes.append(node("MatMul", f"turned{i} keeps", f"kept{i}", name=f"keep{i}"))
            nodes.append(node("Add", f"read{i} kept{i}", f"sum{i}", name=f"add{i}"))
        nodes.append(node("Tanh", f"sum{i}" if state else f"read{i}", made, name=f"tanh{i}"))
        state = made
    return make_model(nodes, {"x": (1, 2, 3, STEPS)}, {"y": 2}, CONSTANTS, opset=13)


def steps_of(model: ModelProto) -> tuple[int, int]:
    """Returns the numbers of layers before and after the rewrite, whose values have to be the same."""
    before = load(model).graph
    records = find_steps(before, {})
    filters = [each.output for each in before.nodes if isinstance(each.operator, Filter)]
    after = join_steps(before, RewriteChoice(True, dict.fromkeys(filters)).with_records(records))
    after.verify()
    values = {"x": np.random.default_rng(3).standard_normal(before.tensors["x"].shape, np.float32)}
    for name in before.outputs:
        assert np.allclose(evaluate_graph(before, values)[name], evaluate_graph(after, values)[name], atol=1e-5)
    return len(filters), sum(isinstance(each.operator, Filter) for each in after.nodes)


def test_steps_that_wait_for_nothing_are_one_layer():
    before, after = steps_of(loop())
    assert before - after == STEPS - 1


@pytest.mark.parametrize("end", ["first", "tokens"])
def test_a_tensor_of_the_model_has_the_name_of_a_new_one(end: str):
    first = next(iter(find_steps(load(loop()).graph, {}).values())).layer
    before, after = steps_of(rename_tensor(loop(), "image", f"{first}.{end}"))
    assert before - after == STEPS - 1


def test_few_steps_stay():
    before, after = steps_of(loop(LEAST_STEPS - 1))
    assert before == after


def test_steps_that_wait_for_each_other_stay():
    joined = find_steps(load(loop()).graph, {})
    assert not any("kept" in name for name in joined)


def test_a_loop_computes_what_the_model_does():
    program = raptor.compile(loop(), cores=20, xbar=16)
    assert program.validate(samples=2).verdict == "pass"


def test_a_stored_mapping_joins_the_same_steps(tmp_path):
    first = raptor.compile(loop(), cores=20, xbar=16)
    first.save(tmp_path / "first")
    again = raptor.compile(loop(), cores=20, xbar=16, mapping=tmp_path / "first" / "mapping.json")
    again.save(tmp_path / "again")
    names = sorted(path.name for path in (tmp_path / "first").glob("core_*.json"))
    assert names
    assert all((tmp_path / "first" / n).read_bytes() == (tmp_path / "again" / n).read_bytes() for n in names)


@pytest.mark.parametrize("strategy", ["raptor", "pixelwise"])
def test_references_keep_all_layers(strategy: str):
    assert not STRATEGIES[strategy].streaming
    found = passes(loop(), mapping=strategy, cores=40, xbar=16)
    assert not found.decision.rewrites.joined


def test_steps_of_columns_read_whole_pixels():
    """A layer permutes the rows of its matrix, so that a token is three runs of channels, and not twelve elements."""
    found = passes(loop(), mapping="rows", cores=20, xbar=16)
    (move,) = (each.operator for each in found.chosen.nodes if each.output.endswith(".tokens"))
    runs = np.count_nonzero(np.diff(move.sources[0]) != 1) + 1
    assert runs == 3
