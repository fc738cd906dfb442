"""Candidates that a search for a mapping tried."""

from dataclasses import dataclass

from raptor.common.errors import CapacityError
from raptor.mapping.decision import Decision


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and its result: `cost` in ns or in pJ per sample, or the `fault` if it does not fit the chip."""

    name: str
    decision: Decision | None = None
    cost: float = float("inf")
    fault: CapacityError | None = None
