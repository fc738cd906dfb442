"""Measures commands as whole processes: wall and CPU time, peak memory, and the stages that they report."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_COMPILE = """
import json, sys
from pathlib import Path
from typing import Any
import raptor
from raptor.common.process import gc_policy
from raptor.common.process.forked_task import BackgroundChecks
from raptor.compiler.pass_driver import Driver
model, out, stages, streams, weights, options = sys.argv[1:]
with gc_policy.defer_gc(), BackgroundChecks() as beside:
    driver = Driver(beside=beside)
    program = raptor.compile(model, driver=driver, **json.loads(options))
    driver.timed("write", program.save, out, stream_format=streams, weight_format=weights, force=True)
report = program.report
facts = {"instructions": report.instruction_count, "mvmul": report.instructions.get("mvmul", 0)}
Path(stages).write_text(json.dumps({"seconds": dict(driver.seconds), **facts}))
"""


@dataclass(frozen=True, slots=True)
class CommandRun:
    """Medians over the runs of one command. `stages`: seconds of each stage, as the command reports them.

    `cpu_s` is user and system time of all threads, which other work on the machine changes little.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    stages: Mapping[str, float]
    facts: Mapping[str, int]


def run_command(command: Sequence[str], repeat: int, stages_file: Path) -> CommandRun:
    """Runs a command `repeat` times, each in a new process. `stages_file`: the JSON that the command writes."""
    environment = _environment()
    walls: list[float] = []
    cpus: list[float] = []
    peaks: list[int] = []
    reports: list[dict[str, Any]] = []
    for _ in range(repeat):
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        walls.append(time.perf_counter() - start)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"failed with status {process.returncode}: {' '.join(command)}")
        cpus.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss * 1024)
        reports.append(json.loads(stages_file.read_text()))
    names: Iterable[str] = reports[0].get("seconds", ())
    stages = {name: statistics.median(r["seconds"][name] for r in reports) for name in names}
    facts = {name: value for name, value in reports[0].items() if isinstance(value, int)}
    return CommandRun(statistics.median(walls), statistics.median(cpus), int(statistics.median(peaks)), stages, facts)


def _environment() -> dict[str, str]:
    """Returns the environment without PYTHONDONTWRITEBYTECODE, which would compile all sources in every run."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def time_command(words: Sequence[str], cache: Path) -> tuple[float, float]:
    """Runs `raptor` with the numba cache in `cache`. Returns the wall and the CPU time in seconds."""
    command, start = [sys.executable, "-m", "raptor", *words], time.perf_counter()
    environment = _environment() | {"NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"failed with status {process.returncode}: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def compile_command(
    model: Path, out: Path, repeat: int, *, streams: str = "json", weights: str = "npz", **options: object
) -> CommandRun:
    """Measures the work of `raptor compile` in a new process. CPU time includes its forked child."""
    with tempfile.TemporaryDirectory() as folder:
        stages = Path(folder) / "stages.json"
        args = [str(model), str(out), str(stages), streams, weights, json.dumps(options)]
        return run_command([sys.executable, "-c", _COMPILE, *args], repeat, stages)


def validate_command(out: Path, repeat: int, samples: int | None = None) -> CommandRun:
    """Measures `raptor validate` in a new process. `samples`: None for the default of the command."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "validator", str(out), "--json", str(report), "-q"]
        command += [] if samples is None else ["--samples", str(samples)]
        return run_command(command, repeat, report)


def simulate_command(out: Path) -> Mapping[str, float]:
    """Returns the JSON report of `raptor simulate` about a program."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "raptor", "simulate", str(out), "--json", str(report), "-q"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        return json.loads(report.read_text())
