"""Static analysis of programs for pimsim-nn, from any compiler: finds problems that pimsim-nn accepts silently.

The rules are described in docs/reference/checks.md. A rule is a function in one of the modules imported below,
registered with `findings.rule`; see `findings.Rule`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raptor.common.options import arguments
from raptor.common.options.option_values import parse_arch_source
from raptor.output import files
from raptor.output.files import ARCH, MemoryMap, SimulatorConfig
from raptor.output.resident_files import ResidentMap
from raptor.target.arch import Target
from raptor.target.isa import Records
from validator.checks.findings import Finding, RuleTopic, Severity
from validator.checks.load_subject import load_subject, read_defects, read_network, read_resident
from validator.checks.rule_registry import RULES, CheckRule, run_rule
from validator.checks.rule_subject import ArchitectureFile, CheckSubject, GroupShapes
from validator.checks.rules import (
    architecture,
    array_groups,
    dead_parts,
    hazards,
    memory_accesses,
    messages,
    program_files,
    streams,
)
from validator.program.segment_list import chip_folders, has_segments

__all__ = [
    "RULES",
    "CheckRule",
    "Finding",
    "RuleTopic",
    "Severity",
    "check",
    "check_chip",
    "check_output",
    "check_subject",
]

_MODULES = (program_files, streams, array_groups, memory_accesses, messages, hazards, architecture, dead_parts)
"""Modules of rules. Importing them fills `RULES`, in the order of docs/reference/checks.md."""

_ORDER = list(Severity)
_REFUSED = CheckRule(
    "load-refused",
    Severity.ERROR,
    RuleTopic.FILES,
    "Program that pimsim-nn does not load",
    effect="pimsim-nn refuses to load the program",
    advice="correct the file",
    check=lambda subject: iter(()),
)


def check(path: str | Path, arch: str | Path | None = None, defects: str | Path | None = None) -> tuple[Finding, ...]:
    """Checks a program directory or single-file program (JSON, JSON.gz).

    `arch`: an architecture file or preset, by default `arch.json` next to the streams. Without one, the rules that need
    it are skipped. `defects`: a chip file, by default `chip.json` of a program that is repaired or compiled for a chip.
    Raises `UserError` for files that cannot be read.
    """
    chip, folder = None if arch is None else parse_arch_source("arch", arch), arguments.parse_path("path", path)
    if not has_segments(folder):
        return _check_folder(folder, chip, defects)
    found = {part.name: _check_folder(part, chip, defects) for part in chip_folders(folder)}
    return _sorted(_of_segments(found))


def _check_folder(folder: Path, chip: str | Path | None, defects: str | Path | None) -> tuple[Finding, ...]:
    """Checks a program, and the auxiliary programs beside it."""
    subject = load_subject(folder, chip)
    read_defects(subject, folder, defects)
    found = list(check_subject(subject))
    beside = folder / files.ARCH if (folder / files.ARCH).is_file() else None
    for name in files.AUXILIARY:
        if (folder / name / files.CONFIG).is_file():
            subject = load_subject(folder / name, beside if chip is None else chip)
            subject.resident = read_resident(folder) if name == files.SAVE else None
            own = (f for f in check_subject(subject) if f.rule not in RULES or not RULES[f.rule].is_about_chip)
            found += (replace(f, file=f"{name}/{f.file}") for f in own)
    return _sorted(found)


def _of_segments(found: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """Yields the findings of all segments, with their directories; findings on the shared chip appear once."""
    known: set[Finding] = set()
    for segment, findings in found.items():
        for finding in findings:
            of_chip = finding.rule in RULES and RULES[finding.rule].is_about_chip
            if of_chip and finding in known:
                continue
            known.add(finding)
            yield finding if of_chip else replace(finding, file=f"{segment}/{finding.file}")


def check_output(
    streams: Sequence[Records],
    config: SimulatorConfig,
    target: Target,
    memory: MemoryMap,
    shapes: GroupShapes,
    *,
    extended: bool,
    resident: ResidentMap | None = None,
) -> tuple[Finding, ...]:
    """Checks the output of the compiler in memory, without files: runs the rules on streams, memory and chip.

    `streams` has an entry for every core, `shapes` the rows and columns of each group's matrix.
    `extended`: the user allowed instructions that pimsim-nn does not have. `resident`: see `CheckSubject`.
    """
    return check_subject(
        CheckSubject(
            streams=streams,
            groups=[config.group_sizes(core) for core in range(config.core_cnt)],
            instantiated=[True] * len(streams),
            config=config.model_dump(mode="json"),
            chip=ArchitectureFile(ARCH, target),
            memory=memory,
            resident=resident,
            shapes=shapes,
            allows_extensions=extended,
            made_by_raptor=True,
        )
    )


def check_chip(chip: ArchitectureFile) -> tuple[Finding, ...]:
    """Checks an architecture file without a program.

    The network table that it names must be complete for all cores of the chip.
    """
    subject = CheckSubject(streams=(), groups=(), instantiated=(), source=Path(chip.path), chip=chip, is_chip_only=True)
    if chip.network_file is not None:
        read_network(subject, chip)
    return _sorted(_findings(subject, [r for r in RULES.values() if r.topic is RuleTopic.ARCHITECTURE]))


def check_subject(subject: CheckSubject) -> tuple[Finding, ...]:
    """Runs the rules and returns all findings, errors first. Without a chip, rules on the architecture are skipped."""
    wanted = [r for r in RULES.values() if subject.chip is not None or r.topic is not RuleTopic.ARCHITECTURE]
    found = list(_findings(subject, wanted))
    if subject.load_faults and not any("refuses" in f.message for f in found):
        found += [_refused(subject, fault) for fault in subject.load_faults]
    return _sorted(found)


def _findings(subject: CheckSubject, rules: Sequence[CheckRule]) -> Iterator[Finding]:
    for rule in rules:
        yield from run_rule(rule, subject)


def _refused(subject: CheckSubject, fault: str) -> Finding:
    return Finding(
        _REFUSED.id, _REFUSED.severity, f"{fault}: {_REFUSED.effect}", _REFUSED.advice, file=subject.source.name
    )


def _sorted(findings: Sequence[Finding] | Iterator[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: _ORDER.index(f.severity)))
