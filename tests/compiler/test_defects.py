"""`compile --chip`: programs around what is dead, on random chips; what the defects cost is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.output import files, repair_files
from raptor.target import arch
from raptor.target.avoid_defects import avoid_defects
from raptor.target.chip_file import ChipFile, ChipSize, chip_to_json, load_chip_file, make_chip
from raptor.target.isa import OPCODE
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.repair_output import repair_output
from tests.mesh_walks import walk
from tests.tiny_models import make_model, node, random
from validator.checks import check
from validator.load.output_directory import load_output

TINY: dict[str, Any] = {"xbar": 8, "cores": 12, "xbars_per_core": 6}
SIZE = make_size(arch.load("bench", **TINY), 2)
RATES = DefectRates(stuck=0.02, dead_rows=0.002, dead_columns=0.004, dead_crossbars=0.05, dead_cores=3, dead_links=2)


def convolution() -> ModelProto:
    layers = [node("Conv", "x w", "a", name="conv", pads=[1, 1, 1, 1]), node("Relu", "a", "y", name="relu")]
    return make_model(layers, {"x": (1, 3, 5, 5)}, ["y"], {"w": random(9, 3, 3, 3)})


def perceptron() -> ModelProto:
    layers = [node("Gemm", "x w", "a", name="one"), node("Relu", "a", "b"), node("Gemm", "b v", "y", name="two")]
    return make_model(layers, {"x": (1, 20)}, ["y"], {"w": random(20, 17), "v": random(17, 6)})


def residual() -> ModelProto:
    layers = [
        node("Conv", "x w", "a", name="conv"),
        node("Add", "a x", "b", name="add"),
        node("GlobalAveragePool", "b", "c", name="pool"),
        node("Flatten", "c", "y", name="flat"),
    ]
    return make_model(layers, {"x": (1, 6, 4, 4)}, ["y"], {"w": random(6, 6, 1, 1)})


MODELS = {"convolution": convolution, "perceptron": perceptron, "residual": residual}


def write_chip(path: Path, file: ChipFile) -> Path:
    path.write_bytes(chip_to_json(file))
    return path


def list_pairs(out: Path) -> set[tuple[int, int]]:
    """Returns the pairs of cores of all messages."""
    streams, talks = load_output(out).streams, [OPCODE["send"], OPCODE["recv"]]
    return {(core, other) for core, s in enumerate(streams) for other in s["a"][np.isin(s["opcode"], talks)].tolist()}


def find_used_cores(out: Path) -> set[int]:
    program = load_output(out)
    return {core for core, records in enumerate(program.streams) if len(records)}


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_dead_is_used(name: str, mapping: str, tmp_path: Path):
    """Each program is compiled around the defects of its chip, repaired for it, checked and executed."""
    int8 = raptor.quantize(MODELS[name]()).save(tmp_path / "int8.onnx")
    for seed in range(5):
        chip = write_chip(tmp_path / f"chip{seed}.json", draw_chip(SIZE, RATES, seed))
        out = raptor.compile(int8, **TINY, mapping=mapping, chip=chip).save(tmp_path / f"out{seed}")
        dead = load_chip_file(chip).dead_cores
        assert find_used_cores(out).isdisjoint(dead)
        links = set(load_chip_file(chip).file.dead_links)
        assert all((walk(*pair, SIZE.mesh_columns) & links) == set() for pair in list_pairs(out))
        assert not [f for f in check(out) if f.severity == "error"]
        assert raptor.load(out).validate(samples=1).passed
        found = repair_output(out, load_chip_file(chip), None, {"encoding": "differential_analog"})
        die = found.save(tmp_path / f"die{seed}")
        assert not [f for f in check(die) if f.severity == "error"]
        report = raptor.load(die).validate(samples=1)
        assert report.passed
        assert report.repair is not None


def test_links_that_no_place_avoids_are_an_error(tmp_path: Path):
    """All links of all cores are dead, and the model needs more than one core."""
    chip = write_chip(tmp_path / "chip.json", draw_chip(SIZE, DefectRates(dead_links=len(SIZE.list_links())), 0))
    model = make_model([node("Gemm", "x w", "y", name="wide")], {"x": (1, 64)}, ["y"], {"w": random(64, 64)})
    loss = "chip 'drawn-0': 0 of 12 cores and 17 links are dead; .* of 1 of these, messages cross no dead link"
    with pytest.raises(CapacityError, match=rf"need .*, have .*\n{loss}"):
        raptor.compile(model, **TINY, bits=2, chip=chip)


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
def test_a_program_that_would_use_all_cores_uses_those_without_dead_links(mapping: str, tmp_path: Path):
    """A row of a mesh of four by three is cut in two places, so a core of it reaches no other core."""
    file = draw_chip(SIZE, DefectRates(), 0).model_copy(update={"dead_links": ((4, 5), (5, 6))})
    chip = write_chip(tmp_path / "chip.json", file)
    out = raptor.compile(perceptron(), **{**TINY, "xbars_per_core": 6}, mapping=mapping, chip=chip).save(
        tmp_path / "out"
    )
    assert not any({(4, 5), (5, 6)} & walk(*pair, SIZE.mesh_columns) for pair in list_pairs(out))
    assert raptor.load(out).validate(samples=1).passed
    assert raptor.load(out).explain().layers


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
def test_places_around_dead_links_are_those_of_the_file(mapping: str, tmp_path: Path):
    """A mapping of a chip whose links work is refused on one with dead links that it uses, and else taken."""
    model = perceptron()
    plain = raptor.compile(model, **TINY, mapping=mapping).save(tmp_path / "plain")
    cut = next(iter(walk(*next(iter(list_pairs(plain))), SIZE.mesh_columns)))
    file = draw_chip(SIZE, DefectRates(), 0)
    chip = write_chip(tmp_path / "chip.json", file.model_copy(update={"dead_links": (cut,)}))
    mapped = plain / "mapping.json"
    with pytest.raises(CapacityError, match="without a dead link on their way"):
        raptor.compile(model, **TINY, mapping=mapped, chip=chip)
    around = raptor.compile(model, **TINY, mapping=mapping, chip=chip).save(tmp_path / "around")
    assert not any(cut in walk(*pair, SIZE.mesh_columns) for pair in list_pairs(around))
    again = raptor.compile(model, **TINY, mapping=around / "mapping.json", chip=chip).save(tmp_path / "again")
    assert list_pairs(again) == list_pairs(around)


def test_a_chip_without_defects_changes_no_stream(tmp_path: Path):
    chip = write_chip(tmp_path / "chip.json", draw_chip(SIZE, DefectRates(), 0))
    plain, around = (raptor.compile(convolution(), **TINY, **more) for more in ({}, {"chip": chip}))
    plain.save(tmp_path / "plain")
    around.save(tmp_path / "around")
    names = {str(p.relative_to(tmp_path / "around")) for p in (tmp_path / "around").rglob("*") if p.is_file()}
    changed = {
        name
        for name in names
        if not (tmp_path / "plain" / name).exists()
        or (tmp_path / "plain" / name).read_bytes() != (tmp_path / "around" / name).read_bytes()
    }
    assert changed == {files.MANIFEST, files.REPORT, repair_files.CHIP}


def test_the_room_is_that_of_the_most_crossbars():
    """Eight cores with six crossbars hold more than eleven with two."""
    dead = [(core, k) for core in (8, 9, 10) for k in range(4)]
    file = ChipFile(version=1, name="x", source="x", size=SIZE, dead_cores=(11,), dead_crossbars=tuple(dead))
    target = avoid_defects(arch.load("bench", **TINY), make_chip(file), "--chip")
    assert (target.places, target.xbars_per_core, target.room) == (tuple(range(8)), 6, None)


def test_a_program_that_no_longer_fits_tells_what_the_defects_cost(tmp_path: Path):
    size = ChipSize(**{**SIZE.model_dump(), "cores": 4})
    chip = write_chip(tmp_path / "chip.json", draw_chip(size, DefectRates(dead_cores=3), 1))
    chip_sizes = {**TINY, "cores": 4, "xbars_per_core": 6}
    weights = {"w": random(64, 64)}
    model = make_model([node("Gemm", "x w", "y", name="wide")], {"x": (1, 64)}, ["y"], weights)
    raptor.compile(model, **chip_sizes, bits=2)
    with pytest.raises(CapacityError, match=r"need .*, have .*\nchip 'drawn-1': 3 of 4 cores are dead"):
        raptor.compile(model, **chip_sizes, chip=chip)


def test_explain_knows_the_places(tmp_path: Path):
    chip = write_chip(tmp_path / "chip.json", draw_chip(SIZE, DefectRates(dead_cores=5), 3))
    out = raptor.compile(convolution(), **TINY, chip=chip).save(tmp_path / "out")
    assert raptor.load(out).explain().layers
    assert raptor.load(out).report.warnings[-1].startswith("chip 'drawn-3': 5 of 12 cores are dead")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"cores": 11}, "take the file of a chip of this architecture"),
        ({"rounds": True}, "not with"),
        ({"host": True}, "not with host=True, whose segments share the cores"),
        ({"chip": "none.json"}, "no such file; raptor arch defects writes one"),
    ],
)
def test_refusals(tmp_path: Path, more: dict[str, Any], message: str):
    chip = write_chip(tmp_path / "chip.json", draw_chip(SIZE, DefectRates(), 0))
    with pytest.raises(UserError, match=message):
        raptor.compile(convolution(), **{**TINY, "chip": chip, **more})


def test_a_chip_where_nothing_works(tmp_path: Path):
    chip = write_chip(tmp_path / "chip.json", draw_chip(SIZE, DefectRates(dead_cores=12), 0))
    with pytest.raises(UserError, match="has no core with a crossbar that works"):
        raptor.compile(convolution(), **TINY, chip=chip)


def test_weights_stay_exact_where_cells_are_free(tmp_path: Path):
    int8 = raptor.quantize(perceptron()).save(tmp_path / "int8.onnx")
    out = raptor.compile(int8, **TINY).save(tmp_path / "out")
    chip = load_chip_file(write_chip(tmp_path / "chip.json", draw_chip(SIZE, DefectRates(), 0)))
    repaired = repair_output(out, chip, None, {"encoding": "differential_analog"}).repair
    program = load_output(out)
    for group in repaired.groups:
        assert np.array_equal(group.weights, program.weights.matrix(group.core, group.group))
