"""Decorators for loops compiled by numba, with a cache of the machine code on disk if a directory can be written.

Import this module, and those that use it, only where a kernel runs: importing numba takes 0.2 s. NOTE: numba recompiles
a kernel when its own file changes. Helpers and constants of other files become part of the machine code too, so all
project files that the kernel's file imports count as well (`sources`). Values from anywhere else (the time of day, a
file) must be arguments.
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

from raptor.common.jit.numba_cache import KernelCache

try:
    from raptor.common.jit.numba_inlining import LinkedCompiler
except (ImportError, AttributeError):  # a numba with other internals: helpers take longer to compile
    LinkedCompiler = None


def _load_arrays() -> None:
    """Imports numba's array functions, which every kernel needs, without scipy.

    numba would import scipy.linalg to look for a BLAS, which takes as long as importing numba, and no kernel has a
    matrix product. If one is compiled after all, numba imports it then.
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
    """Arguments of the decorator `interpret_first` for one kernel."""

    us: Callable[[tuple[Any, ...]], float]
    until_us: float
    by_element: bool


_INTERPRETATIONS: dict[Any, _Interpretation] = {}


def interpret_first(
    us: Callable[[tuple[Any, ...]], float], until_us: float, *, by_element: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: Python interprets the kernel as long as that costs less than compiling it.

    So nothing is compiled for a small model. The results are equal to the bit: a kernel with arithmetic of small
    integers or of float32, for which numba's types are wider than numpy's, must not be declared.

    us: estimates the microseconds of an interpreted call from its arguments. until_us: sum of the estimates, over all
    processes, at which the kernel is compiled. by_element: the kernel accesses its arguments by single elements only,
    so they may be memory views, which Python indexes faster than arrays.
    """

    def declared(function: Callable[P, R]) -> Callable[P, R]:
        _INTERPRETATIONS[function] = _Interpretation(us, until_us, by_element)
        return function

    return declared


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: compiles a function that Python calls. The machine code is cached next to the file, or per user."""
    return _cached(function)


def helper(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: compiles a function that only kernels call; it becomes part of their cached code."""
    return _helper(function, counted=True)


def bare_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a `kernel` that allocates nothing, without reference counts, which cost more than a small helper."""
    return _cached(function, counted=False)


def bare_helper(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a `helper` that only a `bare_kernel` calls."""
    return _helper(function, counted=False)


def has_machine_code(kernel: Callable[..., object]) -> bool:
    """Returns True if the machine code of a kernel is in memory or in its cache."""
    compiled, stored = _COMPILED[kernel]
    try:
        return bool(compiled.overloads or (stored and not stored.is_empty()))
    except (AttributeError, ImportError):  # another version's cache: the first call empties it
        return True


_COMPILED: dict[Callable[..., object], tuple[Any, KernelCache | None]] = {}
"""Kernel -> its compiled function, and its cache on disk (None without one)."""


class _Patience:
    """Time budget of a kernel for interpretation by Python; compiling pays once it is used up."""

    def __init__(self, declared: _Interpretation, stored: KernelCache | None) -> None:
        self._declared, self._stored = declared, stored
        self._left_us, self._unsaved_us = -1.0, 0.0

    def covers(self, args: tuple[Any, ...]) -> bool:
        """Returns True, and charges the call to the budget, if Python should interpret it."""
        if self._left_us < 0:
            self._left_us = self._declared.until_us - (self._stored.read_interpreted_us() if self._stored else 0.0)
        us = self._declared.us(args)
        if us >= self._left_us:
            self._left_us = 0.0
            return False
        self._left_us -= us
        self._unsaved_us += us
        if self._stored and self._unsaved_us > self._declared.until_us / 100:  # no file is written for each call
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
        except (AttributeError, ImportError):  # the cache of another version names types that no longer exist
            if stored is None:
                raise
            stored.flush()
            return compiled(*args, **kwargs)

    _COMPILED[call] = compiled, stored
    return call


def _with_code(function: Callable[P, R], *, counted: bool) -> tuple[Callable[P, R], KernelCache | None]:
    """Returns the compiled function and its cache; None without a cache."""
    try:
        compiled = _njit(function, cached=True, counted=counted)
        return compiled, _store(compiled, find_sources(function.__module__))
    except (RuntimeError, AttributeError):  # numba found no writable directory for its cache, or keeps it elsewhere
        return _njit(function, cached=False, counted=counted), None


@cache
def _interpreted(function: Callable[P, R]) -> Callable[P, R]:
    """Returns a kernel as a Python function, which also calls its helpers as Python functions."""
    plain, by_element = _plain(function, {}), _INTERPRETATIONS[function].by_element

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return plain(*(map(_elements, args) if by_element else args), **kwargs)

    return call


def _elements(given: Any) -> Any:
    """Converts arrays, also in tuples, to memory views, whose elements Python reads faster."""
    if isinstance(given, np.ndarray):
        return memoryview(cast(Any, given))
    if not isinstance(given, tuple):
        return given
    elements, kind = map(_elements, cast(tuple[Any, ...], given)), cast(Any, type(cast(Any, given)))
    return kind(*elements) if hasattr(kind, "_fields") else tuple(elements)


def _plain(function: Any, modules: dict[int, dict[str, Any]]) -> Any:
    """Returns a function whose module globals have Python functions in place of compiled ones.

    `modules`: replaced globals, keyed by the id of the original ones; entries are added.
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


def _store(compiled: Any, files: tuple[Path, ...]) -> KernelCache:
    """Attaches the cache to a function. Cached code is stale as soon as one of `files` has changed.

    Raises `AttributeError` if this version of numba organises its cache differently.
    """
    cache = compiled._cache
    stamp = (cache._cache_file._source_stamp, *((at.st_mtime, at.st_size) for at in map(Path.stat, files)))
    cache._cache_file = KernelCache(cache._cache_path, cache._impl.filename_base, stamp)
    return cache._cache_file


def find_sources(module: str) -> tuple[Path, ...]:
    """Returns the project files that kernels in `module` depend on, without the module's own file.

    These are the files that it imports, and, for files with compiled functions, those that they import.
    """
    modules: dict[str, None] = {}
    pending = [module]
    while pending:
        for name in _imports(pending.pop()):
            if name not in modules and name != module:
                modules[name] = None
                pending += [name] if __name__ in _imports(name) else []
    return tuple(Path(str(sys.modules[name].__file__)) for name in modules)


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Returns the modules of this project that a loaded module imports at its top."""
    return tuple(_imported(module))


def _imported(module: str) -> Iterator[str]:
    head, _, _ = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8").partition("\n\n\n")
    for node in ast.parse(head).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in _OURS:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            loaded = [name for name in inner if name in sys.modules]
            yield from loaded or [node.module]
