"""`raptor repair`: nearest weights by enumeration, assignments by trial, and programs on the cells of their chip."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.output import files, repair_files
from raptor.target import arch
from raptor.target.arch import read_stored_target
from raptor.target.chip_file import CellState, Chip, ChipFile, ChipSize, chip_to_json, load_chip_file, make_chip
from raptor.tools.cli.app import build_commands
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.choose_crossbars import CrossbarPart, assign_rows, place_parts
from raptor.tools.repair.closest_values import ClosestValues, list_sums, nearest
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.measure_yield import METHODS
from raptor.tools.repair.repair_matrix import (
    RepairMethod,
    _share_columns,  # pyright: ignore[reportPrivateUsage]
    repair_matrix,
)
from raptor.tools.repair.repair_output import repair_output
from tests.tiny_models import make_model, node, random
from validator.checks import check
from validator.crossbar.cell_layout import CellLayout, make_layout
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.repaired_cells import CellRepair, check_repair
from validator.load.output_directory import load_output

COMMAND = build_commands()
BENCH = arch.load("bench", cell_bits=4)
ENCODINGS = ("offset", "differential", "differential_analog", "twos_complement")
PLAIN = RepairMethod(compensate=False, signs=False, sums=False, crossbars=False)
PAIRS = {"encoding": "differential_analog"}


def invoke(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words))


def layout_of(encoding: str, bits: int = 8, cell_bits: int = 4, levels: str = "full") -> CellLayout:
    setup = make_setup("sliced", BENCH, None, {"encoding": encoding, "cell_bits": f"{cell_bits}", "levels": levels})
    return make_layout(np.array([[1 - (1 << bits - 1)]]), bits, setup)


def random_case(encoding: str, rate: float, seed: int) -> tuple[np.ndarray, np.ndarray, ClosestValues]:
    rng = np.random.default_rng(seed)
    layout = layout_of(encoding)
    matrix = np.clip(np.rint(rng.standard_normal((60, 20)) * 30), -127, 127).astype(np.int64)
    drawn = rng.random((layout.arrays, 60, 20, layout.slices))
    states = np.select([drawn < rate / 2, drawn > 1 - rate / 2], [CellState.OFF, CellState.ON], CellState.FREE)
    return matrix, states.astype(np.uint8), ClosestValues(layout)


@pytest.mark.parametrize("levels", ["full", "shared"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tables_have_every_sum_of_levels(encoding: str, levels: str):
    """All levels of all cells are tried, for every set of stuck cells, with cells of 2 bits and weights of 4."""
    layout = layout_of(encoding, 4, 2, levels)
    cells = [(a, k) for a in range(layout.arrays) for k in range(layout.slices)]
    for states in product((0, 1, 2), repeat=len(cells)):
        choices = [
            (range(1 << layout.bits[k]), [0], [layout.highest[k]])[s] for (_, k), s in zip(cells, states, strict=True)
        ]
        every = {
            layout.constant
            + sum((-1) ** a * layout.powers[k] * level for (a, k), level in zip(cells, found, strict=True))
            for found in product(*choices)
        }
        grouped = [states[a * layout.slices : (a + 1) * layout.slices] for a in range(layout.arrays)]
        sums, digits = list_sums(layout, grouped)
        assert sums.tolist() == sorted(every)
        assert (digits @ np.array(layout.powers) + layout.constant == sums).all()


def test_nearest_of_sums():
    sums = np.array([-7, -2, 0, 5])
    wishes = np.arange(-10, 10)
    best = [min(sums, key=lambda s: (abs(s - w), abs(s))) for w in wishes]
    assert sums[nearest(sums, wishes)].tolist() == best


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_repaired_matrix(encoding: str, rate: float):
    matrix, states, tables = random_case(encoding, rate, 5)
    layout = tables.layout
    plain, found = (repair_matrix(matrix, states, tables, method) for method in (PLAIN, RepairMethod()))
    fixed = np.where(states == CellState.ON, np.array(layout.highest), 0)
    assert (found.levels == fixed)[states != CellState.FREE].all()
    assert (layout.decode(found.levels) * found.signs == found.weights).all()
    nearest_alone = repair_matrix(matrix, states, tables, RepairMethod(sums=False))
    assert (
        nearest_alone.errors <= repair_matrix(matrix, states, tables, RepairMethod(signs=False, sums=False)).errors
    ).all()
    assert (nearest_alone.errors <= plain.errors).all()
    if not rate:
        assert np.array_equal(found.weights, matrix)
        assert (found.signs == 1).all()
        return
    assert found.errors.sum() < plain.errors.sum()
    sums = [[np.maximum(side * w, 0).sum(axis=0) for side in (1, -1)] for w in (matrix, found.weights)]
    if rate < 0.1 and layout.arrays == 2:
        assert np.array_equal(*sums)
    low, high = layout.limits
    assert found.weights.min() >= min(low, -high)
    assert found.weights.max() <= max(high, -low)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_columns_are_repaired_by_themselves(encoding: str):
    """All columns at once give what each column gives, for each method and rates with many and few stuck cells."""
    for rate, method in product((0.004, 0.05, 0.4), METHODS.values()):
        matrix, states, tables = random_case(encoding, rate, 7)
        found = repair_matrix(matrix, states, tables, method)
        for col in range(matrix.shape[1]):
            one = repair_matrix(matrix[:, [col]], states[:, :, [col]], tables, method)
            for name in ("levels", "signs", "weights", "errors"):
                assert np.array_equal(getattr(found.take(slice(col, col + 1)), name), getattr(one, name)), name


def test_each_column_has_the_least_largest_shares():
    """Shares of a total: the sum, no more than the room, and each unit goes where most room is left."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        room = rng.integers(0, 5, (6, 9))
        totals = rng.integers(1, 30, 6)
        shares = _share_columns(room, totals)
        assert (shares <= room).all()
        assert (shares >= 0).all()
        assert np.array_equal(shares.sum(axis=1), np.minimum(totals, room.sum(axis=1)))
        for col in np.flatnonzero(totals <= (room > 0).sum(axis=1)).tolist():
            largest = np.argsort(-room[col], kind="stable")[: totals[col]]
            assert np.flatnonzero(shares[col]).tolist() == sorted(largest.tolist())


