"""Rules, their registry, and findings. Equal findings become one, with the number of places."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from validator.checks.subject import Subject

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


class Topic(StrEnum):
    """Topic of a rule, a chapter of docs/reference/checks.md. Rules of the topic `ARCHITECTURE` can run without a
    program."""

    FILES = "Files and JSON"
    STREAMS = "Streams and registers"
    GROUPS = "Crossbars and array groups"
    MEMORY = "Memory"
    MESSAGES = "Messages and synchronisation"
    HAZARDS = "Hazards (`rob_size` above 1)"
    ARCHITECTURE = "Architecture and network"


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
class Hit:
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


Check = Callable[["Subject"], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `raptor check`. `effect`: what the simulator does; `advice`: what to change.

    docs/reference/checks.md is generated from the rules and from the docstrings of their `check`.
    """

    id: str
    severity: Severity
    topic: Topic
    title: str
    effect: str
    advice: str
    check: Check


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, topic: Topic, title: str, *, effect: str, advice: str
) -> Callable[[Check], Check]:
    """Registers a check in `RULES`, the only list of rules. Raises `ValueError` if the id is in use."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"two rules are called {id}")
        RULES[id] = Rule(id, severity, topic, title, effect, advice, check)
        return check

    return register


def run_rule(rule: Rule, subject: "Subject") -> Iterator[Finding]:
    """Runs one rule and yields its findings."""
    return (_finding(rule, hit, subject) for hit in rule.check(subject))


def _finding(rule: Rule, hit: Hit, subject: "Subject") -> Finding:
    streams = subject.columns
    core, pc, text, count, cores = hit.core, None, "", hit.count, 0 if hit.core is None else 1
    if len(hit.at):
        core, pc, text = streams.place(int(hit.at[0]))
        count, cores = len(hit.at), len(np.unique(streams.core[hit.at]))
    return Finding(
        rule=rule.id,
        severity=hit.severity or rule.severity,
        message=f"{hit.fact}: {rule.effect}" if hit.fact else f"{rule.title}: {rule.effect}",
        advice=hit.advice or rule.advice,
        core=core,
        pc=pc,
        instruction=text,
        file=hit.file or subject.file_of(core),
        count=count,
        cores=cores,
    )
