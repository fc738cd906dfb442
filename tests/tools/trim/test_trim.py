"""`raptor trim`: constants alone change, known errors of a chip are found, and nothing changes on exact crossbars."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.device.server import started
from raptor.output import files
from raptor.output.trim_files import TrimmedLayer, TrimmedPart
from raptor.target.arch import read_stored_target
from raptor.target.device_file import load_device
from raptor.tools.cli.app import build_commands
from tests.tiny_models import make_model, node, random
from validator.accuracy.labelled_data import read_labelled_data
from validator.accuracy.measure import measure_accuracy
from validator.accuracy.sample_scores import run_scores
from validator.accuracy.trim_fit import Floats, fit_trims
from validator.accuracy.trimming import trim_program
from validator.crossbar.chip_programming import program_crossbars
from validator.crossbar.chip_settings import make_setup
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram
from validator.program.trim_constants import Trim, make_unit_trims

SAMPLES = 12
COMMAND = build_commands()


def invoke(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained network in integers, compiled with and without trim stages; inputs for a trim, and a test set."""
    made = tmp_path_factory.mktemp("trim")
    training, test = load_images()
    np.savez(made / "data.npz", image=training.pixels[:SAMPLES])
    np.savez(made / "test.npz", x=test.pixels[:20], y=test.digits[:20])
    raptor.quantize(MODEL, data=made / "data.npz", per_channel=True).save(made / "digits.onnx")
    for name, trimmable in (("plain", False), ("out", True)):
        program = raptor.compile(made / "digits.onnx", xbar=128, cores=64, trimmable=trimmable)
        program.save(made / name)
    return made


@pytest.fixture(scope="module")
def program(folder: Path) -> LoadedProgram:
    return load_output(folder / "out")


def scaled_chip(program: LoadedProgram, factor: float) -> LoadedProgram:
    """Returns the program on ideal cells whose converters are off by a factor."""
    setup = make_setup(
        "sliced", read_stored_target(program.folder, files.ARCH), None, {"encoding": "differential_analog"}
    )
    made = program_crossbars(program, setup)
    assert made.crossbars is not None
    arrays = tuple(replace(a, factor=a.factor * factor) for a in made.crossbars.arrays)
    return replace(made, crossbars=replace(made.crossbars, arrays=arrays))


def test_a_trimmable_program_computes_the_same(folder: Path):
    assert raptor.load(folder / "out").validate(samples=2).passed
    assert not (folder / "plain" / files.TRIM).exists()


def test_every_layer_has_a_trim_stage(program: LoadedProgram):
    assert program.trim is not None
    assert [layer.sums.image.channels for layer in program.trim.layers] == [16, 16, 16, 32, 32, 32, 64, 10]
    assert not any("--trimmable" in w for w in raptor.load(program.folder).report.warnings)


def test_exact_crossbars_need_no_trim(folder: Path, program: LoadedProgram):
    data = read_labelled_data(folder / "data.npz", program.memory.inputs)
    same, errors = trim_program(program, data, range(3), 1)
    assert np.array_equal(same.constants, program.constants)
    assert all(e.before == e.after == 0 for e in errors)


@pytest.mark.parametrize("factor", [0.9, 1.08])
def test_a_chip_with_a_known_error_is_corrected(folder: Path, program: LoadedProgram, factor: float):
    data = read_labelled_data(folder / "data.npz", program.memory.inputs)
    chip = scaled_chip(program, factor)
    trimmed, errors = trim_program(chip, data, range(SAMPLES), 2)
    assert trimmed.trim is not None
    wrong = [pair for pair in zip(trimmed.trim.layers, errors, strict=True) if pair[1].before > 0.05]
    assert len(wrong) == 6  # the vector units compute the depthwise layers
    for layer, error in wrong:
        gains = [gain for part in layer.parts for gain in part.gains]
        assert np.median(gains) / (1 << layer.shift) == pytest.approx(1 / factor, rel=0.015)
        assert error.after < error.before / 3
    want, off, got = (run_scores(p, data, 2, lambda: None) for p in (program, chip, trimmed))
    assert np.abs(got - want).mean() < np.abs(off - want).mean() / 3


def test_layers_are_trimmed_after_those_before_them(folder: Path, program: LoadedProgram):
    """Untrimmed, the errors of two layers would multiply: the input of the second would be off, too."""
    data = read_labelled_data(folder / "data.npz", program.memory.inputs)
    _, errors = trim_program(scaled_chip(program, 0.8), data, range(SAMPLES), 2)
    assert max(e.before for e in errors) < 0.25


