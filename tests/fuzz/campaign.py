"""Parts of the campaign: seeded cases, counted by how they ended; what fails is kept with the command to repeat it."""

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
    """A promise that did not hold."""


class Draw(Random):
    """The random numbers of one case; `number` is its seed."""

    def __init__(self, part: str, number: int) -> None:
        super().__init__(f"{part}:{number}")
        self.number = number


@dataclass(frozen=True, slots=True)
class Part:
    """`case(rng, folder)` tries one input, made of `rng` in an empty folder, and says in a few words how it ended.

    It raises `BrokenError` if that is not how it should. `prepare` is called once before. `short` and `long`: how many.
    `first_seed`: of the first case, if nobody says.
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
    """What became of the cases of one part."""

    part: Part
    first_seed: int
    counts: Counter[str] = field(default_factory=Counter[str])
    failures: dict[int, str] = field(default_factory=dict[int, str])
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        total = sum(self.counts.values()) + len(self.failures)
        seeds = f"seeds {self.first_seed} to {self.first_seed + total - 1}"
        yield f"{self.part.name}: {total} cases, {seeds}, {self.seconds:.0f} s, {len(self.failures)} failures"
        yield from (f"  {count:6}  {label}" for label, count in sorted(self.counts.items()))
        for seed, what in self.failures.items():
            yield f"  FAILED seed {seed}: {what}"
            yield f"    again: {command(self.part, seed)}"


def command(part: Part, seed: int) -> str:
    return f"python -m tests.fuzz {part.name} --seed {seed} --count 1"


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker process does: cases of `part` until `stop`, a time of the monotonic clock."""

    part: Part
    keep: Path
    stop: float


_tasks: list[Task] = []
"""Of this process, one."""


def run(part: Part, *, seed: int, count: int, keep: Path, seconds: float = float("inf"), jobs: int = 1) -> Tally:
    """Tries `count` cases, or as many as fit in `seconds`, in `jobs` processes at a time.

    The folders of those that fail are copied to `keep`.
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
    """How the case ended, or its fault; neither if there was no time."""
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
            with suppress(OSError):  # what is kept helps to look; the fault is told without it
                shutil.copytree(folder, kept, symlinks=True, ignore_dangling_symlinks=True)
            what = f"{error}" if isinstance(error, BrokenError) else traceback.format_exc()
            fault = what.replace(name, str(kept))  # commands name the folder
            print(f"{part.name} {seed}: {fault}\n  kept in {kept}; again: {command(part, seed)}", file=sys.stderr)
            return "", fault
