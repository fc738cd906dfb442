"""Runs passes: verifies what each returns, times it, dumps it, stops where asked."""

import gc
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from raptor.common.arguments import path_or_none
from raptor.common.errors import InternalError, RaptorError, UserError
from raptor.common.spelling import option

P = ParamSpec("P")
R = TypeVar("R")

_BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What a pass raises when it is wrong, or what it was given."""


@contextmanager
def without_collector() -> Generator[None]:
    """Python's collector of reference cycles rests: passes make many objects that live, and hardly any cycles.

    It would take a fifth of the time of a compilation, and find nothing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Stopped(Exception):  # noqa: N818 not an error: the user asked for it
    """Compilation ended after the pass the user named; `text` is what that pass returned."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


@dataclass(slots=True)
class Driver:
    """State of one compilation.

    `dump`: folder for the text of what each pass returns. `stop_after`: name of a pass. `started` is told each stage as
    it starts. Unless `verified`, what passes return is taken as it is: of what is compiled again, such as a trial.
    """

    dump: Path | None = None
    stop_after: str | None = None
    started: Callable[[str], None] = lambda _: None
    verified: bool = True
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    done: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.dump = path_or_none("dump_ir", self.dump)

    def timed(self, name: str, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """A stage that is not a pass, such as writing files."""
        self.started(name)
        start = time.perf_counter()
        try:
            return stage(*args, **kwargs)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def run(self, step: Callable[P, R], verify: Callable[[R], object], *args: P.args, **kwargs: P.kwargs) -> R:
        """One pass, which is called as its function.

        Whatever goes wrong inside that is not the user's fault names the pass and those before it.
        """
        name = step.__name__
        try:
            result = self.timed(name, step, *args, **kwargs)
            if self.verified:
                self.timed("verify", verify, result)
        except InternalError as e:
            raise InternalError(f"{name} failed after {self.done}: {e}") from e
        except RaptorError:
            raise
        except _BUGS as e:
            raise InternalError(f"{name} failed after {self.done}: {type(e).__name__}: {e}") from e
        self._show(name, result)
        self.done.append(name)
        return result

    def _show(self, name: str, result: object) -> None:
        if self.dump is not None:
            try:
                self.dump.mkdir(parents=True, exist_ok=True)
                (self.dump / f"{len(self.done):02d}-{name}.txt").write_text(f"{result}", encoding="utf-8")
            except OSError as e:
                raise UserError(f"{option('dump_ir', self.dump)}: {e.strerror or e}") from e
        if self.stop_after == name:
            raise Stopped(f"{result}")
