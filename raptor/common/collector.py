"""Python's collector of cycles of references, which looks at all objects again and again.

Compiler and validator make many objects that live until they end, and hardly any cycles.
"""

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager

_SELDOM = 10_000_000
"""New objects after which a command looks for cycles. With Python's 700, `validate` took a third longer."""


@contextmanager
def without_collector() -> Generator[None]:
    """Turns the collector off during the block: it would take a fifth of the time of a compilation and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_kept: list[object] | None = None
"""Objects that are kept until the process ends; None if it does not end with a block of `seldom`."""


@contextmanager
def seldom() -> Generator[None]:
    """Lets the collector run seldom in a process that ends with the block, and not once more as Python ends."""
    global _kept
    gc.set_threshold(_SELDOM)
    _kept = []
    try:
        yield
    finally:
        gc.freeze()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def keep(value: object) -> None:
    """Keeps an object until the process ends, if it ends with a block of `seldom`.

    The system then frees its memory at once. Python would free millions of objects one by one.
    """
    if _kept is not None:
        _kept.append(value)
