"""Evaluates a point: compiles a model and simulates the program. An error becomes part of the result."""

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from raptor import api
from raptor.api import Program
from raptor.codegen.pimsim.program_cost import STEADY_SAMPLES, simulate_cost, simulate_peak_w
from raptor.codegen.pimsim.stream_files import pimsim_files
from raptor.common.errors import CapacityError, RaptorError, UnsupportedError, UserError
from raptor.options import ChipOptions, collect_options
from raptor.output.writer import ProgramArtifacts
from raptor.target import arch as architectures
from raptor.target.arch import Target
from raptor.target.arch.chip_area import compute_area
from raptor.target.device_file import load_device
from raptor.tools.explore.study.metrics import METRICS
from validator.accuracy.measure import measure_accuracy
from validator.crossbar.chip_settings import make_setup
from validator.options import CrossbarKind
from validator.simulate.weight_reloading import ReloadingFigures

_LONGEST = 1000

RecordState = Literal["ok", "infeasible", "timeout", "out_of_memory", "crashed", "error"]


class AccuracyTask(msgspec.Struct, frozen=True):
    """Arguments of `validator.accuracy.measure.accuracy` for a job; paths and names as texts."""

    data: str
    crossbar: CrossbarKind | None = None
    cells: str | None = None
    settings: dict[str, str] = {}
    chips: int = 1
    samples: int | None = None
    calibration: int = 16


class EvaluationJob(msgspec.Struct, frozen=True):
    """An evaluation: a model, options of `raptor.compile`, and the figures to measure.

    `is_steady`: also simulate several samples in steady state. `fields`: with a fixed mapping, the fields of the
    architecture in which the simulated chip differs from the chip of the compilation. `needs_power`: also measure the
    peak power. `problem`: reason why there is no chip to compile for, or empty.
    """

    model: str
    options: dict[str, Any]
    is_steady: bool
    fields: dict[str, Any] | None = None
    accuracy: AccuracyTask | None = None
    needs_power: bool = False
    problem: str = ""


class EvaluationRecord(msgspec.Struct, frozen=True):
    """The result of a job: figures by name, or the reason why there are none.

    `resource`, `needed`, `available`: of the `CapacityError` if the chip is too small. `seconds`: wall time, for
    information only.
    """

    state: RecordState
    figures: dict[str, float] = {}
    reason: str = ""
    resource: str = ""
    needed: int = 0
    available: int = 0
    seconds: float = 0.0


def evaluate_job(job: EvaluationJob) -> EvaluationRecord:
    """Compiles and simulates. Returns a record; an error becomes its state and reason."""
    begin = time.perf_counter()
    record = _evaluated(job)
    return msgspec.structs.replace(record, seconds=time.perf_counter() - begin)


def _evaluated(job: EvaluationJob) -> EvaluationRecord:
    if job.problem:
        return EvaluationRecord("infeasible", {}, job.problem[:_LONGEST])
    try:
        return EvaluationRecord("ok", _figures(job))
    except CapacityError as e:
        return EvaluationRecord("infeasible", {}, _text(e), e.resource, e.needed, e.available)
    except UnsupportedError as e:
        return EvaluationRecord("infeasible", {}, _text(e), "operators", len(e.nodes))
    except UserError as e:
        return EvaluationRecord("infeasible", {}, _text(e))
    except MemoryError:
        return EvaluationRecord("out_of_memory", {}, "out of memory")
    except RaptorError as e:
        return EvaluationRecord("error", {}, _text(e))
    except Exception as e:  # whatever it is, the study goes on and shows it
        return EvaluationRecord("error", {}, f"{type(e).__name__}: {_text(e)}")


def _text(error: Exception) -> str:
    return str(error)[:_LONGEST]