def test_dead_cells_hold_nothing():
    matrix, states, tables = random_case("differential_analog", 0.02, 1)
    states[:, 7] = CellState.DEAD
    states[0, :, 3, 1] = CellState.DEAD
    found = repair_matrix(matrix, states, tables, RepairMethod())
    assert not found.levels[states == CellState.DEAD].any()
    assert not found.weights[7].any()


def test_assignment_is_the_cheapest():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 5))
        m = int(rng.integers(n, 7))
        costs = rng.integers(0, 20, (n, m)).astype(float)
        found = assign_rows(costs)
        assert len(set(found)) == n
        best = min(sum(costs[i, p[i]] for i in range(n)) for p in permutations(range(m), n))
        assert costs[range(n), found].sum() == best


def one_core_chip(spare_columns: int = 0, **defects: Any) -> Chip:
    size = ChipSize(cores=1, crossbars=3, rows=60, columns=40, arrays=2, spare_columns=spare_columns)
    return make_chip(ChipFile.model_validate({"version": 1, "name": "x", "source": "x", "size": size, **defects}))


def test_the_best_crossbars_and_none_twice():
    matrix, _, tables = random_case("differential_analog", 0.0, 2)
    parts = [CrossbarPart(matrix, tables, "a"), CrossbarPart(-matrix, tables, "b")]
    bad = {"core": 0, "crossbar": 1, "columns": tuple(range(10))}
    placed = place_parts(0, parts, one_core_chip(arrays=(bad,)), RepairMethod())
    assert sorted(p.crossbar for p in placed) == [0, 2]
    in_order = place_parts(0, parts, one_core_chip(arrays=(bad,)), RepairMethod(crossbars=False))
    assert [p.crossbar for p in in_order] == [0, 1]
    with pytest.raises(UserError, match="core 0 has 1 working crossbars, but the program uses 2 of it"):
        place_parts(0, parts, one_core_chip(dead_crossbars=((0, 0), (0, 1))), RepairMethod())
    with pytest.raises(UserError, match="core 0 is dead"):
        place_parts(0, parts, one_core_chip(dead_cores=(0,)), RepairMethod())


