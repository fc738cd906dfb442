"""Yield: the share of random chips on which a program is accurate enough, by method of repair."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.process.dask_cluster import connect_cluster
from raptor.common.process.thread_pool import CheckedThreadPool
from raptor.output import files
from raptor.target.arch import read_stored_target
from raptor.target.chip_file import Chip, ChipFile, make_chip
from raptor.target.device_file import DeviceFile
from raptor.tools.repair.chip_writer import make_size
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.repair_matrix import RepairMethod
from raptor.tools.repair.repair_program import ProgramRepairer, find_wider_columns, make_cell_setup
from validator.accuracy.classify import find_class_rule
from validator.accuracy.labelled_data import LabelledData, read_labelled_data
from validator.accuracy.sample_scores import default_workers, run_scores
from validator.accuracy.statistics import ConfidenceInterval, wilson_interval
from validator.crossbar.load_repair import install_repair
from validator.crossbar.repaired_cells import CellRepair
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram
from validator.program.segment_list import require_one_segment

METHODS = {
    "written": RepairMethod(compensate=False, signs=False, sums=False, crossbars=False),
    "nearest": RepairMethod(signs=False, sums=False, crossbars=False),
    "signs": RepairMethod(sums=False, crossbars=False),
    "sums": RepairMethod(crossbars=False),
    "crossbars": RepairMethod(),
}
"""Methods by name; each does what the one before it does, and more. `written`: as if no cell was stuck."""


_AT_ONCE = 256
"""Most chips that wait for a thread."""


@dataclass(frozen=True, slots=True)
class YieldPoint:
    """Chips of one rate of stuck cells, repaired by one method. `good` of `chips` reach the accuracy.

    `share`: of good chips; `interval`: what other chips would give, with a confidence of 95 %. `mean`, `lowest`: top-1.
    """

    stuck: float
    method: str
    chips: int
    good: int
    share: float
    interval: ConfidenceInterval
    mean: float
    lowest: float


@dataclass(frozen=True, slots=True)
class YieldReport:
    """JSON of `raptor yield --json`. `least`: top-1 of a good chip; `exact`: top-1 without defects.

    `seed`: of the first chip. `other_defects`: rates of defects other than stuck cells. `candidates`: crossbars of a
    core that a repair chooses from.
    """

    model: str
    least: float
    exact: float
    samples: int
    encoding: str
    cell_bits: int
    seed: int
    other_defects: DefectRates
    spare_columns: int
    candidates: int
    points: tuple[YieldPoint, ...]
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldTask:
    """A measurement: `chips` chips of each rate of stuck cells, whose other rates are `others`.

    `least`: top-1 of a good chip. `candidates`: crossbars of a core that a repair chooses from. `workers`: threads.
    `scheduler`: address of a Dask scheduler, whose workers are used instead; they read the files by the same names.
    """

    rates: Sequence[float]
    others: DefectRates
    methods: Sequence[str]
    chips: int
    seed: int
    least: float
    candidates: int
    spare_columns: int
    workers: int | None = None
    scheduler: str | None = None


@dataclass(frozen=True, slots=True)
class YieldSource:
    """The program and the data of a measurement. `settings`: how cells hold weights, by names of `--with`."""

    out: Path
    data: Path
    samples: int | None
    device: DeviceFile | None
    settings: Mapping[str, str]

    def find_digests(self) -> tuple[str, str]:
        """Returns the SHA-256 of the manifest, which has those of the other files, and of the data."""
        manifest = file_access.read_bytes(self.out, files.MANIFEST, limit_bytes=2**30)
        every = [self.data] if self.data.is_file() else sorted(self.data.rglob("*"))
        parts = [sha256(path.read_bytes()).hexdigest() for path in every if path.is_file()]
        return sha256(manifest).hexdigest(), sha256("".join(parts).encode()).hexdigest()


def measure_yield(
    source: YieldSource,
    task: YieldTask,
    tick: Callable[[int, int, float], None] = lambda done, count, left_s: None,
) -> YieldReport:
    """Draws chips, repairs a program for each, and measures its accuracy on labelled data.

    Threads share the chips, or the workers of a Dask cluster. `tick` is called after each chip, in order, with the
    number of chips that are done, the number of all, and the seconds that the others are expected to take. Raises
    `UserError` for a program, data or settings that do not do.
    """
    count, workers = len(task.rates) * task.chips, task.workers or default_workers()
    threads = min(workers, count)
    measured = _prepare(source, task, workers // threads)
    program, setup, read = (own := measured.find()).program, own.repairer.setup, own.data
    chips = [(rate, task.seed + number) for rate in task.rates for number in range(task.chips)]
    found: dict[tuple[float, str], list[float]] = {(rate, name): [] for rate in task.rates for name in task.methods}
    with _open_executor(source, task, threads, measured) as (executor, measure, at_once):
        exact = own.top1(program)
        start = perf_counter()  # the program without defects has compiled the kernels
        parts = (chips[at : at + _AT_ONCE] for at in range(0, count, _AT_ONCE))
        results = (result for part in parts for result in executor.map(measure, part))
        for done, ((rate, _), tops) in enumerate(zip(chips, results, strict=True), 1):
            for name, top1 in tops:
                found[rate, name].append(top1)
            tick(done, count, (perf_counter() - start) * (count / max(done, at_once) - 1))
    points = [_point(rate, name, np.array(top1), task.least) for (rate, name), top1 in found.items()]
    return YieldReport(
        model=program.manifest.model,
        least=task.least,
        exact=exact,
        samples=read.count,
        encoding=setup.encoding,
        cell_bits=setup.cell_bits,
        seed=task.seed,
        other_defects=task.others,
        spare_columns=task.spare_columns,
        candidates=task.candidates,
        points=tuple(points),
    )


def _prepare(source: YieldSource, task: YieldTask, threads: int) -> "_OfThreads":
    """Reads program and data. `threads`: those that share the samples of a chip."""
    require_one_segment(source.out, "yield")
    program = replace(load_output(source.out), repair=None, crossbars=None)
    target = read_stored_target(source.out, files.ARCH)
    setup = make_cell_setup(target, source.device, source.settings)
    read = read_labelled_data(source.data, program.memory.inputs, source.samples, states=program.state_inputs)
    find_class_rule(program).check_labels(read, source.data)
    if read.labels is None:
        raise UserError(f"{source.data}: has no labels, without which there is no accuracy")
    return _OfThreads(lambda: ProgramRepairer(program, target, setup), read, task, threads)


_Result = list[tuple[str, float]]


@contextmanager
def _open_executor(
    source: YieldSource, task: YieldTask, threads: int, measured: "_OfThreads"
) -> Generator[tuple[Executor, Callable[[tuple[float, int]], _Result], int]]:
    """Yields an executor, the function that measures a chip on it, and the number of chips that it measures at once."""
    if task.scheduler is None:
        with CheckedThreadPool(max_workers=threads) as pool:
            yield pool, measured.measure, threads
        return
    with connect_cluster(task.scheduler, "--scheduler") as executor:
        whole = replace(source, out=source.out.absolute(), data=source.data.absolute())
        yield executor, partial(_measure_on_worker, whole, task, whole.find_digests()), 1


def _measure_on_worker(
    source: YieldSource, task: YieldTask, digests: tuple[str, str], chip: tuple[float, int]
) -> _Result:
    """Measures a chip on a worker of a cluster, which reads program and data once."""
    job = (digests, repr(source), repr(task))
    with _reading:
        if job not in _prepared:
            if source.find_digests() != digests:
                raise UserError(f"{source.out}, {source.data}: the files on a worker are not those of the caller")
            _prepared.clear()
            _prepared[job] = _prepare(source, task, 1)
        measured = _prepared[job]
    return measured.measure(chip)


_reading = threading.Lock()
_prepared: "dict[tuple[tuple[str, str], str, str], _OfThreads]" = {}
"""The measurement that this process, a worker of a cluster, last took part in."""


def _point(rate: float, method: str, top1: "np.ndarray[tuple[int], np.dtype[np.float64]]", least: float) -> YieldPoint:
    good, chips = int((top1 >= least - 1e-9).sum()), len(top1)
    interval = wilson_interval(good, chips)
    return YieldPoint(rate, method, chips, good, good / chips, interval, float(top1.mean()), float(top1.min()))


class _OfThreads:
    """A measurement for each thread, because tables of nearest weights grow. `threads`: see `_Measurement`."""

    def __init__(
        self, make_repairer: Callable[[], ProgramRepairer], data: LabelledData, task: YieldTask, threads: int
    ) -> None:
        self.make_repairer, self.data, self.task, self.threads = make_repairer, data, task, threads
        self.local = threading.local()

    def find(self) -> "_Measurement":
        """Returns the measurement of the calling thread, which is made once."""
        found: _Measurement | None = self.local.__dict__.get("measured")
        if found is None:
            found = self.local.measured = _Measurement(self.make_repairer(), self.data, self.task, self.threads)
        return found

    def measure(self, chip: tuple[float, int]) -> list[tuple[str, float]]:
        """Returns the top-1 of a chip, given by its rate of stuck cells and its seed, for each method."""
        return list(self.find().measure_chip(*chip))


class _Measurement:
    """A program, and chips for it. `threads`: those that share the samples of a chip."""

    def __init__(self, repairer: ProgramRepairer, data: LabelledData, task: YieldTask, threads: int) -> None:
        program, target = repairer.program, repairer.target
        self.program, self.target, self.repairer, self.data, self.task = program, target, repairer, data, task
        self.threads = threads
        self.rule = find_class_rule(program)
        self.size = make_size(target, repairer.arrays, 0, task.spare_columns)
        if task.candidates > self.size.crossbars:
            raise UserError(f"--candidates {task.candidates}: a core has {self.size.crossbars} crossbars")
        if task.candidates < repairer.most_parts:
            raise UserError(
                f"--candidates {task.candidates}: the program uses {repairer.most_parts} crossbars of a core; a repair "
                "needs at least as many"
            )
        crossbars = range(task.candidates)
        self.places = [(core, k) for core in repairer.cores for k in crossbars]

    def measure_chip(self, stuck: float, seed: int) -> Iterator[tuple[str, float]]:
        """Yields the top-1 of a chip for each method; 0 if the program does not fit what works of the chip."""
        chip = self._draw(replace(self.task.others, stuck=stuck), seed)
        for method in self.task.methods:
            try:
                repair = self.repairer.repair(chip, METHODS[method])
            except UserError:
                yield method, 0.0
                continue
            yield method, self.top1(self._install(repair))

    def _draw(self, rates: DefectRates, seed: int) -> Chip:
        """Draws a chip on which only the candidates work: others are dead, as nothing else can choose them."""
        drawn = draw_chip(self.size, rates, seed, self.places)
        others = range(self.task.candidates, self.size.crossbars)
        dead = {*drawn.dead_crossbars, *((core, k) for core in self.repairer.cores for k in others)}
        return make_chip(ChipFile.model_validate({**dict(drawn), "dead_crossbars": tuple(sorted(dead))}))

    def _install(self, repair: CellRepair) -> LoadedProgram:
        """Returns the program with repaired weights. If no sum can be larger than before, exact products do."""
        weights = self.program.weights
        matrices = [weights.matrix(group.core, group.group) for group in repair.groups]
        pairs = zip(matrices, repair.groups, strict=True)
        if any(find_wider_columns(matrix.astype(np.int64), group.weights).any() for matrix, group in pairs):
            return install_repair(self.program, repair, self.target)
        values = np.concatenate([group.weights.ravel() for group in repair.groups]).astype(weights.values.dtype)
        return replace(self.program, weights=replace(weights, values=values))

    def top1(self, program: LoadedProgram) -> float:
        """Returns the share of samples that a program classifies correctly."""
        scores = run_scores(program, self.data, self.threads, lambda: None)
        return float((self.rule.classify(scores) == self.data.labels).mean())
