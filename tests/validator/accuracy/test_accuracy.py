"""Accuracy of a trained network by its streams, on exact and on real crossbars."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from click.testing import CliRunner, Result

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.output.files import TensorPlace
from raptor.target.device_file import load_device
from raptor.tools.cli.app import build_commands
from tests.pipeline import conv_model
from validator.accuracy.accuracy_report import to_csv, to_json
from validator.accuracy.labelled_data import read_labelled_data
from validator.accuracy.measure import measure_accuracy
from validator.accuracy.statistics import snr_db, student_interval, wilson_interval
from validator.execution.run import run_program
from validator.load.output_directory import load_output

COUNT = 6
COMMAND = build_commands()
"""All commands, made once."""
WIDE = {"adc_bits": "8", "adc_range": "unit"}


def invoke(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, ["accuracy", *words])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The trained network in integers, compiled for cells of 2 bits, and test images."""
    folder = tmp_path_factory.mktemp("digits")
    training, test = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[:50])
    raptor.quantize(MODEL, data=folder / "calibration.npz", per_channel=True).save(folder / "digits.onnx")
    out = raptor.compile(folder / "digits.onnx", xbar=128, cores=64, cell_bits=2).save(folder / "out")
    np.savez(folder / "test.npz", x=test.pixels[:COUNT], y=test.digits[:COUNT])
    return out, folder / "test.npz"


@pytest.mark.parametrize("setting", [{"stuck_on": "0.2"}, {"read_noise": "0.5"}, {"stuck_on": "0.6"}])
@pytest.mark.parametrize("requant", ["exact", "short"])
def test_sums_of_very_noisy_crossbars_fit_the_proved_widths(
    digits: tuple[Path, Path], tmp_path: Path, setting: dict[str, str], requant: Literal["exact", "short"]
):
    """Trial B7: with one scale for all weights, sums of unrounded codes are wider than their inputs."""
    raptor.quantize(MODEL, data=digits[0].parent / "calibration.npz").save(tmp_path / "digits.onnx")
    out = raptor.compile(tmp_path / "digits.onnx", xbar=128, cores=64, cell_bits=2, requant=requant).save(
        tmp_path / "o"
    )
    report = measure_accuracy(out, digits[1], crossbar="noisy", settings=setting)
    assert report.top1 is not None
    assert report.top1 < 0.9


def test_exact_products_agree_with_onnxruntime(digits: tuple[Path, Path]):
    report = measure_accuracy(*digits)
    assert report.crossbar == "integer"
    assert report.reference is not None
    assert report.top1 == report.reference.top1
    assert report.chips[0].agreement == 1
    assert report.top1 is not None
    assert report.top1 > 0.9
    out, data = digits
    program, images = load_output(out), read_labelled_data(data, load_output(out).memory.inputs)
    assert images.labels is not None
    right = [
        int(run_program(program, images.sample(k)).outputs["scores"].argmax()) == images.labels[k]
        for k in range(images.count)
    ]
    assert report.top1 == sum(right) / COUNT


def test_what_loses_nothing_is_exact(digits: tuple[Path, Path]):
    report = measure_accuracy(*digits, crossbar="sliced", settings=WIDE)
    assert all(p.is_lossless for p in report.converters)
    assert all(layer.snr_db == np.inf for layer in report.layers)
    assert report.chips[0].agreement == 1


def test_a_sweep_of_converters_has_a_knee(digits: tuple[Path, Path]):
    sweep = {"adc_bits": ("2", "5", "8")}
    report = measure_accuracy(*digits, crossbar="sliced", settings=WIDE, sweep=sweep, noise_samples=0)
    found = [p.top1 or 0 for p in report.sweep]
    assert found[0] < 0.4
    assert found[-1] == report.top1
    assert sorted(found) == found
    text = to_csv(report).decode().splitlines()
    assert text[0] == "adc_bits,seed,top1,top5,agreement,samples"
    assert len(text) == 4


def test_the_same_seed_gives_the_same_result_on_any_number_of_workers(digits: tuple[Path, Path]):
    options = {"crossbar": "noisy", "device": load_device("reram-milo"), "samples": 3}
    one, two = (measure_accuracy(*digits, workers=n, **options) for n in (1, 2))
    assert to_json(one).split(b'"seconds"')[0] == to_json(two).split(b'"seconds"')[0]
    other = measure_accuracy(*digits, settings={"seed": "7"}, **options)
    assert [p.snr_db for p in other.layers] != [p.snr_db for p in one.layers]


def test_noise_costs_accuracy(digits: tuple[Path, Path]):
    sweep = {"programming_noise": ("0", "0.05", "0.4")}
    report = measure_accuracy(*digits, crossbar="noisy", settings=WIDE, sweep=sweep, chips=2, noise_samples=0)
    clean, some, much = (p.top1 or 0 for p in report.sweep)
    assert clean == report.reference.top1 if report.reference else False
    assert clean >= some > much
    assert len(report.sweep[2].chips) == 2
    assert report.sweep[2].chips[0] != report.sweep[2].chips[1]


def test_calibrated_converters_need_fewer_bits(digits: tuple[Path, Path]):
    sweep = {"adc_range": ("full", "calibrated")}
    report = measure_accuracy(*digits, crossbar="sliced", settings={"adc_bits": "6"}, sweep=sweep, noise_samples=0)
    full, calibrated = (p.top1 or 0 for p in report.sweep)
    assert calibrated > full + 0.3


def test_fewer_rows_at_once_lose_nothing(digits: tuple[Path, Path]):
    settings = {"adc_bits": "5", "adc_range": "unit", "lossless_rows": "yes"}
    report = measure_accuracy(*digits, crossbar="sliced", settings=settings, noise_samples=0)
    assert report.chips[0].agreement == 1
    assert max(p.parts for p in report.converters) > 1