def test_spare_columns_replace_the_worst():
    matrix, _, tables = random_case("differential_analog", 0.0, 2)
    dead = tuple({"core": 0, "crossbar": k, "columns": (7, 21)} for k in range(3))
    parts = [CrossbarPart(matrix, tables, "a")]
    (without,) = place_parts(0, parts, one_core_chip(arrays=dead), RepairMethod())
    (one,) = place_parts(0, parts, one_core_chip(1, arrays=dead), RepairMethod())
    (two,) = place_parts(0, parts, one_core_chip(2, arrays=dead), RepairMethod())
    assert without.repaired.errors.sum() > one.repaired.errors.sum() > two.repaired.errors.sum() == 0
    assert two.lines.ravel()[[7, 21]].tolist() in ([40, 41], [41, 40])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained network in integers, a chip with 3 % stuck cells and dead lines, and the program repaired for it."""
    made = tmp_path_factory.mktemp("repair")
    training, test = load_images()
    np.savez(made / "data.npz", image=training.pixels[:20])
    np.savez(made / "test.npz", x=test.pixels[:200], y=test.digits[:200])
    raptor.quantize(MODEL, data=made / "data.npz", per_channel=True).save(made / "digits.onnx")
    raptor.compile(made / "digits.onnx", xbar=128, cores=64, cell_bits=4, trimmable=True, xbars_per_core=6).save(
        made / "out"
    )
    size = make_size(read_stored_target(made / "out", files.ARCH), 2, 1, 2)
    rates = DefectRates(stuck=0.03, dead_columns=0.004, dead_crossbars=0.1)
    for name, seed in (("chip", 7), ("other", 8)):
        (made / f"{name}.json").write_bytes(chip_to_json(draw_chip(size, rates, seed)))
    words = ("--chip", str(made / "chip.json"), "--with", "encoding=differential_analog", "-o", str(made / "die"))
    done = invoke("repair", str(made / "out"), *words)
    assert done.exit_code == 0, done.exception
    return made


def test_streams_and_weights_stay(folder: Path):
    names = {str(p.relative_to(folder / "out")) for p in (folder / "out").rglob("*") if p.is_file()}
    more = {str(p.relative_to(folder / "die")) for p in (folder / "die").rglob("*") if p.is_file()} - names
    assert more == {repair_files.CHIP, repair_files.REPAIR, repair_files.CELLS}
    changed = {n for n in names if (folder / "out" / n).read_bytes() != (folder / "die" / n).read_bytes()}
    assert changed == {files.MANIFEST}


def test_a_repair_is_deterministic_and_replaced(folder: Path, tmp_path: Path):
    for source in ("out", "die"):
        made = repair_output(folder / source, load_chip_file(folder / "chip.json"), None, PAIRS)
        made.save(tmp_path / source)
        for name in (repair_files.CHIP, repair_files.REPAIR, repair_files.CELLS):
            assert (tmp_path / source / name).read_bytes() == (folder / "die" / name).read_bytes()


def test_a_repaired_program_validates(folder: Path):
    report = raptor.load(folder / "die").validate(samples=2)
    assert report.passed
    assert report.repair is not None
    assert (report.repair.chip, report.repair.compared, report.repair.differing) == ("drawn-7", 20, 0)
    done = invoke("validate", str(folder / "die"), "--samples", "1")
    assert "cells of chip drawn-7: equal to the repaired weights, bit for bit (10 outputs)" in done.output


def accuracy(*words: str) -> float:
    done = invoke("accuracy", *words, "--json", "-")
    assert done.exit_code == 0, done.exception
    return json.loads(done.output)["top1"]


def test_accuracy_of_a_repaired_program(folder: Path):
    data = ("--data", str(folder / "test.npz"))
    whole, exact = (accuracy(str(folder / name), *data) for name in ("out", "die"))
    assert exact >= whole - 0.02
    sliced = accuracy(str(folder / "die"), *data, "--crossbar", "sliced", "--with", "encoding=differential_analog")
    assert sliced == exact


def test_stuck_cells_of_a_noisy_chip_have_no_noise(folder: Path):
    program = load_output(folder / "die")
    from validator.crossbar.chip_programming import make_programmed_chip

    given = {**PAIRS, "programming_noise": "0.05"}
    chip = make_programmed_chip(
        program, make_setup("noisy", read_stored_target(folder / "die", files.ARCH), None, given)
    )
    assert program.repair is not None
    for array, group in zip(chip.arrays, program.repair.groups, strict=True):
        states = group.read_states(program.repair.chip)
        both = np.moveaxis((states != CellState.FREE).all(axis=0), 2, 0)
        levels = group.held_levels(states).astype(int)
        wanted = np.moveaxis(levels[0] - levels[1], 2, 0)
        assert array.held_levels is not None
        assert np.allclose(array.held_levels[both], wanted[both], atol=1e-5)
        assert not np.allclose(array.held_levels, wanted, atol=1e-2)


def test_a_repaired_chip_is_trimmed(folder: Path, tmp_path: Path):
    made = raptor.trim(folder / "die", data=folder / "data.npz", samples=6)
    assert made.chip == "drawn-7"
    made.save(tmp_path / "trimmed")
    assert load_output(tmp_path / "trimmed").repair is not None
    with pytest.raises(UserError, match="trimmed for drawn-7; repair the program as it was compiled"):
        repair_output(tmp_path / "trimmed", load_chip_file(folder / "chip.json"), None, PAIRS)


def test_another_encoding_is_refused(folder: Path):
    done = invoke("accuracy", str(folder / "die"), "--data", str(folder / "test.npz"), "--crossbar", "sliced")
    assert "say --with encoding=differential_analog" in str(done.exception)


@pytest.fixture
def repaired(folder: Path) -> CellRepair:
    found = load_output(folder / "die").repair
    assert found is not None
    return found


def with_group(repair: CellRepair, number: int, **changes: Any) -> CellRepair:
    groups = list(repair.groups)
    groups[number] = replace(groups[number], **changes)
    return replace(repair, groups=tuple(groups))


def with_clean_chip(repair: CellRepair) -> CellRepair:
    """Returns the repair on a chip without defects, whose cells hold the same levels."""
    chip = make_chip(repair.chip.file.model_copy(update={"arrays": (), "dead_crossbars": ()}))
    return replace(repair, chip=chip, table=repair.table.model_copy(update={"chip_sha256": chip.digest}))


def planted(repair: CellRepair, folder: Path) -> Iterator[tuple[CellRepair, str]]:
    """Yields repairs with one mistake each, and how it is named."""
    group = repair.groups[0]
    flipped = next(k for k, g in enumerate(repair.groups) if (g.signs < 0).any())
    yield with_group(repair, flipped, signs=np.abs(repair.groups[flipped].signs)), "the cells make"
    number, states = next(
        (k, s) for k, g in enumerate(repair.groups) if ((s := g.read_states(repair.chip)) == CellState.DEAD).any()
    )
    written = np.where(states == CellState.DEAD, np.uint8(1), repair.groups[number].levels)
    yield with_group(repair, number, levels=written), "uses a cell of a dead row or column"
    size = repair.chip.size
    spare, lines = size.columns, group.lines.copy()
    lines[0, 0] = lines[1, 0] = spare
    yield with_group(repair, 0, lines=lines), "a column of cells is used twice"
    lines = group.lines.copy()
    lines[[0, 1]] = lines[[1, 0]]
    yield with_group(repair, 0, lines=lines), "neither its own columns of cells nor spare ones"
    yield with_group(repair, 0, crossbars=(size.all_crossbars,) * len(group.crossbars)), "is dead, or not there"
    double = next(k for k, g in enumerate(repair.groups) if len(g.crossbars) > 1)
    crossbars = repair.groups[double].crossbars[:1] * len(repair.groups[double].crossbars)
    yield with_group(with_clean_chip(repair), double, crossbars=crossbars), "2 matrices are in crossbar"
    yield replace(repair, chip=load_chip_file(folder / "other.json")), "is another chip or has changed"
    off = make_chip(repair.chip.file.model_copy(update={"dead_cores": (group.core,)}))
    table = repair.table.model_copy(update={"chip_sha256": off.digest})
    yield replace(repair, chip=off, table=table), f"core {group.core} is dead"
    yield with_group(repair, 0, levels=group.levels + np.uint8(200)), "above the highest of its slice"
    yield with_group(repair, 0, crossbars=()), "0 crossbars, expected"


def test_mistakes_of_a_repair_are_found(folder: Path, repaired: CellRepair):
    check_repair(repaired)
    for wrong, message in planted(repaired, folder):
        with pytest.raises(UserError, match=message):
            check_repair(wrong)


def edit(folder: Path, name: str, content: bytes) -> None:
    """Writes a file of an output directory, and its size into the manifest."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / files.MANIFEST).read_text())
    manifest["files"][name]["size_bytes"] = len(content)
    (folder / files.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": "magic"}, "encoding 'magic': expected one of"),
        ({"encoding": "offset"}, "expected shape"),
        ({"groups": []}, "has other array groups than the program"),
        ({"chip": "x"}, "is another chip or has changed"),
        ({"extra": 1}, "no such field: 'extra'"),
    ],
)
def test_broken_tables(folder: Path, tmp_path: Path, change: dict[str, Any], message: str):
    copy = shutil.copytree(folder / "die", tmp_path / "copy")
    table = json.loads((copy / repair_files.REPAIR).read_text()) | change
    edit(copy, repair_files.REPAIR, json.dumps(table).encode())
    with pytest.raises(UserError, match=message):
        load_output(copy, check_hashes=False)


