"""Simulates programs of one segment or of several: segments of the chip run one after another.

The host's time and energy are not modelled, and in no sum.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raptor.common import arguments
from raptor.common.errors import UserError
from raptor.common.spelling import option
from validator.hosted.listing import chip_folders, is_hosted, not_modelled, one_segment, read_segments
from validator.options import Mode
from validator.simulate import builtin
from validator.simulate.efficiency import Efficiency
from validator.simulate.simulation_report import SimulationReport


def simulate(
    program: str | Path,
    arch: str | Path | None = None,
    *,
    mode: Mode = "latency",
    samples: int = 16,
    trace_file: str | Path | None = None,
) -> SimulationReport:
    """Simulates a program as `builtin.simulate` does; for segments, returns the sums over those of the chip.

    In throughput mode segments work on different samples, so that the slowest gives the interval.
    """
    path = arguments.path("program", program)
    if not is_hosted(path):
        return builtin.simulate(program, arch, mode=mode, samples=samples, trace_file=trace_file)
    if trace_file is not None:
        one_segment(path, option("trace_file"))
    folders = chip_folders(path)
    if not folders:
        raise UserError(f"{path}: no segment is for the chip, so there is nothing to simulate")
    reports = [builtin.simulate(folder, arch, mode=mode, samples=samples) for folder in folders]
    return _together(str(path), reports, not_modelled(read_segments(path)))


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
    effective = Efficiency.of(macs, interval_ns or latency_ns, energy_pj) if macs else None
    return replace(
        reports[0],
        program=program,
        latency_ns=latency_ns,
        interval_ns=interval_ns,
        samples_per_s=1e9 / interval_ns if interval_ns else None,
        energy_pj=energy_pj,
        energy_parts_pj=parts,
        macs=macs or None,
        tops=effective.tops if effective else None,
        tops_per_w=effective.tops_per_w if effective else None,
        pj_per_mac=effective.pj_per_mac if effective else None,
        instructions=sum(r.instructions for r in reports),
        cores=tuple(core for r in reports for core in r.cores),
        xbars_used=sum(r.xbars_used for r in reports),
        critical_path_by="node" if all(r.critical_path_by == "node" for r in reports) else "instruction",
        critical_path_ns=_joined(reports),
        seconds={name: sum(r.seconds[name] for r in reports) for name in reports[0].seconds},
        warnings=(note, *dict.fromkeys(w for r in reports for w in r.warnings)),
    )


def _joined(reports: Sequence[SimulationReport]) -> dict[str, float]:
    path: dict[str, float] = {}
    for name, ns in (item for r in reports for item in r.critical_path_ns.items()):
        path[name] = path.get(name, 0.0) + ns
    return path
