"""Packages that RAPTOR does not install, and what is said where one is missing."""

from collections.abc import Generator
from contextlib import contextmanager

from raptor.common.errors import UserError


@contextmanager
def require_packages(what: str, *packages: str) -> Generator[None]:
    """Converts a missing package in the block to a `UserError` with the `pip install` command. `what`: needs it."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise UserError(f"{what} needs {e.name}, which is not installed: pip install {' '.join(packages)}") from e
