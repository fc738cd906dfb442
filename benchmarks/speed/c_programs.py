"""Speed of C programs: seconds per sample on this computer and in QEMU for RISC-V, beside the validator's engine.

`python -m benchmarks.speed.c_programs MODEL.onnx ...` builds the program of each model with `make`, and runs it.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import raptor
from validator.execution.inputs import random_inputs
from validator.load.output_directory import load_output

RISCV_COMPILER, QEMU = "riscv64-linux-gnu-gcc", "qemu-riscv64-static"
TIMES = 10


def measure(path: Path) -> Mapping[str, float]:
    """Returns seconds of each kind for a model; kinds whose tools are missing are left out."""
    with tempfile.TemporaryDirectory() as scratch:
        out = raptor.compile(path, backend="c").save(Path(scratch) / "out")
        program = load_output(out)
        inputs = program.memory.constants.address // program.memory.element_bytes
        np.zeros(inputs, np.uint8 if program.has_integers else np.float32).tofile(out / "in.bin")
        found = dict(_program_seconds(out))
    streams = raptor.compile(path)
    given = random_inputs(load_output(streams.directory).memory.inputs, 0)
    streams.run(given)  # compiles the engine, if this process has not run it
    start = time.perf_counter()
    streams.run(given)
    return {**found, "engine": time.perf_counter() - start}


def _program_seconds(out: Path) -> Iterator[tuple[str, float]]:
    for name, make, run in (
        ("native", ["CC=cc"], []),
        ("RISC-V", [f"CC={RISCV_COMPILER}", "LDFLAGS=-static"], [QEMU]),
    ):
        if all(shutil.which(tool) for tool in (make[0].removeprefix("CC="), *run)):
            start = time.perf_counter()
            subprocess.run(["make", "-s", "-B", "-C", out, *make], check=True)
            yield f"build, {name}", time.perf_counter() - start
            words = [*run, "./chip", ".", "in.bin", "out.bin", "-n", str(TIMES)]
            said = subprocess.run(words, cwd=out, check=True, capture_output=True, text=True).stdout
            yield name, float(said.split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    table = Table("model", "engine s", "native s", "RISC-V in QEMU s", "build s", "RISC-V build s", box=box.SIMPLE)
    for path in parser.parse_args().models:
        seconds = measure(path)
        kinds = ("engine", "native", "RISC-V", "build, native", "build, RISC-V")
        table.add_row(path.stem, *(f"{seconds[kind]:.4f}" if kind in seconds else "-" for kind in kinds))
    Console().print(table)


if __name__ == "__main__":
    main()
