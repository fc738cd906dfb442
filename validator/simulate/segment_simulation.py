"""Simulates programs of one segment or of several: segments of the chip run one after another, or take turns on it.

The host's time and energy are not modelled, and in no sum.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options import arguments
from raptor.output.round_files import RoundList
from validator.options import Mode
from validator.program.rounds import read_device, read_rounds
from validator.program.segment_list import (
    chip_folders,
    describe_host_nodes,
    has_rounds,
    has_segments,
    read_segments,
    require_one_segment,
)
from validator.simulate import builtin
from validator.simulate.analysis.link_use import LinkUse
from validator.simulate.analysis.mesh_use import MeshUse
from validator.simulate.analysis.uncounted_power import join_uncounted_power
from validator.simulate.reloading_figures import add_reloading, compute_reloading, parts_of
from validator.simulate.simulation_report import SimulationReport, add_rates


def simulate_any(
    program: str | Path,
    arch: str | Path | None = None,
    *,
    mode: Mode = "latency",
    samples: int = 16,
    trace_file: str | Path | None = None,
    power_file: str | Path | None = None,
    window: str | float | None = None,
    rate: float | None = None,
) -> SimulationReport:
    """Simulates a program as `builtin.simulate` does; for segments, returns sums over the chip segments.

    In throughput mode segments work on different samples, so that the slowest gives the interval. Segments that take
    turns on the chip are simulated for a batch, with the time and energy of writing; their peak power is not known.
    `rate`: samples a second, for their lifetime.
    """
    path = arguments.parse_path("program", program)
    rate = None if rate is None else arguments.parse_finite("rate", rate, 1e-9)
    if rate is not None and path.is_dir() and not has_rounds(path):
        raise UserError(f"{spell_option('rate', rate)}: only for a program in rounds, whose cells wear out")
    if not has_segments(path):
        return builtin.simulate(
            program, arch, mode=mode, samples=samples, trace_file=trace_file, power_file=power_file, window=window
        )
    for keyword, file in (("trace_file", trace_file), ("power_file", power_file)):
        if file is not None:
            require_one_segment(path, spell_option(keyword))
    folders = chip_folders(path)
    if not folders:
        raise UserError(f"{path}: no segment is for the chip, so there is nothing to simulate")
    listed = read_segments(path)
    rounds = read_rounds(path, listed)
    if window is not None and (rounds is not None or mode == "throughput"):
        raise UserError(f"{spell_option('window', window)}: the peak power of segments that overlap is not known")
    if rounds is not None:
        return _in_rounds(path, folders, arch, (mode, samples, rate), rounds, describe_host_nodes(listed))
    reports = [builtin.simulate(folder, arch, mode=mode, samples=samples, window=window) for folder in folders]
    return _together(str(path), reports, describe_host_nodes(listed))


def _in_rounds(
    path: Path,
    folders: Sequence[Path],
    arch: str | Path | None,
    how: tuple[Mode, int, float | None],
    rounds: RoundList,
    note: str,
) -> SimulationReport:
    """Simulates rounds: each alone and, for a batch above one, streaming."""
    mode, samples, rate = how
    alone = [builtin.simulate(folder, arch) for folder in folders]
    many = None
    if rounds.batch > 1:
        many = [builtin.simulate(folder, arch, mode="throughput", samples=samples) for folder in folders]
    found = compute_reloading(rounds, read_device(path), alone, many, rate)
    sums = replace(_together(str(path), alone, note), mode=mode, xbars_used=max(r.xbars_used for r in alone))
    report = add_reloading(sums, found, parts_of(found, alone, many))
    uncounted = join_uncounted_power([r.beyond_pimsim for r in alone], max, found.sample_ns, report.energy_pj)
    report = add_rates(replace(report, beyond_pimsim=uncounted), found.sample_ns, report.macs)
    unknown = f"device {found.device}: the energy of writing is not known, and in no figure"
    return replace(report, warnings=(*report.warnings, *([unknown] if found.sample_pj is None else ())))


def _together(program: str, reports: Sequence[SimulationReport], note: str) -> SimulationReport:
    """Adds up reports of segments, which share no core of the chip."""
    latency_ns = sum(r.latency_ns or 0.0 for r in reports)
    intervals = [r.interval_ns for r in reports if r.interval_ns is not None]
    interval_ns = max(intervals) if intervals else None
    parts: dict[str, float] = {}
    for name, energy in (item for r in reports for item in r.energy_parts_pj.items()):
        parts[name] = parts.get(name, 0.0) + energy
    if interval_ns is not None:  # the chip stands by once, while all segments work
        parts["static"] = max(r.energy_parts_pj.get("static", 0.0) for r in reports)
    energy_pj, macs = sum(parts.values()), sum(r.macs or 0 for r in reports)
    time_ns = interval_ns or latency_ns
    joined = replace(
        reports[0],
        program=program,
        latency_ns=latency_ns,
        interval_ns=interval_ns,
        samples_per_s=1e9 / interval_ns if interval_ns else None,
        energy_pj=energy_pj,
        energy_parts_pj=parts,
        instructions=sum(r.instructions for r in reports),
        cores=tuple(core for r in reports for core in r.cores),
        xbars_used=sum(r.xbars_used for r in reports),
        critical_path_by="node" if all(r.critical_path_by == "node" for r in reports) else "instruction",
        critical_path_ns=_joined(reports),
        seconds={name: sum(r.seconds[name] for r in reports) for name in reports[0].seconds},
        links=_busiest(reports),
        mesh_links=_hottest_mesh(reports),
        beyond_pimsim=join_uncounted_power([r.beyond_pimsim for r in reports], sum, time_ns, energy_pj),
        warnings=(*([note] if note else ()), *dict.fromkeys(w for r in reports for w in r.warnings)),
    )
    joined = add_rates(joined, time_ns, macs)
    return joined if interval_ns is not None else _with_peak(joined, reports)


def _with_peak(joined: SimulationReport, reports: Sequence[SimulationReport]) -> SimulationReport:
    """Returns the report with the highest peak of segments that run one after another."""
    starts = np.cumsum([0.0, *(r.latency_ns or 0.0 for r in reports)])
    start, most = max(zip(starts.tolist(), reports, strict=False), key=lambda pair: pair[1].power_peak_w or 0.0)
    if most.power_peak_start_ns is None:
        return joined
    return replace(
        joined,
        power_peak_w=most.power_peak_w,
        power_peak_start_ns=start + most.power_peak_start_ns,
        power_window_ns=most.power_window_ns,
    )


def _hottest_mesh(reports: Sequence[SimulationReport]) -> MeshUse | None:
    """Returns the use of the mesh by the segment with the hottest link."""
    known = [r.mesh_links for r in reports if r.mesh_links is not None]
    return max(known, key=lambda use: max((link.share for link in use.hottest), default=0.0), default=None)


def _busiest(reports: Sequence[SimulationReport]) -> tuple[LinkUse, ...]:
    """Returns for each link the use by the segment that uses it most."""
    found = zip(*(r.links for r in reports), strict=True)
    return tuple(max(uses, key=lambda use: use.share) for uses in found)


def _joined(reports: Sequence[SimulationReport]) -> dict[str, float]:
    path: dict[str, float] = {}
    for name, ns in (item for r in reports for item in r.critical_path_ns.items()):
        path[name] = path.get(name, 0.0) + ns
    return path
