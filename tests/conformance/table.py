"""Runs the whole suite; writes passing.txt and docs/conformance.md. `python -m tests.conformance.table`

With `--check` nothing is written: it fails if anything would differ. `--jobs N`: processes, 2 by default.
"""

import argparse
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.conformance import nodes, suite
from tests.conformance.suite import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
GOAL = 440
_REASON_CHARACTERS = 300
HEAD = """# Conformance

{} of {} cases of ONNX's own backend suite for single operators pass (`kind="node"`, without training and decision
trees). Each case is compiled, and the validator's engine executes its instruction streams. The results of its first
data set have the types of the suite, and its tolerances (rtol 1e-3, atol 1e-7); integers and truth values are equal.
No operator runs on the host.

Beside them stand {} of {} selected cases (`tests/conformance/cases.txt`), which CI runs: those of inference on static
float32 shapes, with the networks and the PyTorch operators of the suite, and those on int8 and uint8 for quantised
operators.

Integers of quantised operators have no tolerance: `tests/conformance/test_integers.py` runs the 31 cases of the suite
that quantise, dequantise or multiply integers, of 2 to 16 bits, and every result is equal to the wanted one.

`make conformance` writes this page. A case that is in `tests/conformance/passing.txt` must pass in later versions, too.
"""
_PARTS = (
    (re.compile(r"\s*host=True would run .*"), ""),
    (re.compile(r"^UnsupportedError: \d+ nodes? cannot be compiled: .*?\((\w+)\): "), r"\1: "),
    (re.compile(r"^UserError: "), ""),
    (re.compile(r"^differs: .*"), "results differ"),
    (re.compile(r"(compiled as constants, but are data): .*"), r"\1"),
    (re.compile(r" \S+ -> \S+ \(\w+\): .*"), ""),
    (re.compile(r"'[^']*'"), "an input"),
    (re.compile(r"-?\d[\d.e+]*"), "N"),
    (re.compile(r"\b(\w+ -> \S+ )\("), "("),
)
"""Patterns and what replaces them: nodes, names and numbers, so that equal reasons have one text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a case of the list fails. The list only ever grows."""
    options = _options(arguments)
    outcomes = run_all()
    found = dict(nodes.run_all(list(nodes.node_cases()), options.jobs))
    reasons = {o.case.name: o.reason for o in outcomes} | found
    lost = [name for name in sorted(suite.passing()) if reasons.get(name, "not in the installed onnx")]
    for name in lost:
        print(f"FAILED, passed before: {name}: {reasons.get(name)}")
    if lost:
        return 1
    passed = [name for name, reason in reasons.items() if not reason]
    made = {suite.PASSING: "".join(f"{name}\n" for name in sorted(passed)), PAGE: "".join(page(outcomes, found))}
    if options.check:
        stale = [path for path, text in made.items() if path.read_text() != text]
        for path in stale:
            print(f"FAILED: {path} is not what the suite gives now: make conformance")
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
    print(f"{_passed(found)} of {len(found)} node cases pass; {len(passed)} in all")
    return 0 if sum(not o.reason for o in outcomes) >= GOAL else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.table")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args(arguments)


def run_all() -> list[Outcome]:
    """Runs the selected cases."""
    outcomes: list[Outcome] = []
    warnings.simplefilter("ignore")
    for case in suite.cases().values():
        with tempfile.TemporaryDirectory(prefix="raptor-") as home:
            outcomes.append(suite.run(case, Path(home)))
        if outcomes[-1].reason:
            print(f"{case.name}: {outcomes[-1].reason}", flush=True)
    return outcomes


def page(outcomes: Sequence[Outcome], found: Mapping[str, str]) -> Iterator[str]:
    """docs/conformance.md. No times in it: equal results give equal bytes."""
    failed = [o for o in outcomes if o.reason]
    yield HEAD.format(_passed(found), len(found), len(outcomes) - len(failed), len(outcomes))
    if failed:
        yield "\n## Selected cases that do not pass\n\n| operator | case | reason |\n|---|---|---|\n"
    for outcome in sorted(failed, key=lambda o: (o.case.ops, o.case.name)):
        reason = " ".join(outcome.reason.split())[:_REASON_CHARACTERS].replace("|", "\\|")
        yield f"| {outcome.case.ops} | `{outcome.case.name}` | {reason} |\n"
    yield from _why(found)
    yield "\n## Cases by operator\n\n| operator | pass | of |\n|---|---|---|\n"
    by_ops: dict[str, list[str]] = {}
    for name, reason in found.items():
        by_ops.setdefault(nodes.ops_of(nodes.node_cases()[name]), []).append(reason)
    for ops in sorted(by_ops):
        yield f"| {ops} | {by_ops[ops].count('')} | {len(by_ops[ops])} |\n"


def _why(found: Mapping[str, str]) -> Iterator[str]:
    """Writes the cases that do not pass, by reason; the most frequent one first."""
    groups: dict[str, list[str]] = {}
    for name, reason in found.items():
        if reason:
            groups.setdefault(kind_of(reason), []).append(name)
    yield "\n## Why the others do not pass\n\n| reason | cases | names |\n|---|---|---|\n"
    for reason, names in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
        shown = ", ".join(f"`{name.removeprefix('test_')}`" for name in sorted(names))
        yield f"| {reason} | {len(names)} | {shown} |\n"


def kind_of(reason: str) -> str:
    """Returns a reason without what differs from case to case."""
    text = " ".join(reason.split())
    for pattern, replacement in _PARTS:
        text = pattern.sub(replacement, text)
    return text[:_REASON_CHARACTERS].replace("|", "\\|").replace("<", "&lt;").rstrip()


def _passed(found: Mapping[str, str]) -> int:
    return sum(not reason for reason in found.values())


if __name__ == "__main__":
    sys.exit(main())
