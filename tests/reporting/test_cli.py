"""The commands `raptor report` and `raptor compare`."""

import subprocess
import sys
from pathlib import Path

import pytest

import raptor
from raptor import cli
from tests.pipeline import conv_model, thesis_model

CHIP = {"xbar": 3, "xbars_per_core": 5, "cores": 16}


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One layer, and one of twice the channels."""
    folder = tmp_path_factory.mktemp("outs")
    programs = [raptor.compile(thesis_model(n, n), **CHIP) for n in (3, 6)]
    return [program.save(folder / f"out{k}") for k, program in enumerate(programs)]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
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
    lines = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.count("│") == 4}
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


def test_help_loads_nothing_heavy():
    code = "import sys, raptor.cli; print(*(m for m in ('numpy', 'jinja2', 'plotly', 'numba') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
