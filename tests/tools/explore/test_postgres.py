"""Studies in PostgreSQL: a real server, started here as an ordinary user, and stopped in the middle of a study."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.tools.explore.results import result_tables
from raptor.tools.explore.study_database import StudyDatabase
from raptor.tools.explore.study_driver import StudyProgress, read_outcomes, run_study
from tests.tools.explore.small import small

pytestmark = pytest.mark.slow

SETTINGS = "trials = 16\nbatch = 4\nseed = 3"


def program(name: str) -> str:
    """Returns the path of a program of the server; Debian keeps them out of the way."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*map(str, places), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install postgresql")
    return found


class Server:
    """A server of PostgreSQL with data in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # NOTE: the server refuses to be run by root.
        self.user: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
        folder.mkdir(mode=0o700)
        if self.user:
            shutil.chown(folder, "nobody")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.call("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "raptor", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://raptor@127.0.0.1:{self.port}/postgres"

    def call(self, name: str, *args: str) -> None:
        subprocess.run(
            [program(name), *args], check=True, stdout=subprocess.DEVNULL, cwd=self.folder, timeout=60, **self.user
        )

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -F"
        log = str(self.folder / "log")
        self.call("pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        self.call("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")


@contextmanager
def server(folder: Path) -> Generator[Server]:
    found = Server(folder)
    found.start()
    try:
        yield found
    finally:
        if (found.folder / "data" / "postmaster.pid").exists():
            found.stop()


@pytest.fixture
def place() -> Generator[Path]:
    """A folder that another user may enter, which pytest's are not."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="raptor-postgres-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "server"


def test_a_server_that_is_stopped_in_the_middle(place: Path, tmp_path: Path):
    expected = small(tmp_path / "a", SETTINGS)
    run_study(expected)
    wanted = file_access.model_to_json(result_tables.make_study_report(expected, read_outcomes(expected)))
    with server(place) as found:
        study = small(tmp_path / "b", f'{SETTINGS}\nstorage = "{found.url}"')
        stops: list[threading.Thread] = []

        def watch(progress: StudyProgress) -> None:
            if progress.evaluated in (3, 7) and len(stops) < 2:
                found.stop()
                stops.append(threading.Timer(3, found.start))
                stops[-1].start()
                stops[-1].join(0)

        run_study(study, watch)
        assert len(stops) == 2
        assert file_access.model_to_json(result_tables.make_study_report(study, read_outcomes(study))) == wanted
        store = StudyDatabase(found.url)
        with store.lock_study(study.name), pytest.raises(UserError, match="is being run by another raptor"):
            run_study(study)
        store.close()


def test_no_server(tmp_path: Path):
    study = small(tmp_path, f'{SETTINGS}\nstorage = "postgresql+psycopg://raptor:secret@127.0.0.1:9/x"')
    with pytest.raises(UserError, match="refused") as raised:
        read_outcomes(study)
    assert "secret" not in str(raised.value)
