"""Numbers of published parts, of the model of memories, and of scaling between nodes: each with its source."""

import csv
import itertools
import sys
from pathlib import Path

import pytest

from raptor.common.errors import UserError
from raptor.target import arch as architectures
from raptor.target.arch.chip_area import compute_area
from raptor.target.components.build_chip import build_chip
from raptor.target.components.component_file import read_component_file
from raptor.target.components.node_scaling import NODES_NM, area_factor, energy_factor
from raptor.target.components.part_models import fill_from_models
from raptor.target.components.part_tables import TABLES, list_rows
from raptor.target.components.second_witness import compare_with_hwcomponents
from raptor.target.components.sram_model import estimate_sram
from raptor.tools.cli.arch_view import write_components
from tests.paths import ROOT

SOURCES = {"isaac": "ISAAC, ISCA 2016, Table I", "puma": "PUMA, ASPLOS 2019: puma-simulator a206f75, constants.py"}
PUMA_MW = {"crossbar": 0.3, "adc": 1.8, "dac": 0.00350625, "shift_add": 0.05 - 0.005}
"""Powers of puma-simulator a206f75, include/constants.py."""


@pytest.mark.parametrize("table", TABLES)
def test_every_part_of_a_table_has_its_source(table: str):
    rows = list_rows(table)
    assert len(rows) >= 4
    for name, row in rows.items():
        assert row["kind"] == "PUBLISHED", name
        assert row["cite"].startswith(SOURCES[table]), name
        assert row["um2"] > 0, name


def test_powers_of_puma_are_those_of_its_simulator():
    rows = list_rows("puma")
    assert rows["crossbar"]["read_pj"] == pytest.approx(PUMA_MW["crossbar"] * rows["crossbar"]["read_ns"])
    assert rows["adc"]["pj"] * rows["adc"]["rate_gsps"] == pytest.approx(PUMA_MW["adc"])
    assert rows["dac"]["pj"] == pytest.approx(PUMA_MW["dac"] * rows["crossbar"]["read_ns"])
    assert rows["shift_add"]["pj"] * rows["adc"]["rate_gsps"] == pytest.approx(PUMA_MW["shift_add"])


def test_areas_of_the_table_are_those_of_the_preset():
    """Table I once for the parts of a crossbar, once for those of a chip: 1,024 DACs, 8 arrays, 4 tiles a router."""
    table = architectures.load("isaac").area
    assert table is not None
    parts = {part.name: part for part in table.parts}
    rows = list_rows("isaac")
    for part, name, count in (
        ("crossbar", "memristor array", 1),
        ("adc", "ADC", 1),
        ("dac", "DAC", 1),
        ("sample_hold", "sample-and-hold", 128),
        ("shift_add", "shift and add of an IMA", 0.5),
        ("input_buffer", "input register", 1 / 8),
        ("output_buffer", "output register of an IMA", 1 / 8),
        ("local_memory", "eDRAM buffer", 1),
        ("router", "router", 1),
        ("link", "HyperTransport links", 1),
    ):
        assert rows[part]["um2"] == pytest.approx((parts[name].um2 or 0) * count), part


def test_logic_is_scaled_by_the_table_of_stillmaker_and_baas():
    assert area_factor(32, 32) == energy_factor(65, 65) == 1.0
    assert (area_factor(32, 7), area_factor(130, 32), area_factor(45, 65)) == (0.13, 0.072, 1.5)
    assert area_factor(32, 22) == pytest.approx(0.46 + (1 - 0.46) * 2 / 12)
    for fine, coarse in itertools.pairwise(NODES_NM):
        assert area_factor(coarse, fine) * area_factor(fine, coarse) == pytest.approx(1, rel=0.05)
        assert energy_factor(coarse, fine) < 1 or (fine, coarse) == (32, 45)
    v = 0.8
    at_32, at_7 = 0.9559 * v * v - 0.7823 * v + 0.471, 0.1776 * v * v - 0.09097 * v + 0.02447
    assert energy_factor(32, 7) == pytest.approx(at_7 / at_32)
    for node in (6.9, 131):
        with pytest.raises(ValueError, match="between 7 and 130 nm"):
            area_factor(32, node)


def test_digital_parts_are_scaled_and_analog_ones_are_assumed():
    old, new = (fill_from_models(read_component_file("example", [f"node_nm={node}"])) for node in (32, 22))
    assert new.router.um2 == pytest.approx((old.router.um2 or 0) * area_factor(32, 22))
    assert new.local_memory.read_pj == pytest.approx(old.local_memory.read_pj * energy_factor(32, 22))
    assert new.router.kind == "MODELLED"
    assert "scaled from 32 nm (Stillmaker and Baas 2017)" in (new.router.cite or "")
    assert (new.dac.um2, new.dac.pj, new.dac.kind) == (old.dac.um2, old.dac.pj, "ASSUMED")
    assert "not scaled" in (new.dac.cite or "")
    assert new.vector.um2 == old.vector.um2  # the file gives it itself


