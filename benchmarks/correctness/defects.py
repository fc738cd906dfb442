"""Measure the trained network on chips with defects: `make bench-defects`.

Two tables. Random chips by rate of stuck cells and by method of repair: top-1, and the share of chips that are good
enough. Latency with dead cores, for which the model is compiled again.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import raptor
from models.trained import MODEL, load_images
from raptor.target import arch
from raptor.target.chip_file import chip_to_json
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.measure_yield import YieldSource, YieldTask, measure_yield

CHIP: dict[str, Any] = {"xbar": 128, "cores": 64, "cell_bits": 4}
RATES = (0.01, 0.02, 0.05)
METHODS = ("written", "nearest", "signs", "sums", "crossbars")
LEAST = 0.97
DEAD = (0, 4, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200, help="test images to use")
    parser.add_argument("--chips", type=int, default=10, help="chips of each rate")
    parser.add_argument("--rates", nargs="*", type=float, default=RATES, help="rates of stuck cells")
    parser.add_argument("--seeds", type=int, default=2, help="chips of each number of dead cores")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = quantise_digits(folder, args.images)
        out = raptor.compile(model, **CHIP).save(folder / "out")
        if args.rates:
            print_stuck(out, folder / "test.npz", args.rates, args.chips)
        if args.seeds:
            print_dead(model, folder, args.seeds)


def quantise_digits(folder: Path, images: int) -> Path:
    """Writes the network of the digits in int8, and `images` test images as `test.npz`. Returns the model's file."""
    training, test = load_images()
    np.savez(folder / "calibration.npz", image=training.pixels[:200])
    np.savez(folder / "test.npz", x=test.pixels[:images], y=test.digits[:images])
    return raptor.quantize(MODEL, data=folder / "calibration.npz", per_channel=True).save(folder / "int8.onnx")


def print_stuck(out: Path, data: Path, rates: Sequence[float], chips: int) -> None:
    task = YieldTask(
        rates=rates,
        others=DefectRates(),
        methods=METHODS,
        chips=chips,
        seed=0,
        least=LEAST,
        candidates=8,
        spare_columns=0,
    )
    report = measure_yield(YieldSource(out, data, None, None, {"encoding": "differential_analog"}), task)
    print("| stuck | repair | mean | lowest | good chips | 95 % |\n|---:|---|---:|---:|---:|---|")
    for p in report.points:
        interval = f"{p.interval.low:.2f} to {p.interval.high:.2f}"
        cells = (f"{100 * p.stuck:g} %", p.method, f"{100 * p.mean:.1f}", f"{100 * p.lowest:.1f}", f"{p.share:.2f}")
        print("| " + " | ".join([*cells, interval]) + " |", flush=True)
    print()


def print_dead(model: Path, folder: Path, seeds: int) -> None:
    """Prints the latency for numbers of dead cores: mean and largest over random chips."""
    size, base = make_size(arch.load("bench", **CHIP), 2), 0.0
    print("| dead cores | latency | largest | times that without |\n|---:|---:|---:|---:|", flush=True)
    for dead in DEAD:
        found: list[float] = []
        for seed in range(seeds if dead else 1):
            chip = folder / "chip.json"
            chip.write_bytes(chip_to_json(draw_chip(size, DefectRates(dead_cores=dead), seed)))
            program = raptor.compile(model, **CHIP, chip=chip)
            found.append((program.simulate().latency_ns or 0.0) / 1000)
        base = base or found[0]
        mean = statistics.mean(found)
        print(f"| {dead} of 64 | {mean:.1f} us | {max(found):.1f} us | {mean / base:.3f} |", flush=True)


if __name__ == "__main__":
    main()
