"""Executes a compiled model, asks onnxruntime what it should have computed, and compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy.typing as npt

from raptor.errors import UserError
from raptor.layout import Floats
from validator.compare import Comparison, Deviation, compare, deviation
from validator.golden import Golden, check_shapes, load_golden
from validator.inputs import make_inputs
from validator.load import load
from validator.options import DEFAULT_TOLERANCE, FEWEST_SAMPLES, MOST_SAMPLES, Engine, Schedule
from validator.program import Program
from validator.report import LayerComparison, Report
from validator.run import UNLIMITED, run

Array = npt.NDArray[Any]
QUICK_INSTRUCTIONS: dict[Engine, int] = {"numba": 300_000, "python": 3000}
"""Some tenths of a second."""
BYTES_OF_AN_INSTRUCTION = 100
"""Of memory, which take as long to fill."""


def validate(
    out: Path,
    *,
    inputs: Sequence[str] | Mapping[str, Array] = (),
    seed: int = 0,
    samples: int | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    layers: bool = False,
    engine: Engine = "numba",
    schedule: Schedule = "block",
    check_hashes: bool = True,
    max_steps: int | None = None,
) -> Report:
    """Executes a compiled model and compares it with onnxruntime.

    `inputs`: arrays by name, or files, each `FILE` or `NAME=FILE`; without any, standard normal numbers from `seed`,
    then from the next seeds: `samples` times, or as often as is quick (`_samples`).
    `layers`: also compare every tensor of layers.json. Raises `UserError` for bad input, or after about `max_steps`
    instructions, and `DeadlockError`.
    """
    _check_options(seed, samples, tolerance)
    start = perf_counter()
    program = load(out, check_hashes=check_hashes)
    if layers and program.layers is None:
        raise UserError(f"--layers: {out} has no layers.json")
    loaded = perf_counter()
    golden = load_golden(program, layers=layers)
    seconds = {"load": loaded - start, "golden": perf_counter() - loaded, "run": 0.0}
    limit = UNLIMITED if max_steps is None else max_steps
    tried: list[_Sample] = []
    for number in range(seed, seed + (1 if inputs else samples or _samples(program, engine))):
        arrays = make_inputs(program.memory.inputs, golden, inputs, number)
        begin = perf_counter()
        wanted = _wanted(program, golden, arrays)
        known = perf_counter()
        result = run(program, arrays, engine=engine, schedule=schedule, probes=layers, max_steps=limit)
        seconds["golden"] += known - begin
        seconds["run"] += perf_counter() - known
        tried.append(_Sample(result.instructions, _apart(result.outputs, wanted), _apart(result.probes, wanted)))
    return _report(program, tried, tolerance, None if inputs else seed, seconds)


def _check_options(seed: int, samples: int | None, tolerance: float) -> None:
    if not (tolerance >= 0 and isfinite(tolerance)):
        raise UserError(f"the tolerance is {tolerance}, must be a finite number, 0 or more")
    if seed < 0:
        raise UserError(f"the seed is {seed}, must be 0 or more")
    if samples is not None and samples < 1:
        raise UserError(f"samples is {samples}, must be 1 or more")


@dataclass(frozen=True, slots=True)
class _Sample:
    """How far off each tensor is for one input, or one for each of several."""

    instructions: int
    outputs: Mapping[str, Deviation]
    probes: Mapping[str, Deviation]


def _apart(got: Mapping[str, Floats], wanted: Mapping[str, Floats]) -> dict[str, Deviation]:
    return {name: deviation(tensor, wanted[name]) for name, tensor in got.items() if name in wanted}


def _samples(program: Program, engine: Engine) -> int:
    """As many as are quick, and more than one.

    One input can hide a wrong operand of a maximum, or a clipped value. It seldom does where vectors are long; small
    programs, whose vectors are short, run often.
    """
    memory_bytes = sum(program.memory.local_bytes) + program.memory.size_bytes
    cost = 1 + program.instruction_count + memory_bytes // BYTES_OF_AN_INSTRUCTION
    return min(max(QUICK_INSTRUCTIONS[engine] // cost, FEWEST_SAMPLES), MOST_SAMPLES)


def _wanted(program: Program, golden: Golden, arrays: Mapping[str, Floats]) -> dict[str, Floats]:
    names = dict.fromkeys([*(place.name for place in program.memory.outputs), *golden.layers])
    wanted = golden.run(arrays, list(names))
    check_shapes(program, wanted)
    return wanted


def _compared(found: Sequence[Mapping[str, Deviation]], tolerance: float) -> tuple[Comparison, ...]:
    return tuple(compare(name, [sample[name] for sample in found], tolerance) for name in found[0])


def _check_judged(outputs: Sequence[Mapping[str, Deviation]]) -> None:
    """NaN equals NaN, which says nothing if there is nothing else."""
    for name in outputs[0]:
        if all(sample[name].largest is None for sample in outputs):
            count = f"{len(outputs)} {'input' if len(outputs) == 1 else 'inputs'}"
            raise UserError(
                f"output {name!r}: onnxruntime computes no finite number for it from {count}, so nothing can be "
                "compared; give others with --input or --seed"
            )


def _report(
    program: Program, samples: Sequence[_Sample], tolerance: float, seed: int | None, seconds: dict[str, float]
) -> Report:
    _check_judged([sample.outputs for sample in samples])
    outputs = _compared([sample.outputs for sample in samples], tolerance)
    nodes = {probe.tensor: probe.node for probe in program.layers.probes} if program.layers else {}
    probes = _compared([sample.probes for sample in samples], tolerance)
    layers = tuple(LayerComparison(nodes[c.name], c) for c in probes)
    deviating = next((layer.node for layer in layers if not layer.comparison.passed), None)
    return Report(
        verdict="pass" if all(c.passed for c in outputs) and deviating is None else "mismatch",
        tolerance=tolerance,
        model=program.manifest.model,
        seed=seed,
        samples=len(samples),
        cores=program.core_count,
        instructions=samples[0].instructions,
        seconds={key: round(value, 6) for key, value in seconds.items()},
        outputs=outputs,
        layers=layers,
        first_deviation=deviating,
    )
