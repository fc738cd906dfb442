"""Returns memory that was freed, but that the C library retains, to the operating system."""

import ctypes
import sys


def trim_heap() -> None:
    """Returns freed memory to the operating system by `malloc_trim`; does nothing if the C library has no such call.

    By itself, glibc does so only above the last block in use: after a pass that creates and drops millions of objects
    and arrays, it retains hundreds of megabytes.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
