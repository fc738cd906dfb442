"""The campaign: `python -m tests.fuzz [PART ...]`; without a part, all of them. Exit status 1 if a case fails."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.campaign import Part
from tests.fuzz.cuts import CUTS
from tests.fuzz.decisions import DECISIONS
from tests.fuzz.defective import DEFECTIVE
from tests.fuzz.faults import INTERRUPTIONS
from tests.fuzz.given import GIVEN
from tests.fuzz.graphs import GRAPHS
from tests.fuzz.hostile import FILES
from tests.fuzz.kinds import KINDS_OF_INPUTS
from tests.fuzz.malformed import MODELS
from tests.fuzz.memory import MEMORY
from tests.fuzz.planted import PLANTED
from tests.fuzz.programs import PROGRAMS
from tests.fuzz.quantised import QUANTISED
from tests.fuzz.relations import METAMORPHIC
from tests.fuzz.rounds import CHIPS, ROUNDS

_ALL = (
    GRAPHS,
    KINDS_OF_INPUTS,
    QUANTISED,
    METAMORPHIC,
    PROGRAMS,
    MODELS,
    FILES,
    GIVEN,
    INTERRUPTIONS,
    PLANTED,
    DECISIONS,
    CUTS,
    ROUNDS,
    CHIPS,
    DEFECTIVE,
    MEMORY,
)
PARTS: dict[str, Part] = {part.name: part for part in _ALL}


def main() -> int:
    """Runs the parts that were asked for and prints their results. Returns the exit status."""
    options = _options()
    failed = False
    for part in [PARTS[name] for name in options.parts or PARTS]:
        count = options.count or (part.long if options.long else part.short)
        seed = part.first_seed() if options.seed is None else options.seed
        limits = {"count": count, "seconds": options.seconds, "jobs": options.jobs}
        tally = campaign.run(part, seed=seed, keep=options.keep, **limits)
        print(*tally.lines(), sep="\n", flush=True)
        failed |= bool(tally.failures)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--seed",
        type=int,
        help="of the first case; the next has the next number; if not given 0, or what is planted by commit",
    )
    parser.add_argument("--count", type=int, default=0, help="cases of each part")
    parser.add_argument("--long", action="store_true", help="as many cases as a release needs, not as CI has time for")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="most of each part; no case starts later")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "raptor-fuzz", help="failing cases")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are: {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    # One thread: children are forked, and two cores are enough for two parts side by side.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
