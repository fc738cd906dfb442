"""Times whole commands on the chip `bench`, warm and cold: `make bench-commands`.

Warm: the compiled bytecode and kernels of an earlier run are cached, as for a user from the second run on. Cold: the
first run after an installation. Each is a new process. The CPU time is that of all its threads and copies. So half of
it is the least wall time on two cores.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.speed.measured_commands import ROOT, CommandRun, compile_command, time_command, validate_command

_GIB = 2**30
_Sizes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CommandTime:
    """A command with its wall and CPU time in seconds, and its peak memory in bytes."""

    command: str
    wall_s: float
    cpu_s: float
    peak_bytes: int | None = None
    instructions: int | None = None


_BUILD = """
import json, sys
from pathlib import Path
import models
name, sizes, path = sys.argv[1:]
Path(path).write_bytes(models.build(name, **json.loads(sizes)).SerializeToString())
"""

_COMPILED: Sequence[tuple[str, _Sizes, _Sizes]] = (
    ("resnet18", {}, {"cores": 200}),
    ("resnet50", {}, {"cores": 200}),
    ("vgg16", {}, {"cores": 200}),
    ("mobilenet_v2", {}, {"cores": 200}),
    ("unet", {}, {"cores": 200}),
    ("efficientnet_b0", {"image_size": 320}, {"cores": 400}),
    ("squeezenet", {}, {"cores": 200}),
    ("squeezenet", {}, {"cores": 1000}),
    ("resnet18", {}, {"cores": 200, "optimize": "latency"}),
)
"""Model, its sizes, and options of `raptor compile` by the default mapping, with `--format pim --weights npz`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="warm runs of each command; the median counts")
    parser.add_argument("--only", default="", help="commands whose text has this in it")
    parser.add_argument("--json", type=Path, help="also write the figures here, to compare two commits")
    args = parser.parse_args()
    rows: list[CommandTime] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in chain(*(times_of(Path(folder), args.repeat, args.only) for times_of in (_warm, _cold))):
            print(f"{row.command}: {row.wall_s:.2f} s, {row.cpu_s:.2f} s of CPU", file=sys.stderr, flush=True)
            rows.append(row)
    _show(rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _warm(folder: Path, repeat: int, only: str) -> Iterator[CommandTime]:
    for name, sizes, options in _COMPILED:
        text = " ".join(["compile", name, *(f"{k}={v}" for k, v in (sizes | options).items())])
        out = folder / "out"
        if only in text:
            done = compile_command(_model(folder, name, sizes), out, repeat, streams="pim", xbar=128, **options)
            yield _row(text, done)
    if only in "validate resnet18":
        compile_command(_model(folder, "resnet18", {}), folder / "out", 1, streams="pim", xbar=128, cores=200)
        yield _row("validate resnet18", validate_command(folder / "out", repeat, samples=2))


def _row(text: str, done: CommandRun) -> CommandTime:
    return CommandTime(text, done.wall_s, done.cpu_s, done.peak_bytes, done.facts.get("instructions"))


def _cold(folder: Path, repeat: int, only: str) -> Iterator[CommandTime]:
    """Yields rows of commands on LeNet-5: with an empty cache of compiled kernels (cold), then with a filled one."""
    path, out = str(_model(folder, "lenet5", {})), str(folder / "lenet5")
    for words in (
        ["compile", path, "--cores", "200", "--xbar", "128", "-o", out, "--quiet", "--force"],
        ["validate", out, "--samples", "2", "--quiet"],
        ["simulate", out, "--quiet"],
    ):
        cold = f"{words[0]} lenet5, cold"
        if only in cold:
            caches = [folder / f"{words[0]}{k}" for k in range(repeat)]
            yield _median(cold, [time_command(words, cache) for cache in caches])
            yield _median(f"{words[0]} lenet5, warm", [time_command(words, caches[0]) for _ in range(repeat)])


def _median(text: str, runs: Sequence[tuple[float, float]]) -> CommandTime:
    wall_s, cpu_s = (statistics.median(column) for column in zip(*runs, strict=True))
    return CommandTime(text, wall_s, cpu_s)


def _model(folder: Path, name: str, sizes: _Sizes) -> Path:
    """Returns the file of a model; makes it at the first call.

    Another process does so: a command is charged for the memory of the process that starts it.
    """
    path = folder / f"{name}.onnx"
    if not path.exists():
        subprocess.run([sys.executable, "-c", _BUILD, name, json.dumps(sizes), str(path)], cwd=ROOT, check=True)
    return path


def _show(rows: Sequence[CommandTime]) -> None:
    table = Table("command", box=box.MARKDOWN, title="seconds of whole processes, median")
    for title in ("wall, s", "CPU, s", "GiB", "instructions", "CPU us / instruction"):
        table.add_column(title, justify="right")
    for row in rows:
        count, peak = row.instructions, row.peak_bytes
        table.add_row(
            row.command,
            f"{row.wall_s:.2f}",
            f"{row.cpu_s:.2f}",
            f"{peak / _GIB:.2f}" if peak else "",
            f"{count:,}" if count else "",
            f"{row.cpu_s / count * 1e6:.2f}" if count else "",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
