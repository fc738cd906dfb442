"""Compare the interval of small blocks of networks with their work spread evenly: `make bench-blocks`.

A layer that does not stream, or runs on one core, shows as a large last column: the interval between samples by the
larger of two bounds, all work spread evenly over the cores and the port of global memory. Every program is validated.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import raptor
from benchmarks.programs.block_models import BLOCKS
from raptor.compiler.analysis.explain import MappingExplanation, explain


def explain_block(name: str, cores: int, folder: Path) -> tuple[str, MappingExplanation]:
    """Compiles and validates a block. Returns the verdict, and the explanation with the bounds."""
    program = raptor.compile(BLOCKS[name](), cores=cores, xbar=128)
    out = program.save(folder / name, stream_format="pim", weight_format="npz")
    return program.validate().verdict, explain(out)


def format_row(name: str, verdict: str, found: MappingExplanation) -> str:
    """Returns a row of the table; times in us."""
    bounds = found.bounds
    times = (found.latency_ns, found.interval_ns, bounds.average, bounds.port)
    ratio = found.interval_ns / max(bounds.average, bounds.port)
    return f"| {name} | {verdict} | {' | '.join(f'{t / 1e3:.1f}' for t in times)} | {bounds.node} | {ratio:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="*", metavar="BLOCK", help=", ".join(BLOCKS))
    parser.add_argument("--cores", type=int, default=64)
    options = parser.parse_args()
    if unknown := [name for name in options.blocks if name not in BLOCKS]:
        parser.error(f"no block {unknown[0]}; there are: {', '.join(BLOCKS)}")
    print("| block | verdict | latency, us | interval, us | even work, us | port, us | busiest for | times |")
    print("|---|---|---:|---:|---:|---:|---|---:|")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in options.blocks or BLOCKS:
            verdict, found = explain_block(name, options.cores, Path(folder))
            print(format_row(name, verdict, found), flush=True)
            failed |= verdict != "pass"
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
