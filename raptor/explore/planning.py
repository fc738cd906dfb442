"""Plans the evaluation of a point: one job per model, and the keys of the stored results."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from raptor import __version__
from raptor.explore.jobs import Job, Measuring
from raptor.explore.points import FILES, beside, digest_of, options_of, settings_of
from raptor.explore.study import Model, Study
from validator.simulate.builtin import MODEL_VERSION

VERSION = f"{__version__}, cycle model {MODEL_VERSION}"
"""Version of stored results; results of equal versions are comparable and are reused."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A job, its model, and the key (SHA-256) of its result in the database."""

    model: Model
    job: Job
    digest: str


def plans_of(study: Study, point: Mapping[str, Any]) -> list[Plan]:
    """Returns the plan of each model at a point."""
    found = [(model, job_of(study, model, point)) for model in study.models]
    return [Plan(model, job, _digest(model, job)) for model, job in found]


def job_of(study: Study, model: Model, point: Mapping[str, Any]) -> Job:
    """Returns the job of a model at a point."""
    is_fixed = study.file.study.mapping == "fixed"
    fields = {n.removeprefix("fields."): value for n, value in point.items() if n.startswith("fields.")}
    options = options_of(study.file.options, {} if is_fixed else point)
    options |= {name: beside(study.folder, options[name]) for name in FILES if name in options}
    measuring = _measuring(study, model, point)
    return Job(str(model.path), options, study.needs("steady"), fields if is_fixed else None, measuring)


def _measuring(study: Study, model: Model, point: Mapping[str, Any]) -> Measuring | None:
    part = study.file.accuracy
    if part is None or model.data is None:
        return None
    shared = {name: str(value) for name, value in part.settings.items()}
    given = part.model_dump(exclude={"data", "settings"})
    if part.cells is not None:
        given["cells"] = beside(study.folder, part.cells)
    return Measuring(str(model.data.path), settings=shared | settings_of(point), **given)


def _digest(model: Model, job: Job) -> str:
    """Returns the key of a result: the SHA-256 of everything it depends on, including contents of files."""
    parts: list[Any] = [VERSION, model.sha256, job.options, job.is_steady, job.fields]
    named = [job.options.get(name) for name in FILES]
    if job.accuracy is not None and model.data is not None:
        parts.append(msgspec.to_builtins(job.accuracy) | {"data": model.data.sha256})
        named.append(job.accuracy.cells)
    found = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in named if name and Path(name).is_file()]
    return digest_of(*parts, *found)
