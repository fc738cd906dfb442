"""Findings of `raptor check`. Equal findings become one, with the number of places."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
_NOWHERE = np.zeros(0, np.int64)


class Severity(StrEnum):
    """Severity of a finding.

    `error`: the simulator refuses, hangs or crashes, or the program is not the intended one; `warning`: its figures
    mislead.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class RuleTopic(StrEnum):
    """Topic of a rule, a chapter of docs/reference/checks.md. Rules of the topic `ARCHITECTURE` can run without a
    program."""

    FILES = "Files and JSON"
    STREAMS = "Streams and registers"
    GROUPS = "Crossbars and array groups"
    MEMORY = "Memory"
    MESSAGES = "Messages and synchronisation"
    HAZARDS = "Hazards (`rob_size` above 1)"
    ARCHITECTURE = "Architecture and network"
    DEFECTS = "Defects of a chip"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a program, at its first place; it occurs at `count` places on `cores` cores.

    `core` and `pc` are None if it concerns the whole program or the chip. `message` says what the simulator will do,
    `advice` what to change.
    """

    rule: str
    severity: Severity
    message: str
    advice: str
    core: int | None = None
    pc: int | None = None
    instruction: str = ""
    file: str = ""
    count: int = 1
    cores: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RuleHit:
    """A problem that a rule has found, from which a `Finding` is made.

    `at`: instructions (indices into all streams). `fact`: description of the problem there. Without instructions it
    concerns `core`, or the whole program if `core` is None. `severity` and `advice` override the rule's.
    """

    fact: str = ""
    at: Indices = field(default_factory=lambda: _NOWHERE)
    core: int | None = None
    file: str = ""
    severity: Severity | None = None
    advice: str | None = None
    count: int = 1


def hits(fact: str, at: Indices) -> Iterator[RuleHit]:
    """Yields a problem at these instructions, if there are any."""
    if len(at):
        yield RuleHit(fact, at)
