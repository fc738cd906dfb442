"""Memory that was freed, but that the C library keeps for later."""

import ctypes
import sys


def give_back() -> None:
    """Gives freed memory back to the system.

    glibc does so by itself only above the last block in use: after a pass that makes and drops millions of objects and
    arrays, it keeps hundreds of megabytes. Other C libraries have no `malloc_trim`.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
