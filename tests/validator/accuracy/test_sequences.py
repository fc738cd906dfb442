"""Accuracy of models with states on labelled sequences, whose steps follow one another on the chip."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import raptor
from raptor.common.errors import UserError
from tests.stateful_models import cached_convolution, recurrent_step
from tests.tiny_models import Array, random
from validator.accuracy.measure import measure_accuracy
from validator.model.ort_session import create_session

SEQUENCES, STEPS = 4, 5
CHIP: dict[str, Any] = {"cores": 4, "xbar": 16, "states": "auto"}


def write(folder: Path, arrays: dict[str, Any]) -> Path:
    """Writes the arrays of labelled data; returns the file."""
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def step_classes(model: ModelProto, frames: Array, first: Array) -> Array:
    """Returns the class of each step, [steps], by onnxruntime with states of its own."""
    session, hidden, found = create_session(model.SerializeToString(), Path("step.onnx")), first, list[int]()
    for frame in frames:
        scores, hidden = session.run(["y", "hn"], {"x": frame, "h0": hidden})
        found.append(int(np.asarray(scores).argmax()))
    return np.array(found)


@pytest.fixture(scope="module")
def step() -> ModelProto:
    return recurrent_step("GRU")


@pytest.fixture(scope="module")
def out(step: ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return raptor.compile(step, **CHIP).save(tmp_path_factory.mktemp("step") / "out")


FRAMES = 3 * random(SEQUENCES, STEPS, 1, 1, 6, seed=7)
FIRST = 2 * random(SEQUENCES, 1, 1, 8, seed=8)


@pytest.mark.parametrize("given", [False, True])
def test_each_step_begins_with_the_state_of_the_one_before(step: ModelProto, out: Path, tmp_path: Path, given: bool):
    first = FIRST if given else np.zeros_like(FIRST)
    wanted = np.stack([step_classes(step, *sequence) for sequence in zip(FRAMES, first, strict=True)])
    alone = np.stack(
        [
            [step_classes(step, frame[None], begin)[0] for frame in frames]
            for frames, begin in zip(FRAMES, first, strict=True)
        ]
    )
    assert (wanted != alone).any(), "states change no class"
    data = write(tmp_path, {"x": FRAMES, "y": wanted, **({"h0": FIRST} if given else {})})
    report = measure_accuracy(out, data)
    assert report.top1 == report.chips[0].agreement == 1
    assert report.reference is not None
    assert report.reference.top1 == 1
    assert report.samples == SEQUENCES * STEPS
    assert report.chips[0].top1_interval is None


def test_one_label_is_that_of_the_last_step(step: ModelProto, out: Path, tmp_path: Path):
    last = np.array([step_classes(step, frames, np.zeros_like(FIRST[0]))[-1] for frames in FRAMES])
    np.savez(tmp_path / "data.npz", x=FRAMES[:, :, 0], y=last)
    report = measure_accuracy(out, tmp_path / "data.npz")
    assert report.top1 == 1
    assert report.samples == SEQUENCES
    assert report.chips[0].top1_interval is not None


def test_without_labels_all_steps_are_compared(out: Path, tmp_path: Path):
    np.savez(tmp_path / "data.npz", x=FRAMES)
    report = measure_accuracy(out, tmp_path / "data.npz", samples=3)
    assert report.chips[0].agreement == 1
    assert report.samples == 3 * STEPS


def test_samples_of_one_step_begin_at_zero(step: ModelProto, out: Path, tmp_path: Path):
    frames, zeros = FRAMES[:, 0], np.zeros_like(FIRST[0])
    wanted = np.array([step_classes(step, frame[None], zeros)[0] for frame in frames])
    np.savez(tmp_path / "data.npz", x=frames, y=wanted)
    assert measure_accuracy(out, tmp_path / "data.npz").top1 == 1


def test_ranges_of_converters_cover_all_steps(tmp_path: Path):
    """Frames of a sequence are equal, but in the first step the cache is zero, so its sums are smaller."""
    frame = np.random.default_rng(3).uniform(-1, 1, (SEQUENCES, 1, 1, 5, 1)).astype(np.float32)
    quantised = onnx.load_from_string(raptor.quantize(cached_convolution()).onnx_bytes)
    out = raptor.compile(quantised, **CHIP | {"xbar": 128}).save(tmp_path / "out")
    np.savez(tmp_path / "data.npz", x=frame.repeat(8, axis=1))
    np.savez(tmp_path / "first.npz", x=frame)
    settings = {"adc_bits": "4", "adc_range": "calibrated"}
    seen, first = (
        measure_accuracy(out, tmp_path / "data.npz", crossbar="sliced", settings=settings, calibration_data=data)
        for data in (None, tmp_path / "first.npz")
    )
    assert [layer.snr_db for layer in seen.layers] != [layer.snr_db for layer in first.layers]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": FRAMES[:, :, :, :, :5]}, "has samples of shape"),
        ({"x": FRAMES, "h0": FIRST[:2]}, "need as many samples"),
        ({"x": FRAMES, "h0": FRAMES}, "'h0' has samples of shape"),
        ({"x": FRAMES, "y": np.zeros((SEQUENCES, STEPS + 1), np.int64)}, "or each of its 5 steps"),
        ({"x": FRAMES[:, :0]}, "at least one"),
        ({"x": FRAMES, "y": np.full((SEQUENCES, STEPS), 3)}, "no class of the model"),
    ],
)
def test_wrong_sequences_are_refused(out: Path, tmp_path: Path, arrays: dict[str, Array], message: str):
    data = write(tmp_path, arrays)
    with pytest.raises(UserError, match=message):
        measure_accuracy(out, data)
