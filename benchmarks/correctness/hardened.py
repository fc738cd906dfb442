"""Measure the network of the digits as given, equalised, trimmed and trained: `make bench-hardened`.

Chips of three devices, all test images, several chips and seeds. Everything is chosen on images for training: the noise
by the first seed on validation images, ranges on 200, trims on 20. Training needs PyTorch. `--folder` keeps models and
measured cells, so that a stopped run goes on. `--data` takes another data set of `models.trained.datasets`, and
`--model` another network.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import raptor
from models.trained import MODEL
from models.trained.datasets import DATASETS
from raptor.target.device_file import load_device
from validator.accuracy.measure import measure_accuracy

CHIP: Mapping[str, Any] = {"xbar": 128, "cores": 64, "cell_bits": 4}
DEVICES = ("pcm-aihwkit", "reram-wan2022", "reram-milo")
YEAR: Mapping[str, str] = {"seconds": "31536000", "compensation": "column"}
RANGES, EQUALISED, TRIMMED = 200, 100, 20
"""Images for ranges of activations, for an equalisation, and for a trim: the first of those for training."""


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """A row of the table. `source`: `given`, `hardened` or `trained`; `aged`: a year after programming.

    `trained_for`: device of a training.
    """

    source: str
    weights: int = 8
    trim: bool = False
    aged: bool = False
    trained_for: str = "reram-milo"
    devices: Sequence[str] = DEVICES

    @property
    def settings(self) -> dict[str, str]:
        return dict(YEAR) if self.aged else {}


PCM, RERAM = DEVICES[:1], DEVICES[1:]
FORMS: Mapping[str, NetworkForm] = {
    "int8": NetworkForm("given"),
    "int8, equalised": NetworkForm("hardened"),
    "int8, equalised, trimmed": NetworkForm("hardened", trim=True),
    "int8, trained": NetworkForm("trained"),
    "int8, trained, trimmed": NetworkForm("trained", trim=True),
    "int4": NetworkForm("given", weights=4, devices=RERAM),
    "int4, trained": NetworkForm("trained", weights=4, devices=RERAM),
    "int8, after a year": NetworkForm("given", aged=True, devices=PCM),
    "int8, trained, after a year": NetworkForm("trained", aged=True, trained_for=PCM[0], devices=PCM),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="*", default=[*FORMS], choices=FORMS, help="rows to measure")
    parser.add_argument("--chips", type=int, default=10, help="chips of each device and seed")
    parser.add_argument("--seeds", type=int, default=3, help="trainings")
    parser.add_argument("--epochs", type=int, default=150, help="of a training")
    parser.add_argument("--images", type=int, help="test images, by default all")
    parser.add_argument("--folder", type=Path, help="keeps models and measured cells")
    parser.add_argument("--data", choices=DATASETS, default="digits", help="data set")
    parser.add_argument("--source", type=Path, default=Path(), help="folder of its installed files")
    parser.add_argument("--model", type=Path, default=MODEL, help="network")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = HardenedBench(args.folder or Path(scratch), args)
        bench.write_data()
        rows = [(name, *bench.measure_form(name)) for name in args.forms]
    print("| network | onnxruntime |", " | ".join(DEVICES), "|")
    print("|---" * (2 + len(DEVICES)) + "|")
    for row in rows:
        print("|", " | ".join(row), "|")


class HardenedBench:
    """The files of a run, and what is measured with them."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args

    def write_data(self) -> None:
        """Writes train.npz and test.npz, and inputs without labels from the former."""
        split = DATASETS[self.args.data](self.args.source)
        split.save(self.folder)
        name = onnx.load(self.args.model).graph.input[0].name  # pyright: ignore[reportUnknownMemberType] no types
        for file, count in (("ranges", RANGES), ("equalised", EQUALISED), ("trimmed", TRIMMED)):
            arrays: dict[str, Any] = {name: split.training[0][:count]}
            np.savez(self.folder / f"{file}.npz", **arrays)

    def measure_form(self, name: str) -> Iterator[str]:
        """Yields the cells of a row: onnxruntime, and mean and lowest chip of each device."""
        form = FORMS[name]
        seeds = range(self.args.seeds) if form.source == "trained" else (0,)
        outs = [self.compile_form(form, seed) for seed in seeds]
        measured = {
            d: [self.measure_chips(out, form, d) for out in outs] for d in DEVICES if d in form.devices
        }  # fmt: skip
        yield f"{np.mean([found['reference'] for found in next(iter(measured.values()))]):.1f}"
        for device in DEVICES:
            chips = [top1 for found in measured.get(device, ()) for top1 in found["chips"]]
            yield f"{np.mean(chips):.1f} ({min(chips):.1f})" if chips else ""

    def compile_form(self, form: NetworkForm, seed: int) -> Path:
        """Returns the output directory of a form; a network that is trained has `seed`."""
        aged = "-aged" * form.aged
        stem = f"{form.source}-{seed}-w{form.weights}{aged}"
        out = self.folder / f"{stem}{'-trimmable' * form.trim}"
        if not out.exists():
            floats = {"given": self._given, "hardened": self._hardened, "trained": self._trained}[form.source]
            model = floats(form, seed, self.folder / f"{form.source}-{seed}-w{form.weights}{aged}.onnx")
            ranges: dict[str, Any] = {"data": self.folder / "ranges.npz", "per_channel": True}
            integers = raptor.quantize(model, weights=form.weights, **ranges)
            integers.save(self.folder / f"{stem}-integers.onnx", force=True)
            raptor.compile(self.folder / f"{stem}-integers.onnx", trimmable=form.trim, **CHIP).save(out)
        return out

    def _given(self, form: NetworkForm, seed: int, target: Path) -> Path:
        return self.args.model

    def _hardened(self, form: NetworkForm, seed: int, target: Path) -> Path:
        found = raptor.harden(
            self.args.model, cells="reram-milo", data=self.folder / "equalised.npz", weights=form.weights
        )
        return found.save(target, force=True)

    def _trained(self, form: NetworkForm, seed: int, target: Path) -> Path:
        """Trains from new weights. The first seed chooses the noise on validation images, the others take it."""
        if not target.exists():
            chosen = self.folder / f"noise-w{form.weights}-{form.trained_for}{'-aged' * form.aged}.json"
            found = raptor.train(
                self.args.model,
                cells=form.trained_for,
                data=self.folder / "train.npz",
                test=[self.folder / "test.npz"],
                noise=json.loads(chosen.read_text()) if chosen.exists() else "auto",
                weights=form.weights,
                epochs=self.args.epochs,
                seed=seed,
                shift=1,
                scratch=True,
                settings=form.settings,
            )
            print(found.report, flush=True)
            chosen.write_text(json.dumps(found.report.chosen))
            found.save(target)
        return target

    def measure_chips(self, out: Path, form: NetworkForm, device: str) -> dict[str, Any]:
        """Returns top-1 in %: `reference` of onnxruntime, and `chips`; from the folder if it was measured before."""
        stored = self.folder / f"{out.name}-{device}-{self.args.chips}{'-aged' * form.aged}.json"
        if not stored.exists():
            found = measure_accuracy(
                out,
                self.folder / "test.npz",
                crossbar="noisy",
                device=load_device(device),
                settings=form.settings,
                chips=self.args.chips,
                samples=self.args.images,
                calibration_data=self.folder / "trimmed.npz",
                trim=form.trim,
            )
            assert found.reference is not None, "there are labels"
            chips = [100 * (chip.top1 or 0) for chip in found.chips]
            stored.write_text(json.dumps({"reference": 100 * (found.reference.top1 or 0), "chips": chips}))
            print(out.name, device, f"{np.mean(chips):.2f} ({min(chips):.2f})", flush=True)
        return json.loads(stored.read_text())


if __name__ == "__main__":
    main()
