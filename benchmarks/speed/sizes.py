"""Measure the commands against the size of an image, a signal, a sequence: `make bench-sizes`.

The time of a command should grow no faster than the program. Each kind of network is compiled, explained, simulated and
validated at sizes that grow by factors of four, on several numbers of cores. Seconds are CPU seconds of whole commands.
The column "us" is the growth of the CPU time of all commands from the size before, by the growth of the number of
instructions: where it rises from row to row, a command is superlinear.

`--sources DIR` measures a checkout of another commit in the same way.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen

import onnx

from benchmarks.programs.block_models import BlockBuilder, build_model
from benchmarks.speed.measured_commands import ROOT

_GIB = 2**30
COMMANDS = ("compile", "explain", "simulate", "validate")


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """A kind of network: its sizes, and a function that builds the model of a size."""

    sizes: tuple[int, ...]
    build: Callable[[int], onnx.ModelProto]


@dataclass(frozen=True, slots=True)
class CommandCost:
    """CPU seconds and peak memory in bytes of a command; `ended` is False if it ran out of time or failed."""

    cpu_s: float
    peak_bytes: int
    ended: bool


def build_signal(size: int) -> onnx.ModelProto:
    """Four 1-D convolutions with strides."""

    def build(b: BlockBuilder) -> str:
        x, inputs = "x", 1
        for outputs, stride in ((16, 4), (32, 2), (32, 2), (32, 1)):
            pads = [3, 4]
            x = b.op("Relu", b.conv(x, inputs, outputs, 8, dims=1, stride=stride, pads=pads))
            inputs = outputs
        return x

    return build_model(build, (1, 1, size))


def build_dilated(size: int) -> onnx.ModelProto:
    """Five causal 1-D convolutions whose dilation doubles."""

    def build(b: BlockBuilder) -> str:
        x, inputs = "x", 8
        for dilation in (1, 2, 4, 8, 16):
            x = b.op("Relu", b.conv(x, inputs, 32, 3, dims=1, dilation=dilation, pads=[2 * dilation, 0]))
            inputs = 32
        return x

    return build_model(build, (1, 8, size))


def build_tall(size: int) -> onnx.ModelProto:
    """Three convolutions of an image with four columns."""

    def build(b: BlockBuilder) -> str:
        x, inputs = "x", 8
        for _ in range(3):
            x = b.op("Relu", b.conv(x, inputs, 16))
            inputs = 16
        return x

    return build_model(build, (1, 8, size, 4))


def build_image(size: int) -> onnx.ModelProto:
    """A network that restyles a square image: reflected padding, instance norms, a residual block, upsampling."""

    def build(b: BlockBuilder) -> str:
        def layer(x: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> str:
            p = kernel // 2
            padded = b.op("Pad", x, b.ints(0, 0, p, p, 0, 0, p, p), mode="reflect")
            made = b.conv(padded, inputs, outputs, kernel, stride=stride, pads=[0, 0, 0, 0])
            return b.op("InstanceNormalization", made, b.floats([1.0] * outputs), b.floats([0.0] * outputs))

        x = b.op("Relu", layer("x", 3, 16, 9))
        x = b.op("Relu", layer(x, 16, 32, 3, stride=2))
        x = b.op("Add", x, layer(b.op("Relu", layer(x, 32, 32, 3)), 32, 32, 3))
        nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        x = b.op("Resize", x, "", b.floats([1, 1, 2, 2]), **nearest)
        return layer(b.op("Relu", layer(x, 32, 16, 3)), 16, 3, 9)

    return build_model(build, (1, 3, size, size))


def build_tokens(size: int) -> onnx.ModelProto:
    """Three fully connected layers with a layer norm, for each token."""

    def build(b: BlockBuilder) -> str:
        x = "x"
        for _ in range(3):
            x = b.op("Relu", b.linear(b.norm(x, 64), 64, 64))
        return x

    return build_model(build, (1, size, 64))


def build_vector(size: int) -> onnx.ModelProto:
    """Element-wise operators on a vector, without a layer."""

    def build(b: BlockBuilder) -> str:
        half = b.op("Mul", b.op("Tanh", "x"), b.floats([0.5]))
        return b.op("Add", b.op("Sigmoid", half), b.op("ReduceMean", half, axes=[-1]))

    return build_model(build, (1, size))


KINDS = {
    "signal": NetworkKind((2000, 8000, 32000, 128000), build_signal),
    "dilated": NetworkKind((2000, 8000, 32000), build_dilated),
    "tall": NetworkKind((500, 2000, 8000), build_tall),
    "image": NetworkKind((64, 128, 256, 512), build_image),
    "tokens": NetworkKind((256, 1024, 4096, 16384), build_tokens),
    "vector": NetworkKind((4096, 16384, 65536, 262144), build_vector),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--cores", type=int, nargs="*", default=[144, 400, 1000])
    parser.add_argument("--sizes", type=int, nargs="*", help="instead of those of the kind")
    parser.add_argument("--sources", type=Path, default=ROOT, help="a checkout of RAPTOR")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a command is stopped")
    options = parser.parse_args()
    if unknown := [name for name in options.kinds if name not in KINDS]:
        parser.error(f"no kind {unknown[0]}; there are: {', '.join(KINDS)}")
    heads = (f"{c}, CPU s" for c in COMMANDS)
    print(f"| kind | cores | size | instructions | {' | '.join(heads)} | GiB | us |")
    print("|---|---:|---:|---:|" + "---:|" * len(COMMANDS) + "---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.kinds or KINDS:
            kind = KINDS[name]
            for cores in options.cores:
                for row in format_rows(kind, options.sizes or kind.sizes, cores, options, Path(folder)):
                    print(f"| {name} | {cores} | {row}", flush=True)


def format_rows(
    kind: NetworkKind, sizes: tuple[int, ...], cores: int, options: argparse.Namespace, folder: Path
) -> Iterator[str]:
    """Yields the cells of each size, from the size on, as the end of a row."""
    before: tuple[int, float] | None = None
    for size in sizes:
        path, out = folder / "model.onnx", folder / "out"
        path.write_bytes(kind.build(size).SerializeToString())
        words = {command: [command, str(out)] for command in COMMANDS}
        words["compile"] = ["compile", str(path), "--cores", str(cores), "-o", str(out), "--force", "--format", "pim"]
        found = {command: measure_command(words[command], options.sources, options.limit) for command in COMMANDS[:1]}
        if found["compile"].ended:
            found |= {c: measure_command(words[c], options.sources, options.limit) for c in COMMANDS[1:]}
        count = count_instructions(out) if found["compile"].ended else 0
        cpu_s = sum(run.cpu_s for run in found.values())
        growth = (
            "" if before is None or count <= before[0] else f"{(cpu_s - before[1]) / (count - before[0]) * 1e6:.1f}"
        )
        before = (count, cpu_s) if count else None
        cells = (format_seconds(found.get(command)) for command in COMMANDS)
        gib = max(run.peak_bytes for run in found.values()) / _GIB
        yield f"{size} | {count:,} | {' | '.join(cells)} | {gib:.2f} | {growth} |"


def format_seconds(run: CommandCost | None) -> str:
    if run is None:
        return "-"
    return f"{run.cpu_s:.1f}" if run.ended else f"stopped after {run.cpu_s:.0f}"


def measure_command(words: list[str], sources: Path, limit_s: float) -> CommandCost:
    """Runs a command of the checkout `sources` in a new process, which is killed after `limit_s` seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "raptor", *words]
    process = Popen(command, cwd=sources, stdout=DEVNULL, stderr=DEVNULL, env=environment)
    end = time.monotonic() + limit_s
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu_s = usage.ru_utime + usage.ru_stime
            return CommandCost(cpu_s, usage.ru_maxrss * 1024, process.returncode == 0)
        if time.monotonic() > end:
            process.kill()
        time.sleep(0.02)


def count_instructions(out: Path) -> int:
    """Returns the number of instructions of a program whose streams are binary records of 20 bytes."""
    return sum(path.stat().st_size for path in out.rglob("*.pim")) // 20


if __name__ == "__main__":
    main()
