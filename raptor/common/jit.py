"""Declares compiled loops: numba, with a cache on disk wherever one can be written.

Import this module, and those that use it, only where a kernel runs: importing numba takes 0.2 s. NOTE: numba compiles
again when the kernel's own file changes. Helpers and constants of other files become part of the machine code too, so
the files of this project that a kernel's file imports count as well (`sources`). Whatever is not written in such a file
(the time of day, a file that is read) is an argument.
"""

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs] numba has no types, here and below
import numpy as np
from numba.core.dispatcher import Dispatcher  # pyright: ignore[reportMissingTypeStubs]

from raptor.common.machine_code import MachineCode

try:
    from raptor.common.linked_code import LinkedCompiler
except (ImportError, AttributeError):  # a numba that is built in another way: helpers take longer to compile
    LinkedCompiler = None


def _load_arrays() -> None:
    """Loads numba's functions of arrays, which every kernel needs, without those of scipy.

    They import its linear algebra where they find it, to see if it has a BLAS. That takes as long as numba itself, and
    no kernel has a product of matrices. Where one is compiled after all, numba imports it then.
    """
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # pyright: ignore[reportArgumentType] so an import of it fails
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]


_load_arrays()

P = ParamSpec("P")
R = TypeVar("R")

_OURS = ("raptor", "validator")


@dataclass(frozen=True, slots=True)
class _Interpretation:
    """Says how Python runs a kernel; see `interpret`."""

    us: Callable[[tuple[Any, ...]], float]
    until_us: float
    by_element: bool


_INTERPRETATIONS: dict[Any, _Interpretation] = {}


