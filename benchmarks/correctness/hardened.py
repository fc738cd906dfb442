"""Measure a network as given, equalised, trimmed and trained, on chips: `make bench-hardened`, `make bench-fashion`.

Chips of three devices, all test images, several chips and seeds. Everything is chosen on images for training: the noise
by the first seed on validation images, ranges on 200, trims on 20. Training needs PyTorch. `--folder` keeps models and
measured cells, so that a stopped run goes on. `--data` takes another data set of `models.trained.datasets`, and
`--network` another network of `models`; it is trained without errors first, as the network of the digits was.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import models
import raptor
from models.trained import MODEL
from models.trained.datasets import DATASETS
from raptor.target.device_file import load_device
from raptor.tools.quantise.ort_quantizer import OrtSession
from raptor.tools.train.train_model import TrainedModel
from validator.accuracy.measure import measure_accuracy

CHIP: Mapping[str, Any] = {"xbar": 128, "cores": 64, "cell_bits": 4}
LABELS: Mapping[str, str] = {"pcm-aihwkit": "PCM", "reram-wan2022": "ReRAM, Wan", "reram-milo": "ReRAM, Milo"}
"""Device names in the tables, keyed by device file."""
DEVICES = tuple(LABELS)
TRAINED_FOR = "reram-milo"
YEAR: Mapping[str, str] = {"seconds": "31536000", "compensation": "column"}
VALIDATED = 3000
"""Most images of a validation."""
RANGES, EQUALISED, TRIMMED = 200, 100, 20
"""Images for ranges of activations, for an equalisation, and for a trim: the first of those for training."""


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """A row of the table. `source`: `given`, `hardened`, `trained`, or `lightning`: trained by AIHWKit-Lightning with
    the noise that was chosen for `trained`. `aged`: a year after programming. `mixed`: with
    the policy of bits that takes 80 % of the time, for which the network is trained, too. All other trained forms have
    the same networks, which are trained for Milo in int8.
    """

    source: str
    weights: int = 8
    trim: bool = False
    aged: bool = False
    mixed: bool = False
    devices: Sequence[str] = DEVICES

    @property
    def settings(self) -> dict[str, str]:
        return dict(YEAR) if self.aged else {}

    @property
    def stem(self) -> str:
        """Name of the float network and its quantised form, but for the number of the seed."""
        return f"{self.network}-w{self.weights}"

    @property
    def network(self) -> str:
        return f"{self.source}{'-mixed' * self.mixed}"


PCM, RERAM, MILO = DEVICES[:1], DEVICES[1:], DEVICES[2:]
FORMS: Mapping[str, NetworkForm] = {
    "int8": NetworkForm("given"),
    "int8, equalised": NetworkForm("hardened"),
    "int8, equalised, trimmed": NetworkForm("hardened", trim=True),
    "int8, trained": NetworkForm("trained"),
    "int8, trained, trimmed": NetworkForm("trained", trim=True),
    "int4": NetworkForm("given", weights=4, devices=RERAM),
    "int4, trained": NetworkForm("trained", weights=4, devices=RERAM),
    "int8, after a year": NetworkForm("given", aged=True, devices=PCM),
    "int8, trained, after a year": NetworkForm("trained", aged=True, devices=PCM),
    "int8, trained by AIHWKit-Lightning": NetworkForm("lightning", devices=MILO),
    "mixed": NetworkForm("given", mixed=True, devices=MILO),
    "mixed, trained": NetworkForm("trained", mixed=True, devices=MILO),
}
TABLE = (
    *("int8", "int8, equalised", "int8, equalised, trimmed", "int8, trained", "int4, trained"),
    *("int8, after a year", "int8, trained, after a year", "int8, trained by AIHWKit-Lightning"),
)
"""Rows of the table of the digits."""
BUDGET = {"latency": 0.8}
"""Largest latency with the policy, relative to the latency with 8 bits everywhere."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="*", default=[*TABLE], choices=FORMS, help="rows to measure")
    parser.add_argument("--chips", type=int, default=10, help="chips of each device and seed")
    parser.add_argument("--seeds", type=int, default=3, help="trainings")
    parser.add_argument("--epochs", type=int, default=300, help="of a training")
    parser.add_argument("--images", type=int, help="test images, by default all")
    parser.add_argument("--folder", type=Path, help="keeps models and measured cells")
    parser.add_argument("--data", choices=DATASETS, default="digits", help="data set")
    parser.add_argument("--source", type=Path, default=Path(), help="folder of its installed files")
    parser.add_argument("--network", choices=models.MODELS, help="by default the trained network of the digits")
    parser.add_argument("--devices", nargs="*", default=[*DEVICES], choices=DEVICES, help="columns to measure")
    parser.add_argument("--shift", type=int, default=1, help="largest shift of an image in training")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = HardenedBench(args.folder or Path(scratch), args)
        bench.write_data()
        rows = [(name, *bench.measure_form(name)) for name in args.forms]
    print("| network | float | onnxruntime |", " | ".join(LABELS[device] for device in args.devices), "|")
    print("|---" * (3 + len(args.devices)) + "|")
    for row in rows:
        print("|", " | ".join(row), "|")


