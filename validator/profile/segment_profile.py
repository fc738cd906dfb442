"""Profile of a program in segments, which use different cores of the chip or take turns on it.

The host is not included. Data over time belong to single segments, and are left out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from validator.checks import check
from validator.profile import profile
from validator.profile.profile_results import CoreFigures, CrossbarUse, Profile, SampleEstimate
from validator.program.segment_list import chip_folders, describe_host_nodes, has_segments, read_segments
from validator.simulate.segment_simulation import simulate_any
from validator.simulate.simulation_report import CoreUse

Values = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def profile_any(path: str | Path, arch: str | Path | None = None) -> Profile:
    """Profiles a program with one segment or several, like `profile`.

    Raises `UserError` as `profile` does, and if no segment is for the chip.
    """
    folder = Path(path)
    if not has_segments(folder):
        return profile(path, arch)
    folders = chip_folders(folder)
    if not folders:
        raise UserError(f"{folder}: no segment is for the chip, so there is nothing to show")
    found = _merge_profiles(str(path), [profile(part, arch) for part in folders])
    listed = read_segments(folder)
    note = describe_host_nodes(listed)
    found = replace(found, findings=check(folder, arch), warnings=(*([note] if note else ()), *found.warnings))
    return _with_rounds(found, folder, arch) if files.ROUNDS in listed.files else found


def _with_rounds(found: Profile, folder: Path, arch: str | Path | None) -> Profile:
    """Returns the profile of a program in rounds: times are for a batch, with writing."""
    if found.estimate is None:
        return found
    report = simulate_any(folder, arch, mode="throughput", samples=found.estimate.samples)
    known = replace(
        found.estimate,
        latency_ns=report.latency_ns or 0.0,
        energy_pj=report.energy_parts_pj,
        interval_ns=report.interval_ns,
        interval_energy_pj=report.energy_parts_pj,
    )
    unknown = [w for w in report.warnings if w not in found.warnings]
    return replace(found, estimate=known, reloading=report.reloading, warnings=(*found.warnings, *unknown))


def _merge_profiles(program: str, parts: Sequence[Profile]) -> Profile:
    """Merges the profiles of segments."""
    first = parts[0]
    by_node = all(p.part_kind == "node" for p in parts)
    return Profile(
        program=program,
        instructions=sum(p.instructions for p in parts),
        chip=first.chip,
        mesh=first.mesh,
        untimed=next((p.untimed for p in parts if p.untimed), ""),
        estimate=_estimate([p.estimate for p in parts]),
        part_kind="node" if by_node else "instruction",
        parts=tuple(part for p in parts for part in p.parts),
        part_names=tuple(name for p in parts for name in p.part_names),
        cores=tuple(_cores(parts)),
        traffic=tuple(flow for p in parts for flow in p.traffic),
        timeline=None,
        local_memory=None,
        crossbars=_crossbars(parts),
        findings=(),
        warnings=tuple(dict.fromkeys(w for p in parts for w in p.warnings)),
    )


def _cores(parts: Sequence[Profile]) -> Iterable[CoreFigures]:
    """Returns the facts of each core, merged if several segments take turns on it."""
    found: dict[int, CoreFigures] = {}
    for core in (core for p in parts for core in p.cores):
        known = found.get(core.core)
        if known is None or not known.instructions:
            found[core.core] = core
        elif core.instructions:
            found[core.core] = _merge_cores(known, core)
    return (found[core] for core in sorted(found))


def _merge_cores(one: CoreFigures, other: CoreFigures) -> CoreFigures:
    """Merges the facts of a core that serves two segments in turn."""
    counts = Counter(one.instructions) + Counter(other.instructions)
    sizes = [size for size in (one.local_bytes, other.local_bytes) if size is not None]
    return CoreFigures(
        core=one.core,
        xbars=max(one.xbars, other.xbars),
        local_bytes=max(sizes, default=None),
        instructions=dict(sorted(counts.items())),
        use=None if one.use is None or other.use is None else _add_uses(one.use, other.use),
        parts=tuple(sorted((*one.parts, *other.parts), key=lambda part: -part[1])),
        waits=tuple(sorted((*one.waits, *other.waits), key=lambda wait: -wait[1])),
    )


def _add_uses(one: CoreUse, other: CoreUse) -> CoreUse:
    added = {f.name: getattr(one, f.name) + getattr(other, f.name) for f in fields(CoreUse) if f.name != "core"}
    return CoreUse(core=one.core, **added)


def _estimate(parts: Sequence[SampleEstimate | None]) -> SampleEstimate | None:
    """Adds latencies and energies. The slowest segment gives the interval: segments work on different samples."""
    known = [p for p in parts if p is not None]
    if not known or len(known) < len(parts):
        return None
    intervals = [p.interval_ns for p in known if p.interval_ns is not None]
    streams = len(intervals) == len(known)
    energy = _add_energies(p.interval_energy_pj for p in known) if streams else {}
    if "static" in energy:  # static energy counts once for the chip, while all segments work
        energy["static"] = max(p.interval_energy_pj.get("static", 0.0) for p in known)
    return SampleEstimate(
        estimator=known[0].estimator,
        latency_ns=sum(p.latency_ns for p in known),
        energy_pj=_add_energies(p.energy_pj for p in known),
        interval_ns=max(intervals) if streams else None,
        interval_energy_pj=energy,
        samples=known[0].samples,
        no_interval=next((p.no_interval for p in known if p.no_interval), ""),
    )


def _add_energies(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, value in (item for one in each for item in one.items()):
        total[name] = total.get(name, 0.0) + value
    return total


def _crossbars(parts: Sequence[Profile]) -> CrossbarUse | None:
    """Joins the crossbars and shifts their part indices to the joined names."""
    known = [p.crossbars for p in parts if p.crossbars is not None]
    if len(known) < len(parts):
        return None
    before = np.cumsum([0, *(len(p.part_names) for p in parts)])
    shifted = [
        replace(c, part=np.where(c.part < 0, c.part, c.part + start)) for c, start in zip(known, before, strict=False)
    ]
    columns = {name: np.concatenate([getattr(c, name) for c in shifted]) for name in CrossbarUse.__slots__}
    return CrossbarUse(**columns)
