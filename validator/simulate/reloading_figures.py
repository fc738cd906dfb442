"""Computes time, energy and wear of rounds from the reports of each round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from raptor.output.round_files import RoundEntry, RoundList
from raptor.target.device_file import DeviceFile
from validator.simulate.simulation_report import SimulationReport
from validator.simulate.weight_reloading import ReloadingFigures, RoundUse

SHARE = 0.1
"""Part of the time that writing may take at the batch that is reported."""
RoundReports = Sequence[SimulationReport]
"""Reports of all rounds, in their order."""


def compute_reloading(
    rounds: RoundList, device: DeviceFile, alone: RoundReports, streaming: RoundReports | None, rate_per_s: float | None
) -> ReloadingFigures:
    """Returns the figures of rounds. `alone`, `streaming`: reports of one sample, and of many (for a batch above one).

    `rate_per_s`: samples a second for the lifetime; None for as many as the chip can compute.
    """
    many = streaming or [None] * len(alone)
    used = tuple(
        _round_use(one, first, more, rounds.batch) for one, first, more in zip(rounds.rounds, alone, many, strict=True)
    )
    writing_ns = sum(one.write_ns for one in used)
    running_ns = sum(one.run_ns(rounds.batch) for one in used)
    batch_ns, worst = writing_ns + running_ns, rounds.worst_writes / rounds.batch
    rate = rate_per_s or 1e9 * rounds.batch / batch_ns
    computed_pj = sum(one.compute_pj for one in used)
    writing_pj = _writing_pj(used, alone)
    return ReloadingFigures(
        batch=rounds.batch,
        device=rounds.device,
        source=rounds.source,
        rounds=used,
        batch_ns=batch_ns,
        writing_ns=writing_ns,
        sample_ns=batch_ns / rounds.batch,
        without_ns=running_ns / rounds.batch,
        sample_pj=None if writing_pj is None else (computed_pj + writing_pj) / rounds.batch,
        without_pj=computed_pj / rounds.batch,
        writes_per_cell=rounds.written_cells / rounds.cells / rounds.batch,
        worst_per_sample=worst,
        endurance_cycles=device.endurance_cycles,
        rate_per_s=rate,
        years=_years(device, worst * rate),
        batch_for_tenth=_batch_for_tenth(used, writing_ns),
        memory_bytes=max(one.memory_bytes for one in rounds.rounds),
    )


def _years(device: DeviceFile, writes_per_s: float) -> float | None:
    years = device.years(writes_per_s)
    return None if years is None or math.isinf(years) else years


def _round_use(one: RoundEntry, alone: SimulationReport, many: SimulationReport | None, batch: int) -> RoundUse:
    first_pj, next_pj = alone.energy_pj or 0.0, 0.0 if many is None else many.energy_pj or 0.0
    return RoundUse(
        path=one.path,
        cores=one.cores,
        crossbars_written=sum(write.xbars for write in one.writes),
        write_ns=one.write_ns,
        write_pj=one.write_pj,
        latency_ns=alone.latency_ns or 0.0,
        interval_ns=None if many is None else many.interval_ns,
        compute_pj=first_pj + (batch - 1) * next_pj,
    )


def compute_standby_pj(used: Sequence[RoundUse], alone: RoundReports) -> float:
    """Returns the energy of the chip's standby while it is written."""
    static = (report.energy_parts_pj.get("static", 0.0) / (report.latency_ns or 1.0) for report in alone)
    return sum(power * one.write_ns for power, one in zip(static, used, strict=True))


def _writing_pj(used: Sequence[RoundUse], alone: RoundReports) -> float | None:
    """Returns the energy of writing a batch, with standby; None if the device file has none."""
    known = [one.write_pj for one in used if one.write_pj is not None]
    return sum(known) + compute_standby_pj(used, alone) if len(known) == len(used) else None


def _batch_for_tenth(used: Sequence[RoundUse], writing_ns: float) -> int | None:
    """Returns the least batch with which writing is at most a tenth; None if the interval is not known."""
    if any(one.interval_ns is None for one in used):
        return None
    first, each = sum(one.latency_ns for one in used), sum(one.interval_ns or 0.0 for one in used)
    more = writing_ns * (1 - SHARE) / SHARE - first
    return 1 if more <= 0 else 1 + math.ceil(more / each)


def add_reloading(report: SimulationReport, found: ReloadingFigures, parts: Mapping[str, float]) -> SimulationReport:
    """Returns the sums over all rounds with the time and energy of a batch. `parts`: energy of a sample in pJ."""
    total = sum(parts.values())
    streaming = report.mode == "throughput"
    return replace(
        report,
        latency_ns=found.batch_ns,
        interval_ns=found.sample_ns if streaming else None,
        samples_per_s=1e9 / found.sample_ns if streaming else None,
        energy_pj=total,
        energy_parts_pj=dict(parts),
        reloading=found,
    )


def parts_of(found: ReloadingFigures, alone: RoundReports, streaming: RoundReports | None) -> dict[str, float]:
    """Returns the energy of a sample by part, in pJ, with writing and the standby while the chip is written."""
    parts: dict[str, float] = {}
    for reports, times in ((alone, 1), (streaming or (), found.batch - 1)):
        for name, energy in (item for report in reports for item in report.energy_parts_pj.items()):
            parts[name] = parts.get(name, 0.0) + times * energy / found.batch
    parts["static"] = parts.get("static", 0.0) + compute_standby_pj(found.rounds, alone) / found.batch
    parts["writing"] = sum(one.write_pj or 0.0 for one in found.rounds) / found.batch
    return parts
