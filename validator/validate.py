"""Executes a compiled model, asks onnxruntime what it should have computed, and compares."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy.typing as npt

from raptor.errors import UserError
from raptor.layout import Floats
from validator.compare import compare
from validator.golden import check_shapes, load_golden
from validator.inputs import make_inputs
from validator.load import load
from validator.options import DEFAULT_TOLERANCE, Engine, Schedule
from validator.program import Program
from validator.report import LayerComparison, Report
from validator.run import UNLIMITED, Result, run

Array = npt.NDArray[Any]


def validate(
    out: Path,
    *,
    inputs: Sequence[str] | Mapping[str, Array] = (),
    seed: int = 0,
    tolerance: float = DEFAULT_TOLERANCE,
    layers: bool = False,
    engine: Engine = "numba",
    schedule: Schedule = "block",
    check_hashes: bool = True,
    max_steps: int | None = None,
) -> Report:
    """Executes a compiled model and compares it with onnxruntime.

    `inputs`: arrays by name, or files, each `FILE` or `NAME=FILE`; without any, standard normal numbers from `seed`.
    `layers`: also compare every tensor of layers.json. Raises `UserError` for bad input, or after about `max_steps`
    instructions, and `DeadlockError`.
    """
    start = perf_counter()
    program = load(out, check_hashes=check_hashes)
    if layers and program.layers is None:
        raise UserError(f"--layers: {out} has no layers.json")
    loaded = perf_counter()
    golden = load_golden(program, layers=layers)
    arrays = make_inputs(program.memory.inputs, golden, inputs, seed)
    names = list(dict.fromkeys([*(place.name for place in program.memory.outputs), *golden.layers]))
    wanted = golden.run(arrays, names)
    check_shapes(program, wanted)
    known = perf_counter()
    limit = UNLIMITED if max_steps is None else max_steps
    result = run(program, arrays, engine=engine, schedule=schedule, probes=layers, max_steps=limit)
    times = {"load": loaded - start, "golden": known - loaded, "run": perf_counter() - known}
    return _report(program, result, wanted, tolerance, None if inputs else seed, times)


def _report(
    program: Program,
    result: Result,
    wanted: Mapping[str, Floats],
    tolerance: float,
    seed: int | None,
    seconds: dict[str, float],
) -> Report:
    outputs = tuple(compare(name, got, wanted[name], tolerance) for name, got in result.outputs.items())
    nodes = {probe.tensor: probe.node for probe in program.layers.probes} if program.layers else {}
    layers = tuple(
        LayerComparison(nodes[name], compare(name, got, wanted[name], tolerance))
        for name, got in result.probes.items()
        if name in wanted
    )
    deviating = next((layer.node for layer in layers if not layer.comparison.passed), None)
    return Report(
        verdict="pass" if all(c.passed for c in outputs) and deviating is None else "mismatch",
        tolerance=tolerance,
        model=program.manifest.model,
        seed=seed,
        cores=program.core_count,
        instructions=result.instructions,
        seconds={key: round(value, 6) for key, value in seconds.items()},
        outputs=outputs,
        layers=layers,
        first_deviation=deviating,
    )
