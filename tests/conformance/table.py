"""Runs the whole suite; writes passing.txt and docs/conformance.md. `python -m tests.conformance.table`

With `--check` nothing is written: it fails if anything would differ.
"""

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance import suite
from tests.conformance.suite import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
GOAL = 440
_REASON_CHARACTERS = 300
HEAD = """# Conformance

{} of {} cases pass. The cases are those of ONNX's own backend suite for inference on static float32 shapes, and on int8
and uint8 for the quantised operators (`tests/conformance/cases.txt`). Each case is compiled, and the validator's engine
executes its instruction streams. Tolerances and types are those of the suite (rtol 1e-3, atol 1e-7).

Integers have no tolerance: `tests/conformance/test_integers.py` runs the 31 cases of the suite that quantise,
dequantise or multiply integers, of 2 to 16 bits, and every result is equal to the wanted one. Numbers of 4 and 8 bits
that are floats are refused, and so is DynamicQuantizeLinear, whose scale is known only at run time.

`make conformance` writes this page. A case that is in `tests/conformance/passing.txt` must pass in later versions, too.
"""


def main() -> int:
    """Exit status 1 when a case of the list fails. The list only ever grows."""
    outcomes = run_all()
    lost = [o for o in outcomes if o.reason and o.case.name in suite.passing()]
    for outcome in lost:
        print(f"FAILED, passed before: {outcome.case.name}: {outcome.reason}")
    if lost:
        return 1
    passed = [o.case.name for o in outcomes if not o.reason]
    made = {suite.PASSING: "".join(f"{name}\n" for name in sorted(passed)), PAGE: "".join(page(outcomes))}
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in made.items() if path.read_text() != text]
        for path in stale:
            print(f"FAILED: {path} is not what the suite gives now: make conformance")
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
    print(f"{len(passed)} of {len(outcomes)} cases pass, {sum(o.seconds for o in outcomes):.0f} s")
    return 0 if len(passed) >= GOAL else 1


def run_all() -> list[Outcome]:
    outcomes: list[Outcome] = []
    warnings.simplefilter("ignore")
    for case in suite.cases().values():
        with tempfile.TemporaryDirectory(prefix="raptor-") as home:
            outcomes.append(suite.run(case, Path(home)))
        if outcomes[-1].reason:
            print(f"{case.name}: {outcomes[-1].reason}", flush=True)
    return outcomes


def page(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """docs/conformance.md. No times in it: equal results give equal bytes."""
    failed = [o for o in outcomes if o.reason]
    yield HEAD.format(len(outcomes) - len(failed), len(outcomes))
    if failed:
        yield "\n## Cases that do not pass\n\n| operator | case | reason |\n|---|---|---|\n"
    for outcome in sorted(failed, key=lambda o: (o.case.ops, o.case.name)):
        reason = " ".join(outcome.reason.split())[:_REASON_CHARACTERS].replace("|", "\\|")
        yield f"| {outcome.case.ops} | `{outcome.case.name}` | {reason} |\n"
    yield "\n## Cases by operator\n\n| operator | pass | of |\n|---|---|---|\n"
    for ops in sorted({o.case.ops for o in outcomes}):
        group = [o for o in outcomes if o.case.ops == ops]
        yield f"| {ops} | {sum(not o.reason for o in group)} | {len(group)} |\n"


if __name__ == "__main__":
    sys.exit(main())
