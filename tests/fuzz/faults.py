"""Faults of a computer: full disks, vanishing folders, signals, little memory, two runs at the same time.

After a fault, the output directory is completely the old one or completely the new one, or it does not exist. No other
files lie beside it, unless the process could not clean up (SIGKILL).
"""

import atexit
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from raptor.common.process.signals import EXIT_INTERRUPTED, EXIT_TERMINATED
from raptor.tools.cli import app
from tests.fuzz import programs
from tests.fuzz.bases import bases
from tests.fuzz.campaign import BrokenError, Part
from tests.fuzz.isolation import Outcome, isolated, raptor
from tests.pipeline import conv_model

Content = dict[str, bytes]
Fault = Callable[[Path, Random], str]
NOBODY = 65534
ROOT = Path(__file__).parents[2]


def content(folder: Path) -> Content | None:
    """Reads all files of a directory, by name; None if it does not exist."""
    if not folder.is_dir():
        return None
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@cache
def model() -> Path:
    """Writes a model whose compilation takes long enough to be interrupted at any place, and returns its path."""
    folder = Path(tempfile.mkdtemp(prefix="raptor-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    path = folder / "model.onnx"
    path.write_bytes(conv_model((1, 12, 10, 10), 12, pads=(1, 1, 1, 1), bias=True, relu=True).SerializeToString())
    return path


def compiling(out: Path) -> list[str]:
    """Returns the arguments that compile `model` to `out`."""
    options = ["--xbar", "8", "--cores", "30", "--xbars-per-core", "8", "--format", "both", "--force", "-q"]
    return ["compile", str(model()), "-o", str(out), *options]


@cache
def new() -> tuple[Content, float]:
    """Compiles without a fault. Returns the files and the seconds that it took."""
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        outcome = raptor(*compiling(Path(name) / "out"))
        seconds = time.monotonic() - start
        assert outcome.status == 0, outcome.err
        found = content(Path(name) / "out")
    assert found
    return found, seconds


def prepare() -> None:
    programs.prepare()
    new()


def _old(folder: Path, rng: Random) -> Content | None:
    """Puts an earlier output in place in most cases, and returns its files, or None."""
    if rng.random() < 0.4:
        return None
    good = rng.choice(bases())
    shutil.copytree(good, folder / "out")
    return content(good)


def _judge(
    outcome: Outcome, folder: Path, old: Content | None, *, statuses: tuple[int, ...], clean: bool = True
) -> str:
    """Names the output that is left: new, old or none. Raises `BrokenError` if it is half an output, or not clean."""
    if fault := outcome.fault(statuses):
        raise BrokenError(fault)
    found = content(folder / "out")
    left = sorted(p.name for p in folder.iterdir() if p.name != "out")
    if clean and left:
        raise BrokenError(f"left behind: {left} (status {outcome.status}: {outcome.err})")
    if found == new()[0]:
        return "new"
    if outcome.status == 0:
        raise BrokenError("exit status 0 without the new output")
    if found == old:
        return "old" if old else "none"
    if found is None and not clean:
        return "none, the old one kept beside it"
    names = None if found is None else sorted(found)
    raise BrokenError(f"neither the old nor the new output: {names} (status {outcome.status}: {outcome.err})")


# Signals


def killed(folder: Path, rng: Random) -> str:
    """Kills a compilation at a random time (SIGKILL). The next run must work."""
    old = _old(folder, rng)
    delay = rng.uniform(0.0, 1.2) * new()[1]

    def strike(child: int) -> None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)

    outcome = isolated(lambda: app.main(compiling(folder / "out")), during=strike)
    died = outcome.status == -signal.SIGKILL
    if died:
        outcome = Outcome(EXIT_INTERRUPTED, "", "", 0, 0)
    left = _judge(outcome, folder, old, statuses=(0, EXIT_INTERRUPTED), clean=not died)
    again = raptor(*compiling(folder / "out"))
    if again.fault((0,)) or content(folder / "out") != new()[0]:
        raise BrokenError(f"the next run fails: {again.status} {again.err}")
    return left


def interrupted(folder: Path, rng: Random) -> str:
    """Interrupts a compilation at a random time (Ctrl-C)."""
    old = _old(folder, rng)
    outcome = _struck(folder, rng, signal.SIGINT)
    if outcome.status == EXIT_INTERRUPTED and outcome.err != "raptor: error: interrupted\n":
        raise BrokenError(f"interrupted, but says {outcome.err!r}")
    return _judge(outcome, folder, old, statuses=(0, EXIT_INTERRUPTED))


def terminated(folder: Path, rng: Random) -> str:
    """Terminates a compilation at a random time (SIGTERM)."""
    old = _old(folder, rng)
    outcome = _struck(folder, rng, signal.SIGTERM)
    if outcome.status == -signal.SIGTERM:  # before the command handled it, or after its end
        outcome = replace(outcome, status=EXIT_TERMINATED, err="raptor: error: terminated\n")
    if outcome.status == EXIT_TERMINATED and outcome.err != "raptor: error: terminated\n":
        raise BrokenError(f"terminated, but says {outcome.err!r}")
    return _judge(outcome, folder, old, statuses=(0, EXIT_TERMINATED))


def _struck(folder: Path, rng: Random, number: signal.Signals) -> Outcome:
    """Compiles, and sends a signal to the process at a random time."""
    delay = 0.01 + rng.uniform(0.0, 1.1) * new()[1]

    def strike(child: int) -> None:
        time.sleep(delay)
        os.kill(child, number)

    return isolated(lambda: app.main(compiling(folder / "out")), during=strike)


def validation_stopped(folder: Path, rng: Random) -> str:
    """Stops a validation by a signal at a random time. It must not change its input or leave half a report."""
    good = rng.choice(bases())
    shutil.copytree(good, folder / "out")
    number = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    delay = rng.uniform(0.005, 0.15)

    def strike(child: int) -> None:
        time.sleep(delay)
        os.kill(child, number)

    report = folder / "report.json"
    arguments = ["validate", str(folder / "out"), "--layers", "--json", str(report), "-q"]
    outcome = isolated(lambda: app.main(arguments), during=strike)
    died = outcome.status in (-signal.SIGKILL, -signal.SIGTERM)  # SIGTERM, before the command handled it
    if not died and (fault := outcome.fault((0, EXIT_INTERRUPTED, EXIT_TERMINATED))):
        raise BrokenError(fault)
    if content(folder / "out") != content(good):
        raise BrokenError("validate changed what it read")
    if report.exists() and not report.read_bytes().endswith(b"\n}\n"):
        raise BrokenError("half a report")
    return "ended" if outcome.status == 0 else "stopped"


# Disks


def file_size_limit(folder: Path, rng: Random) -> str:
    """Limits the size of files: a file that would be larger cannot be written, like on a full disk."""
    old = _old(folder, rng)
    limit = rng.choice((500, 1000, 10_000, 50_000, 10**6))  # standard error is a file here, and needs some hundred

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        app.main(compiling(folder / "out"))

    return _judge(isolated(limited), folder, old, statuses=(0, 2))


def full_disk(folder: Path, rng: Random) -> str:
    """Uses a small tmpfs for the output, the temporary files, or both. Only root can mount one."""
    if os.geteuid() != 0:
        return file_size_limit(folder, rng)
    size = rng.choice((4, 40, 200, 400, 900))
    disk, free = folder / "disk", folder / "free"
    disk.mkdir()
    free.mkdir()
    place, temporary = rng.choice(((disk, folder), (free, disk), (disk, disk)))

    def compile_() -> None:
        tempfile.tempdir = str(temporary)
        app.main(compiling(place / "out"))

    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", str(disk)], check=True)
    try:
        return _judge(isolated(compile_), place, None, statuses=(0, 2))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def read_only(folder: Path, rng: Random) -> str:
    """Compiles into a folder without write permission; as another user if we are root, because root may write."""
    old = _old(folder, rng)
    folder.chmod(0o555)

    def without_rights() -> None:
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        app.main(compiling(folder / "out"))

    try:
        outcome = isolated(without_rights)
    finally:
        folder.chmod(0o755)
    return _judge(outcome, folder, old, statuses=(2,))


def vanishing(folder: Path, rng: Random) -> str:
    """Moves the folder of the output away while the output is written."""
    parent = folder / "parent"
    parent.mkdir()
    delay = rng.uniform(0.0, 1.1) * new()[1]

    def strike(_: int) -> None:
        time.sleep(delay)
        parent.rename(folder / "moved")

    outcome = isolated(lambda: app.main(compiling(parent / "out")), during=strike)
    if fault := outcome.fault((0, 2)):
        raise BrokenError(fault)
    wholes = [content(p / "out") for p in (parent, folder / "moved")]
    if any(w not in (None, new()[0]) for w in wholes):
        raise BrokenError("half an output")
    return "new" if any(wholes) else "none"


@cache
def _sources() -> Path:
    """Copies the packages. A file in the way of each cache folder prevents that anyone, even root, writes a cache."""
    folder = Path(tempfile.mkdtemp(prefix="raptor-sources-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for package in ("raptor", "validator"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for package in [p for p in folder.rglob("*") if p.is_dir()]:
        (package / "__pycache__").touch()
    return folder


def no_cache(folder: Path, rng: Random) -> str:
    """Leaves no place for compiled loops, or only a full disk: `raptor` takes longer, and is right."""
    home = folder / "home"
    if full := os.geteuid() == 0 and rng.random() < 0.5:
        home.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "none", str(home)], check=True)
    elif rng.random() < 0.5:
        home.touch()
    surroundings = {"HOME": str(home), "NUMBA_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(_sources())}
    try:
        outcome = _afresh("validate", rng.choice(bases()), "--quiet", surroundings=surroundings)
    finally:
        if full:
            subprocess.run(["umount", "-l", str(home)], check=True)
    if outcome.status != 0 or outcome.err:
        raise BrokenError(f"status {outcome.status}: {outcome.err}")
    return "on a full disk" if full else "nowhere"


def _afresh(*arguments: str | Path, surroundings: Mapping[str, str] | None = None, memory_bytes: int = -1) -> Outcome:
    """Runs `raptor` in a new process, which has imported nothing yet. `surroundings`: environment variables."""
    code = "import sys, raptor.tools.cli.app; raptor.tools.cli.app.main(sys.argv[1:])"
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=os.environ | (surroundings or {}),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes)),
            capture_output=True,
            text=True,
            timeout=300,
        )
    except subprocess.TimeoutExpired as e:
        raise BrokenError(f"still running after {e.timeout} s") from e
    return Outcome(done.returncode, done.stdout, done.stderr, time.monotonic() - begin, 0)


