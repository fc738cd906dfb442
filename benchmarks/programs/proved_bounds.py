"""Compile built-in models and print, as a table, how near each program is to the bound that holds for every mapping:
`make bench-proved` (docs/explanation/bounds.md).

Beside the interval of the built-in simulator stand the even work of the program and the proved bound of `raptor
explain`, whose certificate is checked again. The last line has the geometric means.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import get_args

import models
import raptor
from benchmarks.programs.interval_limits import format_line
from raptor.common.options.option_values import Objective
from raptor.compiler.analysis.explain import explain
from raptor.output import files
from validator.bounds.certificate import read_json, read_model, verify

MODELS = (
    "resnet18",
    "resnet50",
    "vgg16",
    "googlenet",
    "squeezenet",
    "mobilenet_v2",
    "efficientnet_b0",
    "densenet121",
    "shufflenet_v2",
    "unet",
)
HEAD = ("model", "interval, ms", "even work, ms", "proved bound, ms", "bound / interval", "bound / even work")


@dataclass(frozen=True, slots=True)
class ProvedRow:
    """Times of a model, in ns."""

    model: str
    interval_ns: float
    average_ns: float
    bound_ns: float

    def format_cells(self) -> tuple[str, ...]:
        """Returns the cells of a line of the table."""
        times = (self.interval_ns, self.average_ns, self.bound_ns)
        shares = (self.bound_ns / self.interval_ns, self.bound_ns / self.average_ns)
        return self.model, *(f"{ns / 1e6:.3g}" for ns in times), *(f"{share:.2f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--arch", default="bench", help="architecture file, or preset")
    parser.add_argument("--cores", type=int, default=200, help="cores of the chip")
    parser.add_argument("--optimize", choices=get_args(Objective), help="search for the mapping")
    args = parser.parse_args()
    print(format_line(HEAD), format_line(("---", *["---:"] * (len(HEAD) - 1))), sep="\n", flush=True)
    rows: list[ProvedRow] = []
    for name in args.models:
        rows.append(measure(name, args.arch, args.cores, args.optimize))
        print(format_line(rows[-1].format_cells()), flush=True)
    of_interval = _mean([row.bound_ns / row.interval_ns for row in rows])
    of_work = _mean([row.bound_ns / row.average_ns for row in rows])
    print(format_line(("geometric mean", "", "", "", f"{of_interval:.2f}", f"{of_work:.2f}")), flush=True)


def measure(name: str, arch: str, cores: int, optimize: Objective | None = None) -> ProvedRow:
    """Compiles a model, explains the program, and checks the certificate of the bound."""
    program = raptor.compile(models.build(name), arch=arch, cores=cores, optimize=optimize)
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", stream_format="pim", weight_format="npz")
        proof = Path(folder) / "proof.json"
        found = explain(out, certificate=proof)
        bound: Fraction = verify(read_model(out / files.MODEL), read_json(out / files.ARCH), read_json(proof))
    return ProvedRow(name, found.interval_ns, found.bounds.average, float(bound))


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


if __name__ == "__main__":
    main()
