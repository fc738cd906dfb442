"""Control of Python's cyclic garbage collector, which scans all live objects repeatedly.

Compiler and validator create many objects that live until the end, and hardly any reference cycles.
"""

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager

_SELDOM = 10_000_000
"""Allocated objects between two collections in a command. With Python's default of 700, `validate` took 33 % longer."""


@contextmanager
def pause_gc() -> Generator[None]:
    """Disables the garbage collector in the block. In a compilation it would take 20 % of the time and free nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_kept: list[object] | None = None
"""Objects that live until the process ends; None outside of a `with defer_gc()` block."""


@contextmanager
def defer_gc() -> Generator[None]:
    """Makes collections rare in the block and skips the one at exit. The process must end after the block."""
    global _kept
    gc.set_threshold(_SELDOM)
    _kept = []
    try:
        yield
    finally:
        gc.freeze()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def keep_until_exit(value: object) -> None:
    """Keeps an object alive until the process ends, inside of a `with defer_gc()` block; otherwise does nothing.

    The operating system then frees the memory in one step, where Python would free millions of objects one by one.
    """
    if _kept is not None:
        _kept.append(value)
