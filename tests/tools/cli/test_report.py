"""The commands `raptor report` and `raptor compare`."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raptor
from raptor.compiler.analysis.inspection import inspect
from raptor.tools.cli import app
from tests.pipeline import conv_model, thesis_model
from validator.simulate.builtin import simulate

CHIP = {"xbar": 3, "xbars_per_core": 5, "cores": 16}


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Compiles a layer, and one with twice the channels."""
    folder = tmp_path_factory.mktemp("outs")
    programs = [raptor.compile(thesis_model(n, n), **CHIP) for n in (3, 6)]
    return [program.save(folder / f"out{k}") for k, program in enumerate(programs)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        app.main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_report_writes_one_file(outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "report.html"
    status, shown, _ = run(capsys, "report", outs[0], "-o", page)
    assert status == 0
    assert shown.startswith(f"{page}: ")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    first = page.read_bytes()
    assert "not run" in page.read_text()
    run(capsys, "report", outs[0], "-o", page, "-q")
    assert page.read_bytes() == first


def test_report_shows_the_page(
    outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    run(capsys, "report", outs[0], "-o", tmp_path / "a.html", "--open")
    assert opened == [(tmp_path / "a.html").as_uri()]


def test_report_refuses_what_is_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, _, error = run(capsys, "report", tmp_path, "-o", tmp_path / "a.html")
    assert status == 2
    assert "config.json" in error
    assert list(tmp_path.iterdir()) == []


def test_report_says_where_it_cannot_write(outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    status, _, error = run(capsys, "report", outs[0], "-o", tmp_path / "no" / "a.html")
    assert status == 2
    assert "No such file" in error


def test_compare_shows_ratios(outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """9 matrices and 100 products in one layer; 36 and 400 in the other: two input and two output tiles."""
    status, shown, _ = run(capsys, "compare", *outs, "-o", tmp_path / "c.html")
    assert status == 0
    lines = {line[:24].strip(): line for line in shown.splitlines()}
    assert "x4" in lines["products (mvmul)"]
    assert "x4" in lines["crossbars"]
    assert "conv" in lines["slowest layer"]
    assert (tmp_path / "c.html").is_file()


def test_compare_of_other_models_and_chips_is_said(
    outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = tmp_path / "other.onnx"
    model.write_bytes(conv_model((1, 3, 5, 5), 3).SerializeToString())
    other = raptor.compile(model, **(CHIP | {"cores": 20})).save(tmp_path / "other")
    status, shown, _ = run(capsys, "compare", outs[0], other)
    assert status == 0
    assert "models differ" in shown
    assert "chips differ" in shown


def test_compare_of_one_model_by_two_mappings_needs_no_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    outs = [
        raptor.compile(thesis_model(3, 3), mapping=mapping, **CHIP).save(tmp_path / mapping)
        for mapping in ("raptor", "rows")
    ]
    status, shown, _ = run(capsys, "compare", *outs)
    assert status == 0
    assert "note" not in shown


def test_compare_needs_two(outs: list[Path], capsys: pytest.CaptureFixture[str]):
    status, _, error = run(capsys, "compare", outs[0])
    assert status == 2
    assert "at least two" in error


def figures_of(out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    status, shown, _ = run(capsys, "report", out, "--json", "-")
    assert status == 0
    return json.loads(shown)["figures"]


def test_samples_per_s_are_the_streaming_rate_everywhere(outs: list[Path], capsys: pytest.CaptureFixture[str]):
    one, many = (simulate(outs[0], outs[0] / "arch.json", mode=mode) for mode in ("latency", "throughput"))
    assert one.samples_per_s is None
    assert many.interval_ns is not None
    assert many.samples_per_s == pytest.approx(1e9 / many.interval_ns)
    assert figures_of(outs[0], capsys)["samples_per_s"] == many.samples_per_s
    assert "samples/s" not in run(capsys, "simulate", outs[0])[1]
    assert "samples/s" not in run(capsys, "simulate", outs[0], "-q")[1]
    assert f"{many.samples_per_s:,.0f}"[:4] in run(capsys, "simulate", outs[0], "-q", "--mode", "throughput")[1]
    (rate,) = [line for line in run(capsys, "compare", *outs)[1].splitlines() if line.startswith("samples/s")]
    assert f"{float(f'{many.samples_per_s:.4g}'):,.0f}" in rate
    assert "e+" not in rate


def test_efficiency_is_that_of_the_macs_of_the_model(outs: list[Path], capsys: pytest.CaptureFixture[str]):
    for out, channels in zip(outs, (3, 6), strict=True):
        macs = inspect(out / "model.onnx", xbar=3).macs
        assert macs == 16 * 9 * channels**2  # 4x4 outputs, a kernel of 3x3
        assert raptor.load(out).report.macs == macs
        one, many = (simulate(out, out / "arch.json", mode=mode) for mode in ("latency", "throughput"))
        for found, time_ns in ((one, one.latency_ns), (many, many.interval_ns)):
            assert found.macs == macs
            assert time_ns is not None
            assert found.energy_pj is not None
            assert found.tops == pytest.approx(2 * macs / (time_ns * 1e-9) / 1e12)
            watts = found.energy_pj * 1e-12 / (time_ns * 1e-9)
            assert found.tops_per_w == pytest.approx(found.tops / watts)
            assert found.pj_per_mac == pytest.approx(found.energy_pj / macs)
        figures = figures_of(out, capsys)
        assert figures["effective_tops"] == pytest.approx(many.tops)
        assert figures["effective_tops_per_w"] == pytest.approx(many.tops_per_w)
        assert figures["energy_of_a_mac_pj"] == pytest.approx(many.pj_per_mac)
        assert f"({macs:,} MACs" in run(capsys, "simulate", out)[1]


def test_without_macs_there_is_no_efficiency(outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Streams of another compiler, an output of an earlier version, a report.json that is something else."""
    bare, old, odd = (shutil.copytree(outs[0], tmp_path / name) for name in ("bare", "old", "odd"))
    (bare / "report.json").unlink()
    report = json.loads((old / "report.json").read_text())
    del report["macs"]
    (old / "report.json").write_text(json.dumps(report))
    (odd / "report.json").write_text('{"macs": "many"}')
    for out in (bare, old, odd):
        status, shown, _ = run(capsys, "simulate", out)
        assert status == 0
        assert "TOPS" not in shown
        assert "effective_tops" not in figures_of(out, capsys)
    shown = run(capsys, "compare", outs[0], old)[1]
    (line,) = [line for line in shown.splitlines() if line.startswith("effective TOPS ")]
    assert "not known" in line
    assert "TOPS" not in run(capsys, "compare", bare, old)[1]


def test_compare_as_json(outs: list[Path], capsys: pytest.CaptureFixture[str]):
    _, shown, _ = run(capsys, "compare", *outs, "--json", "-")
    found = json.loads(shown)
    first, second = found["programs"]
    assert (found["version"], found["notes"][0][:17]) == (2, "the models differ")
    assert first["program"] == str(outs[0])
    assert (first["figures"]["products_mvmul"], second["figures"]["products_mvmul"]) == (100, 400)
    assert (first["ratios"]["products_mvmul"], second["ratios"]["products_mvmul"]) == (1, 4)
    assert first["figures"]["latency_ns"] == simulate(outs[0], outs[0] / "arch.json").latency_ns
    (conv,) = [layer for layer in first["layers"] if layer["noted"]["op_type"] == "Conv"]
    assert conv["counted"]["products"] == 100
    assert conv["noted"]["matrices"] == 9


def test_compare_as_csv(outs: list[Path], capsys: pytest.CaptureFixture[str]):
    _, shown, _ = run(capsys, "compare", *outs, "--csv", "-")
    first, second = csv.DictReader(io.StringIO(shown))
    assert (first["program"], second["program"]) == tuple(map(str, outs))
    assert (first["products_mvmul"], second["products_mvmul"]) == ("100", "400")
    assert float(first["latency_ns"]) == simulate(outs[0], outs[0] / "arch.json").latency_ns
    sent = [
        i["size"] for path in outs[1].glob("core_*.json") for i in json.loads(path.read_text()) if i["op"] == "send"
    ]
    assert int(second["bytes_between_cores"]) == sum(sent) > 0
    assert "\u00a0" not in shown


def test_compare_as_markdown(outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    piped = shutil.copytree(outs[1], tmp_path / "a|b")
    _, shown, _ = run(capsys, "compare", outs[0], piped, "--markdown", "-")
    head, rule, *lines = shown.split("\n\n")[0].splitlines()
    assert "a\\|b" in head
    assert rule == "| --- | ---: | ---: |"
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in lines}
    assert rows["| products (mvmul)"] == ["100", "400 |"]
    latency = simulate(outs[0], outs[0] / "arch.json").latency_ns
    assert float(rows["| latency, ns"][0]) == pytest.approx(latency, rel=1e-5)
    assert "the models differ" in shown


def test_tables_go_to_files_and_the_terminal_keeps_its_own(
    outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files = {option: tmp_path / option[2:] for option in ("--json", "--csv", "--markdown")}
    given = [word for option, path in files.items() for word in (option, path)]
    _, shown, _ = run(capsys, "compare", *outs, *given)
    assert "latency" in shown
    assert all(path.stat().st_size > 100 for path in files.values())
    _, shown, _ = run(capsys, "compare", *outs, "-q", "--csv", tmp_path / "again")
    assert shown == ""
    assert (tmp_path / "again").read_bytes() == files["--csv"].read_bytes()


def test_compare_that_would_say_nothing_is_refused(outs: list[Path], capsys: pytest.CaptureFixture[str]):
    status, shown, error = run(capsys, "compare", *outs, "-q")
    assert (status, shown) == (2, "")
    assert "add -o, --json, --csv or --markdown" in error
    status, _, error = run(capsys, "compare", *outs, "--json", "-", "--csv", "-")
    assert status == 2
    assert "--json - and --csv -" in error


def test_report_json_needs_no_page(
    outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    _, shown, _ = run(capsys, "report", outs[0], "--json", "figures.json")
    assert (shown, [p.name for p in tmp_path.iterdir()]) == ("", ["figures.json"])
    found = json.loads((tmp_path / "figures.json").read_text())
    assert (found["version"], found["verdict"], found["not_modelled"][0]) == (
        3,
        None,
        "area of wiring, pads, clock and white space",
    )
    _, shown, _ = run(capsys, "report", outs[0], "--json", "-", "-o", "page.html", "--validate")
    assert json.loads(shown)["verdict"] == "pass"
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_compare_fits_the_terminal(
    outs: list[Path],
    tmp_path: Path,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """No number is broken or cut: it is on one line, with its ratio."""
    monkeypatch.setenv("COLUMNS", str(columns))
    long = shutil.copytree(outs[1], tmp_path / ("a_rather_long_name_of_a_directory_" * 2))
    shown = run(capsys, "compare", *outs, long, outs[1])[1]
    rows = [line for line in shown.splitlines() if line.startswith(("products (mvmul)", "bytes between cores"))]
    assert all(len(line.rstrip()) <= columns for line in rows)
    assert sum(line.count("x4") for line in rows) == 3
    assert str(long) in shown.replace("\n", "") if columns == 100 else str(long) in shown
    assert "…" not in shown


def test_help_loads_nothing_heavy():
    heavy = ("numpy", "jinja2", "plotly", "numba")
    code = f"import sys, raptor.tools.cli.app; print(*(m for m in {heavy} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
