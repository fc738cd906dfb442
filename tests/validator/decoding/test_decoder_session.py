"""Sessions of a decoder on a compiled program, and the tokens that it generates."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.loading import load
from raptor.options import ResidencyOptions
from raptor.output import files
from tests import decoder_models as decoders
from tests import fused_decoders
from tests.tiny_models import Array
from validator.decoding.generation import Sampling, choose_token, generate_tokens
from validator.decoding.growing_model import GrowingModel
from validator.load.output_directory import load_output

CAPACITY = 6
TOKENS = (3, 1, 7, 7, 0, 11)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> raptor.Program:
    made = compiled(decoders.plain_decoder())
    made.save(tmp_path_factory.mktemp("decoder") / "out")
    return made


def compiled(proto: ModelProto, capacity: int = CAPACITY, **more: Any) -> raptor.Program:
    return raptor.compile(proto, states="auto", capacity=capacity, cores=32, **more)


def run_tokens(session: raptor.Session, tokens: Sequence[int]) -> list[Array]:
    return [session.step(token)["logits"] for token in tokens]


@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])
def test_a_decoder_generates_the_tokens_of_onnxruntime_over_the_whole_capacity(grouped: bool) -> None:
    made = compiled(decoders.grouped_decoder() if grouped else decoders.plain_decoder(), resident_constants=grouped)
    verdict = made.validate()
    assert verdict.passed, verdict
    assert verdict.samples == CAPACITY
    assert verdict.decoding is not None
    assert (verdict.decoding.tokens, verdict.decoding.equal) == (CAPACITY, CAPACITY)
    assert {c.name for c in verdict.outputs} >= {"logits", "present.0.key", "present.1.value"}


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_a_cache_of_integers_holds_those_of_onnxruntime(kind: str) -> None:
    verdict = compiled(decoders.with_integer_cache(decoders.grouped_decoder(), kind)).validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert verdict.decoding.equal == CAPACITY
    caches = [c for c in verdict.outputs if c.name.startswith("present")]
    assert len(caches) == 4
    assert all(c.max_absolute == 0 for c in caches)


def test_blocks_of_weights_need_no_further_crossbars_and_no_rounded_activations() -> None:
    """With accuracy_level 4, onnxruntime rounds activations to 8 bits; the judge then has level 0."""
    proto = decoders.grouped_decoder()
    forms = [decoders.with_weight_blocks(proto, 4, 16, level=4), decoders.with_weight_blocks(proto, 4, 64), proto]
    programs = [compiled(form) for form in forms]
    assert len({program.report.xbars_used for program in programs}) == 1
    loaded = load(forms[0], residency=ResidencyOptions(states=AUTOMATIC, capacity=CAPACITY))
    assert any("accuracy_level 4 is computed and judged as level 0" in note for note in loaded.notes)
    verdict = programs[0].validate()
    assert verdict.passed, verdict
    logits = next(c for c in verdict.outputs if c.name == "logits")
    assert logits.max_relative < 1e-5


def test_the_ring_of_a_window_is_judged_by_a_cache_that_grows() -> None:
    """genai's builder writes it for windows; its ring has at least the rows of the window, which hides all others."""
    ring = decoders.grouped_decoder(local_window_size=3, sliding_window_cache=1)
    made = compiled(ring)
    assert any("sliding_window_cache: the caches of 2 windows keep all rows" in note for note in made.report.warnings)
    verdict = made.validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert verdict.decoding.equal == CAPACITY
    wanted = decoders.steps_of_runtime(decoders.grouped_decoder(local_window_size=3), TOKENS)
    for found, step in zip(run_tokens(raptor.Session(made), TOKENS), wanted, strict=True):
        np.testing.assert_allclose(found, step["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", get_args(fused_decoders.Form))
def test_a_decoder_of_fused_attention_generates_the_tokens_of_onnxruntime(form: fused_decoders.Form) -> None:
    verdict = compiled(fused_decoders.fused_decoder(form)).validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert (verdict.decoding.tokens, verdict.decoding.equal) == (CAPACITY, CAPACITY)


def test_keys_and_values_in_one_tensor_are_one_state_of_the_session(tmp_path: Path) -> None:
    """The program has a state for each; sessions, their files and the judge have the model's, named by the user."""
    pairs = {f"past_{n}": f"present_{n}" for n in range(2)}
    made = raptor.compile(
        fused_decoders.stacked_decoder("Gather"),
        states=pairs,
        capacity=CAPACITY,
        cores=32,
        shapes={"past_0": (2, 1, 2, 0, 8)},
    )
    verdict = made.validate()
    assert verdict.passed, verdict
    assert {c.name for c in verdict.outputs} == {"logits", "present_0", "present_1"}
    session = raptor.Session(made)
    session.step(3)
    assert session.states()["present_1"].shape == (2, 1, 2, 1, 8)
    session.save(tmp_path / "session.npz")
    wanted = session.step(4)["logits"]
    session.load(tmp_path / "session.npz")
    assert np.array_equal(session.step(4)["logits"], wanted)


def test_the_branch_of_a_merged_decoder_with_caches_is_a_decoder() -> None:
    proto = fused_decoders.merged_decoder(decoders.plain_decoder())
    verdict = compiled(proto, constants={"use_cache_branch": [True]}).validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert (verdict.decoding.tokens, verdict.decoding.equal) == (CAPACITY, CAPACITY)


@pytest.mark.parametrize("masked", [False, True], ids=["all tokens", "with padding"])
@pytest.mark.parametrize("returned", ["nothing", "empty", "same"])
def test_a_decoder_attends_to_what_an_encoder_computed(returned: Any, masked: bool, tmp_path: Path) -> None:
    """It is an input of all steps, or a state that the model returns as it is; the session begins with it."""
    made = compiled(fused_decoders.encoder_decoder(returned, masked=masked), dims={"encoder": 5})
    verdict = made.validate()
    assert verdict.passed, verdict
    assert verdict.decoding is not None
    assert verdict.decoding.equal == CAPACITY
    proto = ModelProto.FromString((made.save(tmp_path / "out") / files.ORIGINAL).read_bytes())
    rng = np.random.default_rng(1)
    given: dict[str, Array] = {}
    for kind in ("key", "value"):
        given[f"past_key_values.0.encoder.{kind}"] = random_floats(rng, 1, 2, 5, 8)
    if masked:
        given["encoder_attention_mask"] = np.array([[1, 1, 1, 0, 0]])
    session = raptor.Session(made, given)
    wanted = decoders.steps_of_runtime(proto, TOKENS, given)
    for token, found in zip(TOKENS, wanted, strict=True):
        np.testing.assert_allclose(session.step(token)["logits"], found["logits"], rtol=1e-4, atol=1e-5)
    first = session.states()
    session.reset()
    assert len(session.generate([3], 2)) == 2
    assert session.position == 2
    assert first["present.0.decoder.key"].shape == (1, 2, CAPACITY, 8)


def random_floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"position": np.zeros(1)}, "input 'position': the session knows it"),
        ({"past_key_values.0.decoder.key": np.zeros((1, 2, 6, 8))}, "input 'past_key_values.0.decoder.key': the"),
        (
            {"past_key_values.0.encoder.key": np.zeros((1, 2, 4, 8))},
            r"expected shape \[1, 2, 5, 8\], not \[1, 2, 4, 8\]",
        ),
        ({"x": np.zeros(1)}, "'x' is no input of the model"),
    ],
)
def test_wrong_inputs_of_a_sequence_are_refused(given: Any, message: str) -> None:
    made = compiled(fused_decoders.encoder_decoder(), dims={"encoder": 5})
    with pytest.raises(raptor.UserError, match=message):
        raptor.Session(made, given)


