"""Rules of `raptor check`: their list, and what runs one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from validator.checks.findings import Finding, RuleHit, RuleTopic, Severity
from validator.checks.rule_subject import CheckSubject

Check = Callable[[CheckSubject], Iterator[RuleHit]]


@dataclass(frozen=True, slots=True)
class CheckRule:
    """A rule of `raptor check`. `effect`: what the simulator does; `advice`: what to change.

    docs/reference/checks.md is generated from the rules and from the docstrings of their `check`.
    """

    id: str
    severity: Severity
    topic: RuleTopic
    title: str
    effect: str
    advice: str
    check: Check

    @property
    def is_about_chip(self) -> bool:
        """True if the findings are the same for all programs on a chip."""
        return self.topic is RuleTopic.ARCHITECTURE


RULES: dict[str, CheckRule] = {}


def register_rule(
    id: str, severity: Severity, topic: RuleTopic, title: str, *, effect: str, advice: str
) -> Callable[[Check], Check]:
    """Registers a check in `RULES`, the only list of rules. Raises `ValueError` if the id is in use."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise ValueError(f"two rules are called {id}")
        RULES[id] = CheckRule(id, severity, topic, title, effect, advice, check)
        return check

    return register


def run_rule(rule: CheckRule, subject: CheckSubject) -> Iterator[Finding]:
    """Runs one rule and yields its findings."""
    return (_finding(rule, hit, subject) for hit in rule.check(subject))


def _finding(rule: CheckRule, hit: RuleHit, subject: CheckSubject) -> Finding:
    streams = subject.columns
    core, pc, text, count, cores = hit.core, None, "", hit.count, 0 if hit.core is None else 1
    if len(hit.at):
        core, pc, text = streams.locate_instruction(int(hit.at[0]))
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
