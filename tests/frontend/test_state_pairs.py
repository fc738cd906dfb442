"""States of a model: named by the user, or recognised by the names that exporters give them."""

import pytest

from raptor.common.errors import UserError
from raptor.frontend import load
from raptor.frontend.state_pairs import find_states
from raptor.graph.residency import StatePair
from tests.stateful_models import model
from tests.tiny_models import node


def pairs(given: str, made: str, auto: bool = True) -> list[str]:
    """The states of a model with one more input and output of these names."""
    nodes = [node("Add", f"x {given}", "y"), node("Tanh", "y", made)]
    shape = (1, 4)
    proto = model(nodes, {"x": shape, given: shape}, {"y": shape, made: shape})
    return [str(pair) for pair in find_states(load(proto).graph, {"auto": ""} if auto else {given: made})]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("h0", "hn"),
        ("h_0", "h_n"),
        ("c0", "cn"),
        ("state", "stateN"),
        ("state", "state_out"),
        ("state_in", "state_out"),
        ("hidden", "new_hidden"),
        ("past_key_values.0.key", "present.0.key"),
        ("past_conv", "present_conv"),
        ("conv_cache", "conv_cache_out"),
        ("in_cache", "out_cache"),
        ("prev_state", "next_state"),
        ("rnn_h", "rnn_h_out"),
    ],
)
def test_recognised(given: str, made: str):
    assert pairs(given, made) == [f"{given}={made}"]


@pytest.mark.parametrize(("given", "made"), [("image_in", "image_out"), ("mask", "probabilities"), ("h0", "cn")])
def test_other_names_are_no_states(given: str, made: str):
    with pytest.raises(UserError, match=r"no output has the name and the shape of an input's next value.*x \[1, 4\]"):
        pairs(given, made)
    assert pairs(given, made, auto=False) == [f"{given}={made}"]


def test_two_states_of_one_name_each():
    nodes = [node("Add", "x h0", "a"), node("Mul", "a c0", "hn"), node("Tanh", "a", "cn")]
    shape = (1, 4)
    proto = model(nodes, dict.fromkeys(("c0", "x", "h0"), shape), dict.fromkeys(("hn", "cn"), shape))
    assert find_states(load(proto).graph, {"auto": ""}) == (StatePair("c0", "cn"), StatePair("h0", "hn"))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"s": "nothing"}, "the model has no output nothing; it has y, t, wide"),
        ({"nothing": "t"}, "the model has no input nothing; it has x, s, unread"),
        ({"s": "wide"}, r"the input is \[1, 4\], and the output \[1, 8\]"),
        ({"unread": "t"}, "no node reads unread, so it is no state"),
        ({"s": "t", "x": "t"}, "t is the next value of two inputs"),
    ],
)
def test_what_is_no_state(given: dict[str, str], fault: str):
    nodes = [node("Add", "x s", "y"), node("Tanh", "y", "t"), node("Concat", "y t", "wide", axis=1)]
    inputs = dict.fromkeys(("x", "s", "unread"), (1, 4))
    proto = model(nodes, inputs, {"y": (1, 4), "t": (1, 4), "wide": (1, 8)})
    with pytest.raises(UserError, match=fault):
        find_states(load(proto).graph, given)
