"""Output of findings: as text, as JSON, and as SARIF 2.1.0 for continuous integration."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

import orjson
from rich.text import Text

import raptor
from raptor.common.terminal.console import LiteralConsole
from validator.checks.findings import Finding, Severity
from validator.checks.rule_registry import RULES, CheckRule

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_HELP = "docs/reference/checks.md"


def is_clean(findings: Sequence[Finding]) -> bool:
    """Checks whether no finding is worse than a note."""
    return all(f.severity is Severity.NOTE for f in findings)


def summarise_findings(findings: Sequence[Finding]) -> str:
    counts = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    parts = [f"{n} {severity}{'s' if n != 1 else ''}" for severity, n in counts.items() if n]
    return ", ".join(parts) or "no findings"


def describe_place(finding: Finding) -> str:
    """Describes the place of a finding, and at how many more places it occurs."""
    if finding.core is None:
        return finding.file
    where = f"{_segment(finding)}core {finding.core}{'' if finding.pc is None else f' at {finding.pc}'}"
    if finding.instruction:
        where += f" ({finding.instruction})"
    if finding.count > 1:
        cores = f" on {finding.cores} cores" if finding.cores > 1 else ""
        where += f", and {finding.count - 1} more{cores}"
    return where


def _segment(finding: Finding) -> str:
    """Returns the segment directory of a finding, or an empty text for a program without segments."""
    folder, _, _ = finding.file.rpartition("/")
    return f"{folder} " if folder.startswith("segment_") else ""


def show(findings: Sequence[Finding], console: LiteralConsole, *, quiet: bool = False) -> None:
    """Prints one paragraph for each finding, then a line that counts them; with `quiet` only that line."""
    for finding in () if quiet else findings:
        colour = _COLOURS[finding.severity]
        console.print(Text.assemble((finding.severity, colour), " ", (finding.rule, "bold")), end=" ")
        console.print(describe_place(finding), soft_wrap=True)
        console.print(f"    {finding.message}", soft_wrap=True)
        console.print(f"    try: {finding.advice}", soft_wrap=True)
    console.print(summarise_findings(findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingsReport:
    """Report as JSON; `version` changes with its fields. `clean`: no finding is worse than a note."""

    version: int = 1
    clean: bool
    findings: tuple[Finding, ...]


def to_json(findings: Sequence[Finding]) -> bytes:
    report = FindingsReport(clean=is_clean(findings), findings=tuple(findings))
    return orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n"


def to_sarif(findings: Sequence[Finding]) -> bytes:
    """Returns SARIF: the rules with findings, and the places. A stream of RAPTOR has one instruction per line."""
    fired = [RULES[name] for name in dict.fromkeys(f.rule for f in findings) if name in RULES]
    driver = {"name": "raptor check", "version": raptor.__version__, "rules": [_rule(r) for r in fired]}
    run = {"tool": {"driver": driver}, "results": [_result(f) for f in findings]}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return orjson.dumps(log, option=orjson.OPT_INDENT_2) + b"\n"


def _rule(rule: CheckRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.effect},
        "help": {"text": rule.advice},
        "helpUri": f"{_HELP}#{rule.id}",
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": finding.file}}}
    if finding.pc is not None:
        if PurePosixPath(finding.file).name.startswith("core_") and finding.file.endswith(".json"):
            location["physicalLocation"]["region"] = {"startLine": finding.pc + 2}
        name = f"core{finding.core}[{finding.pc}]"
        location["logicalLocations"] = [{"fullyQualifiedName": name, "name": finding.instruction}]
    return {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{describe_place(finding)}: {finding.message}. Try: {finding.advice}"},
        "locations": [location],
        "occurrenceCount": finding.count,
    }
