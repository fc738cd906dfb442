"""Rules on the files of a program, and on text in them that the simulator ignores."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from validator.checks.findings import Indices, RuleHit, RuleTopic, Severity, hits
from validator.checks.json_faults import FRACTION, UNKNOWN_KEY, WRAPPED, TextFaults, missing_key_names
from validator.checks.rule_registry import register_rule
from validator.checks.rule_subject import CheckSubject

ERROR, WARNING = Severity.ERROR, Severity.WARNING
TOPIC = RuleTopic.FILES

_NAME = re.compile(r"core_([0-9]+)\.(json|pim)")


@register_rule(
    "core-file-name",
    ERROR,
    TOPIC,
    "File named core_* that is not a stream of a core",
    effect="pimsim-nn refuses the directory",
    advice="move it into a folder of its own, or rename it; streams are core_<id>.json or core_<id>.pim with an id "
    "below core_cnt",
)
def core_file_name(subject: CheckSubject) -> Iterator[RuleHit]:
    odd = [name for name in subject.names if not _is_stream(name, subject.core_count)]
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        yield RuleHit(f"{odd[0]}{more}", file=odd[0], count=len(odd))


def _is_stream(name: str, cores: int) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) < cores


@register_rule(
    "core-file-missing",
    ERROR,
    TOPIC,
    "Stream of a core missing",
    effect="pimsim-nn refuses the directory: every core from 0 to core_cnt - 1 needs a file",
    advice="write [] for a core without work, or lower core_cnt",
)
def core_file_missing(subject: CheckSubject) -> Iterator[RuleHit]:
    if not subject.directory:
        return
    missing = [core for core, name in enumerate(subject.core_files) if not name]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield RuleHit(f"core_{missing[0]}.json{more}", core=missing[0], count=len(missing))


@register_rule(
    "core-file-alias",
    WARNING,
    TOPIC,
    "Two files for one core",
    effect="numbers are read without leading zeros, so both names mean one core and one of the files is not used",
    advice="delete the one that is not meant",
)
def core_file_alias(subject: CheckSubject) -> Iterator[RuleHit]:
    by_core: dict[tuple[int, str], list[str]] = {}
    for name in subject.names:
        if match := _NAME.fullmatch(name):
            by_core.setdefault((int(match[1]), match[2]), []).append(name)
    for (core, _), names in by_core.items():
        if len(names) > 1 and core < subject.core_count:
            yield RuleHit(" and ".join(names), core=core, file=names[0])


@register_rule(
    "core-file-padded",
    WARNING,
    TOPIC,
    "Stream file with leading zeros",
    effect="the simulator reads it as the core without the zeros; other tools may not find it",
    advice="rename it to core_<id> without leading zeros",
)
def core_file_padded(subject: CheckSubject) -> Iterator[RuleHit]:
    padded = [name for name in subject.names if (match := _NAME.fullmatch(name)) and str(int(match[1])) != match[1]]
    if padded:
        yield RuleHit(padded[0], file=padded[0], count=len(padded))


@register_rule(
    "core-ignored",
    WARNING,
    TOPIC,
    "Stream of a core beyond core_cnt",
    effect="a single-file program may hold more streams than core_cnt says; they are not run and nobody is told",
    advice="raise core_cnt, or drop the stream",
)
def core_ignored(subject: CheckSubject) -> Iterator[RuleHit]:
    if subject.ignored_streams:
        yield RuleHit(
            f"{subject.ignored_streams[0]}, with core_cnt {subject.core_count}", count=len(subject.ignored_streams)
        )


@register_rule(
    "json-unknown-key",
    WARNING,
    TOPIC,
    "Key that no instruction has",
    effect="the simulator ignores it; a misspelt operand counts as 0",
    advice="correct or drop the key",
)
def json_unknown_key(subject: CheckSubject) -> Iterator[RuleHit]:
    names = {faults.unknown for faults in subject.text.values() if faults.unknown}
    if names:
        yield RuleHit(f"keys such as {min(names)!r}", _odd(subject, UNKNOWN_KEY))


@register_rule(
    "json-fraction",
    WARNING,
    TOPIC,
    "Number with a fraction",
    effect="the simulator cuts the fraction off silently",
    advice="write integers",
)
def json_fraction(subject: CheckSubject) -> Iterator[RuleHit]:
    yield from hits("an operand is not an integer", _odd(subject, FRACTION))


@register_rule(
    "json-wrapped",
    ERROR,
    TOPIC,
    "Integer beyond 32 bits",
    effect="the simulator keeps the low 32 bits silently: 4294967301 becomes 5",
    advice="keep operands within -2147483648 to 2147483647; the low word of a global address is written as a signed "
    "number",
)
def json_wrapped(subject: CheckSubject) -> Iterator[RuleHit]:
    yield from hits("an operand does not fit 32 bits", _odd(subject, WRAPPED))


def _odd(subject: CheckSubject, fault: int) -> Indices:
    return _faulty(subject, lambda faults: faults.odd & fault)


def _faulty(subject: CheckSubject, mask: Callable[[TextFaults], npt.NDArray[np.integer]]) -> Indices:
    """Returns the instructions whose text has faults; `mask` returns for a core an array that is not 0 at these."""
    found = [
        np.flatnonzero(mask(faults)) + int(subject.columns.starts[core])
        for core, faults in sorted(subject.text.items())
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


@register_rule(
    "json-missing-key",
    WARNING,
    TOPIC,
    "Operand left out",
    effect="the simulator takes 0: register 0, core 0, group 0, no bytes",
    advice="write every operand of an instruction",
)
def json_missing_key(subject: CheckSubject) -> Iterator[RuleHit]:
    """One finding for each operation and set of keys."""
    s = subject.columns
    at = _faulty(subject, lambda faults: faults.missing)
    lacking = [faults.missing[faults.missing != 0] for _, faults in sorted(subject.text.items())]
    kinds = np.concatenate([np.zeros(0, np.int64), *lacking]) * 256 + s.opcode[at]
    for kind in np.unique(kinds):
        here = at[kinds == kind]
        name = s.locate_instruction(int(here[0]))[2].split(" ", 1)[0]
        yield RuleHit(f"{name} without {', '.join(missing_key_names(int(kind) // 256))}", here)


@register_rule(
    "pim-rs2",
    ERROR,
    TOPIC,
    "Second operand lost in .pim",
    effect="the binary form has no place for rs2 of sadd, ssub and smul: the simulator reads r0",
    advice="write this core as JSON, or use saddi, smuli and sldi",
)
def pim_rs2(subject: CheckSubject) -> Iterator[RuleHit]:
    s = subject.columns
    binary = np.array([name.endswith(".pim") for name in subject.core_files] or [False], np.bool_)
    at = s.find_named("sadd", "ssub", "smul")
    yield from hits("", at[binary[s.core[at]]] if len(binary) > 1 or binary[0] else at[:0])
