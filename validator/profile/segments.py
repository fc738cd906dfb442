"""Profile of a program in segments: that of the chip, on which its segments have different cores and take turns.

The host is in no figure. Pictures over time are of one segment each, and are left out here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.checks import check
from validator.hosted.listing import chip_folders, is_hosted, not_modelled, read_segments
from validator.profile import profile
from validator.profile.facts import CoreFacts, Crossbars, Estimate, Profile

Values = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def profile_any(path: str | Path, arch: str | Path | None = None) -> Profile:
    """Profiles a program as `profile` does, in one segment or in several.

    Raises `UserError` as it does, and if no segment is for the chip.
    """
    folder = Path(path)
    if not is_hosted(folder):
        return profile(path, arch)
    folders = chip_folders(folder)
    if not folders:
        raise UserError(f"{folder}: no segment is for the chip, so there is nothing to show")
    found = _together(str(path), [profile(part, arch) for part in folders])
    note = not_modelled(read_segments(folder))
    return replace(found, findings=check(folder, arch), warnings=(note, *found.warnings))


def _together(program: str, parts: Sequence[Profile]) -> Profile:
    """Adds up the profiles of segments."""
    first = parts[0]
    by_node = all(p.parts_are == "node" for p in parts)
    return Profile(
        program=program,
        instructions=sum(p.instructions for p in parts),
        chip=first.chip,
        mesh=first.mesh,
        untimed=next((p.untimed for p in parts if p.untimed), ""),
        estimate=_estimate([p.estimate for p in parts]),
        parts_are="node" if by_node else "instruction",
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


def _cores(parts: Sequence[Profile]) -> Iterable[CoreFacts]:
    """Returns the facts of each core: those of the segment that uses it."""
    found: dict[int, CoreFacts] = {}
    for core in (core for p in parts for core in p.cores):
        if core.core not in found or core.instructions:
            found[core.core] = core
    return (found[core] for core in sorted(found))


def _estimate(parts: Sequence[Estimate | None]) -> Estimate | None:
    """Adds up times and energies. Streaming, segments work on different samples, and the slowest gives the interval."""
    known = [p for p in parts if p is not None]
    if not known or len(known) < len(parts):
        return None
    intervals = [p.interval_ns for p in known if p.interval_ns is not None]
    streams = len(intervals) == len(known)
    energy = _summed(p.interval_energy_pj for p in known) if streams else {}
    if "static" in energy:  # the chip stands by once, while all segments work
        energy["static"] = max(p.interval_energy_pj.get("static", 0.0) for p in known)
    return Estimate(
        estimator=known[0].estimator,
        latency_ns=sum(p.latency_ns for p in known),
        energy_pj=_summed(p.energy_pj for p in known),
        interval_ns=max(intervals) if streams else None,
        interval_energy_pj=energy,
        samples=known[0].samples,
        no_interval=next((p.no_interval for p in known if p.no_interval), ""),
    )


def _summed(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, value in (item for one in each for item in one.items()):
        total[name] = total.get(name, 0.0) + value
    return total


def _crossbars(parts: Sequence[Profile]) -> Crossbars | None:
    """Joins the crossbars; indices of parts are those of the joined names."""
    known = [p.crossbars for p in parts if p.crossbars is not None]
    if len(known) < len(parts):
        return None
    before = np.cumsum([0, *(len(p.part_names) for p in parts)])
    shifted = [
        replace(c, part=np.where(c.part < 0, c.part, c.part + start)) for c, start in zip(known, before, strict=False)
    ]
    columns = {name: np.concatenate([getattr(c, name) for c in shifted]) for name in Crossbars.__slots__}
    return Crossbars(**columns)
