"""Areas of chips: sums of published tables, the worst kind of evidence, and figures that stay unknown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

import models
import raptor
from raptor.common.errors import UserError
from raptor.compiler.analysis.peak_figures import compute_chip_figures, compute_product
from raptor.target import arch as architectures
from raptor.target.arch import PRESET_SOURCES, Target
from raptor.target.arch.area_table import KINDS, AreaPart
from raptor.target.arch.chip_area import compute_area, format_area
from validator.simulate import builtin

TABLES = ("isaac", "pimcomp", "puma")


@pytest.mark.parametrize(
    ("name", "cores", "published_mm2"), [("isaac", None, 85.4), ("puma", None, 90.6), ("pimcomp", 36, 62.92)]
)
def test_sums_of_published_tables(name: str, cores: int | None, published_mm2: float):
    found = compute_area(architectures.load(name, cores=cores))
    assert found.area_mm2 == pytest.approx(published_mm2, rel=0.002)
    assert (found.low_mm2 or 0) <= (found.area_mm2 or 0) <= (found.high_mm2 or 0)


def test_parts_of_the_tile_of_isaac():
    """Table I: a tile has 0.372 mm2, of which the ADCs are 31 %, and eDRAM and bus 47 %; its 12 IMAs have 0.157."""
    parts = compute_area(architectures.load("isaac", cores=1)).parts_mm2
    tile = sum(parts.values()) - parts["HyperTransport links"]
    assert tile == pytest.approx(0.372, rel=0.002)
    assert parts["ADC"] / tile == pytest.approx(0.31, abs=0.005)
    assert (parts["eDRAM buffer"] + parts["bus of the tile"]) / tile == pytest.approx(0.47, abs=0.006)
    of_ima = ("ADC", "DAC", "sample-and-hold", "memristor array", "shift and add of an IMA", "input register")
    ima = sum(parts[name] for name in (*of_ima, "output register of an IMA"))
    assert ima == pytest.approx(0.157, rel=0.003)


def test_energy_of_a_pass_of_isaac():
    """Table I: 128 DACs take 4 mW / 8 for the 100 ns of a read, an ADC 2 mW, an array 0.3 mW: 50, 200 and 30 pJ."""
    product = compute_product(architectures.load("isaac"))
    reads = product.slices * product.passes
    assert product.parts["DAC"].energy_pj / reads == pytest.approx(50.0)
    assert product.parts["ADC"].energy_pj / reads == pytest.approx(200.0)
    assert product.parts["crossbar read"].energy_pj / reads == pytest.approx(30.0)


def test_energy_of_a_product_of_puma():
    """The paper: 43.97 nJ for 128 x 128 weights of 16 bits, which eight crossbars of 2 bits hold."""
    product = compute_product(architectures.load("puma", bits=16))
    assert 8 * product.energy_pj / 43_970 == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", [n for n in PRESET_SOURCES if n not in TABLES])
def test_other_presets_have_no_area(name: str):
    found = compute_area(architectures.load(name))
    assert (found.area_mm2, found.low_mm2, found.kind) == (None, None, None)
    assert format_area(found) == "not known: the architecture file has no areas"


@pytest.mark.parametrize("name", TABLES)
def test_every_number_has_a_source(name: str):
    table = architectures.load(name).area
    assert table is not None
    for part in table.parts:
        assert part.kind != "MEASURED"  # none of these chips was made
        assert any(paper in part.source for paper in ("ISCA 2016", "ASPLOS 2019", "DAC 2023")), part
        assert ("not checked" in part.source) == (part.kind == "ASSUMED")


def with_parts(*parts: AreaPart, base: str = "isaac") -> Target:
    target = architectures.load(base, cores=2)
    assert target.area is not None
    return replace(target, area=replace(target.area, parts=parts))


def make_part(kind: Any, um2: float | None = 1e6, **more: Any) -> AreaPart:
    values: dict[str, Any] = {"level": "chip", "count": 1, "low_um2": um2, "high_um2": um2, "source": "x"}
    return AreaPart(name=f"{kind} part", um2=um2, kind=kind, **values | more)


@pytest.mark.parametrize("worst", KINDS)
def test_a_sum_has_the_worst_kind(worst: Any):
    kinds = KINDS[: KINDS.index(worst) + 1]
    found = compute_area(with_parts(*(make_part(kind) for kind in kinds)))
    assert found.kind == worst
    assert found.shares == {kind: pytest.approx(1 / len(kinds)) for kind in kinds}
    assert f"{1 / len(kinds):.0%} {worst}" in format_area(found)


def test_a_small_assumed_part_is_not_hidden():
    found = compute_area(with_parts(make_part("PUBLISHED"), make_part("ASSUMED", um2=1.0)))
    assert found.kind == "ASSUMED"
    assert "0% ASSUMED" in format_area(found)


def test_ranges_add_up():
    one = make_part("MODELLED", level="core", count=3, low_um2=0.5e6, high_um2=2e6)
    found = compute_area(with_parts(one, make_part("MODELLED", level="crossbar", um2=1e4)))
    # 2 cores with 3 of one part, and 192 crossbars.
    assert found.area_mm2 == pytest.approx(6 + 1.92)
    assert (found.low_mm2, found.high_mm2) == (pytest.approx(3 + 1.92), pytest.approx(12 + 1.92))


def test_an_unknown_part_makes_the_area_unknown():
    found = compute_area(with_parts(make_part("PUBLISHED"), make_part("MODELLED", um2=None)))
    assert found.area_mm2 is None
    assert found.unknown == ("MODELLED part",)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("puma", {"cores": 64}, "cores: the areas are for 138, the chip has 64"),
        ("isaac", {"xbar": 64}, "crossbar size: the areas are for 128x128, the chip has 64x64"),
        ("isaac", {"xbars_per_core": 8}, "crossbars a core: the areas are for 96, the chip has 8"),
        ("isaac", {"fields": {"adc_count": 2}}, "ADCs a crossbar: the areas are for 1, the chip has 2"),
        ("isaac", {"fields": {"adc_resolution": 4}}, "bits of an ADC: the areas are for 8, the chip has 4"),
    ],
)
def test_areas_are_for_one_chip(name: str, change: dict[str, Any], said: str):
    found = compute_area(architectures.load(name, **change))
    assert found.area_mm2 is None
    assert said in found.unknown


def test_an_output_remembers_the_area(tmp_path: Path):
    """A smaller ISAAC has half the tiles, and the links of the chip."""
    out = raptor.compile(models.build("mlp3", seed=0), arch="isaac", cores=84).save(tmp_path / "out")
    report = builtin.simulate(out)
    assert report.area_mm2 == pytest.approx(84 * 0.37229 + 22.88, rel=1e-4)
    assert report.area is not None
    assert report.area.kind == "PUBLISHED"
    assert report.tops is not None
    assert report.tops_per_mm2 == pytest.approx(report.tops / report.area_mm2)
    found = compute_chip_figures(architectures.load("isaac"))
    assert found.tops_per_mm2 == pytest.approx(found.peak.crossbars.tops / 85.42472)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"um2": -1}, "area.parts.0.um2"),
        ({"kind": "GUESSED"}, "area.parts.0.kind"),
        ({"level": "tile"}, "area.parts.0.level"),
        ({"source": ""}, "area.parts.0.source"),
        ({"mm2": 3}, "area.parts.0.mm2"),
        ({"count": 0}, "area.parts.0.count"),
    ],
)
def test_wrong_areas_are_refused(tmp_path: Path, change: dict[str, Any], said: str):
    raw = orjson.loads(architectures.arch_json(architectures.load("isaac")))
    raw["area"]["parts"][0] |= change
    raw["chip_config"]["network_config"].pop("net_config_file_path")
    (tmp_path / "arch.json").write_bytes(orjson.dumps(raw))
    with pytest.raises(UserError, match=said):
        architectures.load(tmp_path / "arch.json")
