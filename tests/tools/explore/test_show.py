"""Commands, tables and the page of a study."""

import csv
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import raptor
from raptor.tools.cli import app
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, EvaluationRecord
from raptor.tools.explore.evaluation.trial_outcomes import StudyTrial, TrialOutcome, combine_records
from raptor.tools.explore.results.parameter_importance import compute_importances
from raptor.tools.explore.results.result_tables import flatten_report, make_study_report
from raptor.tools.explore.results.study_page import render_study_page
from raptor.tools.explore.study.search_space import ParameterValue, merge_options
from raptor.tools.explore.study.study_file import Study, read_study
from tests.browser import browser
from tests.chromium import Chromium
from tests.tools.explore.small import small, write

JOB = EvaluationJob("m0.onnx", {}, is_steady=False)


def status(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main(["explore", *(str(a) for a in args)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write(tmp_path_factory.mktemp("shown"))
    assert status("run", found, "-q") == 0
    return found


def test_run_and_show(path: Path, capsys: pytest.CaptureFixture[str]):
    assert status("run", path, "--verify", 1) == 0
    found = capsys.readouterr()
    assert "16 trials (" in found.out
    assert "pass: validate: pass: raptor compile m0.onnx --xbars-per-core 8" in found.out
    assert "trials 16 of 16, evaluated 0" in found.err
    folder = path.parent
    options = ["--html", folder / "s.html", "--csv", folder / "s.csv", "--json", folder / "s.json"]
    assert status("show", path, *options, "--parquet", folder / "s.parquet") == 0
    assert " on the front" in capsys.readouterr().out
    page = (folder / "s.html").read_text()
    assert "<title>RAPTOR study: small</title>" in page
    assert "http://" not in page.replace("http://www.w3.org", "")[: page.index("plotly.js")]
    table = list(csv.DictReader(io.StringIO((folder / "s.csv").read_text())))
    results = json.loads((folder / "s.json").read_text())["results"]
    assert [r["point"] for r in table] == [r["point"] for r in results] == sorted(r["point"] for r in results)
    import pyarrow.parquet as parquet

    assert parquet.read_table(folder / "s.parquet").column("trial").to_pylist() == [r["trial"] for r in results]


def test_the_command_of_a_point_compiles_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(path.parent)
    study = read_study(path)
    from raptor.tools.explore.study_driver import read_outcomes

    row = next(r for r in flatten_report(make_study_report(study, read_outcomes(study))) if r["front"])
    with pytest.raises(SystemExit) as ended:
        app.main([*shlex.split(row["commands"])[1:], "-q", "-o", str(tmp_path / "out")])
    assert ended.value.code == 0
    assert raptor.load(tmp_path / "out").simulate().latency_ns == row["latency_ns"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "STUDY", "--csv", "-", "--json", "-"], "only one of them can have the terminal"),
        (["run", "STUDY", "--pimsim", "x"], "--pimsim: only with --verify K"),
        (["run", "no.toml"], "no.toml: No such file"),
        (["show", "FRESH"], "study small: no trials yet; raptor explore run begins it"),
        (["new", "no.onnx"], "no.onnx: no such file"),
        (["new", "x.onnx", "-o", "STUDY"], "exists; --force replaces it"),
    ],
)
def test_wrong_commands(words: list[str], message: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    places = {"STUDY": str(path), "FRESH": str(write(tmp_path))}
    assert status(*(places.get(word, word) for word in words)) == 2
    assert message in capsys.readouterr().err


def test_without_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType]
    assert status("show", path) == 2
    assert (
        "explore: needs optuna, sqlalchemy, sklearn: pip install 'raptor-crossbar[explore]'" in capsys.readouterr().err
    )


def made_up(study: Study, count: int) -> list[TrialOutcome]:
    """Makes trials in which the latency follows from the cores and the energy from nothing."""
    found: list[TrialOutcome] = []
    for k in range(count):
        cores, bits = 1 + k % 4, (2, 8)[k // 4 % 2]
        point: dict[str, ParameterValue] = {"xbar": 16, "cores": cores, "cell_bits": bits, "mapping": "rows"}
        figures = {"latency_ns": 1000.0 / cores, "energy_pj": 5.0, "xbars": 8.0 * cores}
        found.append(combine_records(study, StudyTrial(k, point, [str(k)]), [JOB], [EvaluationRecord("ok", figures)]))
    return found


def test_importances(tmp_path: Path):
    study = small(tmp_path)
    found = compute_importances(study, made_up(study, 64))
    assert found["latency_ns"]["cores"] > 0.9
    assert found["energy_pj"] == {}
    assert compute_importances(study, made_up(study, 5)) == {}


def test_pages_of_little(tmp_path: Path):
    study = small(tmp_path)
    refused = combine_records(
        study,
        StudyTrial(0, {"xbar": 16, "cores": 1, "cell_bits": 2, "mapping": "rows"}, ["0"]),
        [JOB],
        [EvaluationRecord("infeasible", {}, "<script>too small</script>")],
    )
    page = render_study_page(study, [refused], flatten_report(make_study_report(study, [refused])))
    assert "No trial has figures yet." in page
    assert "<script>too small" not in page
    one = made_up(study, 1)
    assert "Importance of parameters: from 10 trials" in render_study_page(
        study, one, flatten_report(make_study_report(study, one))
    )


MANY = """
xbar = [32, 64, 128, 256]
cores = { min = 1, max = 5000 }
"""


@pytest.mark.slow
def test_the_page_of_many_points(chromium_paths: Chromium, tmp_path: Path):
    study = small(tmp_path, space=MANY)
    rng = np.random.default_rng(0)
    found: list[TrialOutcome] = []
    for k in range(10_000):
        point: dict[str, ParameterValue] = {"xbar": (32, 64, 128, 256)[k % 4], "cores": 1 + k // 4}
        figures = dict(zip(study.objectives, map(float, 1e6 * rng.random(3)), strict=True))
        job = EvaluationJob("m0.onnx", merge_options(study.file.options, point), is_steady=False)
        found.append(combine_records(study, StudyTrial(k, point, [str(k)]), [job], [EvaluationRecord("ok", figures)]))
    points = flatten_report(make_study_report(study, found))
    page = tmp_path / "study.html"
    page.write_text(render_study_page(study, found, points))
    assert page.stat().st_size < 8e6
    with browser(chromium_paths) as chromium:
        chromium.open(page)
        assert chromium.busy_s() < 3
        titles = [element.text for element in chromium.all("#trade-offs .xtitle, #trade-offs .ytitle")]
        assert titles == ["latency_ns", "energy_pj"]
        chromium.all("#trade-offs .updatemenu-button")[1].click()
        assert [e.text for e in chromium.all("#trade-offs .xtitle, #trade-offs .ytitle")] == ["latency_ns", "xbars"]
        shown = chromium.run("return document.getElementById('trade-offs').data.map(t => [t.name, t.y.length])")
        assert shown[1:] == [["feasible (3334 of 10000)", 3334], ["front", sum(row["front"] for row in points)]]
        chromium.one("#filter").send_keys("cores=7")
        lines = [line.text for line in chromium.all("#rows-table tbody tr")]
        assert len(lines) == 4
        assert all("raptor compile m0.onnx --xbars-per-core 8 --xbar" in line for line in lines)
        assert chromium.errors() == []
