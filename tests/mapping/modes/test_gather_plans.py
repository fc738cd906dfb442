"""Moves that get cores of their own: groups that share them, and their plans."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from raptor.mapping.modes.gather_plans import gather_plans, group_gathers
from raptor.mapping.modes.line_streaming import find_gathers, line_channel_ranges
from raptor.mapping.modes.plan_choice import pareto_front
from raptor.spatial.ir import TakeRows
from raptor.target.timing import global_port_ns, load_ns
from tests.pipeline import check, chip, line_flow, passes
from tests.tiny_models import make_model, node, random

COUNT = 400
CHIP = {"cores": 40, "xbar": 16}


def gathered(*, apart: bool) -> ModelProto:
    """Elements of an input by three indices. A product combines two results, the third is read alone if `apart`."""
    index = {name: np.arange(COUNT) * step % 90 for name, step in (("i", 7), ("j", 11), ("k", 13))}
    nodes: list[Any] = [
        *(node("Gather", f"x {name}", name * 2, axis=1, name=f"gather_{name}") for name in index),
        node("Mul", "ii jj", "m", name="product"),
        node("Tanh", "kk", "t", name="third"),
        node("MatMul", "m v", "y", name="layer"),
        *([] if apart else [node("Add", "m t", "s", name="sum")]),
        node("MatMul", "t w" if apart else "s w", "z", name="other"),
    ]
    constants = {**index, "v": random(COUNT, 5), "w": random(COUNT, 6, seed=2)}
    return make_model(nodes, {"x": (1, 90)}, {"y": 2, "z": 2}, constants, opset=13)


def loaders(*, apart: bool) -> dict[str, object]:
    flow = line_flow(passes(gathered(apart=apart), mapping="rows", **CHIP).decision)
    return {name: pairs for name, pairs in flow.loaders.items() if name != "x"}


def test_results_that_functions_combine_share_their_cores():
    together = loaders(apart=False)
    assert together.keys() == {"ii", "jj", "kk"}
    assert len({*together.values()}) == 1


def test_others_have_cores_of_their_own():
    found = loaders(apart=True)
    assert found["ii"] == found["jj"] != found["kk"]
    check(gathered(apart=True), **CHIP)


def test_a_core_of_a_group_has_the_copies_of_all():
    arch = chip((16, 16), cores=40)
    graph = passes(gathered(apart=True), mapping="rows", **CHIP).chosen
    parts = line_channel_ranges(graph, arch)
    pair = max(group_gathers(graph, find_gathers(graph, parts)).values(), key=len)
    assert {node.output for node in pair} == {"ii", "jj"}
    two, one = (pareto_front(gather_plans(nodes, graph, arch, parts["ii"], {}, {})) for nodes in (pair, pair[:1]))
    assert two[0].cores == one[0].cores == 1
    assert 1.8 < two[0].core_ns / one[0].core_ns < 2.1
    assert two[-1].cores > 20
    assert two[-1].core_ns > 2 * COUNT / two[-1].cores * 54, "each element is a copy"


def words(length: int, *, attends: bool = False) -> ModelProto:
    """Rows of a table by index, read by convolutions of two widths; or by their own products."""
    constants = {"table": random(30, 8), "v": random(16, 8, 3), "w": random(16, 8, 5), "one": np.array([1])}
    nodes = [node("Gather", "table ids", "rows", name="lookup"), node("Transpose", "rows", "x", perm=[0, 2, 1])]
    if attends:
        nodes += [node("MatMul", "rows x", "s"), node("Softmax", "s", "y", axis=2)]
    else:
        nodes += [
            node("Conv", "x v", "a", name="narrow", pads=[1, 1]),
            node("Conv", "x w", "b", name="wide", pads=[2, 2]),
            node("Add", "a b", "y", name="sum"),
        ]
    model = make_model(nodes, {"ids": (1, length)}, {"y": 3}, constants, opset=13)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


@pytest.mark.parametrize("length", [40, 7])
def test_a_lookup_has_cores_of_its_own(length: int):
    """The rows of a table that a single core loads all readers would wait for."""
    done = passes(words(length), mapping="rows", **CHIP)
    found = line_flow(done.decision).loaders["rows"]
    assert found[0][0][0] == 0
    assert found[-1][0][1] == length
    assert len({core for _, core in found}) == len(found) > length // 10
    takes = [i for i, c in enumerate(done.spatial.computes) if any(isinstance(op, TakeRows) for op in c.body)]
    assert sorted({done.partition.cores[i] for i in takes}) == sorted(core for _, core in found)
    check(words(length), **CHIP)


def test_tokens_of_a_transformer_are_looked_up_where_the_first_layer_has_them():
    """On a single core, the lookups of all tokens and what follows took longer than any layer."""
    done = passes(words(12, attends=True), mapping="rows", **CHIP)
    (name,) = find_gathers(done.chosen, line_channel_ranges(done.chosen, done.arch))
    found = line_flow(done.decision).loaders[name]
    assert (found[0][0][0], found[-1][0][1]) == (0, 12)
    assert len({core for _, core in found}) == len(found) > 1


def test_inputs_with_loaders_are_not_loaded_by_each_core():
    """A plan does not count their loads at the port of global memory: the loaders may load for all."""
    arch = chip((16, 16), cores=40)
    assert load_ns(arch, 90) > global_port_ns(arch, 90)
    flow = line_flow(passes(gathered(apart=False), mapping="rows", **CHIP).decision)
    assert 0 < len(flow.loaders["x"]) < len(flow.loaders["ii"])
