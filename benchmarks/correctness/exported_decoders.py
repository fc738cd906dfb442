"""Compile decoders as exporters write them, and print what a token costs: `make bench-exports EXPORTERS=...`.

An exporter is given as NAME=PYTHON, with the Python of an environment that has it:

    python -m venv o && o/bin/pip install torch==2.13.0 optimum-onnx==0.1.0 transformers==4.57.1
    python -m venv g && g/bin/pip install torch==2.13.0 onnxruntime-genai==0.18.0 transformers==5.24.0 onnx onnxscript
    make bench-exports EXPORTERS="optimum=o/bin/python genai=g/bin/python torch=g/bin/python"

`benchmarks/correctness/make_exports.py` says which models these are. Each file is compiled unchanged, with caches of 16
tokens, and its tokens are those of `raptor validate`: all that the caches hold. A cell shows the time of a step, of one
session, and the tokens that equal onnxruntime's; or why there is none.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import raptor
from benchmarks.programs.interval_limits import format_line
from raptor.common.errors import RaptorError

CAPACITY = 16
MAKE_EXPORTS = Path(__file__).with_name("make_exports.py")
NONE = "-"


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that an exporter wrote, of a model in a form, such as int4; or the fault that it told."""

    exporter: str
    model: str
    form: str
    file: Path | None
    fault: str = ""

    @property
    def column(self) -> str:
        """Heading of the table's column."""
        return f"{self.exporter}, {self.form}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exporters", nargs="+", metavar="NAME=PYTHON", help="exporters, with their Pythons")
    parser.add_argument("--folder", type=Path, help="where exports are kept, and taken from the next time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raptor-exports-") as temporary:
        found: dict[str, dict[str, str]] = {}
        columns: dict[str, None] = {}
        for exporter in args.exporters:
            name, _, python = exporter.partition("=")
            for export in run_exporter(name, python, (args.folder or Path(temporary)) / name):
                columns[export.column] = None
                found.setdefault(export.model, {})[export.column] = cell = measure(export)
                print(f"{export.column}: {export.model}: {cell}", file=sys.stderr, flush=True)
    print(format_line(("model", *columns)), format_line(("---", *("---" for _ in columns))), sep="\n")
    for model, cells in found.items():
        print(format_line((model, *(cells.get(column, NONE) for column in columns))))


def run_exporter(name: str, python: str, folder: Path) -> Iterator[Exported]:
    """Yields what an exporter writes to a folder, as soon as each is there."""
    command = [python, "-W", "ignore", str(MAKE_EXPORTS), name, str(folder.resolve())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None, "piped"
        for line in process.stdout:
            parts = line.rstrip("\n").split("\t")
            if len(parts) == 3:  # exporters print lines of their own
                model, form, what = parts
                is_file = not what.startswith("failed: ")
                yield Exported(name, model, form, Path(what) if is_file else None, "" if is_file else what)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with status {process.returncode}")


def measure(export: Exported) -> str:
    """Returns the cell of an export: time of a step and equal tokens, or why it has none."""
    if export.file is None:
        return f"not exported ({export.fault.removeprefix('failed: ')[:60]})"
    try:
        program = raptor.compile(export.file, states="auto", capacity=CAPACITY, arch="bench", cores=144)
        verdict = program.validate()
    except RaptorError as error:
        return f"{error}"[:100].replace("|", " ")
    assert verdict.decoding is not None, "compiled with a capacity"
    equal = f"{verdict.decoding.equal} of {verdict.decoding.tokens}"
    return f"{(program.simulate().latency_ns or 0) / 1e3:.1f} us, {equal}{'' if verdict.passed else ', MISMATCH'}"


if __name__ == "__main__":
    main()
