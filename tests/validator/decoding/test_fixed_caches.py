"""Decoders whose caches have a fixed size, as torch exports them: each step writes a row at a run-time position."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.integrations.onnxruntime_session import InferenceSession
from tests.decoder_models import GraphBuilder
from tests.tiny_models import Array
from validator.model.ort_session import create_session

ROWS, HEADS, SIZE, VOCABULARY = 6, 2, 8, 12
WIDTH = HEADS * SIZE
TOKENS = (3, 1, 7, 7, 0, 11)
Write = Literal["ScatterND", "ScatterElements", "TensorScatter", "Where"]


def fixed_decoder(how: Write) -> ModelProto:
    """A decoder of one layer, whose keys and values are [1, heads, rows, size]. `how`: operator that writes a row.

    torch writes `index_copy` and `index_put` as ScatterND between two Transpose, and `scatter` as ScatterElements.
    """
    b = GraphBuilder(3)
    word = b.add("Gather", [b.weights("words", VOCABULARY, WIDTH), "input_ids"], "word")
    place = b.add("Gather", [b.weights("places", ROWS, WIDTH), "cache_position"], "place")
    b.add("Add", [word, b.add("Unsqueeze", [place, b.constant("first", np.array([0]))], "place.row")], "x")
    b.constant("split", np.array([1, 1, HEADS, SIZE]))
    for kind in ("query", "key", "value"):
        b.add("MatMul", ["x", b.weights(f"{kind}.w", WIDTH, WIDTH)], f"{kind}.flat")
        b.add("Reshape", [f"{kind}.flat", "split"], f"{kind}.split")
        b.add("Transpose", [f"{kind}.split"], kind, perm=[0, 2, 1, 3])
    for kind in ("key", "value"):
        _write(b, how, f"past_{kind}", kind, f"present_{kind}")
    b.add("Transpose", ["present_key"], "keys", perm=[0, 1, 3, 2])
    later = b.add("Greater", [b.constant("rows", np.arange(ROWS)), "cache_position"], "later")
    b.constant("hidden", np.float32(-np.inf))
    b.constant("seen", np.float32(0))
    b.add(
        "Add",
        [b.add("MatMul", ["query", "keys"], "scores"), b.add("Where", [later, "hidden", "seen"], "mask")],
        "masked",
    )
    b.add("MatMul", [b.add("Softmax", ["masked"], "shares", axis=-1), "present_value"], "mixed")
    b.add("Reshape", [b.add("Transpose", ["mixed"], "by_token", perm=[0, 2, 1, 3]), "flat"], "joined")
    b.constant("flat", np.array([1, 1, WIDTH]))
    b.add("MatMul", [b.add("Add", ["x", "joined"], "y"), b.weights("head", WIDTH, VOCABULARY)], "logits")
    caches = {kind: [1, HEADS, ROWS, SIZE] for kind in ("key", "value")}
    inputs: dict[str, Any] = {"input_ids": [1, 1], "cache_position": [1]}
    outputs = {"logits": [1, 1, VOCABULARY], **{f"present_{k}": shape for k, shape in caches.items()}}
    return b.model({**inputs, **{f"past_{k}": shape for k, shape in caches.items()}}, outputs, version=24)


def _write(b: GraphBuilder, how: Write, past: str, new: str, present: str) -> None:
    """Adds the operators that write `new` [1, heads, 1, size] into row `cache_position` of a cache."""
    name = f"{present}.write"
    if how == "ScatterND":
        at = b.add("Unsqueeze", ["cache_position", b.constant(f"{name}.axis", np.array([1]))], f"{name}.at")
        rows = [b.add("Transpose", [x], f"{x}.rows", perm=[2, 1, 0, 3]) for x in (past, new)]
        b.add("Transpose", [b.add("ScatterND", [rows[0], at, rows[1]], name)], present, perm=[2, 1, 0, 3])
    elif how == "ScatterElements":
        shape = b.constant(f"{name}.shape", np.array([1, HEADS, 1, SIZE]))
        b.add("ScatterElements", [past, b.add("Expand", ["cache_position", shape], f"{name}.at"), new], present, axis=2)
    elif how == "TensorScatter":
        b.add("TensorScatter", [past, new, "cache_position"], present, axis=2)
    else:
        rows = b.constant(f"{name}.rows", np.arange(ROWS).reshape(ROWS, 1))
        b.add("Where", [b.add("Equal", [rows, "cache_position"], f"{name}.at"), new, past], present)


def logits_of(session: Any, held: dict[str, Array]) -> Iterator[Array]:
    """Yields the logits of each step until the caches are full. `held`: caches, if the session does not keep them."""
    names = ["logits", *(name.replace("past", "present") for name in held)]
    for position, token in enumerate(TOKENS):
        given = {"input_ids": np.array([[token]]), "cache_position": np.array([position]), **held}
        found = dict(zip(names, session.run(names, given), strict=True))
        held = {name: found[name.replace("past", "present")] for name in held}
        yield found["logits"]


@pytest.mark.parametrize("how", get_args(Write))
def test_logits_are_those_of_onnxruntime_with_its_own_caches(how: Write) -> None:
    proto = fixed_decoder(how)
    made = raptor.compile(proto, states="auto", cores=16)
    assert made.validate(samples=3).passed
    held = {f"past_{kind}": np.zeros((1, HEADS, ROWS, SIZE), np.float32) for kind in ("key", "value")}
    wanted = logits_of(create_session(proto.SerializeToString(), Path("decoder")), held)
    for found, step in zip(logits_of(InferenceSession(made), {}), wanted, strict=True):
        np.testing.assert_allclose(found, step, rtol=1e-5, atol=1e-5)
        assert found.argmax() == step.argmax()
