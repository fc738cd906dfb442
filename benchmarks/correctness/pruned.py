"""Measure the trained network with tiles of zeros: crossbars, time, energy, accuracy: `make bench-pruned`.

The model is pruned and trained with the images for training alone, and without their labels; the accuracy is that of
all test images, by onnxruntime, of the model in int8. Times and energies are simulated. Training needs PyTorch.
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

import raptor
from models.trained import MODEL, load_images
from raptor.graph.layers import tile_channels
from raptor.target import arch
from raptor.tools.prune.measure_accuracy import measure_top1
from raptor.tools.prune.prune_command import make_refine
from raptor.tools.prune.prune_model import prune_model

CHIP: Mapping[str, Any] = {"xbar": 16, "cores": 64}
RANGES = 200
"""Images for ranges of activations: the first of those for training."""


@dataclass(frozen=True, slots=True)
class PrunedForm:
    """A row of the table: options of `raptor prune`."""

    mapping: Literal["rows", "raptor"]
    share: float
    products: float
    epochs: int


FORMS = (
    PrunedForm("raptor", 0, 1, 0),
    PrunedForm("raptor", 0.5, 1, 0),
    PrunedForm("raptor", 0.5, 5, 60),
    PrunedForm("raptor", 0.6, 10, 60),
    PrunedForm("rows", 0, 1, 0),
    PrunedForm("rows", 0.5, 1, 0),
    PrunedForm("rows", 0.5, 1, 60),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--untrained", action="store_true", help="only the rows that need no PyTorch")
    args = parser.parse_args()
    print("| mapping | `--share` | `--products` | `--epochs` | crossbars | time | energy | top-1, % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), (1, 1.0, 1.0)
        test = write_samples(folder)
        for form in (f for f in FORMS if not (args.untrained and f.epochs)):
            found = measure(form, folder)
            top1 = 100 * measure_top1(found[0], test)
            before = before if form.share else found[1]
            pairs = zip(found[1], before, ("", " us", " uJ"), strict=True)
            ratios = [f"{now / was:.2f}" if form.share else f"{now:.4g}{unit}" for now, was, unit in pairs]
            options = (form.share or "", form.products if form.share else "", form.epochs or "")
            print("| " + " | ".join([form.mapping, *map(str, options), *ratios, f"{top1:.1f}"]) + " |", flush=True)


def write_samples(folder: Path) -> Path:
    """Writes the images for training without labels, and those of the tests with labels. Returns the latter file."""
    training, test = load_images()
    np.savez(folder / "seen.npz", image=training.pixels)
    np.savez(folder / "ranges.npz", image=training.pixels[:RANGES])
    np.savez(folder / "test.npz", x=test.pixels, y=test.digits)
    return folder / "test.npz"


def measure(form: PrunedForm, folder: Path) -> tuple[Any, tuple[int, float, float]]:
    """Returns the model in int8, and its crossbars, time in us and energy in uJ."""
    target = arch.load("bench", **CHIP)
    refine = make_refine(form.epochs) if form.epochs else None
    options: dict[str, Any] = {"products": form.products, "refine": refine, "test": folder / "test.npz"}
    data = folder / "seen.npz"
    found = prune_model(str(MODEL), target, tile_channels(target), form.share, form.mapping, data, **options)
    model = found.model if form.share else found.before
    quantised = raptor.quantize(model, data=folder / "ranges.npz", per_channel=True)
    proto = onnx.load_model_from_string(quantised.onnx_bytes)
    program = raptor.compile(proto, **CHIP, mapping=form.mapping)
    time = program.simulate()
    return proto, (program.report.xbars_used, (time.latency_ns or 0) / 1e3, (time.energy_pj or 0) / 1e6)


if __name__ == "__main__":
    main()
