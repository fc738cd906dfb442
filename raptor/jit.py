"""How compiled loops are declared: numba, cached on disk wherever a place for the cache can be written.

Import this, and modules that use it, only where a kernel runs: importing numba takes 0.2 s.
NOTE: numba notices changes of the kernel's own file only, so a kernel and its helpers share one file, and tables that
may change (such as JSON keys) are arguments.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function called from Python; the machine code is cached beside the file or in the user's cache."""
    try:
        return _njit(function, cache=True)
    except RuntimeError:  # numba found no writable directory for its cache
        return _njit(function, cache=False)


def helper(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function called only by kernels of the same file; it becomes part of their cached code."""
    return _njit(function, cache=False)


def _njit(function: Callable[P, R], *, cache: bool) -> Callable[P, R]:
    compile_ = numba.njit(cache=cache, nogil=True, error_model="numpy")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return cast(Callable[P, R], compile_(function))
