"""`raptor trim`: constants alone change, known errors of a chip are found, and nothing changes on exact crossbars."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.device.server import started
from raptor.output import files
from raptor.target.arch import read_stored_target
from raptor.target.device_file import load_device
from raptor.tools.cli.app import build_commands
from tests.tiny_models import make_model, node, random
from validator.accuracy.labelled_data import read_labelled_data
from validator.accuracy.measure import measure_accuracy
from validator.accuracy.sample_scores import run_scores
from validator.accuracy.trimming import fit_trim, trim_program
from validator.crossbar.chip_programming import program_crossbars
from validator.crossbar.chip_settings import make_setup
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram
from validator.program.trim_constants import unit_biases, unit_gains

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
        assert np.median(layer.gains) / (1 << layer.shift) == pytest.approx(1 / factor, rel=0.015)
        assert error.after < error.before / 3
    want, off, got = (run_scores(p, data, 2, lambda: None) for p in (program, chip, trimmed))
    assert np.abs(got - want).mean() < np.abs(off - want).mean() / 3


def test_layers_are_trimmed_after_those_before_them(folder: Path, program: LoadedProgram):
    """Untrimmed, the errors of two layers would multiply: the input of the second would be off, too."""
    data = read_labelled_data(folder / "data.npz", program.memory.inputs)
    _, errors = trim_program(scaled_chip(program, 0.8), data, range(SAMPLES), 2)
    assert max(e.before for e in errors) < 0.25


def test_least_squares():
    layer = make_layer()
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3000, (4000, 3))
    gains, biases = fit_trim(layer, x, np.stack([1.25 * x[:, 0] + 50, x[:, 1], 0.9 * x[:, 2] - 7], axis=1))
    assert gains / 1024 == pytest.approx([1.25, 1, 0.9], abs=1e-3)
    assert (biases - 512) / 1024 == pytest.approx([50, 0, -7], abs=3)


def test_few_noisy_samples_move_a_gain_little():
    layer, rng = make_layer(), np.random.default_rng(1)
    x = rng.normal(0, 100, (4, 3))
    noise = rng.normal(0, 100, x.shape)
    free = ((x - x.mean(0)) * (x + noise - (x + noise).mean(0))).sum(0) / ((x - x.mean(0)) ** 2).sum(0)
    gains = fit_trim(layer, x, x + noise)[0] / 1024
    assert (np.abs(gains - 1) < np.abs(free - 1) / 4).all()


def test_what_does_not_vary_and_what_is_too_far_off():
    layer = make_layer()
    x = np.repeat(np.array([[5.0, 5.0, 1000.0]]), 8, axis=0)
    assert [a.tolist() for a in fit_trim(layer, x, x)] == [unit_gains(layer).tolist(), unit_biases(layer).tolist()]
    varied = x * np.arange(8)[:, None]
    gains, biases = fit_trim(layer, varied, 9 * varied + 1e9)
    assert gains.max() == layer.most_gain
    assert biases.max() == layer.most_bias


def make_layer() -> files.TrimmedLayer:
    probe = files.TensorProbe(
        tensor="s",
        node="n",
        coding=files.TensorCoding(kind="int", bits=24, dtype="int32"),
        image_shape=(1, 3),
        channel_axis=1,
        tiles=(),
    )
    limits = {"low": -100_000, "high": 100_000, "most_gain": 2047, "most_bias": 102_400_512}
    return files.TrimmedLayer(sums=probe, shift=10, constants=(), gains=(1024,) * 3, biases=(512,) * 3, **limits)


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
        ({"gains": [4096] * 15}, "15 gains and 16 biases of 16 channels"),
        ({"gains": [10**6] * 16}, "a gain is above"),
        ({"constants": []}, "channel 0 has no gain"),
        ({"shift": 31}, "less than or equal to 30"),
    ],
)
def test_broken_tables(folder: Path, tmp_path: Path, change: dict[str, object], message: str):
    copy = tmp_path / "copy"
    shutil.copytree(folder / "out", copy)
    table = json.loads((copy / files.TRIM).read_text())
    table["layers"][0] |= change
    (copy / files.TRIM).write_text(json.dumps(table))
    manifest = json.loads((copy / files.MANIFEST).read_text())
    manifest["files"][files.TRIM]["size_bytes"] = (copy / files.TRIM).stat().st_size
    (copy / files.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=message):
        load_output(copy, check_hashes=False)


def test_a_trimmable_program_is_explained_with_its_trim(folder: Path):
    """The graph is imported again: a line of a layer takes five more vector instructions than without a trim stage."""
    plain, trimmable = (raptor.load(folder / name).explain().layers for name in ("plain", "out"))
    for layer, other in zip(plain, trimmable, strict=True):
        if layer.options.chosen is not None:
            assert other.options.chosen is not None
            assert other.options.chosen.predicted_ns > 1.1 * layer.options.chosen.predicted_ns
