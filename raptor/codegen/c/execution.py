"""Builds a program in C and runs it, for `raptor validate` and `raptor run`.

Two environment variables say for which computer: `RAPTOR_CC`, the compiler with its flags, and `RAPTOR_CC_RUN`, a
command before the program, such as an emulator.
"""

import atexit
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from raptor.codegen.c.c_files import C_FILES, MATRICES, STEPS
from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files

COMPILER, RUNNER = "RAPTOR_CC", "RAPTOR_CC_RUN"
MOST_SECONDS = 3600
"""Seconds after which a build or a sample is stopped."""
_FILE_LIMIT_BYTES = 16 * 2**30
_SHOWN = 2000
_READ = (*C_FILES, STEPS, MATRICES, files.CONSTANTS)
_built: dict[object, Path] = {}
"""Folder of each program built by this process, by its output directory, compiler, and times of its files."""


def execute_c(folder: Path, memory: bytes, captured: int, spans: tuple[int, int]) -> tuple[bytes, bytes]:
    """Runs one sample; see `MachineBackend.execute`. spans: bytes of `memory` before and up to the end of constants.

    Raises `UserError` without a compiler, and if the program cannot be built or fails.
    """
    built = _build(folder)
    inputs, outputs = spans
    with tempfile.TemporaryDirectory(prefix="raptor-c-") as scratch:
        given, made, inside = (Path(scratch) / name for name in ("inputs", "outputs", "captured"))
        given.write_bytes(memory[:inputs])
        words = [*shlex.split(os.environ.get(RUNNER, "")), str(built / "chip"), str(built), str(given), str(made)]
        _call([*words, str(inside)] if captured else words, built, f"{folder}: its program")
        after, tensors = made.read_bytes(), inside.read_bytes() if captured else b""
    if len(after) != len(memory) - outputs or len(tensors) != captured:
        raise UserError(f"{folder}: the program wrote {len(after)} and {len(tensors)} bytes, which are not its sizes")
    return memory[:outputs] + after, tensors


def _build(folder: Path) -> Path:
    """Builds the program of an output directory in a folder of its own, once in a process. Returns that folder."""
    compiler = os.environ.get(COMPILER, "cc")
    key = str(folder.resolve()), compiler, tuple((folder / name).stat().st_mtime_ns for name in _READ)
    if key in _built:
        return _built[key]
    words = shlex.split(compiler)
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"{folder}: needs a C compiler, and {compiler!r} is none; set {COMPILER} to another")
    scratch = Path(tempfile.mkdtemp(prefix="raptor-c-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    (scratch / files.WEIGHTS).mkdir()
    for name in _READ:
        (scratch / name).write_bytes(file_access.read_bytes(folder, name, limit_bytes=_FILE_LIMIT_BYTES))
    _call(["make", f"CC={words[0]}", f"LDFLAGS={shlex.join(words[1:])}"], scratch, f"{folder}: make")
    _built[key] = scratch
    return scratch


def _call(words: Sequence[str], folder: Path, what: str) -> None:
    """Runs a command in a folder. Raises `UserError` with what it printed if it fails."""
    clean: Mapping[str, str] = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "CFLAGS")}
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, env=clean, timeout=MOST_SECONDS, check=False)
    except FileNotFoundError as e:
        raise UserError(f"{what}: {words[0]} is not installed") from e
    except subprocess.TimeoutExpired as e:
        raise UserError(f"{what}: stopped after {MOST_SECONDS} s") from e
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-_SHOWN:]
        raise UserError(f"{what}: failed ({done.returncode}): {said}")
