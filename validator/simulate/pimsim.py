"""Simulates with the real simulator: runs pimsim-nn's ChipTest and reads its report.

In throughput mode the simulator runs for a given time, and prints this time by the number of samples that all cores
have done. The time in which the first sample fills the chip is in it, which is that of many samples in a program whose
samples overlap. So it runs twice, for two times, and what a sample takes is read from the differences.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import orjson

from raptor.common.errors import RaptorError, UserError
from raptor.output import files
from raptor.target import arch as architectures
from raptor.target import encoding
from raptor.target.arch import NETWORK_FILE
from raptor.target.isa import RECORD
from validator.errors import BlockedCore, DeadlockError
from validator.options import Mode
from validator.program.network_table import MeshTable
from validator.program.pimsim_program import RawProgram, read_program
from validator.simulate.analysis.efficiency import read_macs
from validator.simulate.analysis.uncounted_power import compute_uncounted_power
from validator.simulate.builtin import simulate as estimate
from validator.simulate.chip_fit import check_chip_fit
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.simulation_report import SimulationReport, add_rates

ESTIMATOR = "pimsim-nn"

_UNFINISHED = re.compile(r"core (\d+) \(pc=(\d+)")
_ROUNDS = re.compile(r"Core (\d+) Information\s+- rounds: +(\d+) samples")
_MARGIN = 2.0
_PER_CORE = 1
"""Level of the simulator's report that tells the rounds of each core."""


@dataclass(frozen=True, slots=True, eq=False)
class _LoopedRun:
    """A run for `time_ns`. `rounds`: how often each core has done its stream; `energy_pj`: of all cores, in all."""

    time_ns: float
    rounds: dict[int, int]
    energy_pj: float

    @classmethod
    def from_report(cls, text: str, time_ns: float, looping: set[int]) -> "_LoopedRun":
        """Reads the simulator's report of a run. `looping`: the cores that do their stream again and again.

        Raises `UserError` if a core has not done it once.
        """
        rounds = {int(core): int(count) for core, count in _ROUNDS.findall(text)}
        done = {core: rounds.get(core, 0) for core in looping}
        if not all(done.values()):
            raise UserError("throughput: a core has not done its stream once; simulate more samples (--samples)")
        # The simulator prints the energy by the rounds of the slowest core.
        return cls(time_ns, done, _figure(text, "average energy") * min(done.values()))

    def measure_sample(self, later: "_LoopedRun") -> tuple[float, float]:
        """Returns the time in ns and the energy in pJ of a sample between the ends of this run and of a later one.

        All cores that do not run ahead do a sample in an interval, each at another time. So the mean of their counts
        tells the interval more exactly than the count of one.
        """
        grown = {core: later.rounds[core] - count for core, count in self.rounds.items()}
        least = min(grown.values())
        if least < 1:
            raise UserError("throughput: no sample ended between two runs; simulate more samples (--samples)")
        together = [count for count in grown.values() if count <= least + 1]
        samples = sum(together) / len(together)
        return (later.time_ns - self.time_ns) / samples, (later.energy_pj - self.energy_pj) / samples


def simulate_with_pimsim(
    program: Path, arch: str | Path, binary: Path, *, mode: Mode = "latency", samples: int = 16
) -> SimulationReport:
    """Runs the simulator `binary` on a program.

    In throughput mode it runs until the built-in model expects the ends of half of `samples` samples, and of all of
    them; an interval is the time of a sample between both. Raises `UserError` if it cannot be run or refuses the
    program, `DeadlockError` if the program does not end.
    """
    raw = read_program(program)
    wanted = simulated_chip.read_simulated_chip(arch)
    machine = cycle_model.build_cycle_model(raw, wanted, check_chip_fit(raw, wanted))
    expected = _expected(program, arch, mode, samples)
    with tempfile.TemporaryDirectory(prefix="raptor-pimsim-") as name:
        folder = Path(name)
        own = _own_files(arch, wanted, folder)
        target = _without_extensions(raw, machine, folder / "program")
        times_ms = _times_ms(expected, samples) if mode == "throughput" else (None,)
        begin, texts = perf_counter(), list[str]()
        for sim_time_ms in times_ms:
            (folder / "arch.json").write_bytes(_arch(own, sim_time_ms, expected))
            texts.append(_run([str(binary), str(target), str(folder / "arch.json")]))
        seconds = perf_counter() - begin
    if mode == "throughput":
        looping = {int(machine.cores[i]) for i in np.flatnonzero(np.diff(machine.first) > 1)}
        runs = [_LoopedRun.from_report(t, (ms or 0.0) * 1e6, looping) for t, ms in zip(texts, times_ms, strict=True)]
        ns, energy_pj = runs[0].measure_sample(runs[1])
    else:
        ns, energy_pj = _figure(texts[0], "latency") * 1e6, _figure(texts[0], "average energy")
    cores, xbars = int(np.count_nonzero(np.diff(machine.first))), int(machine.xbars.sum())
    report = SimulationReport(
        program=str(program),
        estimator=ESTIMATOR,
        mode=mode,
        latency_ns=ns if mode == "latency" else None,
        interval_ns=ns if mode == "throughput" else None,
        samples_per_s=1e9 / ns if ns and mode == "throughput" else None,
        energy_pj=energy_pj,
        instructions=raw.instruction_count,
        seconds={"run": seconds},
        warnings=machine.warnings,
        beyond_pimsim=compute_uncounted_power(wanted.target, xbars, cores, ns, energy_pj),
    )
    return add_rates(report, ns, read_macs(program))


