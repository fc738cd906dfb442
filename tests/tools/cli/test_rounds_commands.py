"""Every command understands a program in rounds: figures with writing never come without those without."""

import json
import re
from pathlib import Path

import onnx
import pytest

import raptor
from raptor.compiler.analysis.explain import explain
from raptor.output.round_files import RoundList
from raptor.tools.cli import app
from raptor.tools.cli.explain_view import write_explanation
from raptor.tools.reporting.program_facts import gather_facts
from raptor.tools.reporting.report_page import render_report
from tests.oversized_models import CHIP, chain, in_rounds
from tests.tiny_models import random
from validator.simulate.simulation_report import years_text


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "out"
    in_rounds(chain(3), folder, batch=2, device="pcm-occ")
    return folder


def ran(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        app.main(list(args))
    return ended.value.code


def test_compile_and_simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    onnx.save(chain(3), "model.onnx")
    chip = ("--xbar", "16", "--cores", "2", "--xbars-per-core", "6")
    assert ran("compile", "model.onnx", *chip) == 2
    assert " or more, which take " in capsys.readouterr().err
    assert not ran("compile", "model.onnx", *chip, "--rounds", "--batch", "2", "--device", "pcm-occ", "-q")
    assert not ran("simulate", "out", "--rate", "10")
    shown = capsys.readouterr().out
    for text in (
        "batch of 2",
        "with writing,",
        " without",
        "of the worst cell",
        " days, at 10 samples/s",
        "OCC, table II",
    ):
        assert text in shown
    assert not ran("run", "out", "-o", "y.npy", "--input", _input(tmp_path), "-q")
    assert not ran("check", "out")


def _input(folder: Path) -> str:
    import numpy as np

    np.save(folder / "x.npy", random(1, 3, 6, 6))
    return str(folder / "x.npy")


def test_report_and_comparison(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    numbers = tmp_path / "page.json"
    assert not ran("report", str(out), "-o", str(tmp_path / "page.html"), "--json", str(numbers), "-q")
    figures = json.loads(numbers.read_bytes())["figures"]
    simulated = raptor.simulate(out, mode="throughput")
    found = simulated.reloading
    assert found is not None
    assert figures["latency_ns"] == found.batch_ns
    assert figures["samples_per_s"] == pytest.approx(1e9 / found.sample_ns)
    assert figures["time_without_writing_ns"] == found.without_ns
    assert figures["energy_pj"] == pytest.approx(found.sample_pj)
    assert figures["energy_without_writing_pj"] == found.without_pj
    assert figures["lifetime_years"] == found.years
    assert figures["batch_for_a_tenth"] == found.batch_for_tenth
    assert not ran("compare", str(out), str(out / "segment_000"), "--markdown", "-")
    assert "writes of the worst cell" in capsys.readouterr().out


def test_the_page_draws_a_batch(out: Path):
    facts = gather_facts(out)
    page = render_report(facts)
    assert 'id="rounds"' in page
    assert "take turns" in page
    ids = re.findall(r'<(?:section|div|table)[^>]* id="([^"]+)"', page)
    assert {"rounds", "batch"} <= set(ids)
    assert len(set(ids)) == len(ids)  # a figure is drawn into the first element of its name
    assert "<li>refresh, drift, faults</li>" in page
    assert "<li>writing the weights into the crossbars</li>" not in page
    assert "Nodes on the host" not in page
    found = facts.profile.reloading
    assert found is not None
    assert sum(c.xbars for c in facts.profile.cores) <= 2 * 6


def test_a_core_of_several_rounds_is_counted_once(out: Path):
    cores = gather_facts(out).profile.cores
    assert len({c.core for c in cores}) == len(cores)
    whole = sum(sum(c.instructions.values()) for c in cores)
    assert whole == sum(raptor.load(p).report.instruction_count for p in sorted(out.glob("segment_*")))


def test_explain_says_why_it_cut_there(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert not ran("explain", str(out))
    shown = capsys.readouterr().out
    assert "- cut before conv" in shown
    assert "bytes of a sample wait" in shown
    assert "- one layer a round: about" in shown
    write_explanation(tmp_path / "found.json", explain(out))
    listed = RoundList.model_validate_json((out / "rounds.json").read_bytes())
    found = json.loads((tmp_path / "found.json").read_bytes())
    assert [c["before"] for c in found["rounds"]["cuts"]] == [c.before for c in listed.cuts]
    assert all(c["joined_ns"] is None or c["joined_ns"] >= c["apart_ns"] for c in found["rounds"]["cuts"])
    assert all(a["batch_ns"] >= listed.estimated_ns * (1 - 1e-9) for a in found["rounds"]["alternatives"])
    assert {layer["node"] for layer in found["layers"]} == {"conv0", "conv1", "conv2"}


def test_explain_where_sizes_were_given(tmp_path: Path):
    """Each round is a model of its own, which has no open sizes (trial of real models, A5)."""
    model = chain(3)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"
    raptor.compile(model, **CHIP, rounds=True, dims={"H": 6}).save(tmp_path / "out")
    assert {layer.node for layer in explain(tmp_path / "out").layers} == {"conv0", "conv1", "conv2"}


def test_lifetimes_in_words():
    assert years_text(2.5) == "2.5 years"
    assert years_text(30 / 365.25) == "30 days"
    assert years_text(7 / 24 / 365.25) == "7 hours"
    assert years_text(60 / 3600 / 24 / 365.25) == "60 seconds"


def test_stored_mappings_are_of_one_program(tmp_path: Path):
    with pytest.raises(raptor.UserError, match="of one program, but each round"):
        raptor.compile(chain(3), **CHIP, rounds=True, emit_mapping=tmp_path / "mapping.json")