def test_broken_cells(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder / "die", tmp_path / "copy")
    edit(copy, repair_files.CELLS, b"PK no archive")
    with pytest.raises(UserError, match=r"not a \.npz file"):
        load_output(copy, check_hashes=False)
    with np.load(folder / "die" / repair_files.CELLS) as held:
        arrays = dict(held)
    name = next(n for n in arrays if n.endswith("levels"))
    for changed, message in (
        ({k: v for k, v in arrays.items() if k != name}, "has other array groups than the program"),
        ({**arrays, name: arrays[name][:1]}, "expected shape"),
        ({**arrays, name: arrays[name].astype(np.float32)}, r"expected \|u1"),
    ):
        np.savez(copy / repair_files.CELLS, **changed)
        edit(copy, repair_files.CELLS, (copy / repair_files.CELLS).read_bytes())
        with pytest.raises(UserError, match=message):
            load_output(copy, check_hashes=False)


def test_a_chip_file_in_the_output_is_hashed(folder: Path, tmp_path: Path):
    copy = shutil.copytree(folder / "die", tmp_path / "copy")
    content = (copy / repair_files.CHIP).read_bytes()
    (copy / repair_files.CHIP).write_bytes(
        content.replace(b'"off":[', b'"off":[', 1).replace(b"drawn-7", b"drawn-9", 1)
    )
    with pytest.raises(UserError, match="changed since it was compiled"):
        load_output(copy)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--chip", "none.json"), "no such file; raptor arch defects writes one"),
        (("--chip", "chip.json", "--with", "adc_bits=8"), "adc_bits=8: has no effect on a repair"),
        (("--chip", "chip.json", "--with", "encoding=xnor"), "cells of this encoding cannot be repaired"),
        (("--chip", "chip.json", "--with", "encoding=twos_complement"), "needs 3 cells side by side"),
        (("--chip", "single.json", "--with", "encoding=differential"), "has one array in a crossbar"),
        (("--chip", "small.json"), "take the file of a chip of this architecture"),
        (("--chip", "chip.json", "-o", "out", "--force"), "is the program itself"),
    ],
)
def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], message: str):
    monkeypatch.chdir(folder)
    size = load_chip_file("chip.json").size
    for name, changes in (("single", {"arrays": 1}), ("small", {"cores": 3})):
        other = draw_chip(size.model_copy(update=changes), DefectRates(), 0)
        (folder / f"{name}.json").write_bytes(chip_to_json(other))
    before = sorted(folder.iterdir())
    done = invoke("repair", "out", *words)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)
    assert sorted(folder.iterdir()) == before


