"""Simulates with the built-in model: latency, throughput, energy, use of cores, critical path."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.options import arguments
from raptor.output import files
from raptor.output.resident_files import ResidentMap
from raptor.target.arch import Target
from raptor.target.arch.chip_area import compute_area
from validator.options import FEWEST_ROUNDS, MODE, MOST_ROUNDS, Mode
from validator.program.network_table import MeshTable
from validator.program.pimsim_program import RawProgram, read_program
from validator.simulate.analysis import chrome_trace, critical_path, energy, instruction_nodes
from validator.simulate.analysis.deadlock import make_deadlock_error
from validator.simulate.analysis.efficiency import read_macs
from validator.simulate.analysis.energy import SampleEnergy
from validator.simulate.analysis.link_use import measure_link_use
from validator.simulate.analysis.mesh_use import measure_mesh_use
from validator.simulate.analysis.power import (
    DEFAULT_WINDOW_NS,
    MOST_WINDOWS,
    ChipActivity,
    PowerCurve,
    find_power_figures,
    make_curve_by_part,
    make_sample_activity,
    make_total_curve,
    widen_window,
)
from validator.simulate.analysis.power_file import check_window_count, write_power_file
from validator.simulate.analysis.token_figures import StepTimes, TokenFigures
from validator.simulate.analysis.uncounted_power import compute_uncounted_power
from validator.simulate.chip_fit import check_chip_fit
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun
from validator.simulate.cycle.state_tables import CoreColumn, RunStop
from validator.simulate.simulation_report import AuxiliaryFigures, CoreUse, SimulationReport, add_rates

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
    power_file: str | Path | None = None,
    window: str | float | None = None,
) -> SimulationReport:
    """Simulates a program (a directory or a single file) on a chip: an architecture file, or a preset.

    Default of `arch`: the `arch.json` in, or beside, the program.
    `samples`: samples that each core begins, in throughput mode; the interval is measured over the later half.
    `power_file`: a path for power over time, by part, in windows of `window` (ns, or text such as "1us"; the
    default), which is also the window of the peak.
    Raises `UserError` for bad input and `DeadlockError` with every blocked core.
    """
    mode, samples = MODE.parse(mode), arguments.parse_integer("samples", samples, FEWEST_ROUNDS, MOST_ROUNDS)
    program = arguments.parse_path("program", program)
    trace_file = None if trace_file is None else arguments.parse_new_file("trace_file", trace_file)
    power_file = None if power_file is None else arguments.parse_new_file("power_file", power_file)
    window_ns = DEFAULT_WINDOW_NS if window is None else arguments.parse_time_ns("window", window)
    begin = perf_counter()
    chip = simulated_chip.read_simulated_chip(simulated_chip.find_arch_file(program) if arch is None else arch)
    raw = read_program(program)
    machine = cycle_model.build_cycle_model(raw, chip, check_chip_fit(raw, chip))
    of = instruction_nodes.read_provenance(raw, machine)
    loaded = perf_counter()
    found = _measure(machine, mode, samples)
    ran = perf_counter()
    credit = critical_path.find_critical_times(machine, found.run)
    curve = _write_power(found.active, power_file, window_ns)
    if trace_file is not None:
        chrome_trace.write_chrome_trace(trace_file, machine, found.run, of, window_ns)
    report = SimulationReport(
        program=str(program),
        estimator=ESTIMATOR,
        mode=mode,
        latency_ns=found.latency_ns,
        interval_ns=found.interval_ns,
        samples_per_s=1e9 / found.interval_ns if found.interval_ns else None,
        energy_pj=found.used.total,
        energy_parts_pj=found.used.by_part(),
        instructions=raw.instruction_count,
        cores=measure_core_uses(machine, found.run, found.counts, found.latency_ns),
        xbars_used=int(machine.xbars.sum()),
        xbars_available=chip.target.core_count * chip.target.xbars_per_core,
        critical_path_by="node" if of.has_nodes else "instruction",
        critical_path_ns={name: ps / 1000 for name, ps in instruction_nodes.sum_by_node(machine, of, credit).items()},
        warnings=(*machine.warnings, *_delay_notes(program)),
        links=measure_link_use(machine, chip.target, found.time_ns),
        auxiliary=_simulate_auxiliaries(program, chip),
    )
    report = add_rates(_with_chip(report, machine, found), found.time_ns, read_macs(program), curve)
    beyond = report.beyond_pimsim.crossbars_in_use.energy_pj if report.beyond_pimsim else None
    times = StepTimes(found.latency_ns, found.interval_ns, found.used.total, beyond, report.critical_path_ns)
    report = replace(report, tokens=TokenFigures.from_times(program, times))
    seconds = {"load": loaded - begin, "run": ran - loaded, "explain": perf_counter() - ran}
    return replace(report, seconds=seconds)


def _with_chip(report: SimulationReport, machine: CycleModel, found: "_Measured") -> SimulationReport:
    """Returns the report with accounts beside the simulator: links of the mesh, uncounted power, area."""
    target, cores = machine.chip.target, int(np.count_nonzero(np.diff(machine.first)))
    mesh, area = measure_mesh_use(machine, found.active.weights, found.time_ns), compute_area(target)
    uncounted = compute_uncounted_power(target, report.xbars_used, cores, found.time_ns, found.used.total)
    return replace(
        report,
        mesh_links=mesh,
        warnings=(*report.warnings, *([mesh.warning] if mesh and mesh.warning else ())),
        beyond_pimsim=uncounted,
        area=area,
        area_mm2=area.area_mm2,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """A run of one sample, and what a sample takes in the mode simulated. `counts`: uses of one run, by core."""

    run: CycleRun
    counts: Floats
    latency_ns: float
    interval_ns: float | None
    used: SampleEnergy
    active: ChipActivity

    @property
    def time_ns(self) -> float:
        return self.interval_ns or self.latency_ns


def _measure(machine: CycleModel, mode: Mode, samples: int) -> _Measured:
    """Runs the model for one sample and, in throughput mode, for many."""
    counting = energy.needs_counting(machine.chip.target)
    run = cycle_model.run_cycle_model(machine, counting=counting)
    check_ended(machine, run)
    latency_ns, counts = run.last_tick * machine.period_ns, energy.count_uses(machine)
    if mode == "throughput":
        steady = measure_steady_state(machine, samples, counting)
        used = steady.compute_energy(machine, counts)
        return _Measured(run, counts, latency_ns, steady.interval_ns, used, steady.activity(machine))
    used = energy.compute_energy(machine, counts, run.port, latency_ns)
    return _Measured(run, counts, latency_ns, None, used, make_sample_activity(machine, run))


def _write_power(active: ChipActivity, path: Path | None, window_ns: float) -> PowerCurve | None:
    """Returns power over time; None for a run without time. Writes it by part to a file if there is a path."""
    if active.time_ns <= 0:
        return None
    if path is None:
        return make_total_curve(active, widen_window(active.time_ns, window_ns, MOST_WINDOWS))
    check_window_count(active.time_ns, window_ns)
    curve = make_curve_by_part(active, window_ns)
    write_power_file(path, curve)
    return curve


def _delay_notes(program: Path) -> tuple[str, ...]:
    """Returns a warning if the samples of a program overlap, because its latency then is that of a pass."""
    if not (program / files.RESIDENT).is_file():
        return ()
    kept = file_access.read_json_file(ResidentMap, program, files.RESIDENT)
    most = max((delay.passes for delay in kept.delays), default=0)
    if not most:
        return ()
    passes = f"{most} pass{'es' if most > 1 else ''}"
    return (f"samples overlap: the latency is that of a pass; an output comes up to {passes} after its sample began",)


def _simulate_auxiliaries(program: Path, chip: simulated_chip.SimulatedChip) -> dict[str, AuxiliaryFigures]:
    folders = {name: program / name for name in files.AUXILIARY}
    return {n: _simulate_auxiliary(f, chip) for n, f in folders.items() if (f / files.CONFIG).is_file()}


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
    steady = measure_steady_state(machine, samples, counting)
    return latency_ns, steady.interval_ns, steady.compute_energy(machine, counts).total


def estimate_peak_w(raw: RawProgram, target: Target) -> float:
    """Returns the highest mean power in a window of `DEFAULT_WINDOW_NS`, W, of one sample of a program in memory.

    Raises as `check_ended` does.
    """
    table = MeshTable(target) if target.table is None else target.table
    machine = cycle_model.build_cycle_model(raw, simulated_chip.SimulatedChip(target, table, "", ()))
    run = cycle_model.run_cycle_model(machine, counting=energy.needs_counting(target))
    check_ended(machine, run)
    active = make_sample_activity(machine, run)
    if not active.time_ns:
        return 0.0
    curve = make_total_curve(active, widen_window(active.time_ns, DEFAULT_WINDOW_NS, MOST_WINDOWS))
    return find_power_figures(curve, float(curve.energy_pj.sum())).peak_w


def check_ended(machine: CycleModel, run: CycleRun) -> None:
    """Raises `DeadlockError` if the run did not come to its end, or `UserError` if tokens pile up without bound."""
    if run.stop is RunStop.BLOCKED:
        raise make_deadlock_error(machine, run)
    if run.stop is RunStop.QUEUE_FULL:
        raise UserError("a core sends tokens (sync) faster than its switch can deliver them, without bound")


@dataclass(frozen=True, slots=True, eq=False)
class SteadyState:
    """Samples one after another: a sample each `interval_ns`.

    `shares`: runs of each core's stream in an interval; `accesses`: accesses counted in an interval (`PortColumn`);
    `run`: the run that was measured, with the times of the last round of each core.
    """

    interval_ns: float
    shares: Floats
    accesses: Floats
    run: CycleRun

    def compute_energy(self, machine: CycleModel, counts: Floats) -> SampleEnergy:
        """Computes the energy of a sample. `counts`: rows of `energy.count_uses`, for one run of each stream."""
        return energy.compute_energy(machine, counts * self.shares[:, None], self.accesses, self.interval_ns)

    def activity(self, machine: CycleModel) -> ChipActivity:
        """Returns the activity of one interval, for its power over time."""
        return ChipActivity(machine, self.run, self.interval_ns, self.shares, self.accesses, is_steady=True)


def measure_steady_state(machine: CycleModel, samples: int, counting: bool) -> SteadyState:
    """Measures throughput.

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
    return SteadyState(float(ticks.max() * machine.period_ns), shares, accesses, run)


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
