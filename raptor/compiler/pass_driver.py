"""Pass manager: runs, verifies, times and dumps passes, and stops after the pass that the user named."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from raptor.common.errors import InternalError, RaptorError, UserError, VerifyError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import argument_error, parse_optional_path
from raptor.common.options.option_values import DumpFormat
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

    _by_name: dict[tuple[str, str], object] = field(default_factory=dict[tuple[str, str], object])

    def put(self, step: Callable[..., R], result: R) -> None:
        """Stores the result of a pass, unless it is None: not known."""
        if result is not None:
            self._by_name[_key(step)] = result

    def get(self, step: Callable[..., R]) -> R | None:
        """Returns the stored result of a pass; None if there is none."""
        return cast(R | None, self._by_name.get(_key(step)))

    def replayed(self, step: Callable[P, R]) -> Callable[P, R]:
        """Returns a pass that returns the stored result of `step`; `step` itself if there is none."""
        result = self.get(step)
        return step if result is None else returning(step, result)


def _key(step: Callable[..., object]) -> tuple[str, str]:
    """Returns module and name of a pass: each machine has a `generate`."""
    return step.__module__, step.__name__


class UserPass(Protocol):
    """A pass of the user, which gets the result of a pass of the compiler and returns another one in its place.

    `label`: what messages call it, such as an option with its file.
    """

    @property
    def label(self) -> str: ...

    def __call__(self, result: Any, /) -> Any: ...

    def describe(self, error: VerifyError) -> str:
        """Returns what the verifier found in its result, with the place that the user can look at."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionPass:
    """A Python function as a pass of the user, after the pass `after`."""

    after: str
    function: Callable[[Any], Any]

    @property
    def label(self) -> str:
        return f"passes[{self.after!r}]"

    def __call__(self, result: Any, /) -> Any:
        try:
            return self.function(result)
        except RaptorError:
            raise
        except Exception as e:
            raise UserError(f"{self.label}: {type(e).__name__}: {e}") from e

    def describe(self, error: VerifyError) -> str:
        return f"{self.label}: the verifier refuses its result: {error}"


@dataclass(slots=True)
class Driver:
    """State of one compilation.

    `dump`: folder for the results of passes, as text or, with `dump_format` `mlir`, as MLIR where a level has such a
    form. `passes`: by the pass whose result each of them changes. `stop_after`: name of a pass. `started`: called with
    the name of each stage as it starts. `verified`: False for trials of a search, whose best result is verified when it
    is compiled. `beside`: verifies results in parallel with later passes and the writing of files, from `start_checks`
    on; `finish` waits for it. `seconds`: time of each stage. `done`: names of the passes that are done. `changed`:
    label of the last pass of the user that has changed a result.
    """

    dump: Path | None = None
    dump_format: DumpFormat = "text"
    passes: Mapping[str, UserPass] = field(default_factory=dict[str, UserPass])
    stop_after: str | None = None
    started: Callable[[str], None] = lambda _: None
    verified: bool = True
    beside: BackgroundChecks | None = None
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    done: list[str] = field(default_factory=list[str])
    changed: str = ""

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
            with _blamed(name, done), self._blaming_user():
                result = self.timed(name, step, *args, **kwargs)
        except Exception:
            self.finish()  # if an earlier result was wrong, this error comes from it
            raise
        if self.verified and verify is not None and not any(result is each for each in args):
            self._check(self._blaming_user()(_blamed(name, done)(verify)), result)
        if name in self.passes:
            result = self._changed(self.passes[name], name, result, verify)
        self._show(name, result)
        self.done.append(name)
        return result

    def _changed(self, user: UserPass, name: str, result: R, verify: Callable[[R], object] | None) -> R:
        """Returns what a pass of the user makes of the result of pass `name`, verified."""
        if verify is None:
            raise UserError(f"{user.label}: nothing verifies the result of {name}, so no pass of a user can change it")
        changed = self.timed(user.label, user, result)
        if type(changed) is not type(result):
            raise UserError(f"{user.label}: returned {type(changed).__name__}, expected {type(result).__name__}")
        try:
            self.timed("verify", verify, changed)
        except VerifyError as e:
            raise UserError(user.describe(e)) from e
        except _BUGS as e:
            raise UserError(f"{user.label}: its result cannot be verified: {type(e).__name__}: {e}") from e
        self.changed = user.label
        return changed

    @contextmanager
    def _blaming_user(self) -> Generator[None]:
        """Turns an `InternalError` about a program that a pass of the user has changed into a `UserError`."""
        changed = self.changed
        try:
            yield
        except InternalError as e:
            if not changed:
                raise
            raise UserError(f"{changed}: a later pass fails on this program: {e}") from e

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
                ending, text = self._text_of(name, result)
                (self.dump / f"{len(self.done):02d}-{name}.{ending}").write_text(text, encoding="utf-8")
            except OSError as e:
                raise UserError(f"{spell_option('dump_ir', self.dump)}: {e.strerror or e}") from e
        if self.stop_after == name:
            raise StoppedAfterPass(f"{result}")

    def _text_of(self, name: str, result: object) -> tuple[str, str]:
        """Returns the ending of a dumped file, and its text."""
        if self.dump_format == "mlir":
            from raptor import mlir  # only who asks for it pays for it

            text = mlir.find_text(result, name)
            if text is not None:
                return "mlir", text
        return "txt", f"{result}"


def parse_driver(value: object) -> Driver:
    """Returns the driver that a caller gave, or a new one for None. Raises `UserError` for anything else."""
    if not isinstance(value, Driver | None):
        raise argument_error("driver", value, "a raptor.compiler.pass_driver.Driver")
    return value or Driver()


_PASSES = "functions by name of a pass, such as {'lower': change}"


def parse_passes(value: object) -> dict[str, UserPass]:
    """Returns the passes of a user by name, from functions. Raises `UserError` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise argument_error("passes", value, _PASSES)
    given = cast(Mapping[object, object], value)
    if not all(isinstance(name, str) and callable(each) for name, each in given.items()):
        raise argument_error("passes", dict(given), _PASSES)
    return {f"{name}": FunctionPass(f"{name}", cast(Any, each)) for name, each in given.items()}