def interpret(
    us: Callable[[tuple[Any, ...]], float], until_us: float, *, by_element: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares that Python runs a kernel without machine code if that is quicker than to compile it.

    So nothing is compiled for a small model. The results are equal to the bit: a kernel with arithmetic of small
    integers or of float32, for which numba's types are wider than those of numpy, must not be declared.

    us: estimates the microseconds of a call, by its arguments. until_us: sum of them, over all processes, from which on
    the kernel is compiled. `by_element`: the kernel reads and writes its arguments by single elements. Then they need
    not be arrays, which Python reads slowly.
    """

    def declared(function: Callable[P, R]) -> Callable[P, R]:
        _INTERPRETATIONS[function] = _Interpretation(us, until_us, by_element)
        return function

    return declared


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function called from Python; the machine code is cached beside the file or in the user's cache."""
    return _cached(function)


def helper(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function called only by kernels; it becomes part of their cached code."""
    return _helper(function, counted=True)


def bare_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A `kernel` that allocates nothing: compiled without reference counts, which cost more than small helpers do."""
    return _cached(function, counted=False)


def bare_helper(function: Callable[P, R]) -> Callable[P, R]:
    """A `helper` of a `bare_kernel`."""
    return _helper(function, counted=False)


def has_machine_code(kernel: Callable[..., object]) -> bool:
    """Tells whether a kernel has machine code, in memory or in its cache."""
    compiled, stored = _COMPILED[kernel]
    try:
        return bool(compiled.overloads or (stored and not stored.is_empty()))
    except (AttributeError, ImportError):  # another version's cache: the first call empties it
        return True


_COMPILED: dict[Callable[..., object], tuple[Any, MachineCode | None]] = {}
"""The compiled function of each kernel, and its cache, None if it has none."""


class _Patience:
    """Time that Python may still spend on a kernel before compiling it is quicker."""

    def __init__(self, declared: _Interpretation, stored: MachineCode | None) -> None:
        self._declared, self._stored = declared, stored
        self._left_us, self._unsaved_us = -1.0, 0.0

    def covers(self, args: tuple[Any, ...]) -> bool:
        """Tells whether Python should run this call, and counts it then."""
        if self._left_us < 0:
            self._left_us = self._declared.until_us - (self._stored.interpreted_us() if self._stored else 0.0)
        us = self._declared.us(args)
        if us >= self._left_us:
            self._left_us = 0.0
            return False
        self._left_us -= us
        self._unsaved_us += us
        if self._stored and self._unsaved_us > self._declared.until_us / 100:  # so no file is written for each call
            self._stored.add_interpreted_us(self._unsaved_us)
            self._unsaved_us = 0.0
        return True


def _cached(function: Callable[P, R], *, counted: bool = True) -> Callable[P, R]:
    compiled, stored = _with_code(function, counted=counted)
    declared = _INTERPRETATIONS.get(function)
    patience = _Patience(declared, stored) if declared else None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if patience and not has_machine_code(call) and patience.covers(args):
            return _interpreted(function)(*args, **kwargs)
        try:
            return compiled(*args, **kwargs)
        except OSError:  # the cache failed, such as on a full disk; kernels touch no files, and the code is in memory
            return compiled(*args, **kwargs)
        except (AttributeError, ImportError):  # the cache of another version names types that are no more
            if stored is None:
                raise
            stored.flush()
            return compiled(*args, **kwargs)

    _COMPILED[call] = compiled, stored
    return call


def _with_code(function: Callable[P, R], *, counted: bool) -> tuple[Callable[P, R], MachineCode | None]:
    """Returns the compiled function and its cache, None if it has none."""
    try:
        compiled = _njit(function, cached=True, counted=counted)
        return compiled, _store(compiled, sources(function.__module__))
    except (RuntimeError, AttributeError):  # numba found no writable directory for its cache, or keeps it elsewhere
        return _njit(function, cached=False, counted=counted), None


@cache
def _interpreted(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a kernel as Python, which also calls its helpers as Python."""
    plain, by_element = _plain(function, {}), _INTERPRETATIONS[function].by_element

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return plain(*(map(_elements, args) if by_element else args), **kwargs)

    return call


def _elements(given: Any) -> Any:
    """Returns an array, or those in a tuple, as memory with plain numbers, quicker than those of numpy."""
    if isinstance(given, np.ndarray):
        return memoryview(cast(Any, given))
    if not isinstance(given, tuple):
        return given
    found, kind = map(_elements, cast(tuple[Any, ...], given)), cast(Any, type(cast(Any, given)))
    return kind(*found) if hasattr(kind, "_fields") else tuple(found)


def _plain(function: Any, modules: dict[int, dict[str, Any]]) -> Any:
    """Returns a function that finds Python functions where its module has compiled ones.

    `modules`: the names of modules as such functions find them, by the identity of the real ones; it grows.
    """
    real = function.__globals__
    if id(real) not in modules:
        names = modules[id(real)] = dict(real)
        for name, value in real.items():
            if isinstance(value, Dispatcher):
                names[name] = _plain(cast(Any, value).py_func, modules)
    return FunctionType(function.__code__, modules[id(real)], function.__name__, function.__defaults__)


def _helper(function: Callable[P, R], *, counted: bool) -> Callable[P, R]:
    return _njit(function, cached=False, counted=counted, pipeline_class=LinkedCompiler)


def _njit(function: Callable[P, R], *, cached: bool, counted: bool, pipeline_class: Any = None) -> Callable[P, R]:
    options: dict[str, Any] = {"cache": cached, "nogil": True, "error_model": "numpy", "_nrt": counted}
    options["no_cfunc_wrapper"] = True  # no kernel is an argument of another
    options["pipeline_class"] = pipeline_class
    compile_ = numba.njit(**options)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return cast(Callable[P, R], compile_(function))


def _store(compiled: Any, files: tuple[Path, ...]) -> MachineCode:
    """Gives a function its cache. What is in there is old as soon as one of `files` has changed.

    Raises `AttributeError` for a numba that has its cache organised in another way.
    """
    cache = compiled._cache
    stamp = (cache._cache_file._source_stamp, *((at.st_mtime, at.st_size) for at in map(Path.stat, files)))
    cache._cache_file = MachineCode(cache._cache_path, cache._impl.filename_base, stamp)
    return cache._cache_file


def sources(module: str) -> tuple[Path, ...]:
    """The files of this project that the code of the kernels in `module` depends on, without its own file.

    These are the files that it imports, and those that they import if they hold compiled functions themselves.
    """
    found: dict[str, None] = {}
    pending = [module]
    while pending:
        for name in _imports(pending.pop()):
            if name not in found and name != module:
                found[name] = None
                pending += [name] if __name__ in _imports(name) else []
    return tuple(Path(str(sys.modules[name].__file__)) for name in found)


@cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules of this project that a loaded one imports at its top."""
    return tuple(_imported(module))


def _imported(module: str) -> Iterator[str]:
    head, _, _ = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8").partition("\n\n\n")
    for node in ast.parse(head).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in _OURS:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            loaded = [name for name in inner if name in sys.modules]
            yield from loaded or [node.module]
