"""Results of a study as tables: CSV, JSON, Parquet. Sorted by point, so that equal studies have equal tables."""

import csv
import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any, BinaryIO, cast

import orjson

from raptor.common.errors import UserError
from raptor.explore.driver import job_of
from raptor.explore.front import front
from raptor.explore.points import command, digest_of
from raptor.explore.study import Study
from raptor.explore.trials import Outcome

Row = dict[str, Any]


def rows(study: Study, outcomes: Sequence[Outcome]) -> list[Row]:
    """Returns a row for each point: parameters, state, figures of all models and of each, limits, commands."""
    best = {digest_of(o.trial.point) for o in front(study, outcomes)}
    by_point = {digest_of(o.trial.point): o for o in reversed(outcomes)}
    return [_row(study, by_point[key], key, on_front=key in best) for key in sorted(by_point)]


def _row(study: Study, found: Outcome, key: str, *, on_front: bool) -> Row:
    row: Row = {"point": key[:12], "trial": found.trial.number}
    row |= found.trial.point
    row |= {"state": found.state, "feasible": found.is_feasible, "front": on_front, "reason": found.reason}
    row |= found.figures
    if len(study.models) > 1:
        for model, record in zip(study.models, found.records, strict=True):
            row |= {f"{name} of {model.name}": value for name, value in record.figures.items()}
    jobs = [(model.name, job_of(study, model, found.trial.point)) for model in study.models]
    return row | {"commands": [command(name, job.options) for name, job in jobs]}


def to_csv(found: Sequence[Row]) -> bytes:
    """Writes CSV with a head; a field is empty where a row has no such figure."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(found), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "commands": "; ".join(row["commands"])} for row in found)
    return text.getvalue().encode()


def to_json(study: Study, found: Sequence[Row]) -> bytes:
    """Writes an object with the settings of the study and all rows."""
    value = {"version": 1, "study": study.name, "settings": study.settings, "results": list(found)}
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def write_parquet(found: Sequence[Row], stream: BinaryIO) -> None:
    """Writes Parquet. Raises `UserError` if pyarrow is not installed."""
    try:
        # NOTE: it has no types.
        arrow, parquet = cast(Any, import_module("pyarrow")), cast(Any, import_module("pyarrow.parquet"))
    except ImportError as e:
        raise UserError("--parquet: needs pyarrow: pip install pyarrow") from e
    names = _columns(found)
    columns = {name: [_plain(row.get(name), found, name) for row in found] for name in names}
    parquet.write_table(arrow.table(columns), stream)


def _plain(value: Any, found: Sequence[Row], name: str) -> Any:
    """Returns a value; a text where the column holds values of several types."""
    kinds = {type(row[name]).__name__ for row in found if name in row}
    return str(value) if value is not None and len(kinds) > 1 else value


def _columns(found: Sequence[Row]) -> list[str]:
    names = list(dict.fromkeys(name for row in found for name in row))
    return [name for name in names if name != "commands"] + ["commands"]
