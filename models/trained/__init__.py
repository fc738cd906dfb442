"""Small trained networks: for images of digits, 8x8 pixels, with these images; and a language model.

Unlike random weights, they show how a change affects accuracy. `train_digits.py` makes
`digits.onnx`, `train_binary.py` a binary one, `digits-binary.onnx`.

The images are the 1797 of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (UCI Machine
Learning Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn 1.9.1 ships them: `load_digits`,
BSD-3-Clause. `digits.npz` holds them unchanged, as integers from 0 to 16.

`train_language.py` makes `kjv.onnx`, a decoder of 1.02 million parameters whose tokens are bytes. Its text is the King
James Bible, which is in the public domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

FOLDER = Path(__file__).parent
MODEL, DATA = FOLDER / "digits.onnx", FOLDER / "digits.npz"
BINARY_MODEL = FOLDER / "digits-binary.onnx"
"""A network with weights and activations 1 and -1, in QONNX; `train_binary.py` makes it."""
LANGUAGE_MODEL = FOLDER / "kjv.onnx"
_TRAINING = 1197
"""Number of images for training; the other 600 are for tests."""
_SPLIT_SEED = 0


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained network that `raptor models` writes."""

    name: str
    summary: str
    path: Path


TRAINED = {
    "kjv": TrainedModel(
        "kjv", "Llama-style decoder of bytes, trained with the King James Bible, 1.02 M parameters", LANGUAGE_MODEL
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class DigitImages:
    """Images [n, 1, 8, 8] with values from 0 to 1, float32, and the digits [n] that they show."""

    pixels: npt.NDArray[np.float32]
    digits: npt.NDArray[np.int64]


def load_images() -> tuple[DigitImages, DigitImages]:
    """Returns the images for training and for tests, which are disjoint."""
    with np.load(DATA, allow_pickle=False) as archive:
        pixels, digits = archive["pixels"], archive["digits"]
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits))
    scaled = (pixels[order, None] / np.float32(16)).astype(np.float32)
    labels = digits[order].astype(np.int64)
    training, test = slice(None, _TRAINING), slice(_TRAINING, None)
    return DigitImages(scaled[training], labels[training]), DigitImages(scaled[test], labels[test])


def load_model() -> onnx.ModelProto:
    """Returns the trained network: input `image` [1, 1, 8, 8], output `scores` [1, 10]."""
    import onnx

    return onnx.load(str(MODEL))  # pyright: ignore[reportUnknownMemberType] onnx has no types here
