"""Measures the accuracy of a program: on one chip or several, and over a sweep of settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.arch import read_stored_target
from raptor.target.cell_models import Adc
from raptor.target.device_file import DeviceFile
from validator.accuracy.accuracy_report import (
    AccuracyPoint,
    AccuracyReport,
    ChipResult,
    LayerNoise,
    describe_setup,
    mean_of_known,
)
from validator.accuracy.classify import find_class_rule
from validator.accuracy.labelled_data import LabelledData, digest_samples, read_labelled_data
from validator.accuracy.sample_scores import Tick, default_workers, run_layer_tensors, run_scores, runtime_scores
from validator.accuracy.statistics import snr_db, student_interval, wilson_interval
from validator.accuracy.trimming import trim_program
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.chip_programming import program_crossbars
from validator.crossbar.chip_settings import apply_settings, make_setup
from validator.crossbar.lossless_proof import prove_layers
from validator.execution.converter_calibration import calibrate_converters
from validator.execution.crossbar_selection import resolve_kind
from validator.load.output_directory import load_output
from validator.options import CrossbarKind
from validator.program.program import LoadedProgram
from validator.program.segment_list import require_one_segment
from validator.program.trim_constants import require_trim_table, reset_trim

Array = npt.NDArray[Any]
Settings = Mapping[str, str]
Sweep = Mapping[str, Sequence[str]]
MOST_POINTS = 10_000


def measure_accuracy(
    out: Path,
    data: Path | None = None,
    *,
    crossbar: CrossbarKind | None = None,
    device: DeviceFile | None = None,
    settings: Settings | None = None,
    sweep: Sweep | None = None,
    chips: int = 1,
    samples: int | None = None,
    calibration: int = 16,
    calibration_data: Path | None = None,
    trim: bool = False,
    noise_samples: int = 8,
    workers: int | None = None,
    tick: Tick = lambda: None,
) -> AccuracyReport:
    """Executes a compiled program on labelled data, and measures the share that it classifies correctly.

    A sample has the class of its largest score; a single score is compared with 0.5 (a probability) or 0. `data`: see
    `read_labelled_data`; None: only the losses of converters are reported. `crossbar`: model of the products, exact by
    default. `settings` override the device file `device`. `sweep`: values of settings, all combinations of which are
    measured, too. `chips`: number of chips, with consecutive seeds. `samples`: how many samples are used, from the
    first on. `calibration`: samples for the ranges of calibrated converters, the first of `calibration_data`
    (by default of `data`), whose samples `data` must not have. `trim`: trim each chip with `calibration_data` before it
    is measured. `noise_samples`: samples for the noise of
    layers. Raises `UserError` for invalid input."""
    require_one_segment(out, "accuracy")
    start = perf_counter()
    program = load_output(out)
    kind = resolve_kind(program, crossbar)
    setup = (
        None
        if kind in ("ideal", "integer")
        else make_setup(kind, read_stored_target(program.folder, files.ARCH), device, settings or {})
    )
    _check(kind, setup, settings or {}, sweep or {}, chips)
    read = None if data is None else _read(program, data, samples)
    seen = CalibrationInputs(_read_calibration(program, read, calibration_data) or read, calibration, trim)
    if trim:
        require_trim_table(program)
    task = _AccuracyTask(program, read, setup, seen, noise_samples, workers or default_workers(), tick)
    loaded = perf_counter()
    found = task.report(kind, None if device is None else device.name, chips, sweep or {})
    return replace(found, seconds={"load": loaded - start, "measure": perf_counter() - loaded})


def _read(program: LoadedProgram, data: Path, samples: int | None) -> LabelledData:
    output = program.outputs[0]
    if len(output.shape) > 1 and output.shape[0] != 1:
        raise UserError(
            f"output {output.name!r} has shape {list(output.shape)}: accuracy needs the scores of one sample; compile "
            "with a batch of 1"
        )
    read = read_labelled_data(data, program.memory.inputs, samples, states=program.state_inputs)
    find_class_rule(program).check_labels(read, data)
    return read


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationInputs:
    """Inputs that a chip sees before it is measured. `count`: inputs, from the first on, for ranges of converters.

    `trim`: all of them also trim the chip.
    """

    data: LabelledData | None
    count: int
    trim: bool


def _read_calibration(program: LoadedProgram, tested: LabelledData | None, path: Path | None) -> LabelledData | None:
    """Reads calibration inputs. Raises `UserError` if one of them is also measured."""
    if path is None or tested is None:
        return None
    read = read_labelled_data(path, program.memory.inputs, option="--calibration-data", states=program.state_inputs)
    known = digest_samples(tested)
    both = sum(digest in known for digest in digest_samples(read))
    if both:
        raise UserError(
            f"--calibration-data {path}: {both} of its {read.count} samples are also in --data; a chip that has seen "
            "them would seem better than it is"
        )
    return read


def _check(kind: CrossbarKind, setup: ChipSetup | None, settings: Settings, sweep: Sweep, chips: int) -> None:
    if setup is None and (settings or sweep):
        name = next(iter({**settings, **sweep}))
        raise UserError(f"{name}: --crossbar {kind} has no settings; take sliced or noisy")
    if kind != "noisy" and chips != 1:
        raise UserError(f"--chips {chips}: --crossbar {kind} has no errors, so all chips are equal; take noisy")
    if chips > 1 and "seed" in sweep:
        raise UserError("--sweep seed: not with --chips, which takes the seeds that follow")
    points = int(np.prod([len(values) for values in sweep.values()], dtype=np.float64))
    if points * chips > MOST_POINTS:
        raise UserError(f"--sweep: {points} points with {chips} chips each; at most {MOST_POINTS} in all")


def check_calibration(
    out: Path, kind: Literal["sliced", "noisy"], device: DeviceFile | None, settings: Settings, sweep: Sweep
) -> None:
    """Raises `UserError` if no converter has a calibrated range: calibration samples then have no effect."""
    if not _is_calibrated(make_setup(kind, read_stored_target(out, files.ARCH), device, settings), sweep):
        raise UserError("--calibration: no converter has a calibrated range; take --with adc_range=calibrated")


def _is_calibrated(setup: ChipSetup, sweep: Sweep) -> bool:
    """Checks whether converters have a calibrated range, in the setup or at a point of the sweep."""
    adc = setup.adc or (Adc(bits=1) if "adc_bits" in sweep else None)
    return adc is not None and "calibrated" in sweep.get("adc_range", (adc.range,))


class _AccuracyTask:
    """A program and data, with the results that all measurements share."""

    def __init__(
        self,
        program: LoadedProgram,
        data: LabelledData | None,
        setup: ChipSetup | None,
        seen: CalibrationInputs,
        noise_samples: int,
        workers: int,
        tick: Tick,
    ) -> None:
        self.program, self.data, self.setup, self.workers, self.tick = program, data, setup, workers, tick
        self.seen, self.noise_samples = seen, noise_samples
        self.golden = None if data is None else runtime_scores(program, data)
        self.decision = None if data is None else find_class_rule(program)

    def report(self, kind: CrossbarKind, device: str | None, chips: int, sweep: Sweep) -> AccuracyReport:
        """Runs all measurements."""
        first = self._programmed(self.setup)
        results = [self._result(p, s) for s, p in self._chips(self.setup, first, chips)] if self.data else []
        points = tuple(self._points(sweep, chips)) if self.data else ()
        chip = first.crossbars
        return AccuracyReport(
            model=self.program.manifest.model,
            crossbar=kind,
            device=device,
            settings=describe_setup(self.setup) | self._trims(),
            samples=0 if self.data is None else self.data.scores,
            top1=mean_of_known(r.top1 for r in results),
            top5=mean_of_known(r.top5 for r in results),
            agreement=mean_of_known(r.agreement for r in results),
            top1_of_chips=student_interval([r.top1 for r in results if r.top1 is not None]),
            reference=None if self.golden is None else self._counted(self.golden, self.golden, None),
            chips=tuple(results),
            layers=self._noise(first) if self.data and chip else (),
            converters=prove_layers(chip) if chip else (),
            cells_per_weight=max((a.planes.cells_per_weight for a in chip.arrays), default=0) if chip else 0,
            sweep=points,
        )

    def _trims(self) -> dict[str, str]:
        """Describes the trim of the chips, if there is any."""
        table = self.program.trim
        if self.seen.trim and self.seen.data is not None:
            return {"trim": f"each chip, with {self.seen.data.count} inputs"}
        return {"trim": f"for {table.chip}"} if table is not None and table.chip is not None else {}

    def _chips(
        self, setup: ChipSetup | None, first: LoadedProgram, count: int
    ) -> Iterator[tuple[ChipSetup | None, LoadedProgram]]:
        yield setup, first
        for number in range(1, count):
            assert setup is not None  # only noisy crossbars have several chips
            other = replace(setup, seed=setup.seed + number)
            yield other, self._programmed(other)

    def _programmed(self, setup: ChipSetup | None) -> LoadedProgram:
        if setup is None:
            return self.program
        made = program_crossbars(self.program, setup)
        data = self.seen.data
        if data is None:
            return made
        if _is_calibrated(setup, {}):
            # Ranges are set before a trim, which needs them: so, too, if the program is trimmed already.
            bare = reset_trim(made) if made.trim is not None and made.trim.layers else made
            ranges = calibrate_converters(bare, map(data.list_steps, range(min(self.seen.count, data.count))))
            made = replace(made, crossbars=ranges.crossbars)
        return trim_program(made, data, range(data.count), self.workers)[0] if self.seen.trim else made

    def _points(self, sweep: Sweep, chips: int) -> Iterator[AccuracyPoint]:
        for values in product(*sweep.values()) if sweep else ():
            given = dict(zip(sweep, values, strict=True))
            assert self.setup is not None  # checked before
            setup = apply_settings(self.setup, given)
            every = self._chips(setup, self._programmed(setup), chips)
            found = [self._result(program, s) for s, program in every]
            top1 = [r.top1 for r in found if r.top1 is not None]
            yield AccuracyPoint(
                given,
                mean_of_known(top1),
                student_interval(top1) or (found[0].top1_interval if top1 else None),
                float(np.mean([r.agreement for r in found])),
                tuple(found),
            )

    def _result(self, program: LoadedProgram, setup: ChipSetup | None) -> ChipResult:
        assert self.data is not None  # the caller has asked
        found = run_scores(program, self.data, self.workers, self.tick)
        return self._counted(found, self.golden, None if setup is None else setup.seed)

    def _counted(self, found: Array, golden: Array | None, seed: int | None) -> ChipResult:
        assert self.data is not None  # there are scores
        assert golden is not None  # there are data
        assert self.decision is not None  # as for them
        labels, classes = self.data.labels, self.decision.classify(found)
        labels = None if labels is None else labels.ravel()
        agreed = float((classes == self.decision.classify(golden)).mean())
        if labels is None:
            return ChipResult(seed, None, None, agreed, None)
        right = int((classes == labels).sum())
        # The steps of a sequence are not drawn independently, which the interval assumes.
        is_drawn = self.data.scores == self.data.count
        interval = wilson_interval(right, len(labels)) if is_drawn else None
        return ChipResult(seed, right / len(labels), _top5(found, labels), agreed, interval)

    def _noise(self, program: LoadedProgram) -> tuple[LayerNoise, ...]:
        """Returns the noise of the chip's tensors, compared with exact products."""
        if program.layers is None or self.data is None or not self.noise_samples:
            return ()
        numbers = range(min(self.noise_samples, self.data.count))
        exact, found = (run_layer_tensors(p, self.data, numbers, self.workers) for p in (self.program, program))
        return tuple(
            LayerNoise(
                probe.node, probe.tensor, _snr([e[probe.tensor] for e in exact], [f[probe.tensor] for f in found])
            )
            for probe in program.layers.probes
        )


def _snr(exact: Sequence[Array], found: Sequence[Array]) -> float:
    want, got = (np.stack(values).astype(np.float64) for values in (exact, found))
    return snr_db(float((want**2).sum()), float(((got - want) ** 2).sum()))


def _top5(found: Array, labels: npt.NDArray[np.int64]) -> float | None:
    """Returns the share of samples whose label is among the five largest scores; None for five classes or fewer."""
    if found.shape[1] <= 5:
        return None
    best = np.argsort(-found.astype(np.float64), axis=1, kind="stable")[:, :5]
    return float((best == labels[:, None]).any(axis=1).mean())
