"""Simulates with the built-in model: latency, throughput, energy, use of cores, critical path."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.options import arguments
from raptor.output import files
from raptor.target.arch import Target
from validator.options import FEWEST_ROUNDS, MODE, MOST_ROUNDS, Mode
from validator.program.network_table import MeshTable
from validator.program.pimsim_program import RawProgram, read_program
from validator.simulate.analysis import chrome_trace, critical_path, energy, instruction_nodes
from validator.simulate.analysis.deadlock import make_deadlock_error
from validator.simulate.analysis.efficiency import Efficiency, read_macs
from validator.simulate.analysis.link_use import measure_link_use
from validator.simulate.chip_fit import check_chip_fit
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.state_tables import CoreColumn, RunStop
from validator.simulate.simulation_report import AuxiliaryFigures, CoreUse, SimulationReport

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MODEL_VERSION = 1
ESTIMATOR = f"raptor-cycle-model {MODEL_VERSION}"


def simulate(
    program: str | Path,
    arch: str | Path | None = None,
    *,
    mode: Mode = "latency",
    samples: int = 16,
    trace_file: str | Path | None = None,
) -> SimulationReport:
    """Simulates a program (a directory or a single file) on a chip: an architecture file, or a preset.

    Default of `arch`: the `arch.json` in, or beside, the program.
    `samples`: samples that each core begins, in throughput mode; the interval is measured over the later half.
    Raises `UserError` for bad input and `DeadlockError` with every blocked core.
    """
    mode, samples = MODE.parse(mode), arguments.parse_integer("samples", samples, FEWEST_ROUNDS, MOST_ROUNDS)
    program = arguments.parse_path("program", program)
    trace_file = None if trace_file is None else arguments.parse_new_file("trace_file", trace_file)
    begin = perf_counter()
    chip = simulated_chip.read_simulated_chip(simulated_chip.find_arch_file(program) if arch is None else arch)
    raw = read_program(program)
    machine = cycle_model.build_cycle_model(raw, chip, check_chip_fit(raw, chip))
    of = instruction_nodes.read_provenance(raw, machine)
    loaded = perf_counter()
    counting = energy.needs_counting(chip.target)
    run = cycle_model.run_cycle_model(machine, counting=counting)
    check_ended(machine, run)
    latency_ns = run.last_tick * machine.period_ns
    counts = energy.count_uses(machine)
    used = energy.compute_energy(machine, counts, run.port, latency_ns)
    interval_ns = None
    if mode == "throughput":
        interval_ns, shares, accesses = measure_steady_state(machine, samples, counting)
        used = energy.compute_energy(machine, counts * shares[:, None], accesses, interval_ns)
    ran = perf_counter()
    effective = Efficiency.compute(read_macs(program), interval_ns or latency_ns, used.total)
    credit = critical_path.find_critical_times(machine, run)
    if trace_file is not None:
        chrome_trace.write_chrome_trace(trace_file, machine, run, of)
    done = perf_counter()
    return SimulationReport(
        program=str(program),
        estimator=ESTIMATOR,
        mode=mode,
        latency_ns=latency_ns,
        interval_ns=interval_ns,
        samples_per_s=1e9 / interval_ns if interval_ns else None,
        energy_pj=used.total,
        energy_parts_pj=used.by_part(),
        **(asdict(effective) if effective else {}),
        instructions=raw.instruction_count,
        cores=measure_core_uses(machine, run, counts, latency_ns),
        xbars_used=int(machine.xbars.sum()),
        xbars_available=chip.target.core_count * chip.target.xbars_per_core,
        critical_path_by="node" if of.has_nodes else "instruction",
        critical_path_ns={name: ps / 1000 for name, ps in instruction_nodes.sum_by_node(machine, of, credit).items()},
        seconds={"load": loaded - begin, "run": ran - loaded, "explain": done - ran},
        warnings=machine.warnings,
        links=measure_link_use(machine, chip.target, interval_ns or latency_ns),
        auxiliary={
            name: _simulate_auxiliary(program / name, chip)
            for name in files.AUXILIARY
            if (program / name / files.CONFIG).is_file()
        },
    )


def _simulate_auxiliary(folder: Path, chip: simulated_chip.SimulatedChip) -> AuxiliaryFigures:
    """Returns the figures of a program beside those of a sample."""
    raw = read_program(folder)
    machine = cycle_model.build_cycle_model(raw, chip, check_chip_fit(raw, chip))
    run = cycle_model.run_cycle_model(machine, counting=energy.needs_counting(chip.target))
    check_ended(machine, run)
    latency_ns = run.last_tick * machine.period_ns
    used = energy.compute_energy(machine, energy.count_uses(machine), run.port, latency_ns)
    return AuxiliaryFigures(latency_ns, used.total, raw.instruction_count)


def estimate_program(raw: RawProgram, target: Target, samples: int) -> tuple[float, float, float]:
    """Returns latency (ns), interval (ns) and energy (pJ) of one sample, for a program in memory.

    `samples`: as in `simulate`; with 0 one sample runs alone, and the interval is its latency. Raises as `check_ended`
    does.
    """
    table = MeshTable(target) if target.table is None else target.table
    machine = cycle_model.build_cycle_model(raw, simulated_chip.SimulatedChip(target, table, "", ()))
    counting = energy.needs_counting(target)
    counts = energy.count_uses(machine)
    run = cycle_model.run_cycle_model(machine, counting=counting)
    check_ended(machine, run)
    latency_ns = run.last_tick * machine.period_ns
    if not samples:
        return latency_ns, latency_ns, energy.compute_energy(machine, counts, run.port, latency_ns).total
    interval_ns, shares, accesses = measure_steady_state(machine, samples, counting)
    return (
        latency_ns,
        interval_ns,
        energy.compute_energy(machine, counts * shares[:, None], accesses, interval_ns).total,
    )


def check_ended(machine: CycleModel, run: CycleRun) -> None:
    """Raises `DeadlockError` if the run did not come to its end, or `UserError` if tokens pile up without bound."""
    if run.stop is RunStop.BLOCKED:
        raise make_deadlock_error(machine, run)
    if run.stop is RunStop.QUEUE_FULL:
        raise UserError("a core sends tokens (sync) faster than its switch can deliver them, without bound")


def measure_steady_state(machine: CycleModel, samples: int, counting: bool) -> tuple[float, Floats, Floats]:
    """Measures throughput: interval between samples (ns), runs of each core's stream and accesses counted per interval.

    A sample is done when the slowest core has done it, as in the simulator. Cores that wait for nobody run ahead, so
    they run their stream more than once in an interval. Raises `UserError` if no stream can be run repeatedly.
    """
    run = cycle_model.run_cycle_model(machine, rounds=samples, counting=counting)
    check_ended(machine, run)
    first = samples // 2 - 1
    ticks = (run.marks[:, samples - 1] - run.marks[:, first]) / (samples - 1 - first)
    shares = np.zeros(machine.core_count)
    looping = ticks > 0
    if not looping.any():
        raise UserError("throughput: every stream has one instruction or none, and the simulator runs those only once")
    shares[looping] = ticks.max() / ticks[looping]
    accesses = np.zeros(run.port.shape)
    if counting:
        before = cycle_model.run_cycle_model(machine, rounds=first + 1, counting=True)
        accesses = (run.port - before.port) / (samples - 1 - first)
    return float(ticks.max() * machine.period_ns), shares, accesses


def measure_core_uses(machine: CycleModel, run: CycleRun, counts: Floats, latency_ns: float) -> tuple[CoreUse, ...]:
    """Splits time and energy of each core that has instructions. `counts`: rows of `energy.counts`, one per core."""
    lengths = np.diff(machine.first)
    none = np.zeros_like(run.port[:1])
    uses: list[CoreUse] = []
    for i in np.flatnonzero(lengths):
        times = _times(run.core[i])
        finish = float(run.core[i, CoreColumn.FINISH] * machine.period_ns)
        used = energy.compute_energy(machine, counts[i : i + 1], none, 0.0)
        uses.append(
            CoreUse(
                core=int(machine.cores[i]),
                instructions=int(lengths[i]),
                finish_ns=finish,
                idle_ns=max(0.0, finish - sum(times.values())),
                energy_pj=used.total,
                **times,
            )
        )
    return tuple(uses)


def _times(core: Ints) -> Mapping[str, float]:
    columns = {
        "vector_ns": CoreColumn.BUSY_VECTOR,
        "matrix_ns": CoreColumn.BUSY_MATRIX,
        "transfer_ns": CoreColumn.BUSY_TRANSFER,
        "wait_send_ns": CoreColumn.ON_SEND,
        "wait_recv_ns": CoreColumn.ON_RECV,
        "wait_token_ns": CoreColumn.ON_TOKEN,
    }
    return {name: float(core[column]) / 1000 for name, column in columns.items()}