def test_arrays_of_another_size_are_in_proportion_to_their_cells():
    crossbar = read_component_file("example", ["crossbar.rows=256", "crossbar.cols=64"]).crossbar
    assert (crossbar.um2, crossbar.high_um2, crossbar.read_pj, crossbar.read_ns) == (25, 31.25, 30, 100)
    small = read_component_file("example", ["crossbar.rows=64"]).crossbar
    assert (small.um2, small.low_um2, small.read_pj, small.kind) == (12.5, 9.375, 15, "ASSUMED")
    assert "in proportion to the cells of 128x128" in (small.cite or "")


def test_the_file_goes_before_the_table():
    parts = read_component_file("example", ["router.pj=3.0", "adc={table='puma', per_crossbar=2}"])
    assert (parts.router.pj, parts.router.um2) == (3.0, 151000)
    assert (parts.adc.pj, parts.adc.per_crossbar, parts.adc.static_mw) == (1.40625, 2, 0.2)
    with pytest.raises(UserError, match="the model gives it"):
        build_chip(read_component_file("example", ["adc={table='isaac', per_crossbar=1, model='survey'}"]))


# Memories


def stored_memories() -> list[dict[str, str]]:
    text = (ROOT / "raptor/target/components/sram.csv").read_text()
    assert "hwcomponents-cacti 1.0.40" in text
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def test_the_model_of_memories_goes_through_its_grid():
    rows = stored_memories()
    assert len(rows) == 5 * 13 * 4
    for row in rows:
        found = estimate_sram(float(row["bytes"]), float(row["width"]), float(row["node_nm"]))
        assert found.um2 == pytest.approx(float(row["um2"]))
        assert (found.read_pj, found.write_pj) == (
            pytest.approx(float(row["read_pj"])),
            pytest.approx(float(row["write_pj"])),
        )
        assert found.ns == pytest.approx(max(float(row["access_ns"]), float(row["cycle_ns"])))
        assert found.static_mw == pytest.approx(float(row["leakage_mw"]))


def test_between_two_memories_is_the_geometric_mean():
    small, large, between = (estimate_sram(size, 32, 45) for size in (2**16, 2**17, 2**16.5))
    assert between.um2 == pytest.approx((small.um2 * large.um2) ** 0.5)
    assert between.read_pj == pytest.approx((small.read_pj * large.read_pj) ** 0.5)
    assert estimate_sram(2**16, 48, 26).um2 > estimate_sram(2**16, 48, 22).um2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((2048, 32, 32), "4096 to 16777216 bytes"),
        ((2**16, 128, 32), "8 to 64 bytes wide"),
        ((2**16, 32, 130), "22 to 90 nm"),
    ],
)
def test_memories_outside_of_the_grid_are_refused(values: tuple[float, float, float], said: str):
    with pytest.raises(ValueError, match=said):
        estimate_sram(*values)


def test_a_chip_with_a_modelled_memory():
    given = ["local_memory={model='sram', bytes=65536, width=64}"]
    chip = architectures.make_target(build_chip(read_component_file("example", given)))
    found = estimate_sram(65536, 64, 32)
    memory = chip.core.memory
    assert (memory.energy.read_pj, memory.energy.write_pj) == (found.read_pj, found.write_pj)
    assert compute_area(chip).parts_mm2["local memory"] == pytest.approx(64 * found.um2 / 1e6)


# The second witness


def test_the_witness_needs_its_python(tmp_path: Path):
    if sys.version_info >= (3, 12):
        pytest.skip("this Python can have the package hwcomponents")
    with pytest.raises(UserError, match=r"needs Python 3\.12; this is 3\.11"):
        write_components("example", [], tmp_path / "chip", witness=True)
    assert not (tmp_path / "chip").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the package leaves files open
def test_the_witness_agrees_on_adcs_and_memories():
    """Runs where the package is; its CACTI need not start there."""
    pytest.importorskip("hwcomponents_adc", reason="hwcomponents needs Python 3.12")
    changes = ["local_memory={model='sram', bytes=65536, width=64}"]
    adc, local, _ = compare_with_hwcomponents(fill_from_models(read_component_file("example", changes)))
    assert adc.count("(1.000 of it)") == 2
    assert local.count("(1.000 of it)") == 2 or "did not answer" in local
