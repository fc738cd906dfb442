"""What a search for a mapping tried."""

from dataclasses import dataclass

from raptor.common.errors import CapacityError
from raptor.mapping.decision import Decision


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and what came of it: `cost` in ns or pJ a sample, or the `fault` for which it does not fit."""

    name: str
    decision: Decision | None = None
    cost: float = float("inf")
    fault: CapacityError | None = None
