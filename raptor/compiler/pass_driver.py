"""Pass manager: runs, verifies, times and dumps passes, and stops after the pass that the user named."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from raptor.common.errors import InternalError, RaptorError, UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import argument_error, parse_optional_path
from raptor.common.process import gc_policy, malloc_trim
from raptor.common.process.forked_task import BackgroundChecks

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
"""Exceptions of a pass that has a bug, or that got a wrong value from an earlier one."""


@contextmanager
def _blamed(name: str, done: Sequence[str]) -> Generator[None]:
    """Turns errors that are not the user's fault into an `InternalError` that names the pass and the passes done."""
    try:
        yield
    except InternalError as e:
        raise InternalError(f"{name} failed after {[*done]}: {e}") from e
    except RaptorError:
        raise
    except _BUGS as e:
        raise InternalError(f"{name} failed after {[*done]}: {type(e).__name__}: {e}") from e


class StoppedAfterPass(Exception):  # noqa: N818 not an error: the user asked for it
    """Raised after the pass that the user named; `text` is the result of that pass as text."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)


def returning(step: Callable[P, R], result: R) -> Callable[P, R]:
    """Returns a pass with the name of `step` that returns `result`, whatever its arguments are."""

    @wraps(step)
    def stage(*_: P.args, **__: P.kwargs) -> R:
        return result

    return stage


@dataclass(slots=True)
class PassResults:
    """Results of passes for one decision, each of the type that its pass returns."""

    _by_name: dict[str, object] = field(default_factory=dict[str, object])

    def put(self, step: Callable[..., R], result: R) -> None:
        """Stores the result of a pass, unless it is None: not known."""
        if result is not None:
            self._by_name[step.__name__] = result

    def get(self, step: Callable[..., R]) -> R | None:
        """Returns the stored result of a pass; None if there is none."""
        return cast(R | None, self._by_name.get(step.__name__))

    def replayed(self, step: Callable[P, R]) -> Callable[P, R]:
        """Returns a pass that returns the stored result of `step`; `step` itself if there is none."""
        result = self.get(step)
        return step if result is None else returning(step, result)


@dataclass(slots=True)
class Driver:
    """State of one compilation.

    `dump`: folder for the results of passes as text. `stop_after`: name of a pass. `started`: called with the name
    of each stage as it starts. `verified`: False for trials of a search, whose best result is verified when it is
    compiled. `beside`: verifies results in parallel with later passes and the writing of files, from `start_checks`
    on; `finish` waits for it. `seconds`: time of each stage. `done`: names of the passes that are done.
    """

    dump: Path | None = None
    stop_after: str | None = None
    started: Callable[[str], None] = lambda _: None
    verified: bool = True
    beside: BackgroundChecks | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    done: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.dump = parse_optional_path("dump_ir", self.dump)

    def timed(self, name: str, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs and times a stage, which need not be a pass. Returns its result."""
        self.started(name)
        start = time.perf_counter()
        if self.beside is not None:  # only a command: a trial uses at once what the one before has freed
            malloc_trim.trim_heap()
        try:
            return stage(*args, **kwargs)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def run(self, step: Callable[P, R], verify: Callable[[R], object] | None, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs, verifies and dumps one pass, named after its function. Returns its result.

        `verify` raises `VerifyError` for a wrong result; None for a type without invariants, whose errors show in later
        values. An argument that is returned as it is, because the pass changes nothing, is not verified again.

        An error that is not the user's fault becomes an `InternalError` with the names of the pass and of the passes
        before it. Raises `StoppedAfterPass` after the pass `stop_after`.
        """
        name, done = step.__name__, tuple(self.done)
        try:
            with _blamed(name, done):
                result = self.timed(name, step, *args, **kwargs)
        except Exception:
            self.finish()  # if an earlier result was wrong, this error comes from it
            raise
        if self.verified and verify is not None and not any(result is each for each in args):
            self._check(_blamed(name, done)(verify), result)
        self._show(name, result)
        self.done.append(name)
        return result

    def _check(self, verify: Callable[[R], object], result: R) -> None:
        if self.beside is None:
            self.timed("verify", verify, result)
        else:
            self.beside.add(partial(verify, result))

    def keep(self, results: object) -> None:
        """Skips the deallocation of `results` at exit, if the process is a command that compiles only once."""
        if self.beside is not None:  # only such a command has it: not a segment, nor a point of a study
            gc_policy.keep_until_exit(results)

    def start_checks(self) -> None:
        """Starts to verify the results since the last call, in parallel with later work."""
        if self.beside is not None:
            self.beside.start()

    def finish(self) -> None:
        """Waits until all results are verified. Raises the error of the first wrong one."""
        if self.beside is not None:
            self.timed("verify", self.beside.finish)

    def _show(self, name: str, result: object) -> None:
        """Dumps the result of a pass as text, and raises `StoppedAfterPass` if the user asked for it."""
        if self.dump is not None:
            try:
                self.dump.mkdir(parents=True, exist_ok=True)
                (self.dump / f"{len(self.done):02d}-{name}.txt").write_text(f"{result}", encoding="utf-8")
            except OSError as e:
                raise UserError(f"{spell_option('dump_ir', self.dump)}: {e.strerror or e}") from e
        if self.stop_after == name:
            raise StoppedAfterPass(f"{result}")


def parse_driver(value: object) -> Driver:
    """Returns the driver that a caller gave, or a new one for None. Raises `UserError` for anything else."""
    if not isinstance(value, Driver | None):
        raise argument_error("driver", value, "a raptor.compiler.pass_driver.Driver")
    return value or Driver()
