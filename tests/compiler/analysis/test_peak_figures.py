"""Figures derived from architecture files: what the simulator says of programs of products alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raptor.compiler.analysis.peak_figures import compute_chip_figures
from raptor.target import arch as architectures
from raptor.target.arch.pimsim_schema import ArchFile
from raptor.target.timing import local_port_ns
from raptor.tools.cli.arch import app
from tests.validator.simulate import programs
from tests.validator.simulate.programs import Stream, mvmul
from validator.simulate.builtin import simulate
from validator.simulate.simulation_report import SimulationReport

POWERS: dict[str, Any] = {
    "dac_dynamic_power": 0.25,
    "sample_hold_dynamic_power": 0.125,
    "shift_adder_dynamic_power": 0.5,
    "output_buffer_dynamic_power": 0.75,
}
MATRICES: dict[str, dict[str, Any]] = {
    "all powers": POWERS,
    "two passes, DACs of 2 bits": POWERS | {"xbar_size": [256, 64], "dac_resolution": 2},
    "adding is slower than converting": POWERS | {"shift_adder_latency_cycle": 30, "output_buffer_latency_cycle": 7},
    "reading is slower than converting": POWERS | {"adc_count": 128, "adc_latency_cycle": 2, "xbar_latency": 33.3},
    "no pipeline": POWERS | {"pipeline_mode": False},
    "other clock": POWERS | {"period": 0.78125},
    "ADCs do not divide the columns": POWERS | {"adc_count": 100},
    "more DACs than rows": POWERS | {"dac_count": 200},
    "more ADCs than columns": POWERS | {"adc_count": 200, "dac_count": 200},
}


def of_one_product(folder: Path, arch: str | Path, bits: int) -> SimulationReport:
    widths = {"op": "setbw", "ibiw": bits, "obiw": bits}
    return simulate(programs.write(folder, [widths, mvmul() | {"mbiw": bits}]), arch)


def agree(arch: str | Path, bits: int, report: SimulationReport) -> None:
    chip = architectures.load(arch, bits=bits)
    product = compute_chip_figures(chip).product
    (core,) = report.cores
    period = chip.core.period_ns
    # Units are looked at when the clock of the core ticks.
    assert math.ceil(product.time_ns / period - 1e-9) * period == pytest.approx(core.matrix_ns)
    spent = report.energy_parts_pj["products"] + report.energy_parts_pj["local_memory"]
    assert product.energy_pj == pytest.approx(spent, rel=1e-12)
    assert sum(p.time_ns for p in product.parts.values()) == pytest.approx(product.time_ns)
    assert sum(p.energy_pj for p in product.parts.values()) == pytest.approx(product.energy_pj)


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("preset", architectures.arch_presets())
def test_a_product_is_what_the_simulator_says(preset: str, bits: int, tmp_path: Path) -> None:
    agree(preset, bits, of_one_product(tmp_path, preset, bits))


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("name", MATRICES)
def test_a_product_of_any_chip_is_what_the_simulator_says(name: str, bits: int, tmp_path: Path) -> None:
    arch = programs.arch()
    core = arch["chip_config"]["core_config"]
    core["matrix_config"] |= MATRICES[name]
    core["local_memory_config"] |= {"read_dynamic_energy": 3.5, "write_dynamic_energy": 5.25}
    folder = programs.write(tmp_path / "out", [programs.SETBW])
    (folder / "arch.json").write_text(json.dumps(arch))
    report = of_one_product(tmp_path / "one", folder / "arch.json", bits)
    agree(folder / "arch.json", bits, report)
    assert report.energy_parts_pj["local_memory"] > 0


def test_the_product_that_pimsim_itself_was_seen_to_take() -> None:
    """docs/developers/target.md: 1657 cycles in the reorder buffer, two of them the pipeline's; 24490.24 pJ."""
    product = compute_chip_figures(architectures.load("pimcomp")).product
    assert (product.time_ns, product.macs) == (1655, 128 * 32)
    assert product.energy_pj == pytest.approx(24490.24)
    assert product.parts["ADC"].time_ns == 8 * 8 * 20


