"""`raptor repair` moves the work of cores that are dead, or have too few crossbars, and of messages over dead links."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import raptor
from raptor.common.errors import UserError
from raptor.output import files
from raptor.output.files import OutputManifest
from raptor.output.move_cores import write_moved
from raptor.target import arch
from raptor.target.chip_file import Chip, ChipFile, chip_to_json, make_chip
from raptor.target.isa import OPCODE
from raptor.target.message_partners import renumber_partners
from raptor.tools.cli.app import build_commands
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.repair_output import RepairedOutput, repair_output
from tests.mesh_walks import walk
from tests.tiny_models import make_model, node, random
from validator.checks import check
from validator.load.output_directory import load_moved, load_output

TINY: dict[str, Any] = {"xbar": 16, "cores": 16, "xbars_per_core": 6}
SIZE = make_size(arch.load("bench", **TINY), 2)
PAIRS = {"encoding": "differential_analog"}
TALKS = [OPCODE["send"], OPCODE["recv"]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = [
        node("Conv", "x w", "a", name="conv", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b", name="relu"),
        node("Conv", "b v", "y", name="second"),
    ]
    model = make_model(layers, {"x": (1, 3, 6, 6)}, ["y"], {"w": random(9, 3, 3, 3), "v": random(4, 9, 1, 1)})
    folder = tmp_path_factory.mktemp("moves")
    int8 = raptor.quantize(model).save(folder / "int8.onnx")
    return raptor.compile(int8, **TINY, mapping="rows").save(folder / "out")


def chip_of(**defects: Any) -> Chip:
    size = SIZE.model_copy(update=defects.pop("size", {}))
    return make_chip(ChipFile(version=1, name="die", source="a test", size=size, **defects))


def list_used(folder: Path) -> list[int]:
    return [core for core, records in enumerate(load_output(folder).streams) if len(records)]


def list_pairs(folder: Path) -> set[tuple[int, int]]:
    streams = load_output(folder).streams
    return {(core, other) for core, s in enumerate(streams) for other in s["a"][np.isin(s["opcode"], TALKS)].tolist()}


def repair(out: Path, chip: Chip, folder: Path) -> RepairedOutput:
    """Returns a repaired program. Without stuck cells and dead lines, it is as exact as it was, and has no finding."""
    made = repair_output(out, chip, None, PAIRS)
    die = made.save(folder / "die")
    assert not [finding for finding in check(die) if finding.severity == "error"]
    report = raptor.load(die).validate(samples=2)
    assert report.passed
    assert report.repair is not None
    assert report.repair.differing == 0
    return made


def test_the_work_of_a_dead_core_moves_to_a_near_idle_one(out: Path, tmp_path: Path):
    used = list_used(out)
    idle = sorted(set(range(SIZE.cores)) - set(used))
    dead = used[1]
    made = repair(out, chip_of(dead_cores=(dead,)), tmp_path)
    ((old, new),) = made.repair.table.moved
    assert old == dead
    hops = {core: abs(core // 4 - old // 4) + abs(core % 4 - old % 4) for core in idle}
    assert hops[new] == min(hops.values())
    before, after = load_output(out).streams, load_output(tmp_path / "die").streams
    assert not len(after[old])
    for core in (old, *used):
        was, now = before[core].copy(), after[new if core == old else core].copy()
        talks = np.isin(was["opcode"], TALKS)
        assert np.array_equal(np.where(was["a"][talks] == old, new, was["a"][talks]), now["a"][talks])
        was["a"][talks] = now["a"][talks] = 0
        assert np.array_equal(was, now)
    assert raptor.load(tmp_path / "die").explain().layers
    assert any(new in layer.cores for layer in raptor.load(tmp_path / "die").report.layers)


def test_nothing_moves_without_need(out: Path):
    idle = next(core for core in range(SIZE.cores) if core not in list_used(out))
    for chip in (chip_of(), chip_of(dead_cores=(idle,)), chip_of(dead_crossbars=((list_used(out)[0], 0),))):
        made = repair_output(out, chip, None, PAIRS)
        assert made.program.folder == out
        assert not made.repair.table.moved


def test_cores_with_too_few_crossbars_exchange_their_work(out: Path, tmp_path: Path):
    """All cores are used or dead. One has as many working crossbars as the least of the others needs."""
    program = load_output(out)
    needs = {core: sum(program.config.group_sizes(core)) for core in list_used(out)}
    most, least = max(needs, key=lambda k: needs[k]), min(needs, key=lambda k: needs[k])
    assert needs[most] > needs[least]
    idle = tuple(core for core in range(SIZE.cores) if core not in needs)
    broken = tuple((most, k) for k in range(SIZE.crossbars - needs[least]))
    made = repair(out, chip_of(dead_cores=idle, dead_crossbars=broken), tmp_path)
    moved = dict(made.repair.table.moved)
    assert most in moved
    assert needs[{new: old for old, new in moved.items()}[most]] <= needs[least]


def test_matrices_move_away_from_dead_lines(out: Path, tmp_path: Path):
    """Every crossbar of a core has a dead column. Spare columns would do instead."""
    used = list_used(out)
    core = max(used, key=lambda k: sum(load_output(out).config.group_sizes(k)))
    lines = tuple({"core": core, "crossbar": k, "columns": (0,)} for k in range(SIZE.crossbars))
    made = repair(out, chip_of(arrays=lines), tmp_path)
    assert [old for old, _ in made.repair.table.moved] == [core]
    with_spares = repair_output(out, chip_of(arrays=lines, size={"spare_columns": 1}), None, PAIRS)
    assert not with_spares.repair.table.moved


def test_messages_leave_dead_links(out: Path, tmp_path: Path):
    source, to = min(list_pairs(out))
    link = min(walk(source, to, SIZE.mesh_columns))
    made = repair(out, chip_of(dead_links=(link,)), tmp_path)
    assert made.repair.table.moved
    assert not any(link in walk(*pair, SIZE.mesh_columns) for pair in list_pairs(tmp_path / "die"))


def test_moves_there_and_back_change_no_stream(out: Path, tmp_path: Path):
    cores = np.random.default_rng(3).permutation(SIZE.cores).tolist()
    back = [cores.index(core) for core in range(SIZE.cores)]
    there = write_moved(out, load_output(out).manifest, cores, None, tmp_path / "there")
    again = write_moved(there, load_output(there).manifest, back, None, tmp_path / "again")
    manifest = OutputManifest.model_validate_json((again / files.MANIFEST).read_bytes())
    assert set(manifest.files) == set(load_output(out).manifest.files)
    for name in manifest.files:
        if name.startswith(("core_", "weights/")):
            assert (again / name).read_bytes() == (out / name).read_bytes()
    for name in (files.CONFIG, files.MEMORY, files.LAYERS, files.STEPS, files.REPORT):
        assert load_json(again / name) == load_json(out / name), name
        assert load_json(there / name) != load_json(out / name), name


@pytest.mark.parametrize("form", ["json", "pim"])
def test_a_moved_program_is_what_its_files_say(out: Path, form: Any, tmp_path: Path):
    if form == "pim":
        made = raptor.compile(out / files.MODEL, **TINY, mapping="rows")
        out = made.save(tmp_path / "out", stream_format="pim", weight_format="npz")
    program = load_output(out)
    cores: list[int] = np.random.default_rng(4).permutation(SIZE.cores).tolist()
    streams = [renumber_partners(program.streams[cores.index(core)], cores) for core in range(SIZE.cores)]
    slow = write_moved(out, program.manifest, cores, None, tmp_path / "slow")
    fast = write_moved(out, program.manifest, cores, None, tmp_path / "fast", streams)
    assert (slow / files.MANIFEST).read_bytes() == (fast / files.MANIFEST).read_bytes()  # with all hashes
    wanted, found = load_output(fast), load_moved(fast, program, cores, streams)
    for field in ("folder", "manifest", "config", "memory", "layers", "resident", "trim", "decoder"):
        assert getattr(found, field) == getattr(wanted, field), field
    assert found.weights.first.tolist() == wanted.weights.first.tolist() != program.weights.first.tolist()
    for core in range(SIZE.cores):
        assert (found.streams[core] == wanted.streams[core]).all()
        for group in range(int(found.weights.first[core + 1] - found.weights.first[core])):
            assert (found.weights.matrix(core, group) == wanted.weights.matrix(core, group)).all()


def load_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_programs_that_no_cores_hold(out: Path):
    used = list_used(out)
    dead = tuple(range(SIZE.cores - len(used) + 1))
    with pytest.raises(UserError, match=r"for 1 of them there is no core with as many working crossbars"):
        repair_output(out, chip_of(dead_cores=dead), None, PAIRS)
    with pytest.raises(UserError, match=r"24 links are dead; \d+ pairs of cores exchange messages"):
        repair_output(out, chip_of(dead_links=tuple(SIZE.list_links())), None, PAIRS)


def test_the_command_tells_what_moved(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    dead = list_used(out)[0]
    (tmp_path / "chip.json").write_bytes(chip_to_json(chip_of(dead_cores=(dead,)).file))
    done = CliRunner().invoke(
        build_commands(), ["repair", str(out), "--chip", "chip.json", "--with", "encoding=differential", "-o", "die"]
    )
    assert done.exit_code == 0, done.exception
    assert f"moved cores: {dead} to " in done.output
