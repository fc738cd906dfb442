"""Checks the limit of the address space (`ulimit -v`), below which numpy and onnxruntime abort or hang."""

import sys

from raptor.common.errors import UserError

_LEAST_BYTES = 2**30
"""Minimum address space in bytes; Python and the libraries use half of it."""


def check_address_space() -> None:
    """Raises `UserError` if `ulimit -v` gives this process less address space than RAPTOR needs."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_BYTES:
        needed = f"RAPTOR and its libraries need {_LEAST_BYTES // 1024}"
        raise UserError(f"out of memory: ulimit -v is {limit // 1024} KiB, {needed}")