def test_the_command(digits: tuple[Path, Path], tmp_path: Path):
    out, data = digits
    files = {"--csv": tmp_path / "a.csv", "--plot": tmp_path / "a.html", "--json": tmp_path / "a.json"}
    given = [text for option, path in files.items() for text in (option, str(path))]
    options = ["--crossbar", "noisy", "--cells", "pcm-aihwkit", "--with", "seconds=3600", "--chips", "2"]
    options += ["--sweep", "compensation=none,chip", "--sweep", "read_noise=0,0.02", "--samples", "2"]
    done = invoke(str(out), "--data", str(data), *options, *given)
    assert done.exit_code == 0, done.output
    assert "of 2 samples" in done.output
    assert "drift" in done.output
    found = json.loads(files["--json"].read_text())
    assert len(found["sweep"]) == 4
    assert found["settings"]["drift"] == "after 3600 s"
    assert len(files["--csv"].read_text().splitlines()) == 9
    assert "compensation" in files["--plot"].read_text()[-20000:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say --data FILE.npz"),
        (["--crossbar", "ideal", "--data", "DATA"], "the program has integers; take integer"),
        (["--data", "DATA", "--with", "adc_bits=8"], "only with --crossbar sliced or noisy"),
        (["--crossbar", "sliced", "--chips", "2"], "--chips: only with --data"),
        (["--crossbar", "sliced", "--data", "DATA", "--chips", "2"], "all chips are equal; take noisy"),
        (["--crossbar", "sliced", "--with", "read_noise=0.1"], "a sliced crossbar has no noise"),
        (["--crossbar", "sliced", "--with", "adc_bit=8"], "no setting of a crossbar; did you mean adc_bits?"),
        (["--crossbar", "sliced", "--with", "adc_bits=0"], "expected 1 to 24"),
        (["--crossbar", "sliced", "--with", "adc_bits"], "expected NAME=VALUE"),
        (["--crossbar", "sliced", "--with", "adc_noise=1"], "no noise"),
        (["--crossbar", "noisy", "--with", "adc_noise=1"], "converters are ideal; say adc_bits"),
        (["--crossbar", "noisy", "--with", "wire_ohm=1"], "needs a device file with conductances in uS"),
        (["--crossbar", "sliced", "--data", "DATA", "--sweep", "adc_bits=9:4"], "whole numbers in ascending order"),
        (["--crossbar", "sliced", "--data", "DATA", "--csv", "x.csv"], "--csv: only with --sweep"),
        (["--crossbar", "sliced", "--cells", "nosuch"], "no such file; give a file or one of"),
        (["--data", "nosuch.npz"], "no such file or folder"),
        (["--crossbar", "sliced", "--data", "DATA", "--calibration", "2"], "no converter has a calibrated range"),
    ],
)
def test_what_is_refused(digits: tuple[Path, Path], options: list[str], message: str):
    out, data = digits
    given = [str(data) if text == "DATA" else text for text in options]
    done = invoke(str(out), *given)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)


PLACE = TensorPlace.model_validate(
    {"name": "image", "shape": [1, 2], "image_shape": [1, 2], "channel_axis": 1, "tiles": []}
)


def test_data_from_a_folder(tmp_path: Path):
    for k in range(3):
        np.save(tmp_path / f"{k}.npy", np.full((1, 2), k, np.float32))
    (tmp_path / "index.csv").write_text("0.npy,5\n1.npy,6\n2.npy,7\n")
    found = read_labelled_data(tmp_path, [PLACE], 2)
    assert found.inputs["image"].tolist() == [[[0, 0]], [[1, 1]]]
    assert found.labels is not None
    assert found.labels.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((3, 2))}, "no array 'x'; it has z"),
        ({"x": np.zeros((3, 5))}, r"samples of shape \(5,\), but the input has \(1, 2\)"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, "3 of 'image', 4 of 'y'"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 4, -1])}, "labels y: -1 of sample 2: classes are numbered from 0"),
        ({"x": np.zeros((0, 2))}, "at least one"),
        ({"x": np.array(["a"])}, "expected numbers"),
    ],
)
def test_data_that_does_not_fit(tmp_path: Path, arrays: dict, message: str):
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(UserError, match=message):
        read_labelled_data(tmp_path / "d.npz", [PLACE])


def test_a_batch_has_no_scores_of_one_sample(tmp_path: Path):
    (tmp_path / "m.onnx").write_bytes(conv_model((2, 3, 4, 4), 4).SerializeToString())
    out = raptor.compile(tmp_path / "m.onnx", xbar=8, cores=8).save(tmp_path / "out")
    with pytest.raises(UserError, match="accuracy needs the scores of one sample"):
        measure_accuracy(out, tmp_path / "nothing.npz")


def test_data_without_labels(digits: tuple[Path, Path], tmp_path: Path):
    out, data = digits
    np.savez(tmp_path / "x.npz", x=np.load(data)["x"][:5])
    report = measure_accuracy(out, tmp_path / "x.npz")
    assert report.top1 is None
    assert report.chips[0].agreement == 1


def test_statistics():
    """Wilson's interval of 90 of 100 (Agresti and Coull 1998); Student's of three values, quantile 4.303."""
    found = wilson_interval(90, 100)
    assert (found.low, found.high) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    mean = student_interval([0.5, 0.6, 0.7])
    assert mean is not None
    assert mean.high - mean.low == pytest.approx(2 * 4.303 * 0.1 / 3**0.5)
    assert student_interval([0.5]) is None
    assert snr_db(100, 1) == 20
    assert snr_db(1, 0) == np.inf
