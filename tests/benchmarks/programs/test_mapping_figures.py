"""`benchmarks/programs/mapping_figures.py` on a small model, against `raptor simulate` and by hand."""

from pathlib import Path

from typer.testing import CliRunner

import models
from benchmarks.programs import mapping_figures
from raptor.tools.cli.app import app
from validator.simulate.simulation_report import number_text


def test_figures_are_those_of_the_commands(tmp_path: Path):
    model = models.build("lenet5")
    (tmp_path / "lenet5.onnx").write_bytes(model.SerializeToString())
    out = str(tmp_path / "out")
    runner = CliRunner()
    compiled = runner.invoke(
        app, ["compile", str(tmp_path / "lenet5.onnx"), "--cores", "60", "--mapping", "rows", "-o", out]
    )
    simulated = runner.invoke(app, ["simulate", out, "--mode", "throughput", "--quiet"])
    row = mapping_figures.measure("lenet5", model, "rows", "bench", 60)
    assert f"latency {row.latency_ms * 1e3:.6g} us, {number_text(row.samples_per_s)} samples/s" in simulated.output
    assert f"energy {row.energy_mj * 1e3:.6g} uJ" in simulated.output
    assert f"{row.local_bytes:,} bytes in the fullest core" in compiled.output
    explained = runner.invoke(app, ["explain", out])
    assert row.binds in " ".join(explained.output.split())
    assert row.samples_per_s < row.bound_per_s


def test_ratios_are_above_one_where_the_row_is_better():
    reference = mapping_figures.MappingRow("m", 9, "raptor", 8, 10, 6, 900, 1, 100, "")
    row = mapping_figures.MappingRow("m", 9, "rows", 2, 50, 3, 300, 4, 100, "")
    assert mapping_figures.compute_ratios(reference, row) == (4, 5, 2, 3, 0.25)
    *_, last = mapping_figures.format_lines(reference, row)
    assert last == ("", "", "times better", "4", "5", "", "2", "3", "0.25")
