"""Evaluates a point: compiles a model with its options, and simulates the program. Never raises for a bad point."""

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from raptor import api
from raptor.api import Program
from raptor.common.errors import CapacityError, RaptorError, UnsupportedError, UserError
from raptor.evaluation import cost_of
from raptor.explore.metrics import METRICS
from raptor.output.writer import Artifacts
from raptor.target import arch as architectures
from raptor.target.arch import Target
from raptor.target.device_file import load_device
from validator.accuracy.measure import accuracy
from validator.options import CrossbarKind

SAMPLES = 4
"""Samples that each core begins in a simulation of the steady state."""
_LONGEST = 1000

State = Literal["ok", "infeasible", "timeout", "out_of_memory", "crashed", "error"]


class Measuring(msgspec.Struct, frozen=True):
    """Measurement of accuracy: the arguments of `validator.accuracy.measure.accuracy`."""

    data: str
    crossbar: CrossbarKind | None = None
    cells: str | None = None
    settings: dict[str, str] = {}
    chips: int = 1
    samples: int | None = None
    calibration: int = 16


class Job(msgspec.Struct, frozen=True):
    """A model with options of `raptor.compile`, and what is to be measured.

    `fields`: with a fixed mapping, those in which the simulated chip differs from the one that is compiled for.
    """

    model: str
    options: dict[str, Any]
    is_steady: bool
    fields: dict[str, Any] | None = None
    accuracy: Measuring | None = None


class Record(msgspec.Struct, frozen=True):
    """The result of a job: its figures, or the reason why there are none.

    `resource`, `needed`, `available`: of a chip that is too small. `seconds` is wall time, and no part of the result.
    """

    state: State
    figures: dict[str, float] = {}
    reason: str = ""
    resource: str = ""
    needed: int = 0
    available: int = 0
    seconds: float = 0.0


def evaluate(job: Job) -> Record:
    """Compiles and simulates. Errors become records with a state and a reason."""
    begin = time.perf_counter()
    record = _evaluated(job)
    return msgspec.structs.replace(record, seconds=time.perf_counter() - begin)


def _evaluated(job: Job) -> Record:
    try:
        return Record("ok", _figures(job))
    except CapacityError as e:
        return Record("infeasible", {}, _text(e), e.resource, e.needed, e.available)
    except UnsupportedError as e:
        return Record("infeasible", {}, _text(e), "operators", len(e.nodes))
    except UserError as e:
        return Record("infeasible", {}, _text(e))
    except MemoryError:
        return Record("out_of_memory", {}, "out of memory")
    except RaptorError as e:
        return Record("error", {}, _text(e))
    except Exception as e:  # whatever it is, the study goes on and shows it
        return Record("error", {}, f"{type(e).__name__}: {_text(e)}")


def _text(error: Exception) -> str:
    return str(error)[:_LONGEST]


def _figures(job: Job) -> dict[str, float]:
    program = api.compile(job.model, **job.options)
    report = program.report
    chip = _chip(job)
    latency_ns, energy_pj = _cost(program, chip, job, 0)
    found = {
        "latency_ns": latency_ns,
        "energy_pj": energy_pj,
        "xbars_used": report.xbars_used,
        "cores_used": report.cores_used,
        "xbars": report.xbars_available,
        "cells": report.xbars_available * chip.xbar_rows * chip.xbar_cols,
        "local_bytes": report.peak_local_bytes,
        "instructions": report.instruction_count,
    }
    if job.is_steady:
        found["interval_ns"], found["steady_energy_pj"] = _cost(program, chip, job, SAMPLES)
    if job.accuracy is not None:
        try:
            found |= _accuracy(program, job.accuracy)
        except UserError as e:  # equal points have equal reasons: without the folder, which is a temporary one
            raise UserError(str(e).removeprefix(f"{program.directory}: ")) from e
    return {name: float(found[name]) for name in METRICS if name in found}


def _accuracy(program: Program, given: Measuring) -> dict[str, float]:
    """Runs the program on data; without labels, only the agreement is known."""
    found = accuracy(
        program.directory,
        Path(given.data),
        crossbar=given.crossbar,
        device=None if given.cells is None else load_device(given.cells),
        settings=given.settings,
        chips=given.chips,
        samples=given.samples,
        calibration=given.calibration,
        noise_samples=0,
        workers=1,
    )
    shares = {"top1": found.top1, "top5": found.top5, "agreement": found.agreement}
    return {name: share for name, share in shares.items() if share is not None}


def _chip(job: Job) -> Target:
    """Returns the chip that is simulated."""
    given = job.options
    sizes: dict[str, Any] = {name: given.get(name) for name in ("xbar", "cores", "xbars_per_core", "cell_bits")}
    fields = {**given.get("fields", {}), **(job.fields or {})}
    return architectures.load(given.get("arch"), **sizes, element_bits=given.get("bits", 8), fields=fields)


def _cost(program: Program, chip: Target, job: Job, samples: int) -> tuple[float, float]:
    """Returns time (of one sample alone, or between samples) in ns, and energy in pJ."""
    artifacts = program.artifacts
    if isinstance(artifacts, Artifacts):
        groups = {core: artifacts.config.groups(core) for core in artifacts.records}
        found = cost_of(artifacts.records, groups, chip, samples)
        return (found.interval_ns if samples else found.latency_ns), found.energy_pj
    if job.fields:
        raise UserError("a program with segments on the host: only with study.mapping 'anew'")
    report = program.simulate(mode="throughput", samples=samples) if samples else program.simulate()
    return (report.interval_ns if samples else report.latency_ns) or 0.0, report.energy_pj or 0.0
