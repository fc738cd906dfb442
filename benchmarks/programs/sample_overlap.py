"""Measure what stages gain, in which cores work on several samples, for docs/how-to/memory.md: `make bench-overlap`.

Each model is compiled for throughput, on the preset `bench`, and again by the same mapping with stages. Both programs
are simulated; the one with stages is validated over as many samples as it has stages, and four more.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto

import models
import raptor
from benchmarks.programs.resident_values import format_line, quantised, resnet20
from raptor.common.files import file_access
from raptor.compiler.analysis.explain import explain
from raptor.output import files
from validator.load.output_directory import load_output
from validator.validate import validate

MODELS: Mapping[str, Callable[[], ModelProto]] = {
    name: partial(models.build, name, seed=0)
    for name in (
        *("lenet5", "resnet8", "resnet18", "bert_tiny", "googlenet", "mobilenet_v2", "densenet121", "vgg16"),
        *("efficientnet_b0", "vit_tiny"),
    )
} | {"resnet20": resnet20, "resnet20, int8": partial(quantised, resnet20)}
COLUMNS = (
    *("model", "cores", "interval, us", "with stages", "of the bound", "with stages", "stages"),
    *("local memory, kB", "with stages", "samples validated"),
)
AFTER_STAGES = 4


@dataclass(frozen=True, slots=True)
class OverlapFigures:
    """Figures of a program. `bound_ns`: the larger of even work on all cores and the time of the port."""

    interval_ns: float
    bound_ns: float
    local_bytes: int
    stages: int


def measure(program: raptor.Program, out: Path) -> OverlapFigures:
    folder = program.save(out, stream_format="pim", weight_format="npz", force=True)
    found = explain(folder)
    memory = file_access.read_json_file(files.MemoryMap, folder, files.MEMORY)
    bound_ns = max(found.bounds.average, found.bounds.port)
    stages = 1 + max(load_output(folder).delays.values(), default=0)
    return OverlapFigures(found.interval_ns, bound_ns, max(memory.local_bytes), stages)


def compare(name: str, cores: int, folder: Path, options: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Returns the cells of a line, and whether the program with stages is right."""
    model, stored = MODELS[name](), folder / "mapping.json"
    chip: dict[str, Any] = {"arch": "bench", "cores": cores}
    if "int8" in name:
        chip["resident_constants"] = True
    before = measure(raptor.compile(model, emit_mapping=stored, **chip, **options), folder / "out")
    program = raptor.compile(model, mapping=stored, overlap=4, **chip)
    after = measure(program, folder / "out")
    samples = after.stages + AFTER_STAGES
    passed = validate(folder / "out", samples=samples).verdict == "pass"
    cells = [name, f"{cores}", *(f"{each.interval_ns / 1e3:.4g}" for each in (before, after))]
    cells += [f"{each.interval_ns / each.bound_ns:.2f}" for each in (before, after)] + [f"{after.stages}"]
    cells += [f"{each.local_bytes / 1e3:.3g}" for each in (before, after)]
    return [*cells, f"{samples}" if passed else "WRONG"], passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[*MODELS], metavar="MODEL", help="some lines of the table")
    parser.add_argument("--effort", type=int, help="candidates of the search for a mapping; 0: the default mapping")
    options = parser.parse_args()
    search: dict[str, Any] = {} if options.effort == 0 else {"optimize": "throughput", "effort": options.effort}
    print(format_line(COLUMNS))
    print(format_line(["---", *["---:"] * (len(COLUMNS) - 1)]))
    right = True
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            cells, passed = compare(name, 400 if "resnet20" in name else 200, Path(folder), search)
        print(format_line(cells), flush=True)
        right &= passed
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
