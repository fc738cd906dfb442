"""Parts of the campaign: seeded cases, counted by outcome. A failing case is kept, with a command to repeat it."""

import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random


class BrokenError(Exception):
    """A promise of RAPTOR that did not hold."""


class Draw(Random):
    """Random numbers of one case; `number` is its seed."""

    def __init__(self, part: str, number: int) -> None:
        super().__init__(f"{part}:{number}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the campaign.

    `case(rng, folder)` tries one input, made with `rng` in an empty folder, and returns the outcome in a few words. It
    raises `BrokenError` if the outcome is wrong. `prepare` is called once before the cases. `short` and `long`: numbers
    of cases. `first_seed`: default seed of the first case.
    """

    name: str
    summary: str
    short: int
    long: int
    case: Callable[[Draw, Path], str]
    prepare: Callable[[], object] = lambda: None
    first_seed: Callable[[], int] = lambda: 0


@dataclass
class Tally:
    """Outcomes of the cases of one part; failures by seed."""

    part: Part
    first_seed: int
    counts: Counter[str] = field(default_factory=Counter[str])
    failures: dict[int, str] = field(default_factory=dict[int, str])
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        """Yields the report of the part: a line for each outcome, and the failures with commands to repeat them."""
        total = sum(self.counts.values()) + len(self.failures)
        seeds = f"seeds {self.first_seed} to {self.first_seed + total - 1}"
        yield f"{self.part.name}: {total} cases, {seeds}, {self.seconds:.0f} s, {len(self.failures)} failures"
        yield from (f"  {count:6}  {label}" for label, count in sorted(self.counts.items()))
        for seed, what in self.failures.items():
            yield f"  FAILED seed {seed}: {what}"
            yield f"    again: {command(self.part, seed)}"


def command(part: Part, seed: int) -> str:
    """Returns the command that repeats one case."""
    return f"python -m tests.fuzz {part.name} --seed {seed} --count 1"


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a worker process: cases of `part` until `stop`, a time of the monotonic clock."""

    part: Part
    keep: Path
    stop: float


_tasks: list[Task] = []
"""The one task of this process."""


def run(part: Part, *, seed: int, count: int, keep: Path, seconds: float = float("inf"), jobs: int = 1) -> Tally:
    """Tries `count` cases, or as many as fit in `seconds`, in `jobs` processes at a time.

    The folders of failing cases are copied to `keep`.
    """
    tally = Tally(part, seed)
    start = time.monotonic()
    part.prepare()
    task = Task(part, keep, start + seconds)
    numbers = range(seed, seed + count)
    with ProcessPoolExecutor(jobs, get_context("fork"), _tasks.append, (task,)) as pool:
        for number, (label, fault) in zip(numbers, pool.map(_try, numbers), strict=True):
            if label:
                tally.counts[label] += 1
            if fault:
                tally.failures[number] = fault
    tally.seconds = time.monotonic() - start
    return tally


def _try(seed: int) -> tuple[str, str]:
    """Tries one case. Returns its outcome and '', or '' and its fault; twice '' if there was no time left."""
    (task,) = _tasks
    if time.monotonic() > task.stop:
        return "", ""
    part, kept = task.part, task.keep / f"{task.part.name}-{seed}"
    with tempfile.TemporaryDirectory(prefix="raptor-fuzz-") as name:
        folder = Path(name)
        try:
            return part.case(Draw(part.name, seed), folder), ""
        except Exception as error:  # any other than `BrokenError` is a fault of the case, and no reason to stop
            shutil.rmtree(kept, ignore_errors=True)
            with suppress(OSError):  # the kept folder only helps to look; the fault is reported without it
                shutil.copytree(folder, kept, symlinks=True, ignore_dangling_symlinks=True)
            what = f"{error}" if isinstance(error, BrokenError) else traceback.format_exc()
            fault = what.replace(name, str(kept))  # commands name the folder
            print(f"{part.name} {seed}: {fault}\n  kept in {kept}; again: {command(part, seed)}", file=sys.stderr)
            return "", fault
