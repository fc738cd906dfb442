"""Throughput of several chips beside one chip of the same cores: `make bench-chips`.

Each model is compiled for 144 cores of `bench` (BERT-base: 192) as one chip, and as two and four chips with links of 5,
50 and 500 ns a flit, by the mapping for throughput, and simulated. The simulator has no contention, so where a link is
used for more than all of the time, its capacity bounds the throughput: `at most` is the lower of the two. The last
columns are those of the program for one chip, run on the linked chips: what is lost by a mapping that knows no links.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import models
import raptor

MODELS: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "resnet50": ("resnet50", {}, 144),
    "bert-base": ("bert_tiny", {"depth": 12, "dim": 768, "heads": 12}, 192),
}
"""Name of a row -> built-in model, its options, and the total number of cores."""

LINK_PJ = 13_000


def measure_chips(model: Path, out: Path, **chip: Any) -> str:
    """Compiles and simulates. Returns cells: latency, throughput, use of the busiest link, its limit, CPU seconds."""
    start = time.process_time()
    program = raptor.compile(model, arch="bench", optimize="throughput", effort=1, **chip)
    program.save(out, stream_format="pim", weight_format="npz", force=True)
    seconds = time.process_time() - start
    latency_ms = (raptor.simulate(out).latency_ns or 0.0) / 1e6
    return f"{latency_ms:.3f} | {_throughput(out)} | {seconds:.0f}"


def _throughput(out: Path, arch: Path | None = None) -> str:
    """Returns cells: throughput, use of the busiest link, and the throughput that the link allows."""
    found = raptor.simulate(out, arch=arch, mode="throughput")
    rate, used = 1e9 / (found.interval_ns or 1.0), max((link.share for link in found.links), default=0.0)
    return f"{rate:.1f} | {used:.1%} | {rate / max(1.0, used):.1f}"


def format_rows(name: str, counts: list[int], links: list[str], folder: Path) -> Iterator[str]:
    """Yields a row for one chip, and for each number of chips and link."""
    kind, options, cores = MODELS[name]
    model, alone, out = folder / "model.onnx", folder / "alone", folder / "out"
    model.write_bytes(models.build(kind, **options).SerializeToString())
    yield f"| {name} | 1 x {cores} | - | {measure_chips(model, alone, cores=cores)} | | | |"
    for count, link in product(counts, links):
        found = measure_chips(model, out, cores=cores // count, chips=count, link=f"{link}:{LINK_PJ}")
        unaware = _throughput(alone, out / "arch.json")
        yield f"| {name} | {count} x {cores // count} | {link} | {found} | {unaware} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--chips", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--links", nargs="+", default=["5", "50", "500"], help="ns of a flit")
    args = parser.parse_args()
    titles = "latency ms | samples/s | busiest link | at most | CPU s | unaware: samples/s | busiest link | at most"
    print(f"| model | cores | link ns | {titles} |")
    print(f"|---|---|---:|{'---:|' * 8}")
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            for row in format_rows(name, args.chips, args.links, Path(folder)):
                print(row, flush=True)


if __name__ == "__main__":
    main()
