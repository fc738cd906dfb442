"""Back ends and schedulers of installed packages, found as entry points."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from raptor.device.errors import DeviceError


def plugins(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points of a group by name."""
    return {point.name: point for point in entry_points(group=group)}


def load(kind: str, point: EntryPoint) -> Any:
    """Imports what an entry point names. Raises `DeviceError` with its `kind` if it cannot be imported."""
    try:
        return point.load()
    except Exception as e:  # whatever another package raises when it is imported
        raise DeviceError(f"{kind} {point.name!r}: {point.value} cannot be loaded: {e}") from e
