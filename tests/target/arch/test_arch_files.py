"""Architecture files: presets and their sources, misspelt fields, overrides, network tables, the commands."""

import json
import tracemalloc
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from docgen.json_schemas import make_file_schema
from raptor.common.errors import UserError
from raptor.mapping.paces import apply_pace
from raptor.target import arch as architectures
from raptor.target.arch import (
    GLOBAL_MEMORY_ID,
    PRESET_SOURCES,
    arch_json,
    arch_presets,
    describe_chip,
    load,
    make_mesh_table,
    mesh_layout,
    write_network,
)
from raptor.target.arch.pimsim_schema import ArchFile, field_model
from raptor.tools.cli.arch import app
from tests.paths import ROOT
from validator.checks import check_chip
from validator.checks.arch_file import parse_chip, read_chip

SCHEMA = ROOT / "docs" / "schemas" / "arch.schema.json"
# Cores, crossbars a core, crossbar size: the table in PIMCOMP-NN's README, and its config.json.
PUBLISHED = {
    "pimcomp": (136, 64, 128, 128),
    "isaac": (168, 12 * 8, 128, 128),
    "puma": (138, 8 * 16, 128, 128),
    "sre": (168, 12 * 8, 128, 128),
    "forms": (168, 12 * 8, 128, 128),
    "isscc20-15.4": (1, 8, 512, 512),
    "isscc21-16.1": (1, 8, 1024, 512),
    "isscc22-11.4": (1, 32, 1024, 256),
    "isscc23-16.6": (4, 8, 512, 1024),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name: str) -> None:
    chip = load(name)
    assert (chip.core_count, chip.xbars_per_core, chip.xbar_rows, chip.xbar_cols) == PUBLISHED[name]


def test_every_preset_has_a_source_and_says_what_is_not_known() -> None:
    assert set(PRESET_SOURCES) == set(arch_presets())
    assert all(source.source and source.unknown for source in PRESET_SOURCES.values())


@pytest.mark.parametrize("name", arch_presets())
def test_presets_make_sense(name: str) -> None:
    """Published ones with rows for several passes of the DACs are noted."""
    passes = load(name).xbar_rows // 128
    noted = [f"{passes} passes: {128 * passes} rows by 128 DACs"] if passes > 1 else []
    assert [f.message.split(": a product")[0] for f in check_chip(read_chip(name))] == noted


def products_ns(name: str, bits: int) -> float:
    """Compute time of a product by the simulator's formula (docs/developers/target.md, 4.2)."""
    m = describe_chip(name).file.chip_config.core_config.matrix_config
    steps = bits // m.dac_resolution * (m.xbar_size[0] // m.dac_count)
    front = m.dac_latency_cycle + -(-m.xbar_latency // m.period) + m.sample_hold_latency_cycle
    s = m.shift_adder_latency_cycle + m.output_buffer_latency_cycle
    back = m.adc_latency_cycle + s + (m.xbar_size[1] // m.adc_count - 1) * max(m.adc_latency_cycle, s)
    return (front + back + (steps - 1) * max(front, back)) * m.period


def test_presets_reproduce_published_products() -> None:
    """PIMCOMP's: measured with the simulator; PUMA's: 2304 ns for 16 bits; ISAAC's: 16 reads of 100 ns and a tail."""
    assert products_ns("pimcomp", 8) == 1305
    assert products_ns("puma", 16) == pytest.approx(2304, rel=0.1)
    assert products_ns("isaac", 16) == pytest.approx(1700, rel=0.05)


def test_the_schema_is_up_to_date() -> None:
    assert SCHEMA.read_bytes() == make_file_schema(ArchFile), "run: make docs-generate"


def test_every_field_is_described() -> None:
    def missing(model: Any) -> list[str]:
        inner = [name for field in model.model_fields if (m := field_model(model, field)) for name in missing(m)]
        return [*inner, *(f for f, info in model.model_fields.items() if not info.description)]

    assert missing(ArchFile) == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("chip_config.core_config.rob_sise", "rob_size"),
        ("chip_confg", "chip_config"),
        ("sim_config.simtime", "sim_time"),
    ],
)
def test_a_misspelt_field_is_refused_with_a_suggestion(path: str, meant: str, tmp_path: Path) -> None:
    raw = orjson.loads(arch_json(load("bench")))
    del raw["chip_config"]["network_config"]["net_config_file_path"]
    section = raw
    *outer, name = path.split(".")
    for part in outer:
        section = section[part]
    section[name] = 1
    (tmp_path / "a.json").write_bytes(orjson.dumps(raw))
    with pytest.raises(UserError, match=f"{path}: no such field.*did you mean {meant}"):
        load(tmp_path / "a.json")
    (finding,) = check_chip(parse_chip(raw, "a.json"))
    assert finding.rule == "arch-unknown-field"
    assert f"{path} (perhaps {meant})" in finding.message