# Memory, and other processes


def limited_from_the_start(folder: Path, rng: Random) -> str:
    """Limits memory as `ulimit -v` does, before anything is imported."""
    old = _old(folder, rng)
    memory_bytes = round(math.exp(rng.uniform(math.log(40 * 2**20), math.log(2 * 2**30))))
    out, good = folder / "out", rng.choice(bases())
    arguments = rng.choice((compiling(out), ["validate", good, "-q"], ["check", good, "-q"], ["simulate", good, "-q"]))
    outcome = _afresh(*arguments, memory_bytes=memory_bytes)
    if fault := outcome.fault((0, 2)):
        raise BrokenError(f"{arguments[0]} with {memory_bytes} bytes: {fault}")
    if arguments[0] == "compile":
        return _judge(outcome, folder, old, statuses=(0, 2))
    return f"{arguments[0]} {'refused' if outcome.status == 2 else 'ended'}"


def little_memory(folder: Path, rng: Random) -> str:
    """Runs a command with little memory: it ends as usual or refuses."""
    old = _old(folder, rng)
    command = rng.choice(("compile", "compile", "validate", "check", "simulate"))
    # NOTE: with less memory, CPython may wait for ever for a thread that could not start.
    memory_bytes = 2**20 + rng.randrange(0, 2 ** rng.randint(18, 28))
    if command == "compile":
        outcome = raptor(*compiling(folder / "out"), memory_bytes=memory_bytes)
        return _judge(outcome, folder, old, statuses=(0, 2))
    outcome = raptor(command, rng.choice(bases()), "-q", memory_bytes=memory_bytes)
    findings = (1,) if command == "check" else ()
    if fault := outcome.fault((0, *findings, 2)):
        raise BrokenError(f"{command} with {memory_bytes} bytes: {fault}")
    return f"{command} {'refused' if outcome.status == 2 else 'ended'}"


