"""Runs the whole suite; writes passing.txt, hosted.txt and docs/reference/conformance.md. `python -m
tests.conformance.table`

With `--check` nothing is written: it fails if anything would differ. `--jobs N`: processes, 2 by default.
"""

import argparse
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.conformance import nodes, suite
from tests.conformance.nodes import Found
from tests.conformance.suite import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
GOAL = 440
_REASON_CHARACTERS = 300
HEAD = """# Conformance

{} of {} cases of ONNX's own backend suite for single operators pass (`kind="node"`, without training and decision
trees). Each case is compiled, and the validator's engine executes its instruction streams. The results of its first
data set have the types of the suite, and its tolerances (rtol 1e-3, atol 1e-7; 2**-6 of bfloat16); integers and truth
values are equal. No operator runs on the host.

With `host=True`, {} pass, among them every case that onnxruntime passes. Only cases that fail without the host are
tried with it, because what the chip computes stays there.

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
    (
        re.compile(r"^differs: by less than .*"),
        "results differ by rounding, less than a millionth of the largest element",
    ),
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
    outcomes = run_selected()
    found = nodes.run_all(options.jobs)
    reasons = {o.case.name: o.reason for o in outcomes} | {n: f.reason for n, f in found.items()}
    by_host = {n: f.hosted for n, f in found.items()}
    lost = [*_lost(suite.passing(), reasons), *_lost(suite.hosted(), by_host)]
    lost += [f"{n}: passes in onnxruntime, but not with host=True: {f.hosted}" for n, f in found.items() if _owed(f)]
    for text in lost:
        print(f"FAILED: {text}")
    if lost:
        return 1
    passed = [name for name, reason in reasons.items() if not reason]
    hosted = [name for name, f in found.items() if f.reason and not f.hosted]
    made = {
        suite.PASSING: "".join(f"{name}\n" for name in sorted(passed)),
        suite.HOSTED: "".join(f"{name}\n" for name in sorted(hosted)),
        PAGE: "".join(page(outcomes, found)),
    }
    if options.check:
        stale = [path for path, text in made.items() if path.read_text() != text]
        for path in stale:
            print(f"FAILED: {path} is not what the suite gives now: make conformance")
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
    print(f"{_passed(found)} of {len(found)} node cases pass, {len(hosted)} more with the host; {len(passed)} in all")
    return 0 if sum(not o.reason for o in outcomes) >= GOAL else 1


def _lost(wanted: Iterable[str], reasons: Mapping[str, str]) -> list[str]:
    absent = "not in the installed onnx"
    return [f"{n}, passed before: {reasons.get(n, absent)}" for n in sorted(wanted) if reasons.get(n, absent)]


def _owed(found: Found) -> bool:
    """Tells whether onnxruntime passes a case that fails with the host."""
    return bool(found.hosted) and not found.alone


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.table")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args(arguments)


def run_selected() -> list[Outcome]:
    """Runs the selected cases."""
    outcomes: list[Outcome] = []
    warnings.simplefilter("ignore")
    for case in suite.cases().values():
        with tempfile.TemporaryDirectory(prefix="raptor-") as home:
            outcomes.append(suite.run(case, Path(home)))
        if outcomes[-1].reason:
            print(f"{case.name}: {outcomes[-1].reason}", flush=True)
    return outcomes


def page(outcomes: Sequence[Outcome], found: Mapping[str, Found]) -> Iterator[str]:
    """docs/reference/conformance.md. No times in it: equal results give equal bytes."""
    failed = [o for o in outcomes if o.reason]
    by_host = sum(not f.hosted for f in found.values())
    yield HEAD.format(_passed(found), len(found), by_host, len(outcomes) - len(failed), len(outcomes))
    if failed:
        yield "\n## Selected cases that do not pass\n\n| operator | case | reason |\n|---|---|---|\n"
    for outcome in sorted(failed, key=lambda o: (o.case.ops, o.case.name)):
        reason = " ".join(outcome.reason.split())[:_REASON_CHARACTERS].replace("|", "\\|")
        yield f"| {outcome.case.ops} | `{outcome.case.name}` | {reason} |\n"
    yield from _why(found)
    yield from _both_fail(found)
    yield "\n## Cases by operator\n\n| operator | pass | with host | of |\n|---|---|---|---|\n"
    by_ops: dict[str, list[Found]] = {}
    for name, result in found.items():
        by_ops.setdefault(nodes.ops_of(nodes.node_cases()[name]), []).append(result)
    for ops, results in sorted(by_ops.items()):
        counts = [sum(not f.reason for f in results), sum(not f.hosted for f in results), len(results)]
        yield f"| {ops} | {' | '.join(map(str, counts))} |\n"


def _why(found: Mapping[str, Found]) -> Iterator[str]:
    """Writes the cases that do not pass, by reason; the most frequent one first."""
    yield "\n## Why the others do not pass\n\n| reason | cases | with host | names |\n|---|---|---|---|\n"
    for reason, names in _grouped({n: f.reason for n, f in found.items()}):
        by_host = sum(not found[name].hosted for name in names)
        yield f"| {reason} | {len(names)} | {by_host} | {_shown(names)} |\n"


def _both_fail(found: Mapping[str, Found]) -> Iterator[str]:
    """Writes the cases that fail with the host, too."""
    yield "\n## What fails with the host, too\n\nonnxruntime fails each of these.\n\n"
    yield "| what onnxruntime gives | cases | names |\n|---|---|---|\n"
    for reason, names in _grouped({n: f.alone for n, f in found.items()}):
        yield f"| {reason} | {len(names)} | {_shown(names)} |\n"


def _grouped(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason:
            groups.setdefault(kind_of(reason), []).append(name)
    return sorted(groups.items(), key=lambda g: (-len(g[1]), g[0]))


def _shown(names: Iterable[str]) -> str:
    return ", ".join(f"`{name.removeprefix('test_')}`" for name in sorted(names))


def kind_of(reason: str) -> str:
    """Returns a reason without what differs from case to case."""
    text = " ".join(reason.split())
    for pattern, replacement in _PARTS:
        text = pattern.sub(replacement, text)
    return text[:_REASON_CHARACTERS].replace("|", "\\|").replace("<", "&lt;").rstrip()


def _passed(found: Mapping[str, Found]) -> int:
    return sum(not f.reason for f in found.values())


if __name__ == "__main__":
    sys.exit(main())
