"""Measure the yield of the trained network on many chips, by three methods of repair, and the time: `make bench-yield`.

A chip is good if it reaches 97 % of the test images. Minutes are of a processor: two threads take half of them.
"""

import argparse
import tempfile
from pathlib import Path
from time import process_time

import raptor
from benchmarks.correctness.defects import CHIP, LEAST, quantise_digits
from raptor.tools.repair.draw_defects import DefectRates
from raptor.tools.repair.measure_yield import YieldSource, YieldTask, measure_yield

METHODS = ("nearest", "sums", "crossbars")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200, help="test images to use")
    parser.add_argument("--chips", type=int, default=1000, help="chips of each rate")
    parser.add_argument("--rates", nargs="*", type=float, default=(0.02, 0.05), help="rates of stuck cells")
    parser.add_argument("--workers", type=int, default=1, help="threads that share the chips")
    args = parser.parse_args()
    print("| stuck | repair | chips | good chips, % | 95 % | mean | lowest | minutes of a processor |")
    print("|---:|---|---:|---:|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = raptor.compile(quantise_digits(folder, args.images), **CHIP).save(folder / "out")
        for rate in args.rates:
            start = process_time()
            task = YieldTask(
                rates=(rate,),
                others=DefectRates(),
                methods=METHODS,
                chips=args.chips,
                seed=0,
                least=LEAST,
                candidates=8,
                spare_columns=0,
                workers=args.workers,
            )
            settings = {"encoding": "differential_analog"}
            report = measure_yield(YieldSource(out, folder / "test.npz", None, None, settings), task)
            minutes = f"{(process_time() - start) / 60:.1f}"
            for p in report.points:
                interval = f"{100 * p.interval.low:.1f} to {100 * p.interval.high:.1f}"
                figures = (f"{100 * p.share:.1f}", interval, f"{100 * p.mean:.2f}", f"{100 * p.lowest:.1f}")
                cells = [f"{100 * rate:g} %", p.method, f"{p.chips}", *figures, minutes]
                print("| " + " | ".join(cells) + " |", flush=True)
                minutes = ""


if __name__ == "__main__":
    main()