def two_at_once(folder: Path, rng: Random) -> str:
    """Lets two runs write the same directory: one writes all of it; the other is refused, or comes later."""
    old = _old(folder, rng)
    delay = rng.uniform(0.0, 0.3) * new()[1]
    others: list[Outcome] = []

    def other(_: int) -> None:
        time.sleep(delay)
        others.append(raptor(*compiling(folder / "out")))

    first = isolated(lambda: app.main(compiling(folder / "out")), during=other)
    for outcome in (first, *others):
        if fault := outcome.fault((0, 2)):
            raise BrokenError(fault)
    statuses = (first.status, others[0].status)
    if 0 not in statuses:
        raise BrokenError(f"neither wrote: {first.err} {others[0].err}")
    return f"{_judge(first if first.status == 0 else others[0], folder, old, statuses=(0, 2))}, {statuses}"


FAULTS: tuple[Fault, ...] = (
    killed, killed, killed, killed, interrupted, interrupted, terminated, terminated, terminated, validation_stopped,
    validation_stopped, file_size_limit, full_disk, read_only, vanishing, little_memory, little_memory, two_at_once,
    limited_from_the_start, limited_from_the_start, no_cache,
)  # fmt: skip


def case(rng: Random, folder: Path) -> str:
    """Tries one of `FAULTS`."""
    fault = rng.choice(FAULTS)
    try:
        return f"{fault.__name__}: {fault(folder, rng)}"
    except BrokenError as error:
        raise BrokenError(f"{fault.__name__}: {error}") from error


INTERRUPTIONS = Part("faults", "kills, full disks, little memory", short=20, long=450, case=case, prepare=prepare)
