"""Return of freed memory that the C library retains."""

import ctypes
import sys


def give_back() -> None:
    """Returns freed memory to the system (`malloc_trim`).

    By itself, glibc does so only above the last block in use: after a pass that creates and drops millions of objects
    and arrays, it retains hundreds of megabytes. Other C libraries have no `malloc_trim`.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