@pytest.mark.parametrize("seed", range(4))
def test_sampled_tokens_are_those_of_onnxruntime(program: raptor.Program, seed: int) -> None:
    """Both sides draw the same random numbers."""
    session = raptor.Session(program)
    judge = _Tokens(session, GrowingModel(session.program, session.decoder))
    sampling = Sampling(1.0, seed)
    assert (
        session.generate([5], CAPACITY, temperature=1.0, seed=seed)
        == generate_tokens(judge, [5], CAPACITY, sampling).tokens
    )


class _Tokens:
    """onnxruntime's own steps, given tokens."""

    def __init__(self, session: raptor.Session, model: GrowingModel) -> None:
        self.session, self.model = session, model

    def step(self, inputs: int) -> dict[str, Array]:
        found = self.model.step(self.session.token_inputs(inputs))
        return {"logits": found["logits"]}


def test_each_step_is_that_of_onnxruntime(program: raptor.Program) -> None:
    session = raptor.Session(program)
    proto = ModelProto.FromString((session.program.folder / files.ORIGINAL).read_bytes())
    for token, wanted in zip(TOKENS, decoders.steps_of_runtime(proto, TOKENS), strict=True):
        np.testing.assert_allclose(session.step(token)["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
        for name, array in session.states().items():
            assert array.shape == wanted[name].shape
            np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5)


def test_two_sessions_that_take_turns_are_each_as_alone(program: raptor.Program) -> None:
    alone = run_tokens(raptor.Session(program), TOKENS), run_tokens(raptor.Session(program), TOKENS[::-1])
    first, second = raptor.Session(program), raptor.Session(program)
    turns = [(first.step(a)["logits"], second.step(b)["logits"]) for a, b in zip(TOKENS, TOKENS[::-1], strict=True)]
    for k, pair in enumerate(turns):
        assert all(np.array_equal(found, wanted[k]) for found, wanted in zip(pair, alone, strict=True))


def test_a_saved_session_goes_on_as_if_uninterrupted(program: raptor.Program, tmp_path: Path) -> None:
    whole = run_tokens(raptor.Session(program), TOKENS)
    session = raptor.Session(program)
    run_tokens(session, TOKENS[:3])
    session.save(tmp_path / "session.npz")
    other = raptor.Session(program)
    other.step(9)
    other.load(tmp_path / "session.npz")
    assert other.position == 3
    assert all(map(np.array_equal, run_tokens(other, TOKENS[3:]), whole[3:]))


def test_a_session_after_a_reset_is_a_new_one(program: raptor.Program) -> None:
    session = raptor.Session(program)
    first = run_tokens(session, TOKENS)
    session.reset()
    assert session.position == 0
    assert all(map(np.array_equal, run_tokens(session, TOKENS), first))


def test_a_step_too_many_is_refused_before_it_runs(program: raptor.Program) -> None:
    session = raptor.Session(program)
    run_tokens(session, TOKENS)
    held = session.states()
    with pytest.raises(
        raptor.UserError, match="position 6: the cache holds 6 tokens; reset the session, or compile with"
    ):
        session.step(0)
    assert session.position == CAPACITY
    assert all(np.array_equal(array, held[name]) for name, array in session.states().items())


def test_a_text_that_does_not_fit_is_refused_before_it_runs(program: raptor.Program) -> None:
    session = raptor.Session(program)
    with pytest.raises(raptor.UserError, match="position 6: the cache holds 6 tokens"):
        session.generate([1, 2, 3], 5)
    assert session.position == 0
    assert len(session.generate([1, 2, 3], 4)) == 4


def test_step_257_of_a_cache_of_256_is_refused_before_it_runs() -> None:
    session = raptor.Session(compiled(decoders.plain_decoder(positions=256), capacity=256))
    refused = pytest.raises(raptor.UserError, match="position 256: the cache holds 256 tokens; reset the session, or")
    with refused:
        session.generate([1] * 250, 8)
    assert session.position == 0
    assert len(run_tokens(session, [k % 12 for k in range(256)])) == 256
    held = session.states()
    with refused:
        session.step(0)
    assert session.position == 256
    assert all(np.array_equal(array, held[name]) for name, array in session.states().items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (12, "outside 0..11"),
        ({"input_ids": np.array([[1]]), "position": np.array([0])}, "input 'position': the session knows it"),
        ({"past_key_values.0.key": np.zeros(1)}, "input 'past_key_values.0.key': the session knows it"),
        ({}, "input 'input_ids' is missing"),
    ],
)
def test_wrong_inputs_of_a_step_are_refused(program: raptor.Program, given: Any, message: str) -> None:
    session = raptor.Session(program)
    with pytest.raises(raptor.UserError, match=message):
        session.step(given)
    assert session.position == 0


