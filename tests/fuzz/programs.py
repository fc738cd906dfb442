"""Spoilt programs: each is refused, found to differ or to block, or does the same as the good one."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from zipfile import BadZipFile

from raptor.common.errors import RaptorError
from tests.fuzz.bases import bases
from tests.fuzz.campaign import BrokenError, Part
from tests.fuzz.equivalence import reason
from tests.fuzz.isolation import isolated, raptor
from tests.fuzz.mutations import MUTATIONS, MisfitError, seal
from validator.validate import validate

VERDICTS = {0: "passes", 1: "mismatch", 2: "refused", 3: "deadlock"}


def prepare() -> None:
    """Loads compiled loops and libraries before the children are forked, so that they share them."""
    from validator.checks import check
    from validator.simulate.builtin import simulate

    for base in bases():
        assert validate(base, layers=True).passed
        check(base)
        simulate(base, str(base / "arch.json"))


def case(rng: Random, folder: Path) -> str:
    """Spoils a program and runs every command that reads it."""
    out = folder / "out"
    good = rng.choice(bases())
    shutil.copytree(good, out)
    done = _spoil(out, rng)
    sealed = rng.random() < 0.85
    if sealed:
        seal(out)
    status = _verdict(out, done)
    for command in readers(out, folder):
        if fault := raptor(*command).fault():
            raise BrokenError(f"{done}: {command[0]}: {fault}")
    if status != 0:
        return VERDICTS[status]
    return f"passes: {why(good, out, done)}"


def readers(out: Path, folder: Path) -> Sequence[tuple[str | Path, ...]]:
    """Returns every command that reads an output, except `validate`."""
    return (
        ("check", out, "--quiet"),
        ("simulate", out, "--quiet", "--trace", folder / "trace.json"),
        ("report", out, "--quiet", "-o", folder / "page.html"),
        ("compare", out, bases()[0], "--quiet"),
        ("explain", out),
    )


def _spoil(out: Path, rng: Random) -> str:
    done: list[str] = []
    wanted = rng.choice((1, 1, 1, 2))
    while len(done) < wanted:
        mutation = rng.choice(MUTATIONS)
        try:
            done.append(f"{mutation.__name__}: {mutation(out, rng)}")
        except (MisfitError, RaptorError, ValueError, OSError, RecursionError, BadZipFile):
            if done:  # the first mutation may have left nothing for a second one
                break
    return "; ".join(done)


def _verdict(out: Path, done: str) -> int:
    """Returns the exit status of `validate` with its default number of inputs. On one input both engines must agree."""
    command = ("validate", out, "--layers", "--quiet")
    fast, slow, most = (
        raptor(*command, "--samples", "1"),
        raptor(*command, "--samples", "1", "--engine", "python", "--schedule", "round-robin"),
        raptor(*command),
    )
    for outcome in (fast, slow, most):
        if fault := outcome.fault():
            raise BrokenError(f"{done}: validate: {fault}")
    if fast.status != slow.status:
        raise BrokenError(f"{done}: the engines differ: {fast.status} {fast.err!r}, {slow.status} {slow.err!r}")
    assert most.status is not None
    return most.status


def why(good: Path, out: Path, done: str) -> str:
    """Returns the reason why a spoilt program may pass. Raises `BrokenError` if there is none."""

    def show() -> None:
        print(reason(good, out) or "")

    outcome = isolated(show)
    why = outcome.out.strip()
    if outcome.status != 0 or not why:
        raise BrokenError(f"{done}: passes without a reason {outcome.err[-500:]}")
    return why


PROGRAMS = Part(
    "programs",
    "spoilt output directories",
    short=30,
    long=1000,
    case=case,
    prepare=prepare,
)
