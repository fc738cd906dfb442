"""Load, simulate and check the programs of built-in models and print one table: `make bench-simulate`.

Commands are whole cold processes, medians over their runs. Machines differ and are shared, so the baseline is measured
in the same run: a plain Python loop over the records of the program that counts cycles by opcode, or the real
simulator with `--pimsim PATH` (ResNet-18 takes it minutes: it runs once).
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import models
from benchmarks.speed.measured_commands import CommandRun, compile_command, run_command
from raptor.target.isa import Records
from validator.program.pimsim_program import read_program
from validator.simulate import builtin
from validator.simulate.pimsim import simulate_with_pimsim as run_pimsim

_SAMPLE = 200_000
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class PimsimResult:
    """Results of the real simulator for the program, and its run time in seconds."""

    wall_s: float
    latency_ms: float
    energy_pj: float


@dataclass(frozen=True, slots=True)
class SimulationRow:
    """Results of one model and stream format. `latency_ms`, `energy_pj`: by our model."""

    model: str
    streams: str
    instructions: int
    simulate: CommandRun
    check: CommandRun
    python_loop_s: float
    latency_ms: float
    energy_pj: float
    pimsim: PimsimResult | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["lenet5", "squeezenet", "resnet18"])
    parser.add_argument("--repeat", type=int, default=5, help="runs of each command; the median counts")
    parser.add_argument("--pimsim", type=Path, help="the simulator's ChipTest, as the baseline")
    parser.add_argument("--mapping", default="raptor", help="mapping to compile with; the reference writes the most")
    parser.add_argument("--json", type=Path, help="also write the figures here, to compare two commits")
    args = parser.parse_args()
    rows: list[SimulationRow] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in args.models:
            path = folder / f"{model}.onnx"
            path.write_bytes(models.build(model).SerializeToString())
            real: PimsimResult | None = None
            for streams in ("pim", "json"):
                out = folder / f"{model}-{streams}"
                compile_command(path, out, 1, streams=streams, xbar=128, cores=200, mapping=args.mapping)
                if args.pimsim and real is None:
                    real = run_pimsim_once(args.pimsim, out)
                rows.append(measure(model, out, streams, args.repeat, real))
                print(f"{model} {streams}: {rows[-1].simulate.wall_s:.2f} s", file=sys.stderr, flush=True)
    show(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def measure(model: str, out: Path, streams: str, repeat: int, real: PimsimResult | None) -> SimulationRow:
    report = builtin.simulate(out, out / "arch.json")  # also fills the cache of compiled code
    simulated = _command("simulate", out, repeat)
    return SimulationRow(
        model,
        streams,
        report.instructions,
        simulated,
        _command("check", out, repeat),
        python_loop_s(out),
        (report.latency_ns or 0) / 1e6,
        report.energy_pj or 0,
        real,
    )


def _command(name: str, out: Path, repeat: int) -> CommandRun:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-c",
            "import raptor.tools.cli.app; raptor.tools.cli.app.main()",
            name,
            str(out),
            "-q",
            "--json",
            str(report),
        ]
        return run_command(command, repeat, report)


def python_loop_s(out: Path) -> float:
    """Returns the seconds of a plain Python loop over all instructions, measured on some of them: time is linear."""
    program = read_program(out)
    seconds, count = 0.0, 0
    for records in program.records:
        if count >= _SAMPLE:
            break
        start = time.perf_counter()
        python_loop(records)
        seconds += time.perf_counter() - start
        count += len(records)
    return seconds * program.instruction_count / max(count, 1)


def python_loop(records: Records) -> int:
    """Does the minimum work of a simulator in Python: follow the registers, add up a time for each opcode."""
    registers, cycles = [0] * 256, 0
    for opcode, rd, _rs1, _flags, a, _b, _c, d in records.tolist():
        if opcode == 1:
            registers[rd] = a
        cycles += 1 if opcode < 16 else d
    return cycles


def run_pimsim_once(binary: Path, out: Path) -> PimsimResult:
    """Runs the real simulator once."""
    report = run_pimsim(out, out / "arch.json", binary)
    return PimsimResult(report.seconds["run"], (report.latency_ns or 0) / 1e6, report.energy_pj or 0)


def show(rows: list[SimulationRow]) -> None:
    table = Table(box=box.MARKDOWN, title="seconds: whole cold processes, medians; load, run: stages of simulate")
    for i, name in enumerate(next(_cells(rows[0]))):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*next(_cells(row)).values())
    Console(width=220).print(table)


def _cells(row: SimulationRow) -> Iterator[Mapping[str, str]]:
    ran, real = row.simulate.stages["run"], row.pimsim
    cells = {
        "model": row.model,
        "streams": row.streams,
        "instructions": f"{row.instructions:,}",
        "simulate": f"{row.simulate.wall_s:.2f}",
        "GiB": f"{row.simulate.peak_bytes / _GIB:.2f}",
        "load": f"{row.simulate.stages['load']:.3f}",
        "run": f"{ran:.3f}",
        "M instr/s": f"{row.instructions / ran / 1e6:.1f}",
        "check": f"{row.check.wall_s:.2f}",
        "GiB ": f"{row.check.peak_bytes / _GIB:.2f}",
        "python loop": f"{row.python_loop_s:.2f}",
        "python loop / run": f"{row.python_loop_s / ran:.1f}",
    }
    if real is not None:
        cells |= {
            "pimsim": f"{real.wall_s:.1f}",
            "pimsim / run": f"{real.wall_s / ran:.0f}",
            "pimsim / simulate": f"{real.wall_s / row.simulate.wall_s:.0f}",
            "latency": f"{row.latency_ms / real.latency_ms - 1:+.2e}",
            "energy": f"{row.energy_pj / real.energy_pj - 1:+.2e}",
        }
    yield cells


if __name__ == "__main__":
    main()
