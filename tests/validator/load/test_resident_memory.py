"""Outputs whose values stay on the chip: faults of `resident.json`, and of the auxiliary programs."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.output.files import LocalTile
from tests.stateful_models import Reference, recurrent_image, recurrent_step
from validator import checks
from validator.errors import ProgramError
from validator.execution.memory_tensors import read_state
from validator.execution.run import prepare_machine, run_program
from validator.load.output_directory import load_output
from validator.simulate.builtin import simulate
from validator.validate import validate

PAIRS = {"h0": "hn"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = raptor.compile(recurrent_step("GRU"), states=PAIRS, resident_constants=True, cores=12, xbar=16)
    return program.save(tmp_path_factory.mktemp("good") / "out")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "out"))


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Changes a JSON file, and its entry in the manifest."""
    content = orjson.loads((folder / name).read_bytes())
    content = change(content) or content
    put(folder, name, orjson.dumps(content))


def put(folder: Path, name: str, content: bytes | None) -> None:
    """Replaces or removes a file, and its entry in the manifest."""
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    if content is None:
        (folder / name).unlink()
        del manifest["files"][name]
    else:
        (folder / name).write_bytes(content)
        entry = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest["files"][name] = entry
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))


def test_a_good_one(saved: Path):
    program = load_output(saved)
    assert list(program.resident.auxiliary) == ["init", "save", "restore"]
    assert [state.name for state in program.states] == ["hn"]
    assert [place.name for place in program.outputs] == ["y", "hn"]
    assert not checks.check(saved)
    assert validate(saved).verdict == "pass"


def first_core(content: Mapping[str, Any]) -> dict[str, Any]:
    return content["cores"][0]


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a core too many": (lambda c: first_core(c).update(core=99), "resident.json: core 99 of 12"),
    "beyond the memory": (lambda c: first_core(c)["spans"].append([2**20, 4]), "4 bytes at 1048576 of"),
    "no such input": (lambda c: c["states"][0].update(input="x0"), "state 'x0': memory.json has no such input"),
    "an output twice": (lambda c: c["states"][0].update(output="y"), "'y' is an output in memory.json, too"),
    "another shape": (lambda c: c["states"][0].update(shape=[1, 8]), "memory.json has no such input of this shape"),
    "another image": (lambda c: c["states"][0].update(image_shape=[1, 1, 7]), "differ in size"),
    "not resident": (lambda c: c["states"][0]["tiles"][0].update(address=0), "are not resident"),
    "a part missing": (lambda c: c["states"][0].update(tiles=[]), "0 tiles hold row 0 column 0 of channel 0"),
    "an unknown key": (lambda c: c.update(more=1), "resident.json"),
    "a negative span": (lambda c: first_core(c)["spans"].append([-4, 4]), "resident.json"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_refused(folder: Path, name: str):
    change, message = FAULTS[name]
    edit(folder, "resident.json", change)
    with pytest.raises(UserError, match=message):
        load_output(folder)


@pytest.mark.parametrize("name", ["init", "save", "restore"])
def test_an_auxiliary_program_that_is_left_out(folder: Path, name: str):
    put(folder, f"{name}/core_0.json", None)
    with pytest.raises(UserError, match=f"{name}/core_0.json is not in the list of files"):
        load_output(folder)


def test_a_stream_that_nobody_lists(folder: Path):
    (folder / "init" / "core_0.pim").write_bytes(b"")
    with pytest.raises(UserError, match=r"a stream that manifest\.json does not list"):
        load_output(folder)


def test_an_init_program_that_does_nothing(folder: Path):
    for path in sorted((folder / "init").glob("core_*.json")):
        put(folder, f"init/{path.name}", b"[]")
    assert {finding.rule for finding in checks.check(folder)} == set()  # spans are declared; values show it
    assert validate(folder).verdict == "mismatch"


def test_memory_that_is_not_resident_is_lost(folder: Path):
    """A program that relies on what the sample before left in other memory fails."""
    edit(folder, "resident.json", lambda content: {**content, "cores": [], "states": []})
    for name in ("save", "restore"):
        for path in sorted((folder / name).iterdir()):
            put(folder, f"{name}/{path.name}", None)
    findings = {finding.rule for finding in checks.check(folder)}
    assert "local-unwritten" in findings


def test_an_instruction_that_is_wrong_is_named_with_its_program(folder: Path):
    path = next(p for p in sorted((folder / "init").glob("core_*.json")) if p.stat().st_size > 10)

    def change(stream: list[dict[str, Any]]) -> None:
        load = next(step for step in stream if step["op"] == "ld")
        load["size"] = 2**20

    edit(folder, f"init/{path.name}", change)
    with pytest.raises((ProgramError, UserError), match=r"in init: .* bytes"):
        run_program(load_output(folder), {"x": np.zeros((1, 1, 6), np.float32)})


def test_cores_that_disagree(tmp_path: Path):
    """Each core that holds a part of a state must have the same value."""
    proto, pairs = recurrent_image(), {"state": "next_state"}
    program = load_output(raptor.compile(proto, states=pairs, cores=12, xbar=16).save(tmp_path / "out"))
    (kept,), reference = program.states, Reference(proto, pairs)
    places: dict[object, list[LocalTile]] = {}
    for tile in kept.tiles:
        places.setdefault(tile.region, []).append(tile)
    changed = next(tiles[-1] for tiles in places.values() if len(tiles) > 1)
    state = prepare_machine(program, {**reference.step()[0], **reference.states})
    read_state(state, kept)
    state.local[int(state.local_first[changed.core]) + changed.address // state.element_bytes] += 1
    with pytest.raises(UserError, match=r"state 'next_state': cores .* hold different values"):
        read_state(state, kept)


def test_a_step_takes_all_states_or_none(saved: Path):
    program = load_output(saved)
    x = {"x": np.zeros((1, 1, 6), np.float32)}
    first = run_program(program, x)
    again = run_program(program, {**x, "h0": np.zeros((1, 1, 8), np.float32)}, before=first.after)
    np.testing.assert_array_equal(again.outputs["hn"], first.outputs["hn"])
    assert (run_program(program, x, before=first.after).outputs["hn"] != first.outputs["hn"]).any()
    with pytest.raises(UserError, match=r"input 'h0': expected shape \[1, 1, 8\]"):
        run_program(program, {**x, "h0": np.zeros((1, 8), np.float32)})


def test_simulation_has_figures_of_each_program(saved: Path, capsys: pytest.CaptureFixture[str]):
    report = simulate(saved)
    assert list(report.auxiliary) == ["init", "save", "restore"]
    figures = report.auxiliary["init"]
    assert figures.instructions > report.auxiliary["save"].instructions > 0
    alone = simulate(saved / "init", saved / "arch.json")
    assert (alone.latency_ns, alone.energy_pj) == (figures.latency_ns, figures.energy_pj)
    assert report.latency_ns < simulate_plain(saved)


def simulate_plain(saved: Path) -> float:
    program = raptor.compile(recurrent_step("GRU"), cores=12, xbar=16)
    return simulate(program.save(saved.parent / "plain", force=True)).latency_ns