def test_floats_are_refused(folder: Path, tmp_path: Path):
    raptor.compile(MODEL, xbar=128, cores=64, cell_bits=4).save(tmp_path / "floats")
    with pytest.raises(UserError, match="quantise the model with raptor quantize"):
        repair_output(tmp_path / "floats", load_chip_file(folder / "chip.json"), None, PAIRS)


def test_segments_are_refused(folder: Path, tmp_path: Path):
    model = make_model([node("Gemm", "x w", "a", name="one"), node("Gemm", "a w", "y", name="two")], {"x": (1, 8)},
                       ["y"], {"w": random(8, 8)})  # fmt: skip
    out = raptor.compile(model, xbar=8, cores=1, xbars_per_core=1, rounds=True).save(tmp_path / "rounds")
    with pytest.raises(UserError, match="a repair"):
        repair_output(out, load_chip_file(folder / "chip.json"), None, PAIRS)


def test_check_finds_what_is_dead(folder: Path):
    assert not [f for f in check(folder / "die") if f.severity == "error"]
    found = {f.rule for f in check(folder / "die", defects=folder / "other.json")}
    assert "chip-size" in found  # of another chip


@pytest.mark.parametrize("encoding", ["offset", "differential"])
def test_other_encodings_are_bit_true(folder: Path, tmp_path: Path, encoding: str):
    chip = load_chip_file(folder / "chip.json")
    repair_output(folder / "out", chip, None, {"encoding": encoding}).save(tmp_path / "die")
    report = raptor.load(tmp_path / "die").validate(samples=1)
    assert report.passed
    assert report.repair is not None
    assert report.repair.differing == 0
