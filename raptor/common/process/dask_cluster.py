"""Connection to a Dask cluster, whose workers run functions of RAPTOR."""

from collections.abc import Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, cast

from raptor.common.errors import UserError

CONNECT_TIMEOUT_S = 10
"""Timeout for the connection to the scheduler."""
_WORKER_TIMEOUT_S = 60


@contextmanager
def connect_cluster(address: str, option: str) -> Generator[Executor]:
    """Yields an executor whose functions run on the workers of a Dask cluster, of which one must be there.

    `option`: the option of the address, as the user spells it. Raises `UserError` if its scheduler does not answer.
    """
    try:
        from distributed import Client
    except ImportError as e:
        raise UserError(f"{option}: needs Dask: pip install 'raptor-crossbar[cluster]'") from e
    try:
        client = Client(address, timeout=CONNECT_TIMEOUT_S)
    except (OSError, ValueError) as e:
        raise UserError(f"{option}: {address}: no scheduler of Dask answers: {e}") from e
    with client:
        if not client.scheduler_info()["workers"]:
            client.wait_for_workers(1, timeout=_WORKER_TIMEOUT_S)
        yield cast(Any, client).get_executor(pure=False)  # its types are not complete
