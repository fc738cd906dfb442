"""Python's collector of cycles of references, which looks at all objects again and again.

Compiler and validator make many objects that live until they end, and hardly any cycles.
"""

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


@contextmanager
def seldom() -> Generator[None]:
    """Lets the collector run seldom in a process that ends with the block, and not once more as Python ends."""
    gc.set_threshold(_SELDOM)
    try:
        yield
    finally:
        gc.freeze()