def test_each_core_is_trimmed_by_itself(folder: Path, program: LoadedProgram):
    """Half of the cores of a layer have larger sums, the others smaller ones: one gain for all would change nothing."""
    assert program.trim is not None
    layer = program.trim.layers[0]
    cores = sorted({tile.core for tile in layer.sums.tiles})
    assert len(cores) > 1
    chip = scaled_chip(program, 1.0)
    assert chip.crossbars is not None
    factors = {core: 1.1 if number % 2 else 0.9 for number, core in enumerate(cores)}
    arrays = tuple(
        replace(a, factor=a.factor * factors[a.use.core]) if a.use.layer == layer.sums.node else a
        for a in chip.crossbars.arrays
    )
    data = read_labelled_data(folder / "data.npz", program.memory.inputs)
    trimmed, errors = trim_program(
        replace(chip, crossbars=replace(chip.crossbars, arrays=arrays)), data, range(SAMPLES), 2
    )
    assert trimmed.trim is not None
    for part in trimmed.trim.layers[0].parts:
        (core,) = {layer.sums.tiles[number].core for number in part.tiles}
        gain = np.median(part.gains) / (1 << layer.shift)
        assert gain == pytest.approx(1 / factors[core], rel=0.02)
    assert errors[0].before > 0.08
    assert errors[0].after < errors[0].before / 3


def fit_one(layer: TrimmedLayer, found: NDArray[Any], wanted: NDArray[Any]) -> Trim:
    """Returns the trim of a layer of one part, from sums [samples, channels]."""
    (trim,) = fit_trims(layer, [found[:, None]], [wanted[:, None]])
    return trim


