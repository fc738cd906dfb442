"""Measures the programs of `generator` in pimsim-nn and writes data/figures.json. For developers; takes some minutes.

python -m tests.validator.simulate.measure /path/to/ChipTest ordered.so [--latency 400] [--throughput 50] [--widths 60]

`ordered.so` is made from `ordered.c` beside this file, which says why.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.validator.simulate.figures import FIGURES, digest
from tests.validator.simulate.generator import Case, random_case, widths_case, write
from validator.simulate.builtin import simulate

FIRST_THROUGHPUT_SEED = 1000
ROUNDS = (150, 600)
CONDITIONS = (
    "pimsim-nn, HEAPLab fork, commit f7446df, Release build with its own SystemC 2.3.4, x86_64 Linux; "
    "latency: seed -> [latency ms, energy pJ] in sim_mode 1; "
    "throughput: seed -> [sim_time ms, rounds, energy pJ of a round] for two values of sim_time in sim_mode 0; "
    "ordered: as latency, with addresses in the order of allocation (ordered.c), for the programs whose figures change "
    "by it; widths: the same for programs with many setbw and rob_size 1 to 16; "
    "digest: of the programs and chips, so that figures and generator cannot drift apart"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("allocator", type=Path)
    parser.add_argument("--latency", type=int, default=400)
    parser.add_argument("--throughput", type=int, default=50)
    parser.add_argument("--widths", type=int, default=60)
    options = parser.parse_args()
    binary, allocator = options.binary, options.allocator.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = {str(s): random_case(s) for s in range(options.latency)}
        latency = {s: _latency(binary, folder / f"l{s}", case) for s, case in programs.items()}
        ordered = {s: _latency(binary, folder / f"o{s}", case, allocator) for s, case in programs.items()}
        ordered = {s: found for s, found in ordered.items() if found[0] != latency[s][0]}
        widths = {str(s): _latency(binary, folder / f"w{s}", widths_case(s), allocator) for s in range(options.widths)}
        seeds = range(FIRST_THROUGHPUT_SEED, FIRST_THROUGHPUT_SEED + options.throughput)
        throughput = {str(s): _throughput(binary, folder / f"t{s}", s) for s in seeds}
    figures: dict[str, Any] = {"conditions": CONDITIONS, "latency": latency, "throughput": throughput}
    figures |= {"ordered": ordered, "widths": widths}
    figures["digest"] = digest(figures)
    FIGURES.write_text(json.dumps(figures).replace('"latency"', '\n"latency"').replace("], ", "],\n") + "\n")


def _latency(binary: Path, folder: Path, case: Case, allocator: Path | None = None) -> list[float]:
    write(case, folder)
    report = _run(binary, folder, allocator)
    return [_figure(report, "latency"), _figure(report, "average energy")]


def _throughput(binary: Path, folder: Path, seed: int) -> list[list[float]]:
    case = random_case(seed, mode=0)
    write(case, folder)
    interval_ms = (simulate(folder, folder / "arch.json", mode="throughput", samples=16).interval_ns or 0) / 1e6
    measured: list[list[float]] = []
    for rounds in ROUNDS:
        time_ms = interval_ms * rounds
        write(case, folder, sim_mode=0, sim_time_ms=time_ms)
        report = _run(binary, folder)
        measured.append(
            [time_ms, round(time_ms / _figure(report, "average latency")), _figure(report, "average energy")]
        )
    return measured


def _run(binary: Path, folder: Path, allocator: Path | None = None) -> str:
    command = [str(binary), str(folder), str(folder / "arch.json")]
    environment = os.environ | ({"LD_PRELOAD": str(allocator)} if allocator else {})
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def _figure(report: str, name: str) -> float:
    found = re.search(rf"- {name}: +([-+.e\d]+)", report)
    assert found is not None, f"no {name} in the report"
    return float(found[1])


if __name__ == "__main__":
    main()
