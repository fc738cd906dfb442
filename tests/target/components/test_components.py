"""Chips from components: energy and time of a product are those of the parts, and the files agree with each other."""

import math
import random
from pathlib import Path
from typing import Any

import pytest

import models
import raptor
from raptor.common.errors import UserError
from raptor.compiler.analysis.peak_figures import compute_product
from raptor.target import arch as architectures
from raptor.target.arch import Target
from raptor.target.arch.chip_area import compute_area
from raptor.target.components.adc_model import estimate_adc
from raptor.target.components.build_chip import build_chip
from raptor.target.components.chip_device import make_device
from raptor.target.components.component_file import ComponentFile, read_component_file
from raptor.target.device_file import load_device
from raptor.tools.cli.arch_view import write_components
from tests.paths import ROOT
from validator.checks import check_chip
from validator.checks.arch_file import read_chip
from validator.simulate import builtin
from validator.simulate.analysis.energy import crossbar_pass_parts_pj
from validator.simulate.analysis.uncounted_power import compute_uncounted_power

EXAMPLE = ROOT / "raptor" / "target" / "components" / "example.toml"


def build(parts: ComponentFile) -> Target:
    return architectures.make_target(build_chip(parts))


def random_file(seed: int) -> ComponentFile:
    """A component file with converters that divide the crossbar and times of whole periods."""
    draw = random.Random(seed)
    rows, cols = 2 ** draw.randint(4, 9), 2 ** draw.randint(4, 9)
    period, dac_periods = draw.choice((0.1, 0.78125, 1.0, 2.5)), draw.randint(1, 9)
    adc: dict[str, Any] = {"bits": draw.randint(4, 12), "per_crossbar": 2 ** draw.randint(0, 4)}
    if draw.random() < 0.5:
        adc |= {"bit_ns": period * draw.randint(1, 4)}
    else:
        adc |= {"rate_gsps": 1 / (period * draw.randint(1, 40))}
    if draw.random() < 0.5:
        adc |= {"model": "survey"}
    else:
        adc |= {"pj": draw.uniform(0.1, 30), "static_mw": draw.uniform(0, 1), "um2": draw.uniform(1, 1e4)}
    part = {"um2": draw.uniform(1, 1e5)}

    def periphery() -> dict[str, Any]:
        return part | {"periods": draw.randint(1, 5), "pj": draw.uniform(0, 2), "static_mw": draw.uniform(0, 1)}

    memory = part | {"bytes": 2**16, "width": 32, "read_ns": draw.uniform(0.5, 50), "write_ns": draw.uniform(0.5, 50)}
    array = {"per_core": 8, "rows": rows, "cols": cols, "cell_bits": draw.randint(1, 4)}
    return ComponentFile.model_validate(
        {
            "node_nm": draw.choice((7, 22, 32, 65, 130)),
            "chip": {"cores": draw.randint(1, 20), "clock_ns": draw.choice((0.5, 1.0, 2.0))},
            "crossbar": part | array | {"read_ns": draw.uniform(1, 200), "read_pj": draw.uniform(1, 100)},
            "adc": adc,
            "converters": {"period_ns": period, "pipelined": draw.random() < 0.5},
            "dac": part | {"pj": draw.uniform(0.01, 2), "periods": dac_periods, "per_crossbar": rows // 2},
            "sample_hold": periphery(),
            "shift_add": periphery(),
            "output_buffer": periphery(),
            "vector": part | {"lanes": 16, "step_ns": 2.0, "lane_pj": 0.5},
            "controller": part,
            "local_memory": memory,
            "global_memory": memory,
            "router": part | {"flit_bytes": 32, "ns": draw.uniform(0.5, 4), "pj": 3.0, "wire_pj": 1.5},
        }
    )


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_a_product_is_the_sum_of_its_parts(first: int):
    for seed in range(first, first + 25):
        parts = random_file(seed)
        target, adc = build(parts), parts.adc
        adc_pj = adc.pj if adc.model is None else estimate_adc(adc.bits, 1 / adc.conversion_ns, parts.node_nm).pj
        cols, dacs = parts.crossbar.cols, parts.crossbar.rows // 2
        wanted = {
            "DAC": dacs * parts.dac.pj,
            "crossbar read": parts.crossbar.read_pj,
            "sample and hold": cols * parts.sample_hold.pj,
            "ADC": cols * (adc_pj or 0.0),
            "shift and add": cols * parts.shift_add.pj,
            "output buffer": cols * parts.output_buffer.pj,
        }
        assert crossbar_pass_parts_pj(target.core.xbar) == pytest.approx(wanted, rel=1e-12)
        product = compute_product(target)
        passes = (8 // parts.dac.bits) * 2
        assert product.energy_pj == pytest.approx(passes * sum(wanted.values()), rel=1e-12)
        assert product.time_ns == pytest.approx(memory_ns(parts) + product_ns(parts, passes), rel=1e-9)


def memory_ns(parts: ComponentFile) -> float:
    """Time at the port of local memory: the simulator reads 8 times the input, and writes all columns of weights."""
    memory, clock, crossbar = parts.local_memory, parts.chip.clock_ns, parts.crossbar
    assert memory.read_ns
    assert memory.write_ns
    read = math.ceil(8 * crossbar.rows / memory.width) * math.ceil(memory.read_ns / clock)
    outputs = crossbar.cols * crossbar.cell_bits // 8
    return clock * (read + math.ceil(outputs / memory.width) * math.ceil(memory.write_ns / clock))


def product_ns(parts: ComponentFile, passes: int) -> float:
    """Time of a product from the times of the parts: reads and conversions, which may overlap."""
    period = parts.converters.period_ns or parts.adc.conversion_ns
    read = math.ceil(parts.crossbar.read_ns / period) * period
    front = (parts.dac.periods + parts.sample_hold.periods) * period + read
    digital = (parts.shift_add.periods + parts.output_buffer.periods) * period
    turns = parts.crossbar.cols // parts.adc.per_crossbar
    back = parts.adc.conversion_ns + digital + (turns - 1) * max(parts.adc.conversion_ns, digital)
    if parts.converters.pipelined:
        return front + back + (passes - 1) * max(front, back)
    return passes * (front + back)


@pytest.mark.parametrize("seed", range(20))
def test_static_power_area_and_network_are_those_of_the_parts(seed: int):
    parts = random_file(seed)
    target, xbars = build(parts), parts.chip.cores * parts.crossbar.per_core
    adc = parts.adc
    adc_mw = adc.static_mw
    um2 = adc.um2 or 0.0
    if adc.model is not None:
        found = estimate_adc(adc.bits, 1 / adc.conversion_ns, parts.node_nm)
        adc_mw, um2 = found.static_mw, found.um2
    uncounted = compute_uncounted_power(target, 0, 0, 1.0, None).whole_chip.parts_w
    assert uncounted["adc"] == pytest.approx(xbars * adc.per_crossbar * adc_mw / 1000, rel=1e-12)
    assert uncounted["sample_hold"] == pytest.approx(xbars * parts.sample_hold.static_mw / 1000, rel=1e-12)
    assert uncounted["shift_adder"] == pytest.approx(xbars * parts.shift_add.static_mw / 1000, rel=1e-12)
    each = parts.crossbar.um2 or 0.0
    crossbar = each * (4 + parts.crossbar.rows // 2) + adc.per_crossbar * um2
    area = xbars * crossbar + parts.chip.cores * 4 * each + each
    assert compute_area(target).area_mm2 == pytest.approx(area / 1e6, rel=1e-12)
    router, table, cols = parts.router, target.table, target.mesh_cols
    assert table is not None
    last = parts.chip.cores - 1
    hops = last // cols + last % cols
    if last:
        assert table.latency_ns[0, last] == router.ns * (1 + hops)
        assert table.energy_pj[last, 0] == router.pj * (1 + hops) + router.wire_pj * hops
    assert table.to_memory_ns[last] == 2 * router.ns


@pytest.mark.parametrize(("bits", "pj", "um2"), [(4, 0.74, 5190), (6, 0.85, 5416), (8, 1.54, 6469), (10, 13.13, 12275)])
def test_the_model_of_adcs(bits: int, pj: float, um2: float):
    """Values of hwcomponents-adc 1.0.21 at 1.28 GS/s and 32 nm."""
    found = estimate_adc(bits, 1.28, 32)
    assert (found.pj, found.um2) == (pytest.approx(pj, rel=0.005), pytest.approx(um2, rel=1e-3))
    assert found.static_mw == pytest.approx(0.25 * found.pj * 1.28)


def test_the_model_of_adcs_is_that_of_the_package():
    """The package needs Python 3.12, so this runs only where that is."""
    package = pytest.importorskip("hwcomponents_adc")
    for bits in range(4, 15):
        for gsps in (1e-3, 0.05, 1.28, 5.0):
            for node in (7, 32, 65, 130):
                wanted = package.ADC(n_bits=bits, tech_node=node * 1e-9, throughput=gsps * 1e9)
                found = estimate_adc(bits, gsps, node)
                assert found.um2 == pytest.approx(wanted.area * 1e12, rel=1e-12)
                assert found.static_mw == pytest.approx(wanted.leak_power * 1e3, rel=1e-12)


def test_the_example_is_the_tile_of_isaac():
    """Energies of a pass by Table I: DACs 50 pJ, arrays 30 pJ; without the ADC the areas are those of the paper."""
    parts = read_component_file("example")
    target = build(parts)
    found = crossbar_pass_parts_pj(target.core.xbar)
    assert found["DAC"] == pytest.approx(50.0)
    assert found["crossbar read"] == pytest.approx(30.0)
    assert found["shift and add"] == pytest.approx(128 * 20 / 1024)
    isaac = compute_area(architectures.load("isaac", cores=64)).parts_mm2
    area = compute_area(target)
    assert area.parts_mm2["crossbar"] == pytest.approx(isaac["memristor array"])
    assert area.parts_mm2["DAC"] == pytest.approx(isaac["DAC"])
    assert area.parts_mm2["local memory"] == pytest.approx(isaac["eDRAM buffer"])
    assert area.parts_mm2["router"] == pytest.approx(isaac["router"])
    assert area.kind == "ASSUMED"


def test_bits_cost_energy_time_and_area_together():
    targets = [build(read_component_file("example", [f"adc.bits={bits}"])) for bits in (6, 7, 8, 9)]
    products = [compute_product(target) for target in targets]
    energies, times = [p.energy_pj for p in products], [p.time_ns for p in products]
    areas = [compute_area(target).area_mm2 or 0.0 for target in targets]
    for costs in (energies, times, areas):
        assert costs == sorted(costs)
        assert costs[0] < costs[-1]
    assert [target.core.xbar.converters.adc_bits for target in targets] == [6, 7, 8, 9]
    device = make_device(read_component_file("example", ["adc.bits=6", "crossbar.cell_bits=1"]))
    assert device is not None
    assert device.read_out.adc is not None
    assert (device.read_out.adc.bits, device.read_out.cell_bits) == (6, 1)


def test_the_files_of_a_folder_agree(tmp_path: Path):
    folder = tmp_path / "chip"
    write_components("example", ["chip.cores=16"], folder)
    assert sorted(path.name for path in folder.iterdir()) == ["arch.json", "device.json", "network.json"]
    assert load_device(folder / "device.json").read_out.adc is not None
    assert not check_chip(read_chip(folder / "arch.json"))
    program = raptor.compile(models.build("mlp3", seed=0), arch=folder / "arch.json").save(tmp_path / "out")
    report = builtin.simulate(program)
    assert report.area_mm2 == compute_area(architectures.load(folder / "arch.json")).area_mm2
    assert not report.warnings
    with pytest.raises(UserError, match="exists; choose another"):
        write_components("example", [], folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["adc.bits=21"], "adc.bits"),
        (["adc.bits=3"], "the model of ADCs is for 4 to 20 bits"),
        (["node_nm=5"], "nodes are scaled between 7 and 130 nm"),
        (["adc.rate_gsps=1.28"], "either rate_gsps or bit_ns"),
        (["adc.pj=1.0"], "adc.pj: the model gives it"),
        (["adc.per_crossbar=3"], "3 do not divide the 128 columns"),
        (["dac.per_crossbar=100"], "100 do not divide the 128 rows"),
        (["converters.period_ns=0.3"], "no whole number of periods of 0.3 ns"),
        (["shift_add.periods=0"], "takes no period"),
        (["crossbar.low_um2=30"], "low_um2 <= um2 <= high_um2"),
        (["vector.kind=MEASURED"], "kind MEASURED needs a source"),
        (["device.preset=nix"], "expected one of"),
        (["chip.cores=100000"], "chip.cores"),
        (["adc"], "expected PART.NAME=VALUE"),
        (["=3"], "expected PART.NAME=VALUE"),
        (["node_nm.x=3"], "is a value, not a part"),
        (["frobs.x=3"], "frobs"),
        (["vector.table=isaac"], "the table isaac has no such part; it has: crossbar, adc"),
        (["dac.table=prime"], "dac.table: expected one of: isaac, puma"),
        (["local_memory.bytes=131072"], "local_memory.bytes: the table isaac is for 65536, not for 131072"),
        (["crossbar.rows=many"], "crossbar.rows"),
        (["local_memory={bytes=65536, width=64}"], "local_memory: give read_ns and write_ns, or model"),
        (["local_memory.model=sram"], "local_memory.cite: the model gives it"),
        (["global_memory={model='sram', bytes=67108864, width=32}"], "4096 to 16777216 bytes, not for 6.71"),
        (["chip.clock_ns=nan"], "chip.clock_ns"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, changes: list[str], said: str):
    with pytest.raises(UserError, match=said):
        write_components("example", changes, tmp_path / "chip")
    assert not (tmp_path / "chip").exists()


@pytest.mark.parametrize("content", ["", "version = 2", "version = ", "x" * 70_000, "\udcff"])
def test_broken_files_are_refused(tmp_path: Path, content: str):
    file = tmp_path / "chip.toml"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"chip\.toml"):
        read_component_file(file)


def test_a_part_without_an_area_makes_it_unknown(tmp_path: Path):
    given = "bytes = 65536\nwidth = 64\nread_ns = 20"
    (tmp_path / "chip.toml").write_text(EXAMPLE.read_text().replace('table = "isaac"\nread_ns = 20', given))
    area = compute_area(build(read_component_file(tmp_path / "chip.toml")))
    assert (area.area_mm2, area.unknown) == (None, ("local memory",))


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("arch-dac-energy", {"dac_dynamic_power": 0.00390625}),
        ("arch-adc-energy", {"adc_dynamic_power": 500.0}),
        ("arch-adc-energy", {"adc_resolution": 16}),
        ("arch-area", {"adc_count": 2}),
    ],
)
def test_contradictions_are_warnings(tmp_path: Path, rule: str, fields: dict[str, Any]):
    """The first is what the preset `isaac` had: the power of Table I, charged for 0.78 of 100 ns."""
    clean = architectures.load("isaac", cores=4)
    for name, target, expected in (
        ("clean", clean, False),
        ("wrong", architectures.load("isaac", cores=4, fields=fields), True),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "arch.json").write_bytes(architectures.arch_json(target))
        with (folder / "network.json").open("wb") as stream:
            stream.writelines(architectures.write_network(target))
        rules = {finding.rule for finding in check_chip(read_chip(folder / "arch.json"))}
        assert (rule in rules) == expected
