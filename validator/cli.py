"""The command `raptor validate OUT`, also `python -m validator OUT`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console

from raptor.errors import RaptorError, UserError
from raptor.layout import Floats
from validator.compare import compare
from validator.errors import DeadlockError
from validator.program import Program
from validator.report import LayerComparison, Report, show, to_json
from validator.run import Engine, Result, Schedule

DEFAULT_TOLERANCE = 1e-4


def validate(
    out: Path,
    *,
    inputs: Sequence[str] = (),
    seed: int = 0,
    tolerance: float = DEFAULT_TOLERANCE,
    layers: bool = False,
    engine: Engine = "numba",
    schedule: Schedule = "block",
    check_hashes: bool = True,
) -> Report:
    """Executes a compiled model and compares it with onnxruntime.

    `inputs`: files, each `FILE` or `NAME=FILE`; without any, standard normal numbers from `seed`. `layers`: also
    compare every tensor of layers.json. Raises `UserError` for bad input and `DeadlockError`.
    """
    from validator.golden import check_shapes, load_golden
    from validator.inputs import make_inputs
    from validator.load import load
    from validator.run import run

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
    result = run(program, arrays, engine=engine, schedule=schedule, probes=layers)
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


def command(
    out: Annotated[Path, typer.Argument(help="Output directory of the compiler.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]FILE", help="A .npy, .npz or .pb file; else random numbers."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest error, over the largest wanted value.")
    ] = DEFAULT_TOLERANCE,
    layers: Annotated[bool, typer.Option("--layers", help="Compare every intermediate tensor too.")] = False,
    engine: Annotated[Engine, typer.Option(help="Compiled, or the slow reference.")] = "numba",
    schedule: Annotated[Schedule, typer.Option(help="Order in which cores run.")] = "block",
    json: Annotated[Path | None, typer.Option("--json", help="Write a JSON report to this file.")] = None,
    no_hash: Annotated[bool, typer.Option("--no-hash", help="Do not check the hashes of the files.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only.")] = False,
) -> None:
    """Execute a compiled model and compare it with onnxruntime.

    Exit status: 0 the outputs agree, 1 they do not, 2 bad input, 3 deadlock.
    """
    try:
        report = validate(
            out,
            inputs=inputs or (),
            seed=seed,
            tolerance=tolerance,
            layers=layers,
            engine=engine,
            schedule=schedule,
            check_hashes=not no_hash,
        )
    except RaptorError as e:
        verdict = "deadlock" if isinstance(e, DeadlockError) else "bad input"
        _write(json, Report(verdict, tolerance, message=str(e)))
        raise
    _write(json, report)
    show(report, Console(), quiet=quiet)
    raise typer.Exit(0 if report.verdict == "pass" else 1)


def _write(path: Path | None, report: Report) -> None:
    if path is None:
        return
    try:
        path.write_bytes(to_json(report))
    except OSError as e:
        raise UserError(f"--json {path}: {e.strerror or e}") from e