def _own_files(arch: str | Path, wanted: simulated_chip.SimulatedChip, folder: Path) -> Path:
    """Returns the path of the architecture file.

    With the built-in mesh, the architecture and its network table are first written to `folder`.
    """
    if not isinstance(wanted.table, MeshTable):
        return Path(arch)
    preset = architectures.load(arch)
    path = folder / "preset.json"
    path.write_bytes(architectures.arch_json(preset))
    with (folder / NETWORK_FILE).open("wb") as stream:
        stream.writelines(architectures.write_network(preset))
    return path


def _expected(program: Path, arch: str | Path, mode: Mode, samples: int) -> SimulationReport | None:
    try:
        return estimate(program, arch, mode=mode, samples=samples)
    except DeadlockError:
        if mode == "throughput":
            raise  # the simulator would not notice
        return None
    except RaptorError:
        return None


def _times_ms(expected: SimulationReport | None, samples: int) -> tuple[float, float]:
    """Returns the times in ms after which half of the samples, and all of them, should have ended."""
    if expected is None or not expected.latency_ns or not expected.interval_ns:
        return 1.0, 2.0
    each = expected.interval_ns / 1e6
    half = expected.latency_ns / 1e6 + (samples - samples // 2) * each
    return half, half + samples // 2 * each


def _arch(path: Path, sim_time_ms: float | None, expected: SimulationReport | None) -> bytes:
    """Returns the architecture file for the simulator: with mode, times, and an absolute path of its network table.

    `sim_time_ms`: time of a run in throughput mode; None for latency mode.
    """
    raw: dict[str, Any] = orjson.loads(path.read_bytes())
    sim = raw.setdefault("sim_config", {})
    sim |= {"sim_mode": int(sim_time_ms is None), "report_verbose_level": 0 if sim_time_ms is None else _PER_CORE}
    if sim_time_ms is not None:
        sim["sim_time"] = sim_time_ms
    if expected is not None and expected.latency_ns:
        sim["latency_timeout_ms"] = _MARGIN * expected.latency_ns / 1e6 + 1
    network = raw["chip_config"]["network_config"]
    network["net_config_file_path"] = str((path.parent / network["net_config_file_path"]).resolve())
    return orjson.dumps(raw)


def _without_extensions(raw: RawProgram, machine: cycle_model.CycleModel, folder: Path) -> Path:
    """Returns the program itself, or a copy in `folder` with stand-ins for instructions that the simulator refuses."""
    same = all(
        np.array_equal(raw.records[int(core)]["opcode"], machine.opcodes[machine.first[i] : machine.first[i + 1]])
        for i, core in enumerate(machine.cores)
    )
    if same or not raw.source.is_dir():
        return raw.source
    folder.mkdir()
    (folder / files.CONFIG).symlink_to((raw.source / files.CONFIG).resolve())
    for i, core in enumerate(machine.cores):
        words = np.ascontiguousarray(machine.words[machine.first[i] : machine.first[i + 1]])
        records = words.view(RECORD).reshape(len(words))
        (folder / files.stream_name(int(core), "json")).write_bytes(encoding.encode_json(records))
    return folder


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise UserError(f"--pimsim {command[0]}: {e.strerror or e}") from e
    if done.returncode == 0:
        return done.stdout
    unfinished = _UNFINISHED.findall(done.stderr) if "did not complete" in done.stderr else []
    if unfinished:
        raise DeadlockError(tuple(BlockedCore(int(c), int(pc), "being fetched", "ever") for c, pc in unfinished))
    raise UserError(f"{command[0]}: {done.stderr.strip()[-500:] or f'ended with status {done.returncode}'}")


def _figure(text: str, name: str) -> float:
    found = re.search(rf"- {name}: +([-+.e\d]+)", text)
    if found is None:
        raise UserError(f"the simulator's report has no {name}")
    return float(found[1])
