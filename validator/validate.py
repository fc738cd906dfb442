"""Executes a compiled model, asks onnxruntime what it should have computed, and compares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy.typing as npt

from raptor.errors import UserError
from raptor.layout import Floats
from validator.compare import Comparison, compare, largest
from validator.golden import Golden, check_shapes, load_golden
from validator.inputs import make_inputs
from validator.load import load
from validator.options import DEFAULT_TOLERANCE, FEWEST_SAMPLES, MOST_SAMPLES, Engine, Schedule
from validator.program import Program
from validator.report import LayerComparison, Report
from validator.run import UNLIMITED, Result, run

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
        tried.append(_Sample(result, wanted))
    return _report(program, tried, tolerance, None if inputs else seed, seconds)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What one input, or one for each of several, gives, and what it should."""

    result: Result
    wanted: Mapping[str, Floats]


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


def _compared(samples: Sequence[_Sample], got: Sequence[Mapping[str, Floats]], tolerance: float) -> list[Comparison]:
    """Of each tensor that a sample `got` the comparison that is furthest off."""
    found: list[Comparison] = []
    for name in (name for name in got[0] if name in samples[0].wanted):
        wanted = [sample.wanted[name] for sample in samples]
        scale = max(map(largest, wanted))
        pairs = zip((tensors[name] for tensors in got), wanted, strict=True)
        found.append(max((compare(name, *pair, tolerance, scale) for pair in pairs), key=lambda c: c.max_relative))
    return found


def _report(
    program: Program, samples: Sequence[_Sample], tolerance: float, seed: int | None, seconds: dict[str, float]
) -> Report:
    outputs = tuple(_compared(samples, [sample.result.outputs for sample in samples], tolerance))
    nodes = {probe.tensor: probe.node for probe in program.layers.probes} if program.layers else {}
    probes = _compared(samples, [sample.result.probes for sample in samples], tolerance)
    layers = tuple(LayerComparison(nodes[c.name], c) for c in probes)
    deviating = next((layer.node for layer in layers if not layer.comparison.passed), None)
    return Report(
        verdict="pass" if all(c.passed for c in outputs) and deviating is None else "mismatch",
        tolerance=tolerance,
        model=program.manifest.model,
        seed=seed,
        samples=len(samples),
        cores=program.core_count,
        instructions=samples[0].result.instructions,
        seconds={key: round(value, 6) for key, value in seconds.items()},
        outputs=outputs,
        layers=layers,
        first_deviation=deviating,
    )
