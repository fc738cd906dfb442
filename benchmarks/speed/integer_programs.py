"""Programs of integers beside the float program of the same network: part of `make bench`.

The network is quantised by `raptor quantize` (s8s8, scales by channel). Time and memory are those of whole cold
processes, latency and energy those of the built-in simulator. Each ratio is to the float program in the same run.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import models
import raptor
from benchmarks.speed.measured_commands import CommandRun, compile_command, simulate_command, validate_command

FORMS: Mapping[str, Mapping[str, Any]] = {
    "float": {},
    "integers": {},
    "--requant instruction": {"requant": "instruction"},
}
"""Form of the program -> options of its compilation."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class FormCosts:
    """One network in one form. latency_ms, energy_mj: of one sample, by the simulator."""

    compile: CommandRun
    validate: CommandRun
    latency_ms: float
    energy_mj: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["resnet18"])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each command; the median counts")
    parser.add_argument("--cores", type=int, default=200)
    args = parser.parse_args()
    table = Table(
        box=box.MARKDOWN,
        title="integers beside floats: seconds of CPU, GiB, and the chip; in brackets: of the float program",
    )
    for name in ("model", "numbers", "instructions", "compile", "GiB", "validate", "GiB", "latency ms", "energy mJ"):
        table.add_column(name, justify="left" if name in ("model", "numbers") else "right", no_wrap=True)
    for name in args.models:
        rows = measure(name, args.repeat, args.cores)
        for form, row in rows.items():
            table.add_row(name, form, *_cells(row, rows["float"]))
    Console(width=200).print(table)


def measure(name: str, repeat: int, cores: int) -> Mapping[str, FormCosts]:
    """Measures all forms of one of the built-in models."""
    model = models.build(name)
    contents = {True: model.SerializeToString()}
    contents[False] = raptor.quantize(model, samples=2, scheme="s8s8", per_channel=True).onnx_bytes
    found: dict[str, FormCosts] = {}
    with tempfile.TemporaryDirectory() as folder:
        for form, options in FORMS.items():
            path, out = Path(folder) / f"{name}.onnx", Path(folder) / "out"
            path.write_bytes(contents[form == "float"])
            compiled = compile_command(path, out, repeat, streams="pim", xbar=128, cores=cores, **options)
            validated, simulated = validate_command(out, repeat), simulate_command(out)
            found[form] = FormCosts(compiled, validated, simulated["latency_ns"] / 1e6, simulated["energy_pj"] / 1e9)
            print(f"{name}, {form}: compile {compiled.cpu_s:.1f} s of CPU", file=sys.stderr, flush=True)
    return found


def _cells(row: FormCosts, base: FormCosts) -> list[str]:
    def cell(value: float, other: float) -> str:
        return f"{value:.3g} ({value / other:.2f})"

    return [
        f"{row.compile.facts['instructions']:,}",
        cell(row.compile.cpu_s, base.compile.cpu_s),
        cell(row.compile.peak_bytes / _GIB, base.compile.peak_bytes / _GIB),
        cell(row.validate.cpu_s, base.validate.cpu_s),
        cell(row.validate.peak_bytes / _GIB, base.validate.peak_bytes / _GIB),
        cell(row.latency_ms, base.latency_ms),
        cell(row.energy_mj, base.energy_mj),
    ]


if __name__ == "__main__":
    main()
