"""A chip's own network table is what is mapped, scheduled, written and simulated, or is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import raptor
from raptor.common.errors import UserError
from raptor.spatial.mesh_placement import find_placement
from raptor.target import arch as architectures
from validator.simulate.builtin import simulate

CORES = 40


def write_chip(folder: Path, table: dict[str, Any] | str | None, **network: Any) -> Path:
    """The preset bench with so many cores, and beside it a network table as `mynet.json`."""
    raw = json.loads(architectures.describe_chip("bench", cores=CORES).file.model_dump_json(exclude_unset=True))
    raw["chip_config"]["network_config"] |= {"net_config_file_path": "mynet.json"} | network
    if table is not None:
        text = table if isinstance(table, str) else json.dumps(table, indent=1)
        (folder / "mynet.json").write_text(text)
    path = folder / "chip.json"
    path.write_text(json.dumps(raw))
    return path


def slow_table(factor: float = 250, **changed: float) -> dict[str, Any]:
    """The built-in mesh, slower by a factor. `changed`: latencies by "from_to"."""
    table: dict[str, Any] = architectures.make_mesh_table(architectures.load("bench", cores=CORES))
    table["latency"] = {a: {b: ns * factor for b, ns in row.items()} for a, row in table["latency"].items()}
    for pair, ns in changed.items():
        source, to = pair.strip("_").split("_")
        table["latency"][source][to] = ns
    return table


@pytest.fixture(scope="module")
def lenet5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "lenet5.onnx"
    path.write_bytes(models.build("lenet5", seed=0).SerializeToString())
    return path


def test_the_own_table_is_in_the_output_and_costs_what_it_says(lenet5: Path, tmp_path: Path):
    chip = write_chip(tmp_path, slow_table())
    out = raptor.compile(lenet5, arch=chip).save(tmp_path / "out")
    assert json.loads((out / "network.json").read_text()) == slow_table()
    there = simulate(out, out / "arch.json").latency_ns
    assert there == simulate(out, chip).latency_ns
    mesh = raptor.compile(lenet5, cores=CORES).save(tmp_path / "mesh")
    assert there > simulate(mesh, mesh / "arch.json").latency_ns
    assert raptor.load(out).validate().passed


def test_the_mapper_and_the_schedule_use_it(tmp_path: Path):
    """Compiled for slow messages, a program is faster there than one compiled for the mesh."""
    chip = write_chip(tmp_path, slow_table(20))
    model = models.build("resnet18", seed=0, image_size=64, width=0.25)
    knowing = raptor.compile(model, arch=chip).save(tmp_path / "knowing", stream_format="pim")
    unknowing = raptor.compile(model, cores=CORES).save(tmp_path / "unknowing", stream_format="pim")
    assert simulate(knowing, chip).latency_ns < 0.95 * simulate(unknowing, chip).latency_ns


def test_cores_are_placed_by_the_table(tmp_path: Path):
    """Core 0 is next to nobody but core 37, by the table; on the mesh it would stay beside core 1."""
    table = slow_table(_0_37=1.0, _37_0=1.0)
    arch = architectures.load(write_chip(tmp_path, table))
    places = find_placement(np.array([[0, 1, 1000]]), arch)
    assert set(places[[0, 1]].tolist()) == {0, 37}


def test_the_search_simulates_with_it(lenet5: Path, tmp_path: Path):
    chip = write_chip(tmp_path, slow_table())
    found = raptor.compile(lenet5, arch=chip, optimize="latency", effort=3)
    costs = {name: cost for name, cost in _searched(found) if cost is not None}
    out = found.save(tmp_path / "out")
    assert simulate(out, chip).latency_ns == min(costs.values())


def _searched(program: raptor.Program) -> list[tuple[str, float | None]]:
    return [(trial.mapping, trial.cost) for trial in program.report.search]


def test_a_permission_takes_the_way_back(tmp_path: Path):
    from raptor.target.timing import message_times

    arch = architectures.load(write_chip(tmp_path, slow_table(_2_3=7.0, _3_2=9.0)))
    times = message_times(arch, np.array([2]), np.array([3]), np.array([64]))
    assert (times.request_ns[0], times.grant_ns[0]) == (7, 9)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (None, "net_config_file_path: no file .*mynet.json"),
        ("[]", "mynet.json: expected the objects latency and energy"),
        ('{"latency": {}}', "mynet.json: expected the objects latency and energy"),
        ('{"latency": {}, "energy": {}}', "no latency from 0 to 1, 0 to 2, 0 to 3 and 1597 more pairs"),
        (slow_table(_0_1=-1), "latency from 0 to 1: expected a number from 0"),
        (json.dumps(slow_table(_0_1=77777)).replace("77777", '"7"'), "latency from 0 to 1: .* not '7'"),
        ("{" * 100_000, "mynet.json: expected the objects"),
    ],
    ids=["missing", "list", "without energy", "empty", "negative", "text", "deep"],
)
def test_what_is_no_table_is_refused(table: dict[str, Any] | str | None, fault: str, tmp_path: Path):
    with pytest.raises(UserError, match=fault):
        architectures.load(write_chip(tmp_path, table))


@pytest.mark.parametrize("number", ["-1", "-1e999", "1e999"])
def test_numbers_from_the_memory_are_looked_at_too(number: str, tmp_path: Path):
    table = slow_table()
    table["latency"]["-10"] = {"3": 77777}
    text = json.dumps(table).replace("77777", number)
    fault = r"mynet.json: latency from -10( to 3: expected a number from 0|: .*out of range)"
    with pytest.raises(UserError, match=fault):
        architectures.load(write_chip(tmp_path, text))


@pytest.mark.parametrize("kind", ["latency", "energy"])
@pytest.mark.parametrize("pair", [("3", "4"), ("39", "-10")])
def test_a_pair_that_is_missing_is_refused(kind: str, pair: tuple[str, str], tmp_path: Path):
    table = slow_table()
    del table[kind][pair[0]][pair[1]]
    with pytest.raises(UserError, match=f"no {kind} from {pair[0]} to {pair[1]}; the simulator would charge nothing"):
        architectures.load(write_chip(tmp_path, table))


def test_fewer_cores_take_a_part_of_the_table_and_more_are_refused(tmp_path: Path):
    chip = write_chip(tmp_path, slow_table())
    part = architectures.load(chip, cores=7)
    assert part.table is not None
    assert part.table.latency_ns.shape == (8, 8)
    whole = architectures.load(chip).network
    assert (part.network.rows, part.network.cols) == (whole.rows, whole.cols)
    with pytest.raises(UserError, match="no latency from 0 to 40"):
        architectures.load(chip, cores=41)


def test_a_table_of_the_mesh_is_the_mesh(tmp_path: Path):
    """Tables written by `arch new` and `compile` can be compiled for with another number of cores."""
    bench = architectures.load("bench", cores=CORES)
    text = b"".join(architectures.write_network(bench)).decode()
    chip = write_chip(tmp_path, text, layout=(bench.network.rows, bench.network.cols))
    assert architectures.load(chip) == bench
    assert architectures.load(chip, cores=90) == architectures.load("bench", cores=90)


def test_a_file_that_names_no_table_has_the_mesh_of_its_layout(tmp_path: Path):
    chip = write_chip(tmp_path, None)
    raw = json.loads(chip.read_text())
    del raw["chip_config"]["network_config"]["net_config_file_path"]
    chip.write_text(json.dumps(raw))
    assert architectures.load(chip) == architectures.load("bench", cores=CORES)


def test_an_endless_table_is_refused(tmp_path: Path):
    chip = write_chip(tmp_path, None, net_config_file_path="/dev/zero")
    with pytest.raises(UserError, match="no file /dev/zero"):
        architectures.load(chip)
