"""Planted wrong decisions: all values stay right, so `validate` and `check` do not see them, but a test must.

A child imports the compiler anew with the changed tree, and runs the test that `tests.fuzz.defects` names.
"""

import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.defects import ROOT, WRONG_DECISIONS, Defect
from tests.fuzz.isolation import isolated
from tests.fuzz.planted import plant, seed_of_commit

SECONDS = 300


def is_seen(wrong: Defect) -> bool:
    """Returns True if the test fails once the decision is planted."""

    def run() -> None:
        plant(wrong)
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "benchmarks")]:
            del sys.modules[name]  # they still hold the old modules
        usual = ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options = [*usual, "-m", "slow or not slow"]
        sys.exit(pytest.main([*options, "--rootdir", str(ROOT), str(ROOT / wrong.check)]))

    outcome = isolated(run, seconds=SECONDS)
    if outcome.status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise BrokenError(f"{wrong}: status {outcome.status}: {outcome.out[-500:]} {outcome.err[-500:]}")
    return outcome.status == pytest.ExitCode.TESTS_FAILED


def case(rng: Draw, _: Path) -> str:
    """Plants one wrong decision and runs the test that must see it."""
    wrong = _SHUFFLED[rng.number % len(WRONG_DECISIONS)]
    if not is_seen(wrong):
        raise BrokenError(f"{wrong.check} does not see {wrong}")
    return "seen by a test"


_SHUFFLED = Random("decisions").sample(WRONG_DECISIONS, len(WRONG_DECISIONS))


def prepare() -> None:
    """Checks that every wrong decision fits the code."""
    for wrong in WRONG_DECISIONS:
        wrong.tree()


DECISIONS = Part(
    "decisions",
    "wrong decisions planted in the compiler, all values right",
    short=4,
    long=len(WRONG_DECISIONS),
    case=case,
    prepare=prepare,
    first_seed=seed_of_commit,
)
