"""`make zoo-table`: what every model of the zoo compiles to, in figures; tests/models/zoo_table.json keeps them.

A change of the compiler that changes a figure writes the table anew, and its commit says why. The models are those of
`tests.models.test_models.small_options`, on the benchmark chip with 500 cores.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product, starmap
from multiprocessing import get_context
from pathlib import Path

import models
import raptor
from tests.models.test_models import small_options

TABLE = Path(__file__).with_name("zoo_table.json")
MAPPINGS = "rows", "raptor"
ROWS = list(product(models.MODELS, MAPPINGS))
CORES = 500
SAMPLES = 4
"""Samples a core begins when the interval between two of them is measured."""

Figures = dict[str, float]
"""Figures by name: `instructions.mvmul`, `stream_bytes`, ..., `interval_ns`."""


def figures(model: str, mapping: str) -> Figures:
    """Compiles a model of the zoo, saves it, simulates it."""
    program = raptor.compile(models.build(model, seed=0, **small_options(model)), mapping=mapping, cores=CORES)
    report = program.report
    with tempfile.TemporaryDirectory() as folder:
        out = program.save(Path(folder) / "out", weight_format="npz")
        stream_bytes = sum(p.stat().st_size for p in out.glob("core_*.json"))
        memory_bytes = json.loads((out / "memory.json").read_text())["size_bytes"]
        simulated = program.simulate(mode="throughput", samples=SAMPLES)
    assert simulated.interval_ns is not None, "asked for"
    return {f"instructions.{name}": count for name, count in sorted(report.instructions.items())} | {
        "stream_bytes": stream_bytes,
        "xbars_used": report.xbars_used,
        "cores_used": report.cores_used,
        "peak_local_bytes": report.peak_local_bytes,
        "global_bytes": memory_bytes,
        "latency_ns": simulated.latency_ns,
        "interval_ns": simulated.interval_ns,
    }


def read() -> dict[str, Figures]:
    """Figures by `row`."""
    return json.loads(TABLE.read_text())


def row(model: str, mapping: str) -> str:
    return f"{model} {mapping}"


def differences(was: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
    """A line for each figure that changed: by how much, and how much that is of what it was."""
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name, 0), now.get(name, 0)
        if before != after:
            share = f" ({(after - before) / before:+.2%})" if before else ""
            yield f"{name}: {before:,.10g} -> {after:,.10g}, {after - before:+,.10g}{share}"


def write(table: Mapping[str, Figures]) -> None:
    """Writes one row per line, so that a diff names the models."""
    lines = (f"{json.dumps(name)}: {json.dumps(table[name])}" for name in table)
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models.zoo_table", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(models.MODELS), help="whose rows are made; without, all")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    was = read() if TABLE.exists() else {}
    now = dict(_all(list(product(options.models, MAPPINGS)), options.jobs))
    write({name: (was | now)[name] for name in starmap(row, ROWS) if name in was | now})
    for name in now:
        print("".join(f"{name}: {line}\n" for line in differences(was.get(name, {}), now[name])), end="")
    print(f"{len(now)} rows, {sum(was.get(name) != now[name] for name in now)} changed: {TABLE.name}")


def _all(rows: Iterable[tuple[str, str]], jobs: int) -> Iterator[tuple[str, Figures]]:
    os.environ["OMP_NUM_THREADS"] = "1"
    names, mappings = zip(*rows, strict=True)
    # Spawned, as onnxruntime's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from zip(map(row, names, mappings), pool.map(figures, names, mappings), strict=True)


if __name__ == "__main__":
    sys.exit(main())
