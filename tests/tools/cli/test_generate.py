"""The command `raptor generate`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.terminal.escaping import escape_unprintable
from raptor.tools.cli.app import main
from tests import decoder_models as decoders
from tests import fused_decoders


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate") / "out"
    raptor.compile(decoders.plain_decoder(), states="auto", capacity=6, cores=32).save(folder)
    return folder


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, words)])
    return int(stopped.value.code or 0)


def test_it_prints_the_tokens_of_a_session(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = raptor.Session(out).generate([7, 3], 4)
    assert run("generate", out, "--prompt-ids", "7, 3", "--tokens", 4, "--json", tmp_path / "made.json") == 0
    assert capsys.readouterr().out.strip() == ",".join(map(str, wanted))
    found = json.loads((tmp_path / "made.json").read_text())
    shown = {name: found[name] for name in ("version", "prompt", "tokens", "first_position", "position")}
    assert shown == {"version": 1, "prompt": [7, 3], "tokens": list(wanted), "first_position": 0, "position": 5}


def test_a_saved_session_goes_on(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = raptor.Session(out).generate([7], 4)
    saved = tmp_path / "session.npz"
    assert run("generate", out, "--prompt-ids", 7, "--tokens", 2, "--save", saved, "-q") == 0
    assert run("generate", out, "--prompt-ids", whole[1], "--tokens", 2, "--session", saved) == 0
    assert capsys.readouterr().out.strip() == ",".join(map(str, whole[2:]))


def test_equal_seeds_give_equal_tokens(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    for seed in (1, 1, 2, 3):
        assert run("generate", out, "--prompt-ids", 7, "--tokens", 6, "--temperature", 2, "--seed", seed) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt-ids", "7,x"), "--prompt-ids 7,x: expected whole numbers such as 7,3,19"),
        (("--prompt-ids", ""), "expected whole numbers"),
        (("--prompt-ids", "7", "--tokens", "7"), "position 6: the cache holds 6 tokens"),
        (("--prompt-ids", "7,12"), "token 12, number 1 of the prompt: the model has the tokens 0 to 11"),
        (("--prompt-ids", "7", "--seed", "3"), "--seed 3: only with --temperature"),
        (("--prompt-ids", "7", "--force"), "--force: only with --save, whose file it replaces"),
        (("--prompt-ids", "7", "--session", "absent.npz"), "absent.npz: No such file"),
    ],
)
def test_wrong_words_are_refused(
    out: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", out, "--tokens", 2, *words) == 2
    assert message in capsys.readouterr().err


def test_a_text_goes_on_as_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokens of this model are bytes, and the text is that of its ids."""
    proto = decoders.plain_decoder(vocabulary=128)
    proto.metadata_props.add(key="tokenizer", value="bytes")
    out = tmp_path / "out"
    raptor.compile(proto, states="auto", capacity=6, cores=32).save(out)
    ids = raptor.Session(out).generate(list(b"ab"), 4)
    assert raptor.Session(out).generate("ab", 4) == ids
    assert run("generate", out, "--prompt", "ab", "--tokens", 4, "--json", tmp_path / "made.json") == 0
    text = bytes(ids).decode()
    assert capsys.readouterr().out == f"{escape_unprintable(text)}\n"
    assert json.loads((tmp_path / "made.json").read_text())["text"] == text


def test_what_an_encoder_computed_is_an_input_of_all_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, rng = tmp_path / "out", np.random.default_rng(0)
    raptor.compile(fused_decoders.encoder_decoder(), states="auto", capacity=6, dims={"encoder": 5}, cores=32).save(out)
    shapes = {f"past_key_values.0.encoder.{kind}": (1, 2, 5, 8) for kind in ("key", "value")}
    given: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "given.npz", **given)
    assert run("generate", out, "--prompt-ids", "7,3", "--tokens", 4, "--input", tmp_path / "given.npz") == 0
    wanted = raptor.Session(out, given).generate([7, 3], 4)
    assert capsys.readouterr().out.strip() == ",".join(map(str, wanted))
    assert run("generate", out, "--prompt-ids", "7", "--tokens", 4) == 2
    told = "a step takes input_ids, past_key_values.0.encoder.key, past_key_values.0.encoder.value, which is not the id"
    assert told in (error := capsys.readouterr().err)
    assert "--input" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt", "ab"), "names no tokenizer; only the property tokenizer=bytes is known, so give ids"),
        (("--prompt", ""), "--prompt: expected a text"),
        (("--prompt", "a", "--prompt-ids", "7"), "expected one of them"),
        ((), "expected one of them"),
    ],
)
def test_a_prompt_is_a_text_or_ids(
    out: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", out, "--tokens", 2, *words) == 2
    assert message in capsys.readouterr().err