def products_per_ns(folder: Path, group_xbars: int, rob_size: int) -> float:
    """Measures the rate of a long stream of products on one core, by the simulator."""
    groups, count = 64 // group_xbars, 200
    # What is written is nowhere near what is read: no product waits for another one's operands.
    ahead = [programs.SETBW, programs.sldi(1, 100_000)]
    stream: Stream = [*ahead, *(mvmul(k % groups, rd=1, rs1=2) for k in range(2 * count))]
    times: list[float] = []
    for n in (count, 2 * count):
        part, sizes = stream[: len(ahead) + n], (group_xbars,) * groups
        out = programs.write(folder / f"{group_xbars}-{n}", part, groups=sizes, rob_size=rob_size)
        times.append(simulate(out, out / "arch.json").latency_ns or 0.0)
    return count / (times[1] - times[0])


@pytest.mark.parametrize(
    ("rob_size", "which", "least"), [(1, "in_flight", 0.99), (4, "in_flight", 0.8), (64, "port", 0.8)]
)
def test_no_program_of_products_is_above_the_peak(rob_size: int, which: str, least: float, tmp_path: Path) -> None:
    """Groups of any size stay below the peak; the best size comes near it, as far as groups take turns at the port."""
    file = programs.write(tmp_path / "chip", [programs.SETBW], rob_size=rob_size) / "arch.json"
    chip = architectures.load(file)
    peak = getattr(compute_chip_figures(chip).peak, which)
    macs = chip.core_count * chip.xbar_rows * chip.outputs_per_xbar
    reached = max(2 * n * macs * products_per_ns(tmp_path, n, rob_size) / 1e3 for n in (1, 4, 16, 32, 64))
    assert least * peak.tops < reached <= peak.tops


def test_the_port_is_what_keeps_small_groups_from_working_all_at_once(tmp_path: Path) -> None:
    chip = architectures.load(programs.write(tmp_path / "chip", [programs.SETBW]) / "arch.json")
    assert products_per_ns(tmp_path, 1, rob_size=64) == pytest.approx(1 / local_port_ns(chip, 1), rel=0.02)


def test_peaks_follow_from_their_definitions() -> None:
    found = compute_chip_figures(architectures.load("bench"))
    peaks, product = found.peak, found.product
    assert peaks.crossbars.tops == pytest.approx(2 * product.macs * 144 * 64 / product.time_ns / 1e3)
    # Energy of a product, and 1 mW for the memory of each core and the global one.
    power_w = (144 * 64 * product.energy_pj / product.time_ns + 145) / 1e3
    assert peaks.crossbars.tops_per_w == pytest.approx(peaks.crossbars.tops / power_w)
    assert peaks.crossbars.tops > peaks.port.tops > peaks.in_flight.tops
    assert found.cells == 144 * 64 * 128 * 128
    assert found.weights == found.cells  # cells of 8 bits
    assert compute_chip_figures(architectures.load("pimcomp")).weights == 136 * 64 * 128 * 32


def show(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, ["show", *arguments], env={"COLUMNS": str(columns)}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_arch_show_begins_with_them() -> None:
    text = " ".join(show("bench").split())
    assert text.startswith("A product (mvmul) of 8 bits on one crossbar: 128 x 128 weights, 1.685 us, 24.49 nJ")
    assert "ADC 1.28 us 76.0% 23.245 nJ 94.9%" in text
    assert "1 pass (128 rows by 128 DACs), each 8 conversions (128 columns by 16 ADCs)" in text
    assert "179.2 TOPS, 1.337 TOPS/W: all 9,216 crossbars busy" in text
    assert "not modelled area" in text


def test_arch_show_of_other_bits_and_without_powers() -> None:
    assert "of 16 bits on one crossbar: 128 x 64 weights" in show("bench", "--bits", "16")
    text = show("isscc20-15.4")
    assert "energy not in the file" in text
    assert "4 passes (512 rows by 128 DACs)" in text
    assert "TOPS/W        not known" in text


def test_names_of_fields_are_whole_on_a_narrow_terminal() -> None:
    assert "vector_reg_read_dynamic_energy " in show("bench", columns=80)


def test_arch_show_as_json() -> None:
    found = json.loads(show("isaac", "--bits", "4", "--json"))
    derived = found["derived"]
    product = compute_chip_figures(architectures.load("isaac", bits=4)).product
    assert derived["product"]["time_ns"] == product.time_ns
    assert derived["product"]["parts"]["ADC"]["energy_pj"] == product.parts["ADC"].energy_pj
    assert derived["bits"] == 4
    assert derived["not_modelled"][0] == "area of wiring, pads, clock and white space"
    assert ArchFile.model_validate(found["file"]) == architectures.describe_chip("isaac").file