def _figures(job: EvaluationJob) -> dict[str, float]:
    program = api.compile(job.model, **job.options)
    report = program.report
    chip = load_simulated_chip(job)
    found: dict[str, float] = {
        "xbars_used": report.xbars_used,
        "cores_used": report.cores_used,
        "xbars": report.xbars_available,
        "cells": report.xbars_available * chip.xbar_rows * chip.xbar_cols,
        "local_bytes": report.peak_local_bytes,
        "instructions": report.instruction_count,
    }
    area_mm2 = compute_area(chip).area_mm2
    if area_mm2 is not None:
        found["area_mm2"] = area_mm2
    if isinstance(program.artifacts, ProgramArtifacts):
        found |= _alone(program.artifacts, chip, job)
    else:
        found |= _in_segments(program, job)
    if job.accuracy is not None:
        try:
            found |= _accuracy(program, chip, job.accuracy)
        except UserError as e:  # equal points have equal reasons: without the folder, which is a temporary one
            raise UserError(str(e).removeprefix(f"{program.directory}: ")) from e
    return {name: float(found[name]) for name in METRICS if name in found}


def _accuracy(program: Program, chip: Target, given: AccuracyTask) -> dict[str, float]:
    """Returns accuracy figures of a run on data. Labels are needed for top-1 and top-5, ADCs for their bits."""
    device = None if given.cells is None else load_device(given.cells)
    found = measure_accuracy(
        program.directory,
        Path(given.data),
        crossbar=given.crossbar,
        device=device,
        settings=given.settings,
        chips=given.chips,
        samples=given.samples,
        calibration=given.calibration,
        noise_samples=0,
        workers=1,
    )
    bits = None
    if given.crossbar in ("sliced", "noisy"):
        adc = make_setup(given.crossbar, chip, device, given.settings).adc
        bits = None if adc is None else adc.bits
    shares = {"top1": found.top1, "top5": found.top5, "agreement": found.agreement, "adc_bits": bits}
    return {name: share for name, share in shares.items() if share is not None}


def load_simulated_chip(job: EvaluationJob) -> Target:
    """Returns the chip that the job simulates: the options of the chip, with `job.fields` on top."""
    given: dict[str, Any] = {name: value for name, value in job.options.items() if name in collect_options(ChipOptions)}
    given["fields"] = {**given.get("fields", {}), **(job.fields or {})}
    return architectures.load(**given)


def _alone(artifacts: ProgramArtifacts, chip: Target, job: EvaluationJob) -> dict[str, float]:
    """Returns time and energy of a program of one segment, whose weights are written once."""
    files = pimsim_files(artifacts)
    groups = {core: files.config.group_sizes(core) for core in files.records}
    one = simulate_cost(files.records, groups, chip, 0)
    found = {"latency_ns": one.latency_ns, "energy_pj": one.energy_pj} | _wear(None)
    if job.needs_power:
        found["power_peak_w"] = simulate_peak_w(files.records, groups, chip)
    if job.is_steady:
        several = simulate_cost(files.records, groups, chip, STEADY_SAMPLES)
        found |= {"interval_ns": several.interval_ns, "steady_energy_pj": several.energy_pj}
    return found


def _in_segments(program: Program, job: EvaluationJob) -> dict[str, float]:
    """Returns time, energy and wear of a program with several segments (rounds, or parts on the host)."""
    if job.fields:
        raise UserError("a program in segments: only with study.mapping 'anew'")
    one = program.simulate()
    found = {"latency_ns": one.latency_ns or 0.0, "energy_pj": one.energy_pj or 0.0} | _wear(one.reloading)
    if one.power_peak_w is not None:
        found["power_peak_w"] = one.power_peak_w
    if job.is_steady:
        several = program.simulate(mode="throughput", samples=STEADY_SAMPLES)
        found |= {"interval_ns": several.interval_ns or 0.0, "steady_energy_pj": several.energy_pj or 0.0}
    return found


def _wear(found: ReloadingFigures | None) -> dict[str, float]:
    """Returns the writes of the worst cell per sample, and its wear per year if its endurance is known."""
    if found is None:
        return {"writes": 0.0, "wear_per_year": 0.0}
    if found.endurance_cycles is None:
        return {"writes": found.worst_per_sample}
    return {"writes": found.worst_per_sample, "wear_per_year": 1 / found.years if found.years else 0.0}
