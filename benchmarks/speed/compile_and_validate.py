"""Compile and validate the built-in models by both mappings and print one table: `make bench`.

Machines differ and are shared, so every figure has a baseline measured in the same run beside it:

- `json.dump`: the standard library writing as many instructions as dicts,
- `copies`: numpy copying the weights of the model, as many bytes as its file has, four times,
- `onnxruntime`: inference of the same model on one thread, without optimisations,
- `numpy`: as many matrix-vector products of 128x128, one call each.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import models
from benchmarks.speed.measured_commands import CommandRun, compile_command, validate_command
from raptor.common.options.option_values import DEFAULT_STRATEGY

_SAMPLE = 100_000
_PRODUCTS = 20_000
_GIB = 2**30
MAPPINGS = {DEFAULT_STRATEGY: f"{DEFAULT_STRATEGY}, default", "raptor": "raptor"}
"""Names of the default and the reference mapping in the table."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Measurements and baselines of a model, mapping and stream format."""

    model: str
    mapping: str
    streams: str
    compile: CommandRun
    validate: CommandRun
    json_dump_s: float
    copies_s: float
    onnxruntime_s: float
    numpy_products_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "models", nargs="*", default=["lenet5", "squeezenet", "googlenet", "resnet18", "resnet50", "vgg16"]
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs of each command; the median counts")
    parser.add_argument("--json", type=Path, help="also write the figures here, to compare two commits")
    args = parser.parse_args()
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(models.build(name).SerializeToString())
            for mapping, streams in product(MAPPINGS, ("json", "pim")):
                rows.append(measure(name, mapping, path, Path(folder) / "out", streams, args.repeat))
                seconds = rows[-1].compile.wall_s
                print(f"{name} {mapping} {streams}: compile {seconds:.2f} s", file=sys.stderr, flush=True)
    show(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def measure(name: str, mapping: str, path: Path, out: Path, streams: str, repeat: int) -> BenchRow:
    compiled = compile_command(path, out, repeat, streams=streams, xbar=128, cores=200, mapping=mapping)
    validated = validate_command(out, repeat)
    instructions, products = compiled.facts["instructions"], compiled.facts["mvmul"]
    return BenchRow(
        name,
        mapping,
        streams,
        compiled,
        validated,
        json_dump_s=_seconds(json_dump_baseline) * instructions / _SAMPLE,
        copies_s=_seconds(lambda: copies_baseline(path.stat().st_size)),
        onnxruntime_s=onnxruntime_baseline(path),
        numpy_products_s=_seconds(numpy_baseline) * products / _PRODUCTS,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def json_dump_baseline() -> None:
    """Writes `_SAMPLE` instructions with the standard library; time is linear in their number."""
    record = {"op": "vvadd", "rd": 1, "rs1": 1, "rs2": 3, "offset": {"offset_select": 0, "offset_value": 0}, "len": 128}
    with tempfile.TemporaryFile("w") as file:
        json.dump([dict(record) for _ in range(_SAMPLE)], file)


def copies_baseline(size_bytes: int) -> None:
    """Copies as many bytes as the file of a model has, four times, about as often as a compilation copies weights."""
    weights = np.ones(size_bytes, np.uint8)
    for _ in range(4):
        weights = weights.copy()


def numpy_baseline() -> None:
    """Computes `_PRODUCTS` products of 128x128 with 256 different matrices."""
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((256, 128, 128), dtype=np.float32)
    x = rng.standard_normal(128, dtype=np.float32)
    for i in range(_PRODUCTS):
        _ = x @ matrices[i % 256]


def onnxruntime_baseline(path: Path) -> float:
    """Returns the seconds of one inference on one thread, optimisations off."""
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs] it has none

    ort: Any = onnxruntime
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    value = session.get_inputs()[0]
    feed = {value.name: np.zeros(value.shape, np.float32)}
    session.run(None, feed)
    return _seconds(lambda: session.run(None, feed))


def show(rows: list[BenchRow]) -> None:
    table = Table(box=box.MARKDOWN, title="seconds, whole cold process, median")
    for i, name in enumerate(next(_cells(rows[0]))):
        table.add_column(name, justify="left" if i < 3 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*next(_cells(row)).values())
    Console(width=220).print(table)
    Console(width=220).print(_stage_table(rows))


def _cells(row: BenchRow) -> Iterator[Mapping[str, str]]:
    execute = row.validate.stages["run"]
    instructions = row.compile.facts["instructions"]
    yield {
        "model": row.model,
        "mapping": MAPPINGS[row.mapping],
        "streams": row.streams,
        "instructions": f"{instructions:,}",
        "compile": f"{row.compile.wall_s:.2f}",
        "CPU": f"{row.compile.cpu_s:.2f}",
        "/ json.dump": f"{row.compile.wall_s / row.json_dump_s:.2f}",
        "us / instruction": f"{row.compile.cpu_s / instructions * 1e6:.1f}",
        "GiB": f"{row.compile.peak_bytes / _GIB:.2f}",
        "validate": f"{row.validate.wall_s:.2f}",
        "CPU ": f"{row.validate.cpu_s:.2f}",
        "GiB ": f"{row.validate.peak_bytes / _GIB:.2f}",
        "load": f"{row.validate.stages['load']:.2f}",
        "execute": f"{execute:.2f}",
        "M instr/s": f"{instructions / execute / 1e6:.1f}",
        "execute / numpy": f"{execute / row.numpy_products_s:.2f}" if row.numpy_products_s else "",
        "execute / onnxruntime": f"{execute / row.onnxruntime_s:.1f}",
        "json.dump": f"{row.json_dump_s:.2f}",
        "copies": f"{row.copies_s:.2f}",
        "numpy": f"{row.numpy_products_s:.2f}",
        "onnxruntime": f"{row.onnxruntime_s:.3f}",
    }


def _stage_table(rows: list[BenchRow]) -> Table:
    names = list(rows[0].compile.stages)
    table = Table(box=box.MARKDOWN, title="compile, seconds by stage")
    texts = ("model", "mapping", "streams")
    for name in (*texts, *names):
        table.add_column(name.replace("_", " "), justify="left" if name in texts else "right")
    for row in rows:
        seconds = (f"{row.compile.stages[name]:.2f}" for name in names)
        table.add_row(row.model, MAPPINGS[row.mapping], row.streams, *seconds)
    return table


if __name__ == "__main__":
    main()