def test_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3000, (4000, 3))
    gains, biases = fit_one(make_layer(), x, np.stack([1.25 * x[:, 0] + 50, x[:, 1], 0.9 * x[:, 2] - 7], axis=1))
    assert gains / 1024 == pytest.approx([1.25, 1, 0.9], abs=1e-3)
    assert (biases - 512) / 1024 == pytest.approx([50, 0, -7], abs=3)


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_few_noisy_samples_move_a_gain_little(samples: int):
    """A line through two observations has no noise around it, which says nothing about the noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(0, 100, (samples, 3))
    noise = rng.normal(0, 100, x.shape)
    free = ((x - x.mean(0)) * (x + noise - (x + noise).mean(0))).sum(0) / ((x - x.mean(0)) ** 2).sum(0)
    gains = fit_one(make_layer(), x, x + noise)[0] / 1024
    assert (np.abs(gains - 1) < np.abs(free - 1) / 4).all()


def test_what_does_not_vary_and_what_is_too_far_off():
    layer = make_layer()
    x = np.repeat(np.array([[5.0, 5.0, 1000.0]]), 8, axis=0)
    assert [a.tolist() for a in fit_one(layer, x, x)] == [a.tolist() for a in make_unit_trims(layer)[0]]
    varied = x * np.arange(8)[:, None]
    gains, biases = fit_one(layer, varied, 9 * varied + 1e9)
    assert gains.max() == layer.most_gain
    assert biases.max() == layer.most_bias


def draw_copies(rng: np.random.Generator, samples: int, spread: float) -> tuple[list[Floats], list[Floats]]:
    """Draws sums of twelve copies of three pixels, and sums that are off: by a bias of each copy, and by noise."""
    wanted = [rng.normal(0, 300, (samples, 3, 3)) for _ in range(12)]
    found = [w + rng.normal(0, spread, 3) + rng.normal(0, 50, w.shape) for w in wanted]
    return found, wanted


def test_copies_with_errors_of_their_own_are_corrected():
    found, wanted = draw_copies(np.random.default_rng(2), 20, 200.0)
    trims = fit_trims(make_layer(copies=12), found, wanted)
    left = [
        (x.mean((0, 1)) * g + b - 512) / 1024 - y.mean((0, 1))
        for x, y, (g, b) in zip(found, wanted, trims, strict=True)
    ]
    assert np.abs(left).max() < 5


def test_copies_that_differ_by_chance_share_a_bias():
    """Two samples tell little about a copy; what all copies have in common is known better."""
    rng = np.random.default_rng(3)
    found, wanted = draw_copies(rng, 2, 0.0)
    own = [y.mean((0, 1)) - x.mean((0, 1)) for x, y in zip(found, wanted, strict=True)]
    trims = fit_trims(make_layer(copies=12), found, wanted)
    biases = [(b - 512 + x.mean((0, 1)) * (g - 1024)) / 1024 for x, (g, b) in zip(found, trims, strict=True)]
    assert np.std(biases) < np.std(own) / 1.5


def test_one_sample_gives_all_copies_one_bias():
    found, wanted = (
        [np.repeat(np.rint(x[:, :1]), 3, axis=1) for x in sums]
        for sums in draw_copies(np.random.default_rng(4), 1, 200.0)
    )
    trims = fit_trims(make_layer(copies=12), found, wanted)
    assert all(trim[0].tolist() == [1024] * 3 for trim in trims)
    assert len({tuple(trim[1].tolist()) for trim in trims}) == 1


def make_layer(copies: int = 1) -> TrimmedLayer:
    """Makes a layer of three channels; each copy of a channel is on a core of its own."""
    tiles = tuple(files.ProbeTile(channels=(0, 3), rows=(n, n + 1), core=n, pc=0, address=0) for n in range(copies))
    probe = files.TensorProbe(
        tensor="s",
        node="n",
        coding=files.TensorCoding(kind="int", bits=24, dtype="int32"),
        image_shape=(1, 3, copies, 1),
        channel_axis=1,
        tiles=tiles,
    )
    limits = {"low": -100_000, "high": 100_000, "most_gain": 2047, "most_bias": 102_400_512}
    values: dict[str, Any] = {"gains": (1024,) * 3, "biases": (512,) * 3}
    parts = tuple(
        TrimmedPart(channels=(0, 3), tiles=(n,), gain=0, gain_bytes=2, bias=6, **values) for n in range(copies)
    )
    return TrimmedLayer(sums=probe, shift=10, parts=parts, **limits)


def test_constants_alone_change(folder: Path, tmp_path: Path):
    made = raptor.trim(folder / "out", data=folder / "data.npz", cells="reram-milo", chip=2, samples=4)
    made.save(tmp_path / "die")
    names = {str(p.relative_to(folder / "out")) for p in (folder / "out").rglob("*") if p.is_file()}
    assert names == {str(p.relative_to(tmp_path / "die")) for p in (tmp_path / "die").rglob("*") if p.is_file()}
    changed = {n for n in names if (folder / "out" / n).read_bytes() != (tmp_path / "die" / n).read_bytes()}
    assert changed == {files.CONSTANTS, files.TRIM, files.MANIFEST}
    table = load_output(tmp_path / "die").trim
    assert table is not None
    assert (table.chip, table.samples) == ("reram-milo, chip 2", 4)
    again = raptor.trim(tmp_path / "die", data=folder / "data.npz", cells="reram-milo", chip=2, samples=4)
    assert np.array_equal(again.program.constants, made.program.constants)
    with pytest.raises(UserError, match="trimmed for reram-milo, chip 2"):
        raptor.load(tmp_path / "die").validate(samples=1)


def test_accuracy_trims_each_chip_as_the_command_does(folder: Path, tmp_path: Path):
    device, seen = load_device("reram-milo"), folder / "data.npz"
    made = raptor.trim(folder / "out", data=seen, cells="reram-milo", chip=1)
    made.save(tmp_path / "die")
    both = [
        measure_accuracy(
            out,
            folder / "test.npz",
            crossbar="noisy",
            device=device,
            settings={"seed": "1"},
            calibration_data=seen,
            trim=trim,
        )
        for out, trim in ((folder / "out", True), (tmp_path / "die", False))
    ]
    assert both[0].chips == both[1].chips
    assert [r.settings["trim"] for r in both] == [f"each chip, with {SAMPLES} inputs", "for reram-milo, chip 1"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    words = ["--xbar", "128", "--crossbars", "600"]
    with started([sys.executable, "-m", "raptor.device.server", "integer", *words]) as place:
        yield place


def test_a_driver_in_another_process_is_trimmed(tmp_path: Path, address: str):
    layer = [node("Conv", "x w", "a", name="conv"), node("Relu", "a", "y", name="relu")]
    model = make_model(layer, {"x": (1, 2, 4, 4)}, ["y"], {"w": random(3, 2, 2, 2)})
    quantised = raptor.quantize(model).save(tmp_path / "int8.onnx")
    out = raptor.compile(quantised, trimmable=True).save(tmp_path / "out")
    np.savez(tmp_path / "data.npz", x=random(3, 1, 2, 4, 4, seed=5))
    made = raptor.trim(out, data=tmp_path / "data.npz", device=f"socket:{address}")
    assert [(layer.node, layer.before, layer.after) for layer in made.layers] == [("conv", 0.0, 0.0)]
    assert np.array_equal(made.program.constants, load_output(out).constants)


def test_programs_whose_samples_overlap_say_that_they_cannot_be_trimmed(tmp_path: Path):
    layers = [node("Conv", "x w", "a", name="conv"), node("Relu", "a", "b", name="relu"), node("Conv", "b v", "y")]
    weights = {"w": random(3, 2, 2, 2), "v": random(2, 3, 2, 2)}
    quantised = raptor.quantize(make_model(layers, {"x": (1, 2, 12, 12)}, ["y"], weights)).save(tmp_path / "int8.onnx")
    apart, together = (raptor.compile(quantised, trimmable=True, overlap=overlap) for overlap in (1, 2))
    assert not any("no layer can be trimmed" in warning for warning in apart.report.warnings)
    assert any("no layer can be trimmed, because samples overlap" in warning for warning in together.report.warnings)
    with pytest.raises(UserError, match="no layer can be trimmed"):
        raptor.trim(together.save(tmp_path / "out"), data=tmp_path / "data.npz", cells="sonos")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plain", "--cells", "sonos"], "no layer can be trimmed; compile the model with --trimmable"),
        (["out"], "say cells= for a simulated chip, or device= for a real one"),
        (["out", "--cells", "sonos", "--device", "integer"], "say cells= for a simulated chip, or device="),
        (["out", "--device", "integer", "--chip", "3"], "--chip: only with --cells"),
        (["out", "--cells", "sonos", "--with", "seed=3"], "seed=3: say chip="),
        (["out", "--cells", "sonos", "-o", "out", "--force"], "is the program itself"),
    ],
)
def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    done = invoke("trim", *words, "--data", "data.npz", "--samples", "1")
    assert message in str(done.exception)
    assert isinstance(done.exception, UserError)
    assert sorted(folder.iterdir()) == before


def test_samples_of_the_test_are_refused(folder: Path):
    with pytest.raises(UserError, match="20 of its 20 samples are also in --data"):
        measure_accuracy(
            folder / "out",
            folder / "test.npz",
            crossbar="noisy",
            device=load_device("sonos"),
            calibration_data=folder / "test.npz",
        )


def test_programs_without_integers_and_with_vrequant_have_no_trim(folder: Path):
    floats = make_model([node("Conv", "x w", "y", name="conv")], {"x": (1, 2, 4, 4)}, ["y"], {"w": random(2, 2, 1, 1)})
    with pytest.raises(UserError, match=r"trimmable.*no integers"):
        raptor.compile(floats, trimmable=True)
    with pytest.raises(UserError, match=r"trimmable.*not with requant"):
        raptor.compile(folder / "digits.onnx", xbar=128, cores=64, trimmable=True, requant="instruction")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gains": [5] * 16}, "the constants hold other gains"),
        ({"gains": [4096] * 15}, "15 gains and 16 biases of channels 0 to 16"),
        ({"gains": [10**6] * 16}, "a gain is above"),
        ({"gain": 10**6}, "the gains of channels 0 to 16 are not among the constants"),
        ({"tiles": []}, "tile 0 has no gain"),
        ({"tiles": [0, 0]}, "has no gain"),
        ({"tiles": [10**6]}, "tile 1000000 has no channels 0 to 16"),
        ({"channels": [0, 0], "gains": [], "biases": []}, "0 gains and 0 biases"),
    ],
)
def test_broken_parts(folder: Path, tmp_path: Path, change: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        load_with(folder, tmp_path, lambda layer: layer["parts"][0].update(change))


@pytest.mark.parametrize(
    ("change", "message"), [({"parts": []}, "tile 0 has no gain"), ({"shift": 31}, "less than or equal to 30")]
)
def test_broken_tables(folder: Path, tmp_path: Path, change: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        load_with(folder, tmp_path, lambda layer: layer.update(change))


def test_a_tile_with_two_gains_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(UserError, match="a tile has two gains"):
        load_with(folder, tmp_path, lambda layer: layer["parts"].append(layer["parts"][0]))


def load_with(folder: Path, tmp_path: Path, change: Callable[[Any], object]) -> LoadedProgram:
    """Loads the trimmable program with a change of the first layer of its table."""
    copy = tmp_path / "copy"
    shutil.copytree(folder / "out", copy)
    table = json.loads((copy / files.TRIM).read_text())
    change(table["layers"][0])
    (copy / files.TRIM).write_text(json.dumps(table))
    manifest = json.loads((copy / files.MANIFEST).read_text())
    manifest["files"][files.TRIM]["size_bytes"] = (copy / files.TRIM).stat().st_size
    (copy / files.MANIFEST).write_text(json.dumps(manifest))
    return load_output(copy, check_hashes=False)


def test_a_trimmable_program_is_explained_with_its_trim(folder: Path):
    """The graph is imported again: a line of a layer takes five more vector instructions than without a trim stage."""
    plain, trimmable = (raptor.load(folder / name).explain().layers for name in ("plain", "out"))
    for layer, other in zip(plain, trimmable, strict=True):
        if layer.options.chosen is not None:
            assert other.options.chosen is not None
            assert other.options.chosen.predicted_ns > 1.1 * layer.options.chosen.predicted_ns
