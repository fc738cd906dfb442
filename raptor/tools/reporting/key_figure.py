"""Key figures of an output, as used by the page, the comparison and the JSON."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number in `unit` and its text `shown`; None if unknown. `source`: which tool counted or estimated it.

    `short`: a shorter text, if there is one.
    """

    name: str
    value: float | None
    shown: str
    source: str = ""
    unit: str = ""
    short: str = ""

    @property
    def key(self) -> str:
        """Identifier with the unit: `latency_ns`."""
        words = f"{self.name} {self.unit}".replace("/", " per ").lower()
        return "_".join(re.findall(r"[a-z0-9]+", words))
