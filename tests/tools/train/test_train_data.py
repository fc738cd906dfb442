"""Samples of `raptor train`: a fixed split, equal samples on one side, none of a test. What it says without torch."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from click.testing import CliRunner

import raptor
from models.trained import MODEL, load_images
from raptor.common.errors import UserError
from raptor.target import arch
from raptor.target.device_file import load_device
from raptor.tools.cli.app import build_commands
from raptor.tools.quantise.calibration_data import SampledInput
from raptor.tools.quantise.policy import Policy
from raptor.tools.train.train_command import describe_training
from raptor.tools.train.train_data import read_training_data
from raptor.tools.train.train_model import TrainingReport, ValidatedNoise, choose_noise
from validator.accuracy.labelled_data import digest_samples
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.weight_errors import tabulate_code_errors

INPUTS = (SampledInput("image", (1, 1, 8, 8), np.dtype(np.float32), None),)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """100 images, each of them twice."""
    images = load_images()[0]
    pixels, digits = (np.tile(x[:100], (2,) + (1,) * (x.ndim - 1)) for x in (images.pixels, images.digits))
    np.savez(tmp_path / "train.npz", x=pixels, y=digits)
    return tmp_path / "train.npz"


def test_equal_samples_are_on_one_side_and_the_split_is_fixed(data: Path) -> None:
    found, again = (read_training_data(data, INPUTS, 10, 0.15, ()) for _ in range(2))
    training, validation = digest_samples(found.training), digest_samples(found.validation)
    assert (len(training), len(validation)) == (85, 15)
    assert (found.training.count, found.validation.count) == (170, 30)
    assert not training & validation
    assert digest_samples(again.validation) == validation


def test_samples_of_a_test_are_refused(data: Path, tmp_path: Path) -> None:
    images = load_images()[0]
    np.savez(tmp_path / "test.npz", image=images.pixels[95:130], y=images.digits[95:130])
    with pytest.raises(UserError, match=r"10 of its 200 samples are also in test=.*; a network that is fitted to them"):
        read_training_data(data, INPUTS, 10, 0.15, [tmp_path / "test.npz"])
    np.savez(tmp_path / "test.npz", image=images.pixels[100:130], y=images.digits[100:130])
    read_training_data(data, INPUTS, 10, 0.15, [tmp_path / "test.npz"])


def test_an_error_names_the_option_of_the_file(data: Path) -> None:
    with pytest.raises(UserError, match=r"^test .*nowhere\.npz: no such file or folder"):
        read_training_data(data, INPUTS, 10, 0.15, [data.with_name("nowhere.npz")])


@pytest.mark.parametrize(
    ("classes", "validation", "message"),
    [
        (9, 0.15, "label 9, but the model has 9 scores; labels are 0 to 8"),
        (10, 0.001, "validation=0.001: 0 of 100 different samples; both sides need one"),
        (10, 1.0, "validation=1.0: 100 of 100 different samples"),
    ],
)
def test_data_that_do_not_fit(data: Path, classes: int, validation: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_training_data(data, INPUTS, classes, validation, ())


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_numbers_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    """Numbers are those of the model's type: what its floats cannot hold is no number of a training."""
    images = load_images()[0]
    pixels = images.pixels[:20].astype(np.float64)
    pixels[3, 0, 2, 2] = value
    np.savez(tmp_path / "train.npz", x=pixels, y=images.digits[:20])
    with pytest.raises(UserError, match=r"train\.npz'?: 1 of 1280 numbers of 'image' are not finite"):
        read_training_data(tmp_path / "train.npz", INPUTS, 10, 0.15, ())


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16])
def test_samples_have_the_type_of_the_input(dtype: type[np.generic], tmp_path: Path) -> None:
    images = load_images()[0]
    np.savez(tmp_path / "train.npz", x=(images.pixels[:20] * 16).astype(dtype), y=images.digits[:20])
    found = read_training_data(tmp_path / "train.npz", INPUTS, 10, 0.15, ()).join().inputs["image"]
    assert found.dtype == np.float32
    assert found.sum() == pytest.approx(16 * images.pixels[:20].sum())


def test_data_need_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=load_images()[0].pixels[:5])
    with pytest.raises(UserError, match="no labels 'y', and training needs them"):
        read_training_data(tmp_path / "train.npz", INPUTS, 10, 0.2, ())


def test_without_pytorch_a_sentence_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"needs torch, which is not installed: pip install 'raptor-crossbar\[train\]'"
    words = ["train", str(MODEL), "--cells", "reram-milo", "--data", str(data)]
    result = CliRunner().invoke(build_commands(), words)
    assert isinstance(result.exception, UserError)
    with pytest.raises(UserError, match=message):
        raise result.exception
    with pytest.raises(UserError, match=message):
        raptor.torch.harden(None, "reram-milo")
    assert [p.name for p in data.parent.iterdir()] == ["train.npz"]


def test_a_refit_has_the_samples_of_validation_too(data: Path) -> None:
    found = read_training_data(data, INPUTS, 10, 0.15, ())
    joined = found.join()
    assert joined.labels is not None
    assert (joined.count, len(joined.labels)) == (200, 200)
    assert digest_samples(joined) == digest_samples(found.training) | digest_samples(found.validation)


def test_the_noise_with_the_least_loss_on_chips_is_chosen() -> None:
    """Accuracies on few samples are often equal, or differ by chance."""
    losses: Sequence[tuple[float | Literal["device"], float, float]]
    losses = (0.06, 0.98, 0.07), (0.09, 0.98, 0.05), ("device", 0.99, 0.06)
    tried = [
        ValidatedNoise(noise=noise, floats=0.9, chips=chips, lowest=0.8, loss=loss) for noise, chips, loss in losses
    ]
    assert choose_noise(tried) == 0.09


@pytest.mark.parametrize(("before", "is_told"), [(0.04, True), (0.06, False)])
def test_a_model_that_was_better_as_given_is_told(before: float, is_told: bool) -> None:
    given, trained = (
        ValidatedNoise(noise=noise, floats=0.99, chips=0.98, lowest=0.97, loss=loss)
        for noise, loss in ((0.0, before), (0.09, 0.05))
    )
    report = TrainingReport(
        model="digits", device="reram-milo", weights=8, policy=Policy(), epochs=1, seed=0, training=17, validation=3,
        before=given, tried=(trained,), chosen=0.09, refit=False, seconds=1.0,
    )  # fmt: skip
    sentence = "the model as given has less loss on chips: more epochs or another rate may help"
    assert (sentence in describe_training(report)) == is_told


def test_a_training_reads_its_policy() -> None:
    """Bits are an input of a training, as a file or what a search found; there is no budget that it would meet."""
    known = inspect.signature(raptor.train).parameters
    assert "PolicySearch" in str(known["policy"].annotation)
    assert "budget" not in known
    assert "budget" in inspect.signature(raptor.search_policy).parameters


def test_limits_of_a_training() -> None:
    """Converters, wires and noise of inputs change nothing in the errors that it has."""
    device = load_device("reram-milo")
    tables = [
        tabulate_code_errors(8, make_setup("noisy", arch.load("bench"), device, given))
        for given in ({}, {"adc_bits": "4", "wire_ohm": "5", "rows_at_once": "16"})
    ]
    assert all(np.array_equal(getattr(tables[0], name), getattr(tables[1], name)) for name in ("mean", "std"))