@pytest.mark.parametrize(("value", "fault"), [(0, "greater than 0"), (-1, "greater than 0"), ("x", "valid integer")])
def test_impossible_values_are_refused(value: object, fault: str, tmp_path: Path) -> None:
    raw = {"chip_config": {"core_config": {"rob_size": value}, "network_config": {"layout": [1, 1]}}}
    (tmp_path / "a.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=f"rob_size: .*{fault}"):
        load(tmp_path / "a.json")


@pytest.mark.parametrize("content", ["", "[]", "7", '{"chip_config": 3}', '{"chip_config": {"core_config": []}}'])
def test_files_that_are_none_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=r"a\.json"):
        load(tmp_path / "a.json")


def test_overrides_fit_the_converters() -> None:
    chip = load("bench", xbar=(64, 8), cores=5, xbars_per_core=3, cell_bits=4, bits=8)
    assert (chip.core_count, chip.xbars_per_core, chip.outputs_per_xbar) == (5, 3, 4)
    assert (chip.core.xbar.converters.dacs, chip.core.xbar.converters.adcs) == (64, 8)
    assert len(chip.notes) == 2


@pytest.mark.parametrize("cores", [1, 2, 3, 7, 12, 144])
def test_the_network_is_complete_and_written_as_it_was(cores: int) -> None:
    chip = load("bench", cores=cores)
    written = b"".join(write_network(chip))
    assert written == orjson.dumps(make_mesh_table(chip)) + b"\n"
    table = orjson.loads(written)
    for kind in ("latency", "energy"):
        pairs = {(int(src), int(dst)) for src, row in table[kind].items() for dst in row}
        wanted = set(permutations([*range(cores), GLOBAL_MEMORY_ID], 2))
        assert pairs == wanted


