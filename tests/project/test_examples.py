"""The scripts and the notebook in examples/ run, and print what makes them worth running."""

import csv
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    """`printed(name)`: what the script prints."""

    def run(name: str) -> str:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_script_is_here() -> None:
    source = Path(__file__).read_text()
    assert all(path.name in source for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


def test_compile_and_validate(printed: Any) -> None:
    text = printed("01_compile_and_validate.py")
    errors = [float(line.split()[-1]) for line in text.splitlines() if re.match(r"\w+ +1x", line)]
    assert len(errors) == 12
    assert max(errors) < 1e-4  # the tolerance of `validate`
    assert "verdict: pass" in text


def test_your_own_chip(printed: Any) -> None:
    text = printed("02_your_own_chip.py")
    assert "adcs: no such field" in text
    latencies = [float(us) for us in re.findall(r"([\d.]+) us", text)]
    assert len(latencies) == 4
    one, four, *more = latencies
    assert one > four > max(more)


def test_find_the_bottleneck(printed: Any) -> None:
    text = printed("03_find_the_bottleneck.py")
    before, after = (float(us.replace(",", "")) for us in re.findall(r"^\w+: ([\d,.]+) us", text, re.MULTILINE))
    assert "conv1 computes its pixels one after another" in text
    assert after < before / 10


@pytest.mark.slow
def test_compare_mappings(printed: Any) -> None:
    head, *lines = (line.split() for line in printed("04_compare_mappings.py").splitlines())
    assert head[:2] == ["model", "mapping"]
    latency = {(line[0], line[1]): int(line[5].replace(",", "")) for line in lines}
    assert {model for model, _ in latency} == {"lenet5", "squeezenet", "mlp"}
    assert all(latency[model, "rows"] < latency[model, "raptor"] / 10 for model in ("lenet5", "squeezenet"))
    assert latency["mlp", "rows"] < latency["mlp", "raptor"]  # no images, so no lines, but wider products


def test_sweep(printed: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(printed("05_sweep.py"))))
    assert len(rows) == 12
    assert {bool(row["latency_us"]) for row in rows} == {True, False}
    assert all(bool(row["latency_us"]) != bool(row["why_not"]) for row in rows)


def test_read_another_compilers_streams(printed: Any) -> None:
    """A product without `setbw` is nearly free: two take about twice the time of one."""
    written, loadable, mended = printed("06_read_another_compilers_streams.py").strip().split("\n\n")
    assert re.findall(r"error ([\w-]+)", written) == ["group-map", "width-unset"]
    assert "not simulated" in written
    assert re.findall(r"error ([\w-]+)", loadable) == ["width-unset"]
    assert re.findall(r"error ([\w-]+)", mended) == []
    one, two = (int(text.split(" ns")[0].split()[-1]) for text in (loadable, mended))
    assert 1.8 < two / one < 2.0


def test_behind_onnxruntime(printed: Any) -> None:
    lines = dict(line.split(":") for line in printed("07_behind_onnxruntime.py").splitlines() if ":" in line)
    golden, chip = (lines[name].strip() for name in ("onnxruntime", "chip"))
    assert golden == chip
    assert len(set(golden)) > 3


def test_crossbars_as_a_device(printed: Any) -> None:
    lines = dict(line.split(":") for line in printed("08_crossbars_as_a_device.py").splitlines() if ":" in line)
    assert lines["this process"].strip() == lines["a driver"].strip()
    assert lines["equal accounts"].strip() == "True"


def test_schedulers(printed: Any) -> None:
    rows = [line.split() for line in printed("09_schedulers.py").splitlines()[1:]]
    writes = {(row[0], row[1]): int(row[2]) for row in rows}
    assert writes["mm", "asap"] == 4 * writes["mm", "min_writes"] == 64
    assert writes["mv", "asap"] == writes["mv", "min_writes"]
    assert writes["3mm", "min_writes"] < writes["3mm", "asap"]


def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    """Runs in a separate process: a kernel's event loop leaves warnings behind. `make notebook` writes the output."""
    command = [sys.executable, "-m", "tests.project.notebook", str(EXAMPLES / "tour.ipynb")]
    ended = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
