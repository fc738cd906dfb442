"""ONNX's own backend suite on our backend: the cases that apply, and what running one of them gives."""

import os
import time
import unittest
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from raptor.common.errors import RaptorError
from raptor.integrations.onnx_backend import RaptorBackend, RaptorRep

FOLDER = Path(__file__).parent
CASES, PASSING, HOSTED = FOLDER / "cases.txt", FOLDER / "passing.txt", FOLDER / "hosted.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the suite, as the table `cases.txt` describes it.

    `constants`: the inputs that are parameters of the operator. Only these may become constants of the program.
    """

    name: str
    ops: str
    category: str
    opset: int
    constants: frozenset[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` is empty for a case that passes."""

    case: Case
    reason: str
    seconds: float


@cache
def cases() -> Mapping[str, Case]:
    """The cases for inference on static float32 shapes (and the quantised operators), by name."""
    found: dict[str, Case] = {}
    for line in CASES.read_text().splitlines():
        if not line.startswith("#"):
            name, ops, category, opset, constants = line.split("\t")
            found[name] = Case(name, ops, category, int(opset), frozenset(constants.split(",")) - {"-"})
    return found


@cache
def passing() -> frozenset[str]:
    """The cases that must pass."""
    return frozenset(PASSING.read_text().split())


@cache
def hosted() -> frozenset[str]:
    """The cases that must pass with the host, and do not without."""
    return frozenset(HOSTED.read_text().split())


def run(case: Case, home: Path) -> Outcome:
    """Runs one case as the suite does, with its tolerances and types. `home`: a scratch folder."""
    start = time.perf_counter()
    with _onnx_home(home):
        try:
            _test_function(case.name)(unittest.TestCase())
            reason = _bound_too_much(case)
        except unittest.SkipTest as skip:
            reason = f"skipped: {skip}"
        except Exception as error:  # any failure is the case's outcome, listed with its words
            reason = explain(error)
    return Outcome(case, reason, time.perf_counter() - start)


def explain(error: Exception) -> str:
    """Returns the error as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, AssertionError):
        return "differs: " + "; ".join(lines[:5])
    return f"{type(error).__name__}: {' '.join(lines[:4])}"


class _Backend(RaptorBackend):
    """Remembers what it prepared last."""

    last: RaptorRep | None = None

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> RaptorRep:
        cls.last = super().prepare(model, device, **kwargs)
        return cls.last


def _bound_too_much(case: Case) -> str:
    """A case whose data was compiled into the program proves nothing."""
    assert _Backend.last is not None
    wrong = sorted(set(_Backend.last.bound) - case.constants)
    return f"compiled as constants, but are data: {', '.join(wrong)}" if wrong else ""


@contextmanager
def _onnx_home(home: Path) -> Iterator[None]:
    """The suite keeps data in the user's home unless told."""
    before = os.environ.get("ONNX_HOME")
    os.environ["ONNX_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["ONNX_HOME"]
        else:
            os.environ["ONNX_HOME"] = before


def _test_function(name: str) -> Any:
    for group in _suite():
        if (function := getattr(group, f"{name}_cpu", None)) is not None:
            return function
    raise RaptorError(f"the installed onnx has no case {name}")


@cache
def _suite() -> tuple[type[unittest.TestCase], ...]:
    # Takes seconds: onnx computes all its node cases when this is imported.
    import onnx.backend.test

    runner = onnx.backend.test.BackendTest(_Backend, __name__)
    return tuple(runner.test_cases.values())


__all__ = ["Case", "Outcome", "cases", "hosted", "passing", "run"]
