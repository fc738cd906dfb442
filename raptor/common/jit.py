"""Declares compiled loops: numba, with a cache on disk wherever one can be written.

Import this module, and those that use it, only where a kernel runs: importing numba takes 0.2 s. NOTE: numba notices
changes of the kernel's own file only. So a kernel and its helpers share one file, and tables that may change (such as
JSON keys) are arguments.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function called from Python; the machine code is cached beside the file or in the user's cache."""
    return _cached(function)


def helper(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function called only by kernels of the same file; it becomes part of their cached code."""
    return _njit(function, cache=False)


def bare_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A `kernel` that allocates nothing: compiled without reference counts, which cost more than small helpers do."""
    return _cached(function, counted=False)


def bare_helper(function: Callable[P, R]) -> Callable[P, R]:
    """A `helper` of a `bare_kernel`."""
    return _njit(function, cache=False, counted=False)


def _cached(function: Callable[P, R], *, counted: bool = True) -> Callable[P, R]:
    try:
        compiled = _njit(function, cache=True, counted=counted)
    except RuntimeError:  # numba found no writable directory for its cache
        return _njit(function, cache=False, counted=counted)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return compiled(*args, **kwargs)
        except OSError:  # the cache failed, such as on a full disk; kernels touch no files, and the code is in memory
            return compiled(*args, **kwargs)

    return call


def _njit(function: Callable[P, R], *, cache: bool, counted: bool = True) -> Callable[P, R]:
    options: dict[str, Any] = {"cache": cache, "nogil": True, "error_model": "numpy"} | (
        {} if counted else {"_nrt": False}
    )
    compile_ = numba.njit(**options)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return cast(Callable[P, R], compile_(function))
