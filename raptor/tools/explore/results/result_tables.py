"""Results of a study as a report and as tables: CSV, Parquet."""

import csv
import io
import shlex
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, BinaryIO, cast

from raptor.common.errors import UserError
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob
from raptor.tools.explore.evaluation.trial_outcomes import TrialOutcome
from raptor.tools.explore.results.pareto_front import pareto_front
from raptor.tools.explore.results.study_report import PointReport, StudyReport
from raptor.tools.explore.study.search_space import digest_values, format_command
from raptor.tools.explore.study.study_file import Study

FlatRow = dict[str, Any]


def make_study_report(study: Study, outcomes: Sequence[TrialOutcome]) -> StudyReport:
    """Returns the report of a study: an entry per point, sorted by digest, so that equal studies have equal reports."""
    best = {digest_values(o.trial.point) for o in pareto_front(study, outcomes)}
    by_point = {digest_values(o.trial.point): o for o in reversed(outcomes)}
    points = tuple(_point(study, by_point[key], key, on_front=key in best) for key in sorted(by_point))
    return StudyReport(study=study.name, settings=study.settings, results=points)


def _point(study: Study, found: TrialOutcome, key: str, *, on_front: bool) -> PointReport:
    return PointReport(
        point=key[:12],
        trial=found.trial.number,
        parameters=found.trial.point,
        state=found.state,
        feasible=found.is_feasible,
        front=on_front,
        reason=found.reason,
        figures=found.figures,
        models={m.name: record.figures for m, record in zip(study.models, found.records, strict=True)},
        commands=tuple(_commands(study, found.jobs)),
    )


def _commands(study: Study, jobs: Sequence[EvaluationJob]) -> Iterator[str]:
    """Yields the command line for each model. Several models get different output directories."""
    for k, (model, job) in enumerate(zip(study.models, jobs, strict=True), 1):
        yield _command(model.name, job, "out" if len(jobs) == 1 else f"out-{k}")


def _command(model: str, job: EvaluationJob, out: str) -> str:
    """Returns the shell command that compiles a model for a point and, if the study does, measures its accuracy."""
    compiled = format_command(model, job.options, out)
    given = job.accuracy
    if given is None:
        return compiled
    words = ["raptor", "accuracy", out, "--data", given.data]
    words += [] if given.crossbar is None else ["--crossbar", given.crossbar]
    words += [] if given.cells is None else ["--cells", given.cells]
    words += [word for name, value in given.settings.items() for word in ("--with", f"{name}={value}")]
    words += [] if given.chips == 1 else ["--chips", str(given.chips)]
    words += [] if given.samples is None else ["--samples", str(given.samples)]
    return f"{compiled} && {shlex.join(words)}"


def flatten_report(found: StudyReport) -> list[FlatRow]:
    """Returns a flat row for each point. With several models, figures of each model are additional columns."""
    return [_row(point) for point in found.results]


def _row(point: PointReport) -> FlatRow:
    row: FlatRow = {"point": point.point, "trial": point.trial, **point.parameters}
    row |= {"state": point.state, "feasible": point.feasible, "front": point.front, "reason": point.reason}
    row |= point.figures
    if len(point.models) > 1:
        row |= {f"{name} of {model}": value for model, of in point.models.items() for name, value in of.items()}
    return row | {"commands": "; ".join(point.commands)}


def to_csv(found: Sequence[FlatRow]) -> bytes:
    """Returns CSV with a heading; a field is empty if the row has no such column."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(found), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().encode()


def write_parquet(found: Sequence[FlatRow], stream: BinaryIO) -> None:
    """Writes the rows as Parquet. Raises `UserError` if pyarrow is not installed."""
    try:
        # NOTE: it has no types.
        arrow, parquet = cast(Any, import_module("pyarrow")), cast(Any, import_module("pyarrow.parquet"))
    except ImportError as e:
        raise UserError("--parquet: needs pyarrow: pip install pyarrow") from e
    names = _columns(found)
    columns = {name: [_plain(row.get(name), found, name) for row in found] for name in names}
    parquet.write_table(arrow.table(columns), stream)


def _plain(value: Any, found: Sequence[FlatRow], name: str) -> Any:
    """Returns a value for its column: converted to text if the column has values of several types."""
    kinds = {type(row[name]).__name__ for row in found if name in row}
    return str(value) if value is not None and len(kinds) > 1 else value


def _columns(found: Sequence[FlatRow]) -> list[str]:
    names = list(dict.fromkeys(name for row in found for name in row))
    return [name for name in names if name != "commands"] + ["commands"]
