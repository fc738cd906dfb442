"""Entry points of installed packages: devices, schedulers, machines."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from raptor.common.errors import UserError


def find_entry_points(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points of a group by name."""
    return {point.name: point for point in entry_points(group=group)}


def load_entry_point(kind: str, point: EntryPoint, error: type[UserError] = UserError) -> Any:
    """Imports the object of an entry point. Raises `error` with its `kind` if the import fails."""
    try:
        return point.load()
    except Exception as e:  # another package may raise anything
        raise error(f"{kind} {point.name!r}: {point.value} cannot be loaded: {e}") from e
