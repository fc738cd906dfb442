"""Splits of `models.trained.datasets`: nothing of a test is trained on, files are known by their hashes."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.trained import DATA, datasets
from raptor.tools.quantise.calibration_data import SampledInput
from raptor.tools.train.train_data import read_training_data
from validator.accuracy.labelled_data import digest_samples, read_labelled_data

RNG = np.random.default_rng(1)


def idx(values: np.ndarray[Any, Any]) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return gzip.compress(head + values.astype(np.uint8).tobytes())


def write(folder: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes a file with a known name, and makes its hash the known one."""
    (folder / name).write_bytes(content)
    known = {**datasets.HASHES, name: hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(datasets, "HASHES", known)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files in the formats of the packages."""
    for part, count in (("train", 30), ("t10k", 10)):
        write(tmp_path, f"{part}-images-idx3-ubyte.gz", idx(RNG.integers(0, 256, (count, 28, 28))), monkeypatch)
        write(tmp_path, f"{part}-labels-idx1-ubyte.gz", idx(RNG.integers(0, 10, count)), monkeypatch)
    with np.load(DATA) as archive:
        tested = np.column_stack([archive["pixels"].reshape(-1, 64), archive["digits"]]).astype(int)
    rows = np.concatenate([RNG.integers(0, 17, (40, 65)) % 10, tested[:20]])
    text = "\n".join(",".join(map(str, row)) for row in rows)
    write(tmp_path, "optdigits.dat", text.encode(), monkeypatch)
    signals = [RNG.standard_normal((300 + k, 6)) for k in range(12)]
    watch = {"X": signals, "y": np.arange(12) % 3, "subject": np.arange(12) % 6}
    np.save(tmp_path / "watch_dataset.npy", np.array(watch, dtype=object), allow_pickle=True)
    write(tmp_path, "watch_dataset.npy", (tmp_path / "watch_dataset.npy").read_bytes(), monkeypatch)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("digits", (1, 8, 8), (1197, 600)),
        ("fashion-mnist", (1, 28, 28), (30, 10)),
        ("optdigits", (1, 8, 8), (40, 20)),
        ("watch", (6, 128), (24, 12)),
    ],
)
def test_no_sample_is_in_training_validation_and_test(
    name: str, shape: tuple[int, ...], counts: tuple[int, int], installed: Path
) -> None:
    datasets.DATASETS[name](installed).save(installed)
    inputs = (SampledInput("x", (1, *shape), np.dtype(np.float32), None),)
    test = read_labelled_data(installed / "test.npz", inputs)
    split = read_training_data(installed / "train.npz", inputs, 10, 0.2, [installed / "test.npz"])
    assert (split.training.count + split.validation.count, test.count) == counts
    parts = [digest_samples(part) for part in (split.training, split.validation, test)]
    assert len(set().union(*parts)) == sum(map(len, parts))


def test_signals_of_a_subject_are_on_one_side_and_scaled_by_those_for_training() -> None:
    signals = [np.full((200, 6), float(k)) for k in range(6)]
    split = datasets.split_watch(signals, np.arange(6), np.array([1, 1, 2, 2, 3, 3]))
    assert (set(split.training[1]), set(split.test[1])) == ({0, 1, 2, 3}, {4, 5})
    assert split.training[0].mean() == pytest.approx(0, abs=1e-6)
    assert split.test[0].max() == pytest.approx((5 - 1.5) / np.std([0, 1, 2, 3]))


def test_another_file_is_refused(installed: Path, tmp_path: Path) -> None:
    (installed / "optdigits.dat").write_text("1,2")
    with pytest.raises(SystemExit, match=r"optdigits\.dat: SHA-256 is [0-9a-f]{64}, expected .*; splits are of that"):
        datasets.read_optdigits(installed)
    with pytest.raises(SystemExit, match="No such file or directory; see the packages in"):
        datasets.read_watch(installed / "nowhere")


def test_idx_files_of_other_types_and_sizes_are_refused() -> None:
    content = gzip.decompress(idx(np.zeros((2, 3))))
    assert datasets.parse_idx(content).shape == (2, 3)
    for wrong in (content[:-1], content[:2] + b"\x09" + content[3:]):
        with pytest.raises(SystemExit, match="not an IDX file of bytes"):
            datasets.parse_idx(wrong)
