"""States of several vectors lie as their next values are put together, and compute the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Graph, Move
from raptor.graph.residency import Residency, StatePair
from raptor.transforms.lay_out_states import lay_out_states
from tests.stateful_models import packed_states, recurrent_step, window
from tests.tiny_models import random


def loaded(model: ModelProto, state: str, output: str) -> Graph:
    return replace(load(model).graph, residency=Residency(states=(StatePair(state, output),)))


PACKED = loaded(packed_states(), "state", "next_state")


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_vectors_of_a_state_are_runs(cells: int):
    before = loaded(packed_states(cells=cells), "state", "next_state")
    after = lay_out_states(before)
    assert after.tensors["state"].image == before.tensors["next_state"].image != before.tensors["state"].image
    taking = [node.operator for node in after.nodes if node.inputs == ("state",)]
    assert len(taking) == 2 * cells
    assert all(isinstance(move, Move) and (np.diff(move.sources.reshape(-1)) == 1).all() for move in taking)


def test_the_values_stay():
    given = {name: random(*PACKED.tensors[name].shape, seed=3) for name in PACKED.inputs}
    after, before = evaluate_graph(lay_out_states(PACKED), given), evaluate_graph(PACKED, given)
    for output in PACKED.outputs:
        np.testing.assert_array_equal(after[output], before[output])


def test_a_part_that_is_padded_stays_padded():
    """A rearrangement that takes a zero beside elements of the state."""
    cut = next(node for node in PACKED.nodes if node.inputs == ("state",))
    assert isinstance(cut.operator, Move)
    sources = cut.operator.sources
    padded = replace(cut, operator=Move(np.where(sources == sources.max(), -1, sources)))
    before = replace(PACKED, nodes=tuple(padded if node is cut else node for node in PACKED.nodes))
    given = {name: random(*before.tensors[name].shape, seed=3) for name in before.inputs}
    after = evaluate_graph(lay_out_states(before), given)
    np.testing.assert_array_equal(after["next_state"], evaluate_graph(before, given)["next_state"])


OTHERS = {
    "read by a function": loaded(packed_states(read_whole=True), "state", "next_state"),
    "a window": loaded(window(), "rows", "rows_out"),
    "one vector": loaded(recurrent_step("GRU"), "h0", "hn"),
    "no state": replace(PACKED, residency=Residency()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str):
    assert lay_out_states(OTHERS[name]) is OTHERS[name]


def test_a_longer_vector_takes_no_more_instructions():
    """Each element is copied alone otherwise."""
    options: dict[str, Any] = {"states": {"state": "next_state"}, "cores": 12}
    short, long = (raptor.compile(packed_states(units), **options).simulate() for units in (16, 64))
    assert long.instructions <= 1.1 * short.instructions