def test_a_program_without_caches_is_no_session(tmp_path: Path) -> None:
    from tests import stateful_models

    with pytest.raises(raptor.UserError, match="no state of this program grows; compile with capacity=256"):
        raptor.Session(raptor.compile(stateful_models.recurrent_step("GRU"), states="auto", cores=8))


def test_files_that_are_no_session_are_refused(program: raptor.Program, tmp_path: Path) -> None:
    session, path = raptor.Session(program), tmp_path / "session.npz"
    session.step(1)
    session.save(path)
    with np.load(path) as archive:
        saved = dict(archive)
    faults: list[tuple[dict[str, Any], str]] = [
        ({"position": np.int64(7)}, "position 7 of a cache of 6 tokens"),
        ({"position": np.zeros(2)}, "not a saved session of this program"),
        ({"model": np.array("other")}, "a session of another model"),
        ({"state/past_key_values.0.key": np.zeros((1, 2))}, "has shape"),
        ({"more": np.zeros(1)}, "not a saved session of this program"),
    ]
    for change, message in faults:
        np.savez(path, **{**saved, **change})
        with pytest.raises(raptor.UserError, match=message):
            session.load(path)
    path.write_bytes(b"PK no archive")
    with pytest.raises(raptor.UserError, match="not a saved session"):
        session.load(path)
    with pytest.raises(raptor.UserError, match="No such file"):
        session.load(tmp_path / "absent.npz")
    assert session.position == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("capacity", 5, "has no 5 rows"),
        ("position", "input_ids", "has no input 'input_ids' of one number"),
        ("states", [], "no state grows"),
        (
            "stacks",
            [
                {
                    "input": "past",
                    "output": "present",
                    "parts": [
                        {"input": f"past_key_values.0.{k}", "output": f"present.{n}.{k}"}
                        for n, k in ((0, "key"), (1, "value"))
                    ],
                }
            ],
            "state 'past': its parts are not states that grow alike",
        ),
        (
            "derived",
            [{"name": "attention_mask", "kind": "ones", "shape": [1, 6], "dtype": "object"}],
            "no type 'object'",
        ),
    ],
)
def test_a_changed_list_of_caches_is_refused(
    program: raptor.Program, tmp_path: Path, field: str, value: Any, message: str
) -> None:
    import shutil

    assert program.folder is not None
    shutil.copytree(program.folder, tmp_path / "out")
    path = tmp_path / "out" / files.DECODER
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    manifest = tmp_path / "out" / files.MANIFEST
    listed = json.loads(manifest.read_text())
    listed["files"][files.DECODER]["size_bytes"] = path.stat().st_size
    manifest.write_text(json.dumps(listed))
    with pytest.raises(raptor.UserError, match=message):
        load_output(tmp_path / "out", check_hashes=False)


def test_a_token_is_drawn_by_its_share() -> None:
    logits, rng = np.log(np.array([0.1, 0.6, 0.3])), np.random.default_rng(0)
    drawn = np.bincount([choose_token(logits, 1.0, rng) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(drawn, [0.1, 0.6, 0.3], atol=0.03)
    assert choose_token(np.array([1.0, 2.0, 2.0]), 0.0, rng) == 1
    cold = [choose_token(logits, 1e-3, rng) for _ in range(20)]
    assert cold == [1] * 20
