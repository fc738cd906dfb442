"""Power over time: the energy of a run in windows of equal length, by part of the chip or by core."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from validator.simulate.analysis import energy
from validator.simulate.analysis.energy import SampleEnergy
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun, make_kernel_program
from validator.simulate.cycle.state_tables import CoreColumn, CountColumn, PortColumn

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PARTS = tuple(f.name for f in fields(SampleEnergy))
"""The parts of the energy of a sample, which are the rows of a curve by part."""
DEFAULT_WINDOW_NS = 1000.0
MOST_WINDOWS = 1_000_000

_PART_OF = {
    CountColumn.CROSSBAR_PASSES: "products",
    CountColumn.VECTOR_STEPS: "vector",
    CountColumn.LOCAL_READ_BEATS: "local_memory",
    CountColumn.LOCAL_WRITE_BEATS: "local_memory",
    CountColumn.GLOBAL_READ_BEATS: "global_memory",
    CountColumn.GLOBAL_WRITE_BEATS: "global_memory",
    CountColumn.NETWORK_PJ: "network",
    CountColumn.INSTRUCTIONS: "fetch",
}
"""Use of the chip -> the part of the energy that it belongs to."""


@dataclass(frozen=True, slots=True, eq=False)
class ChipActivity:
    """A run whose energy is to be placed in time: one sample alone, or the interval of a steady state.

    `weights`: runs of each core's stream in `time_ns`. `accesses`: accesses counted by the model in that time, a row
    for each core (columns `PortColumn`). In a steady state times are folded modulo `time_ns`.
    """

    machine: CycleModel
    run: CycleRun
    time_ns: float
    weights: Floats
    accesses: Floats
    is_steady: bool


@dataclass(frozen=True, slots=True, eq=False)
class PowerCurve:
    """Energy in windows of `window_ns`, of which the last one may be shorter. `energy_pj`: [rows, windows]."""

    window_ns: float
    time_ns: float
    energy_pj: Floats

    @property
    def edges_ns(self) -> Floats:
        """Begin of each window, and the end of the last one."""
        edges = np.empty(self.energy_pj.shape[1] + 1)
        edges[:-1] = np.arange(len(edges) - 1, dtype=np.float64) * self.window_ns
        edges[-1] = self.time_ns
        return edges

    @property
    def watts(self) -> Floats:
        """Mean power in each window, W: [rows, windows]."""
        return self.energy_pj / np.diff(self.edges_ns) / 1000


@dataclass(frozen=True, slots=True)
class PowerFigures:
    """Mean power of a run, and its highest mean power in a window that is not cut short by the end, W.

    `peak_start_ns`: the begin of that window, of `window_ns`.
    """

    average_w: float
    peak_w: float
    peak_start_ns: float
    window_ns: float


def make_sample_activity(machine: CycleModel, run: CycleRun) -> ChipActivity:
    """Returns the activity of one sample alone, for its power over time."""
    latency_ns = run.last_tick * machine.period_ns
    return ChipActivity(
        machine, run, latency_ns, np.ones(machine.core_count), run.port.astype(np.float64), is_steady=False
    )


def count_windows(time_ns: float, window_ns: float) -> int:
    """Returns the number of windows in `time_ns`; a rest below a millionth of a window is rounding, and none."""
    return max(1, math.ceil(time_ns / window_ns - 1e-6))


def widen_window(time_ns: float, window_ns: float, most: int) -> float:
    """Returns `window_ns` times the least power of ten with which there are at most `most` windows."""
    while count_windows(time_ns, window_ns) > most:
        window_ns *= 10
    return window_ns


def make_curve_by_part(active: ChipActivity, window_ns: float) -> PowerCurve:
    """Returns the energy by part: row k belongs to `PARTS[k]`."""
    return _make_curve(active, window_ns, np.arange(len(PARTS)))


def make_total_curve(active: ChipActivity, window_ns: float) -> PowerCurve:
    """Returns the energy of the whole chip, in one row."""
    return _make_curve(active, window_ns, np.zeros(len(PARTS), np.int64))


def _make_curve(active: ChipActivity, window_ns: float, row_of_part: Ints) -> PowerCurve:
    machine, port = active.machine, active.accesses
    rows = np.tile(row_of_part, (machine.core_count, 1))
    curve = _place_instructions(active, window_ns, rows, int(row_of_part.max()) + 1)
    row, edges = dict(zip(PARTS, row_of_part.tolist(), strict=True)), curve.edges_ns
    mw = energy.access_powers_mw(machine.chip.target.core.power)
    for name, columns in _ACCESS_COLUMNS.items():
        pj = sum((port[:, column] * mw[column] for column in columns), np.zeros(len(port))) * machine.period_ns
        curve.energy_pj[row[name]] += np.diff(_accumulate(active, pj, edges))
    curve.energy_pj[row["static"]] += energy.static_mw(machine.chip.target, machine.core_count) * np.diff(edges)
    return curve


def make_curve_by_core(active: ChipActivity, window_ns: float) -> PowerCurve:
    """Returns the energy by core: row i belongs to core i of the program. Static power of global memory is in none."""
    machine = active.machine
    rows = np.repeat(np.arange(machine.core_count)[:, None], len(PARTS), axis=1)
    curve = _place_instructions(active, window_ns, rows, machine.core_count)
    edges, mw = curve.edges_ns, energy.access_powers_mw(machine.chip.target.core.power)
    pj = sum((active.accesses[:, k] * mw[k] for k in mw), np.zeros(machine.core_count)) * machine.period_ns
    shares = np.clip(edges[None, :] / _access_ends_ns(active)[:, None], 0.0, 1.0)
    curve.energy_pj[:] += pj[:, None] * np.diff(shares, axis=1)
    alone = energy.static_mw(machine.chip.target, 1) - energy.static_mw(machine.chip.target, 0)
    curve.energy_pj[:] += alone * np.diff(edges)
    return curve


def find_power_figures(curve: PowerCurve, energy_pj: float) -> PowerFigures:
    """Returns average and peak of a curve whose rows together are the energy of the run, `energy_pj`."""
    watts = curve.watts.sum(axis=0)
    is_cut = len(watts) > 1 and curve.time_ns - curve.edges_ns[-2] < curve.window_ns * (1 - 1e-6)
    at = int(np.argmax(watts[:-1] if is_cut else watts))
    average = energy_pj / curve.time_ns / 1000
    return PowerFigures(average, float(watts[at]), float(curve.edges_ns[at]), curve.window_ns)


_ACCESS_COLUMNS: dict[str, Sequence[PortColumn]] = {
    "decode": (PortColumn.DECODES,),
    "register_file": (PortColumn.READS, PortColumn.WRITES),
    "scalar": (PortColumn.SCALARS,),
}


def _place_instructions(active: ChipActivity, window_ns: float, rows: Ints, row_count: int) -> PowerCurve:
    """Spreads the energy of each instruction over the time in which its unit works."""
    from validator.simulate.analysis.power_kernels import add_energy  # pyright: ignore[reportUnknownVariableType] a kernel

    machine, run = active.machine, active.run
    out = np.zeros((row_count, count_windows(active.time_ns, window_ns)))
    part = np.array([PARTS.index(_PART_OF[column]) for column in CountColumn], np.int64)
    period_ps = round(machine.period_ns * 1000)
    add_energy(
        machine.numbers,
        make_kernel_program(machine),
        machine.first,
        machine.network.energy_table,
        np.array(energy.unit_prices_pj(machine.chip.target)),
        part,
        active.weights,
        run.end - period_ps,
        run.busy,
        active.time_ns * 1000,
        window_ns * 1000,
        rows.astype(np.int64),
        np.zeros(len(CountColumn)),
        np.zeros(3, np.int64),
        np.zeros((out.shape[0], out.shape[1] + 1)),
        out,
    )
    return PowerCurve(window_ns, active.time_ns, out)


def _access_ends_ns(active: ChipActivity) -> Floats:
    """Returns the end of the time over which the accesses of each core are spread, since their times are not known."""
    if active.is_steady:
        return np.full(active.machine.core_count, active.time_ns)
    finish = active.run.core[:, CoreColumn.FINISH] * active.machine.period_ns
    return np.minimum(np.maximum(finish, active.machine.period_ns), active.time_ns).astype(np.float64)


def _accumulate(active: ChipActivity, pj: Floats, edges_ns: Floats) -> Floats:
    """Returns the energy until each edge, if core i takes `pj[i]` evenly until the end of its accesses."""
    ends = _access_ends_ns(active)
    order = np.argsort(ends, kind="stable")
    done = np.concatenate([[0.0], np.cumsum(pj[order])])
    rates = (pj / ends)[order]
    left = np.append(np.cumsum(rates[::-1])[::-1], 0.0)
    ended = np.searchsorted(ends[order], edges_ns, side="right")
    return np.add(done[ended], edges_ns * left[ended], dtype=np.float64)
