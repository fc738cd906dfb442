"""A number of an output, as the page, the comparison and the JSON have it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in `unit` and its text; the number is None if it is not known. `source`: what counted or estimated it.

    `short`: a shorter text, if one exists.
    """

    name: str
    value: float | None
    shown: str
    source: str = ""
    unit: str = ""
    short: str = ""

    @property
    def key(self) -> str:
        """Name for programs, with the unit: `latency_ns`."""
        words = f"{self.name} {self.unit}".replace("/", " per ").lower()
        return "_".join(re.findall(r"[a-z0-9]+", words))
