"""Control of Python's cyclic garbage collector, which scans all objects again and again.

Compiler and validator create many objects that live until the end, and hardly any reference cycles.
"""

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager

_SELDOM = 10_000_000
"""Number of new objects between collections in a command. With Python's 700, `validate` took a third longer."""


@contextmanager
def without_collector() -> Generator[None]:
    """Disables the garbage collector in the block, where it would take a fifth of a compilation and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_kept: list[object] | None = None
"""Objects that live until the process ends; None outside a block of `seldom`."""


@contextmanager
def seldom() -> Generator[None]:
    """Makes collections rare in a process that ends with the block, and skips the one at exit."""
    global _kept
    gc.set_threshold(_SELDOM)
    _kept = []
    try:
        yield
    finally:
        gc.freeze()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def keep(value: object) -> None:
    """Keeps an object until the process ends, if a block of `seldom` is active.

    The system then frees its memory at once. Python would free millions of objects one by one.
    """
    if _kept is not None:
        _kept.append(value)
