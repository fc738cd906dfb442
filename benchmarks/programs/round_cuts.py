"""Throughput of rounds by the way the model is cut: `make bench-rounds`.

Each model runs on a quarter of the cores that hold it, in batches of 16. All programs are compiled and simulated; no
figure but the bound is an estimate. The methods are those of `raptor compile --cuts`. COMPASS (arXiv 2501.06780)
compares with the same two, on chips of its own; its ratios are in the last rows.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import raptor
from raptor.common.errors import CapacityError
from raptor.common.options.option_values import CUTS, DEFAULT_STRATEGY
from raptor.compiler.rounds.range_estimate import RangeEstimates
from raptor.frontend.segments.cut_points import divide_into_units
from raptor.options import ModelInputs
from raptor.target import arch as architectures
from raptor.target.device_file import load_device
from raptor.transforms.choose_recipes import RequantMethod

BATCH, SHARE = 16, 4
COMPASS: Mapping[str, tuple[float, float]] = {"vgg16": (1.8, 1.6), "resnet18": (1.7, 1.3), "squeezenet": (2.2, 2.0)}
"""Throughput over first fit, and over one layer a round, in COMPASS's paper."""


@dataclass(frozen=True, slots=True)
class RoundsPoint:
    """Simulated figures of a method: rounds, time of a sample with and without writing in ns, energy in pJ."""

    rounds: int
    sample_ns: float
    without_ns: float
    sample_pj: float
    seconds: float


def cores_needed(model: Path, chip: Mapping[str, Any]) -> int:
    """Returns the fewest cores that hold the model."""
    try:
        raptor.compile(model, **chip, cores=1)
    except CapacityError as error:
        return error.needed
    return 1


def measure_rounds(model: Path, chip: Mapping[str, Any], folder: Path, **options: Any) -> RoundsPoint:
    """Compiles, saves and simulates a model in rounds."""
    start = time.process_time()
    out = raptor.compile(model, **chip, rounds=True, batch=BATCH, **options).save(
        folder / "out", stream_format="pim", weight_format="npz", force=True
    )
    seconds = time.process_time() - start
    found = raptor.simulate(out, mode="throughput").reloading
    assert found is not None, "the model has rounds"
    return RoundsPoint(len(found.rounds), found.sample_ns, found.without_ns, found.sample_pj or 0.0, seconds)


def bound_ns(model: Path, chip: Mapping[str, Any], device: str) -> float:
    """Returns a lower bound on the time of a sample: the work of all layers, spread evenly over all cores."""
    units = divide_into_units(str(model), ModelInputs(), lambda _: None)
    target = architectures.load(chip["arch"], cores=chip["cores"], xbars_per_core=chip["xbars_per_core"])
    ranges = RangeEstimates(units, target, load_device(device), DEFAULT_STRATEGY, RequantMethod("exact"), BATCH)
    return ranges.least(0, len(units.nodes)) / BATCH


def format_rows(name: str, xbars: int, device: str, folder: Path) -> Iterator[str]:
    """Yields a row of the table for each method."""
    model = folder / f"{name}.onnx"
    model.write_bytes(models.build(name).SerializeToString())
    chip = {"arch": "bench", "xbars_per_core": xbars}
    needed = cores_needed(model, chip)
    chip |= {"cores": max(1, needed // SHARE)}
    points = {method: measure_rounds(model, chip, folder, device=device, cuts=method) for method in CUTS.choices}
    best, least = points["best"].sample_ns, bound_ns(model, chip, device)
    for method, p in points.items():
        own = f"{name} | {chip['cores']} of {needed} x {xbars} | {device} | {method}"
        times = " | ".join(f"{ns / 1e6:.3f}" for ns in (p.sample_ns, p.without_ns, least))
        ratio = f"{p.sample_ns / best:.2f}"
        yield f"| {own} | {p.rounds} | {times} | {p.sample_pj / 1e9:.3f} | {ratio} | {p.seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(COMPASS), choices=list(COMPASS))
    parser.add_argument("--xbars", nargs="+", type=int, default=[64, 16], help="crossbars of a core")
    parser.add_argument("--devices", nargs="+", default=["reram-puma", "sram"])
    args = parser.parse_args()
    print(
        "| model | cores | device | cuts | rounds | ms a sample | without writing | bound | mJ | time / best | CPU s |"
    )
    print("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            for xbars in args.xbars:
                for device in args.devices:
                    for row in format_rows(name, xbars, device, Path(folder)):
                        print(row, flush=True)
            first, each = COMPASS[name]
            print(f"| {name} | COMPASS | | over first-fit {first}, over each-layer {each} | | | | | | | |", flush=True)


if __name__ == "__main__":
    main()