class HardenedBench:
    """The files of a run, and what is measured with them."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        self.is_given, self.count = args.network is None, 0

    def write_data(self) -> None:
        """Writes train.npz and test.npz, inputs without labels from the former, and the network as given."""
        split = DATASETS[self.args.data](self.args.source)
        split.save(self.folder)
        self.count = len(split.training[1])
        model = onnx.load(MODEL) if self.is_given else models.build(self.args.network)  # pyright: ignore[reportUnknownMemberType] no types
        onnx.save(model, self.folder / "network.onnx")  # pyright: ignore[reportUnknownMemberType] as above
        name = model.graph.input[0].name
        for file, count in (("ranges", RANGES), ("equalised", EQUALISED), ("trimmed", TRIMMED)):
            arrays: dict[str, Any] = {name: split.training[0][:count]}
            np.savez(self.folder / f"{file}.npz", **arrays)

    def measure_form(self, name: str) -> Iterator[str]:
        """Yields the cells of a row: float, onnxruntime, and mean and lowest chip of each device."""
        form = FORMS[name]
        seeds = (0,) if self.is_given and form.source in ("given", "hardened") else range(self.args.seeds)
        outs = [self.compile_form(form, seed) for seed in seeds]
        yield f"{np.mean([self.measure_floats(self.find_floats(form, seed)) for seed in seeds]):.1f}"
        measured = {
            d: [self.measure_chips(out, form, d) for out in outs] for d in self.args.devices if d in form.devices
        }  # fmt: skip
        yield f"{np.mean([found['reference'] for found in next(iter(measured.values()))]):.1f}" if measured else ""
        for device in self.args.devices:
            chips = [top1 for found in measured.get(device, ()) for top1 in found["chips"]]
            yield f"{np.mean(chips):.1f} ({min(chips):.1f})" if chips else ""

    def compile_form(self, form: NetworkForm, seed: int) -> Path:
        """Returns the output directory of a form; a network that is trained has `seed`."""
        stem = f"{form.stem}-{seed}"
        out = self.folder / f"{stem}{'-trimmable' * form.trim}"
        if not out.exists():
            ranges: dict[str, Any] = {"data": self.folder / "ranges.npz", "per_channel": True}
            policy = {"policy": self.find_policy()} if form.mixed else {}
            integers = raptor.quantize(self.find_floats(form, seed), weights=form.weights, **policy, **ranges)
            integers.save(self.folder / f"{stem}-integers.onnx", force=True)
            raptor.compile(self.folder / f"{stem}-integers.onnx", trimmable=form.trim, **CHIP).save(out)
        return out

    def find_floats(self, form: NetworkForm, seed: int) -> Path:
        """Returns the float network of a form."""
        sources = {
            "given": self._given,
            "hardened": self._hardened,
            "trained": self._trained,
            "lightning": self._lightning,
        }
        return sources[form.source](form, seed)

    def find_policy(self) -> Path:
        """Returns the policy of mixed precision, found with the network as given."""
        target = self.folder / "policy.json"
        if not target.exists():
            given, data = self._given(FORMS["int8"], 0), self.folder / "ranges.npz"
            found = raptor.search_policy(given, budget=BUDGET, data=data, per_channel=True, **CHIP)
            print(found.policy, f"{found.ratio:.3f} of the latency", flush=True)
            target.write_bytes(found.policy.to_json())
        return target

    def _given(self, form: NetworkForm, seed: int) -> Path:
        network, target = self.folder / "network.onnx", self.folder / f"given-{seed}.onnx"
        if self.is_given:
            return network
        if not target.exists():
            self._train(seed, noise=0.0).save(target)
        return target

    def _hardened(self, form: NetworkForm, seed: int) -> Path:
        target, data = self.folder / f"{form.stem}-{seed}.onnx", self.folder / "equalised.npz"
        if not target.exists():
            given = self._given(form, seed)
            raptor.harden(given, cells=TRAINED_FOR, data=data, weights=form.weights).save(target)
        return target

    def _trained(self, form: NetworkForm, seed: int) -> Path:
        """Trains from new weights. The first seed chooses the noise on validation images, the others take it."""
        target, chosen = self.folder / f"{form.network}-{seed}.onnx", self.folder / f"{form.network}-noise.json"
        if not target.exists():
            noise = json.loads(chosen.read_text()) if chosen.exists() else "auto"
            policy = {"policy": self.find_policy()} if form.mixed else {}
            found = self._train(seed, noise=noise, **policy)
            chosen.write_text(json.dumps(found.report.chosen))
            found.save(target)
        return target

    def _lightning(self, form: NetworkForm, seed: int) -> Path:
        from benchmarks.correctness.lightning_training import train_lightning

        target = self.folder / f"{form.network}-{seed}.onnx"
        if not target.exists():
            self._trained(FORMS["int8, trained"], seed)
            noise = json.loads((self.folder / f"{FORMS['int8, trained'].network}-noise.json").read_text())
            started = time.process_time()
            options: dict[str, Any] = {"epochs": self.args.epochs, "seed": seed, "shift": self.args.shift}
            model = train_lightning(self.folder / "network.onnx", self.folder / "train.npz", noise=noise, **options)
            print(f"AIHWKit-Lightning: {time.process_time() - started:.0f} s of processor time", flush=True)
            onnx.save(model, target)  # pyright: ignore[reportUnknownMemberType] as above
        return target

    def _train(self, seed: int, **options: Any) -> TrainedModel:
        started = time.process_time()
        found = raptor.train(
            self.folder / "network.onnx",
            cells=TRAINED_FOR,
            data=self.folder / "train.npz",
            test=[self.folder / "test.npz"],
            validation=min(0.15, VALIDATED / self.count),
            epochs=self.args.epochs,
            seed=seed,
            shift=self.args.shift,
            scratch=True,
            refit=True,
            **options,
        )
        print(f"{found.report}, {time.process_time() - started:.0f} s of processor time", flush=True)
        return found

    def measure_floats(self, model: Path) -> float:
        """Returns top-1 of a float network on the test images, by onnxruntime, in %."""
        loaded = onnx.load(model)  # pyright: ignore[reportUnknownMemberType] no types
        session = OrtSession(loaded)
        with np.load(self.folder / "test.npz") as test:
            images, labels = test["x"][: self.args.images], test["y"][: self.args.images]
        graph = loaded.graph
        name, output = graph.input[0].name, graph.output[0].name
        scores = [session.run({name: image[None]})[output].ravel() for image in images]
        return 100 * float((np.argmax(scores, axis=1) == labels).mean())

    def measure_chips(self, out: Path, form: NetworkForm, device: str) -> dict[str, Any]:
        """Returns top-1 in %: `reference` of onnxruntime, and `chips`. The folder keeps each chip when it is done."""
        images = f"-{self.args.images}" if self.args.images else ""
        stored = self.folder / f"{out.name}{'-aged' * form.aged}-{device}{images}.json"
        known: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {"chips": []}
        for seed in range(len(known["chips"]), self.args.chips):
            found = measure_accuracy(
                out,
                self.folder / "test.npz",
                crossbar="noisy",
                device=load_device(device),
                settings={**form.settings, "seed": f"{seed}"},
                samples=self.args.images,
                calibration_data=self.folder / "trimmed.npz",
                trim=form.trim,
            )
            assert found.reference is not None, "there are labels"
            (chip,) = found.chips
            known = {"reference": 100 * (found.reference.top1 or 0), "chips": [*known["chips"], 100 * (chip.top1 or 0)]}
            stored.write_text(json.dumps(known))
            print(f"{stored.stem}, chip {seed}: {known['chips'][-1]:.2f}", flush=True)
        return {**known, "chips": known["chips"][: self.args.chips]}


if __name__ == "__main__":
    main()
