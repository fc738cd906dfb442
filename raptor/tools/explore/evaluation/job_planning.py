"""Plans the evaluation of a point: one job per model, and the keys of the stored results."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from raptor import __version__
from raptor.common.errors import UserError
from raptor.tools.explore.evaluation.component_chips import prepare_chip
from raptor.tools.explore.evaluation.evaluation_jobs import AccuracyTask, EvaluationJob
from raptor.tools.explore.study.search_space import (
    FILE_OPTIONS,
    crossbar_settings,
    digest_values,
    merge_options,
    resolve_file,
)
from raptor.tools.explore.study.study_file import Study, StudyModel
from validator.simulate.builtin import MODEL_VERSION

RESULTS_VERSION = f"{__version__}, cycle model {MODEL_VERSION}"
"""Version of stored results; results of equal versions are comparable and are reused."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, its model, and the key (SHA-256) of its result in the database."""

    model: StudyModel
    job: EvaluationJob
    digest: str


def plan_jobs(study: Study, point: Mapping[str, Any]) -> list[JobPlan]:
    """Returns the plan of each model at a point."""
    found = [(model, make_job(study, model, point)) for model in study.models]
    return [JobPlan(model, job, _digest(model, job)) for model, job in found]


def make_job(study: Study, model: StudyModel, point: Mapping[str, Any]) -> EvaluationJob:
    """Returns the job of a model at a point."""
    is_fixed = study.file.study.mapping == "fixed"
    fields = {n.removeprefix("fields."): value for n, value in point.items() if n.startswith("fields.")}
    options = merge_options(study.file.options, {} if is_fixed else point)
    options |= {name: resolve_file(study.folder, options[name]) for name in FILE_OPTIONS if name in options}
    measuring, problem = _measuring(study, model, point), ""
    try:
        chip = prepare_chip(study, point)
    except UserError as e:
        chip, problem = None, str(e)
    if chip is not None:
        options["arch"] = chip[0]
        if measuring is not None and measuring.cells is None:
            measuring = msgspec.structs.replace(measuring, cells=chip[1])
    only = fields if is_fixed else None
    return EvaluationJob(
        str(model.path), options, study.requires("steady"), only, measuring, study.requires("power"), problem
    )


def _measuring(study: Study, model: StudyModel, point: Mapping[str, Any]) -> AccuracyTask | None:
    part = study.file.accuracy
    if part is None or model.data is None:
        return None
    shared = {name: str(value) for name, value in part.settings.items()}
    given = part.model_dump(exclude={"data", "settings"})
    if part.cells is not None:
        given["cells"] = resolve_file(study.folder, part.cells)
    return AccuracyTask(str(model.data.path), settings=shared | crossbar_settings(point), **given)


def _digest(model: StudyModel, job: EvaluationJob) -> str:
    """Returns the key of a result: the SHA-256 of everything it depends on, including contents of files."""
    parts: list[Any] = [RESULTS_VERSION, model.sha256, job.options, job.is_steady, job.fields]
    if job.problem:
        parts.append(job.problem)
    if job.needs_power:
        parts.append("power")
    named = [job.options.get(name) for name in FILE_OPTIONS]
    if job.accuracy is not None and model.data is not None:
        parts.append(msgspec.to_builtins(job.accuracy) | {"data": model.data.sha256})
        named.append(job.accuracy.cells)
    found = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in named if name and Path(name).is_file()]
    return digest_values(*parts, *found)
