"""Power of a program over time, by part of the chip and by core, and use of the links of the mesh."""

import numpy as np

from validator.profile.profile_results import PowerProfile
from validator.profile.profiled_program import ProfiledProgram
from validator.profile.timeline import choose_bin_count
from validator.simulate.analysis import energy, power
from validator.simulate.analysis.mesh_use import measure_mesh_use
from validator.simulate.analysis.power import ChipActivity, PowerFigures
from validator.simulate.analysis.uncounted_power import compute_uncounted_power


def profile_power(read: ProfiledProgram) -> PowerProfile | None:
    """Returns the power of one sample over time, with the figures of samples that follow one another; None untimed."""
    machine, run = read.machine, read.run
    if run is None or not run.last_tick:
        return None
    alone = power.make_sample_activity(machine, run)
    streaming = None if isinstance(read.steady, str) else read.steady.activity(machine)
    live = np.flatnonzero(np.diff(machine.first))
    bin_ns = alone.time_ns / choose_bin_count(len(live))
    by_core = power.make_curve_by_core(alone, bin_ns)
    busiest = streaming or alone
    counted_pj = energy.compute_energy(machine, energy.count_uses(machine), run.port, alone.time_ns).total
    return PowerProfile(
        by_part=power.make_curve_by_part(alone, bin_ns),
        cores=tuple(int(core) for core in machine.cores[live]),
        core_watts=by_core.watts[live],
        alone=_figures(alone),
        streaming=None if streaming is None else _figures(streaming),
        uncounted=compute_uncounted_power(
            machine.chip.target, int(machine.xbars.sum()), len(live), alone.time_ns, counted_pj
        ),
        mesh=measure_mesh_use(machine, busiest.weights, busiest.time_ns),
    )


def _figures(active: ChipActivity) -> PowerFigures:
    window_ns = power.widen_window(active.time_ns, power.DEFAULT_WINDOW_NS, power.MOST_WINDOWS)
    curve = power.make_total_curve(active, window_ns)
    return power.find_power_figures(curve, float(curve.energy_pj.sum()))
