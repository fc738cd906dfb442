"""What `ulimit -v` must allow: with less, the libraries abort, interrupt themselves or wait for ever."""

import sys

from raptor.common.errors import UserError

_LEAST_BYTES = 2**30
"""Of addresses; Python and the libraries alone take half of it."""


def check_memory() -> None:
    """Raises `UserError` if this process may have too few addresses."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_BYTES:
        needed = f"RAPTOR and its libraries need {_LEAST_BYTES // 1024}"
        raise UserError(f"out of memory: ulimit -v is {limit // 1024} KiB, {needed}")
