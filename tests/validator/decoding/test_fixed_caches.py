"""Decoders whose caches have a fixed size, as torch exports them: each step writes a row at a run-time position."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.integrations.onnxruntime_session import InferenceSession
from tests import fused_decoders
from tests.decoder_models import GraphBuilder
from tests.tiny_models import Array
from validator.model.ort_session import create_session

ROWS, HEADS, SIZE, VOCABULARY = 6, 2, 8, 12
WIDTH = HEADS * SIZE
TOKENS = (3, 1, 7, 7, 0, 11)
POSITIONS = 16
Write = Literal["ScatterND", "ScatterElements", "TensorScatter", "Where"]
Variant = Literal["", "circular", "modulo", "backwards", "biased", "given bias", "rounded"]


def fixed_decoder(how: Write, variant: Variant = "") -> ModelProto:
    """A decoder of one layer, whose keys and values are [1, heads, rows, size]. `how`: operator that writes a row.

    torch writes `index_copy` and `index_put` as ScatterND between two Transpose, and `scatter` as ScatterElements.

    `variant`: `circular` and `modulo` write the first row after the last one; `backwards`, the last row first; `biased`
    adds a constant for each row to the scores, `given bias` an input; `rounded` rounds what it writes and what it kept.
    """
    b = GraphBuilder(3)
    word = b.add("Gather", [b.weights("words", VOCABULARY, WIDTH), "input_ids"], "word")
    place = b.add("Gather", [b.weights("places", POSITIONS, WIDTH), "cache_position"], "place")
    b.add("Add", [word, b.add("Unsqueeze", [place, b.constant("first", np.array([0]))], "place.row")], "x")
    b.constant("split", np.array([1, 1, HEADS, SIZE]))
    for kind in ("query", "key", "value"):
        b.add("MatMul", ["x", b.weights(f"{kind}.w", WIDTH, WIDTH)], f"{kind}.flat")
        b.add("Reshape", [f"{kind}.flat", "split"], f"{kind}.split")
        b.add("Transpose", [f"{kind}.split"], kind, perm=[0, 2, 1, 3])
    for kind in ("key", "value"):
        written = f"{kind}.written" if variant == "rounded" else f"present_{kind}"
        _write(b, how, f"past_{kind}", kind, written, variant)
        if variant == "rounded":
            b.add("Round", [written], f"present_{kind}")
    b.add("Transpose", ["present_key"], "keys", perm=[0, 1, 3, 2])
    later = b.add("Greater", [b.constant("rows", np.arange(ROWS)), "cache_position"], "later")
    b.constant("hidden", np.float32(-np.inf))
    b.constant("seen", np.float32(0))
    scores = b.add("MatMul", ["query", "keys"], "scores")
    if variant.endswith("bias") or variant == "biased":
        bias = "bias" if variant == "given bias" else b.weights("bias.by.row", 1, HEADS, 1, ROWS)
        scores = b.add("Add", [scores, bias], "scores.biased")
    b.add("Add", [scores, b.add("Where", [later, "hidden", "seen"], "mask")], "masked")
    b.add("MatMul", [b.add("Softmax", ["masked"], "shares", axis=-1), "present_value"], "mixed")
    b.add("Reshape", [b.add("Transpose", ["mixed"], "by_token", perm=[0, 2, 1, 3]), "flat"], "joined")
    b.constant("flat", np.array([1, 1, WIDTH]))
    b.add("MatMul", [b.add("Add", ["x", "joined"], "y"), b.weights("head", WIDTH, VOCABULARY)], "logits")
    caches = {kind: [1, HEADS, ROWS, SIZE] for kind in ("key", "value")}
    inputs: dict[str, Any] = {"input_ids": [1, 1], "cache_position": [1]}
    inputs |= {"bias": [1, 1, 1, ROWS]} if variant == "given bias" else {}
    outputs = {"logits": [1, 1, VOCABULARY], **{f"present_{k}": shape for k, shape in caches.items()}}
    return b.model({**inputs, **{f"past_{k}": shape for k, shape in caches.items()}}, outputs, version=24)


def _write(b: GraphBuilder, how: Write, past: str, new: str, present: str, variant: Variant) -> None:
    """Adds the operators that write `new` [1, heads, 1, size] into row `cache_position` of a cache."""
    name, position = f"{present}.write", "cache_position"
    if variant == "modulo":
        position = b.add("Mod", [position, b.constant(f"{name}.rows", np.array([ROWS]))], f"{name}.row")
    if variant == "backwards":
        position = b.add("Sub", [b.constant(f"{name}.last", np.array([ROWS - 1])), position], f"{name}.row")
    if how == "ScatterND":
        at = b.add("Unsqueeze", [position, b.constant(f"{name}.axis", np.array([1]))], f"{name}.at")
        rows = [b.add("Transpose", [x], f"{x}.rows", perm=[2, 1, 0, 3]) for x in (past, new)]
        b.add("Transpose", [b.add("ScatterND", [rows[0], at, rows[1]], name)], present, perm=[2, 1, 0, 3])
    elif how == "ScatterElements":
        shape = b.constant(f"{name}.shape", np.array([1, HEADS, 1, SIZE]))
        b.add("ScatterElements", [past, b.add("Expand", [position, shape], f"{name}.at"), new], present, axis=2)
    elif how == "TensorScatter":
        mode = "circular" if variant == "circular" else "linear"
        b.add("TensorScatter", [past, new, position], present, axis=2, mode=mode)
    else:
        rows = b.constant(f"{name}.numbers", np.arange(ROWS).reshape(ROWS, 1))
        b.add("Where", [b.add("Equal", [rows, position], f"{name}.at"), new, past], present)


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


WRITTEN: Sequence[tuple[Write, Variant, int]] = (
    *((how, "", ROWS) for how in get_args(Write)),
    ("TensorScatter", "", ROWS - 2),
    ("TensorScatter", "circular", POSITIONS),
    ("ScatterND", "modulo", POSITIONS),
    ("ScatterElements", "biased", ROWS),
)


def label(case: Sequence[Any]) -> str:
    """Returns the name of a case: operator, variant, number of steps."""
    return ", ".join(str(part) for part in case[:3] if part != "")


@pytest.mark.parametrize(("how", "variant", "steps"), WRITTEN, ids=map(label, WRITTEN))
def test_a_session_has_the_cache_that_onnxruntime_writes(how: Write, variant: Variant, steps: int) -> None:
    """Tokens, logits, and after the last step all rows of the caches, also after the first row was written again."""
    made = raptor.compile(fixed_decoder(how, variant), states="auto", capacity=steps, cores=16)
    verdict = made.validate()
    assert verdict.passed, verdict.outputs
    assert verdict.decoding is not None
    assert (verdict.samples, verdict.decoding.equal) == (steps, steps)
    assert {o.name for o in verdict.outputs} == {"logits", "present_key", "present_value"}


def test_cores_share_a_cache_that_is_written_in_place() -> None:
    """A step takes less than half of the time that it takes if its position is a free input."""
    model = fused_decoders.static_cache_decoder("ScatterND", rows=16)
    window = raptor.compile(model, states="auto", capacity=16, arch="bench")
    free = raptor.compile(model, states="auto", arch="bench")
    times = [program.simulate().latency_ns or 0.0 for program in (window, free)]
    assert 2 * times[0] < times[1], times


REFUSED: Sequence[tuple[Write, Variant, int, str]] = (
    ("ScatterND", "", ROWS + 1, "onnxruntime cannot write a row of past_key, of shape"),
    ("TensorScatter", "", ROWS + 1, "onnxruntime cannot write a row of past_key, of shape"),
    ("Where", "", ROWS + 1, "present_key: the step at position 6 does not write row 0 of past_key, a cache of 6"),
    ("ScatterND", "backwards", ROWS, "present_key: the step at position 0 does not write row 0 of past_key"),
    ("ScatterND", "given bias", ROWS, "bias has a value for each row of a cache, which the position does not"),
    ("ScatterND", "rounded", ROWS, "no state grows"),
)


@pytest.mark.parametrize(("how", "variant", "steps", "fault"), REFUSED, ids=map(label, REFUSED))
def test_what_is_no_row_of_the_position_is_refused(how: Write, variant: Variant, steps: int, fault: str) -> None:
    with pytest.raises(raptor.UserError, match=fault):
        raptor.compile(fixed_decoder(how, variant), states="auto", capacity=steps, cores=16)


def test_inspection_tells_the_rows_of_a_cache_that_is_written_in_place() -> None:
    decoder = raptor.inspect(fixed_decoder("ScatterND")).decoder
    assert decoder is not None
    assert (decoder.capacity, decoder.states) == (ROWS, ("past_key", "past_value"))
    assert (decoder.token_bytes, decoder.derived) == (2 * WIDTH, ("cache_position",))
