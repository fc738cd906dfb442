"""The database of studies: results by configuration, and the trials of each study.

Results are shared by all studies of one version of RAPTOR in the database. Trials of a batch are written in one
transaction. So a study that is stopped at any moment has whole batches, and all results that were complete.
"""

import hashlib
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError, OperationalError

from raptor.common.errors import UserError
from raptor.common.files.json_decoding import json_decoder
from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationRecord
from raptor.tools.explore.evaluation.trial_outcomes import StudyTrial

_TABLES = sql.MetaData()
RESULTS_TABLE = sql.Table(
    "raptor_results",
    _TABLES,
    sql.Column("digest", sql.String(64), primary_key=True),
    sql.Column("version", sql.String(40), nullable=False),
    sql.Column("model", sql.String(64), nullable=False),
    sql.Column("options", sql.Text, nullable=False),
    sql.Column("record", sql.Text, nullable=False),
)
STUDIES_TABLE = sql.Table(
    "raptor_studies",
    _TABLES,
    sql.Column("name", sql.String(100), primary_key=True),
    sql.Column("version", sql.String(40), nullable=False),
    sql.Column("settings", sql.Text, nullable=False),
)
TRIALS_TABLE = sql.Table(
    "raptor_trials",
    _TABLES,
    sql.Column("study", sql.String(100), primary_key=True),
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("trial", sql.Text, nullable=False),
)
_IN_ONE_QUERY = 500


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """A result to store, with its key (`digest`), the SHA-256 of the model, and the options."""

    digest: str
    model: str
    options: Mapping[str, Any]
    record: EvaluationRecord


class UnreachableError(UserError):
    """The database does not answer."""


class StudyDatabase:
    """A database of studies. A process writes trials of a study only inside of `lock_study`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: Engine = _engine(url)
        _TABLES.create_all(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def lock_study(self, study: str) -> Generator[None]:
        """Locks a study for this process in the block. Raises `UserError` if another process has locked it."""
        with (
            _sqlite_lock(self.engine, study)
            if self.engine.dialect.name == "sqlite"
            else _server_lock(self.engine, study)
        ):
            yield

    def register_study(self, study: str, version: str, settings: Mapping[str, Any]) -> None:
        """Registers a study. Raises `UserError` if the name is registered with other settings or another version."""
        text = json.dumps(settings, sort_keys=True)
        with self.engine.begin() as link:
            row = link.execute(sql.select(STUDIES_TABLE).where(STUDIES_TABLE.c.name == study)).first()
            if row is None:
                link.execute(STUDIES_TABLE.insert().values(name=study, version=version, settings=text))
                return
        if row.settings != text:
            known = json.loads(row.settings)
            keys = sorted(k for k in {*known, *settings} if known.get(k) != settings.get(k))
            raise UserError(f"study {study}: was begun with other {', '.join(keys)}; give the new one another name")
        if row.version != version:
            raise UserError(
                f"study {study}: was begun by RAPTOR {row.version}, this is {version}; results of two versions cannot "
                "be compared: give the new one another name"
            )

    def read_trials(self, study: str) -> list[StudyTrial]:
        """Returns the trials of a study in their order."""
        query = sql.select(TRIALS_TABLE.c.trial).where(TRIALS_TABLE.c.study == study).order_by(TRIALS_TABLE.c.number)
        with self.engine.connect() as link:
            return [json_decoder(StudyTrial).decode(row.trial) for row in link.execute(query)]

    def add_trials(self, study: str, trials: Sequence[StudyTrial]) -> None:
        """Writes trials in one transaction."""
        rows = [{"study": study, "number": t.number, "trial": msgspec.json.encode(t).decode()} for t in trials]
        with self.engine.begin() as link:
            link.execute(TRIALS_TABLE.insert(), rows)

    def read_results(self, digests: Iterable[str]) -> dict[str, EvaluationRecord]:
        """Returns the stored results among these digests, by digest."""
        wanted = sorted(set(digests))
        with self.engine.connect() as link:
            return {row.digest: json_decoder(EvaluationRecord).decode(row.record) for row in _rows(link, wanted)}

    def add_result(self, entry: ResultEntry, version: str) -> None:
        """Writes a result, unless its digest is stored already."""
        row = {
            "digest": entry.digest,
            "version": version,
            "model": entry.model,
            "options": json.dumps(entry.options, sort_keys=True),
            "record": msgspec.json.encode(entry.record).decode(),
        }
        with self.engine.begin() as link:
            known = link.execute(
                sql.select(RESULTS_TABLE.c.digest).where(RESULTS_TABLE.c.digest == entry.digest)
            ).first()
            if known is None:
                link.execute(RESULTS_TABLE.insert().values(**row))


def _rows(link: Connection, digests: Sequence[str]) -> Iterator[Any]:
    for first in range(0, len(digests), _IN_ONE_QUERY):
        part = digests[first : first + _IN_ONE_QUERY]
        yield from link.execute(sql.select(RESULTS_TABLE).where(RESULTS_TABLE.c.digest.in_(part)))


def _engine(url: str) -> Engine:
    """Connects to a database. Raises `UnreachableError`, or `UserError` if a driver is missing or it is no database."""
    try:
        engine = sql.create_engine(url, pool_pre_ping=True)
        enable_wal(engine)
        with engine.connect():
            return engine
    except ImportError as e:
        raise UserError(f"study.storage: {e}; pip install 'raptor-crossbar[cluster]'") from e
    except OperationalError as e:
        raise unreachable_error(url, e) from e
    except DatabaseError as e:
        raise UserError(f"study.storage: {hide_password(url)}: not a database: {e.orig}") from e


def enable_wal(engine: Engine) -> None:
    """Sets SQLite to write-ahead logging: a killed process loses nothing, and no write waits for the disk."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _(link: Any, _: object) -> None:
            link.execute("PRAGMA journal_mode=WAL")
            link.execute("PRAGMA synchronous=NORMAL")


def unreachable_error(url: str, error: OperationalError) -> UnreachableError:
    """Returns the error for a database that does not answer, with the URL and the reason."""
    return UnreachableError(f"study.storage: {hide_password(url)}: {str(error.orig).splitlines()[0]}")


def hide_password(url: str) -> str:
    """Returns a URL with its password replaced by `***`."""
    return sql.make_url(url).render_as_string(hide_password=True)


@contextmanager
def _sqlite_lock(engine: Engine, study: str) -> Generator[None]:
    """Locks a file next to the database in the block; the lock ends with the process."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path = Path(engine.url.database or "study")
    with (path.parent / f".{path.name}.{study}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise _driven(study) from e
        yield


@contextmanager
def _server_lock(engine: Engine, study: str) -> Generator[None]:
    """Takes an advisory lock of PostgreSQL, which ends with the connection."""
    key = int.from_bytes(hashlib.sha256(f"raptor {study}".encode()).digest()[:8], "big", signed=True)
    with engine.connect() as link:
        if not link.execute(sql.select(sql.func.pg_try_advisory_lock(key))).scalar():
            raise _driven(study)
        try:
            yield
        finally:
            link.invalidate()  # closes the connection, and with it the lock, even if the server is gone


def _driven(study: str) -> UserError:
    return UserError(f"study {study}: is being run by another raptor; wait until it has ended")