@pytest.mark.parametrize("layout", [(1, 6), (6, 1), (2, 3), (4, 4)])
def test_any_layout(layout: tuple[int, int], tmp_path: Path) -> None:
    raw = orjson.loads(arch_json(load("bench", cores=6)))
    raw["chip_config"]["network_config"]["layout"] = layout
    del raw["chip_config"]["network_config"]["net_config_file_path"]
    (tmp_path / "a.json").write_bytes(orjson.dumps(raw))
    chip = load(tmp_path / "a.json")
    table = make_mesh_table(chip)
    assert b"".join(write_network(chip)) == orjson.dumps(table) + b"\n"
    hops = abs(0 // layout[1] - 5 // layout[1]) + 5 % layout[1]
    assert table["latency"]["0"]["5"] == 2 * (1 + hops)
    assert table["latency"]["3"]["-10"] == 15
    assert table["energy"]["0"]["5"] == 46


def test_a_large_network_needs_little_memory() -> None:
    chip = load("bench", cores=1500)
    tracemalloc.start()
    size = sum(map(len, write_network(chip)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 40e6
    assert peak < 5e6


@pytest.mark.parametrize("cores", [1, 2, 5, 144, 200, 4000])
def test_the_mesh_holds_all_cores(cores: int) -> None:
    rows, cols = mesh_layout(cores)
    assert rows * cols >= cores
    assert (rows - 1) * cols < cores


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_list_and_show() -> None:
    listed = invoke("list").output
    assert all(name in listed for name in arch_presets())
    shown = invoke("show", "puma").output
    assert "puma-simulator" in shown
    assert "not known: " in shown
    assert (
        ArchFile.model_validate(orjson.loads(invoke("show", "puma", "--json").output)["file"])
        == describe_chip("puma").file
    )


def test_new_writes_a_file_that_loads_and_checks(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    assert invoke("new", "--cores", 9, "--xbar", "64x32", "--from", "pimcomp", "-o", path).exit_code == 0
    chip = load(path)
    assert (chip.core_count, chip.xbar_rows, chip.xbar_cols) == (9, 64, 32)
    assert table_of(path) == {*map(str, range(9)), "-10"}
    assert invoke("check", path).exit_code == 0
    assert isinstance(invoke("new", "-o", path).exception, UserError)
    assert invoke("new", "-o", path, "--force", "--quiet").output == ""


def table_of(path: Path) -> set[str]:
    """The places in the network table that an architecture file names."""
    name = orjson.loads(path.read_bytes())["chip_config"]["network_config"]["net_config_file_path"]
    return set(orjson.loads((path.parent / name).read_bytes())["latency"])


def test_several_chips_live_in_one_directory(tmp_path: Path) -> None:
    """One of them has the name of an output's network table."""
    sizes = {"chip.json": 4, "isaac.json": 6, "network.json": 3, "plain": 2}
    for name, cores in sizes.items():
        assert invoke("new", "-o", tmp_path / name, "--cores", cores).exit_code == 0
    for name, cores in sizes.items():
        assert table_of(tmp_path / name) == {*map(str, range(cores)), "-10"}
    assert len(list(tmp_path.iterdir())) == 8


@pytest.mark.parametrize("width", ["60", "80", "1000"])
def test_show_never_shortens_a_name(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown = set(invoke("show", "bench").output.split())
    assert set(field_names(ArchFile)) <= shown


def field_names(model: type[BaseModel]) -> Iterator[str]:
    for name in model.model_fields:
        yield name
        if inner := field_model(model, name):
            yield from field_names(inner)


def test_check_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "chip.json"
    raw = orjson.loads(arch_json(load("bench")))
    raw["chip_config"]["core_config"]["matrix_config"]["dac_count"] = 256
    path.write_bytes(orjson.dumps(raw))
    result = invoke("check", path)
    assert result.exit_code == 1
    assert "arch-dac-count" in result.output


def test_the_public_names_stay() -> None:
    for name in ("Target", "Core", "CrossbarHardware", "Memory", "Network", "load", "arch_presets"):
        assert hasattr(architectures, name)


def _chip_with_table(tmp_path: Path, table: dict[str, Any] | None) -> Path:
    path = tmp_path / "chip.json"
    assert invoke("new", "--cores", 9, "-o", path).exit_code == 0
    named = tmp_path / json.loads(path.read_text())["chip_config"]["network_config"]["net_config_file_path"]
    if table is None:
        named.unlink()
    else:
        named.write_text(json.dumps(table))
    return path


def test_check_opens_the_network_table(tmp_path: Path):
    table = make_mesh_table(load("bench", cores=9))
    assert invoke("check", _chip_with_table(tmp_path, table)).exit_code == 0
    del table["latency"]["3"]["4"], table["energy"]["8"]["-10"]
    (tmp_path / "other").mkdir()
    found = invoke("check", _chip_with_table(tmp_path / "other", table))
    assert found.exit_code == 1
    assert "latency from 3 to 4" in found.output
    assert "energy from 8 to -10" in found.output


def test_check_misses_a_table_that_is_not_there(tmp_path: Path):
    found = invoke("check", _chip_with_table(tmp_path, None))
    assert found.exit_code == 1
    assert "network-file" in found.output


def test_equal_targets_are_one_object() -> None:
    """Targets are keys of caches of costs, and comparing two of them takes longer than most costs."""
    first, again, other = (load("bench", xbar=xbar, cores=64) for xbar in (128, 128, 64))
    assert first is again
    assert first != other
    assert hash(first) != hash(other)  # or caches compare them, field by field
    assert first.with_places([1, 3]) is again.with_places((1, 3))
    assert apply_pace(first, "bench") is apply_pace(again, "bench")
    assert first.with_places([1, 3]) != first.with_places([1, 2])
