"""Measure what stages gain, in which cores work on several samples, for docs/how-to/memory.md: `make bench-overlap`.

Each model is compiled for throughput, on the preset `bench`, with samples apart and with stages. Both programs are
simulated; the one with stages is validated over as many samples as it has stages, and four more. A kind of inputs that
float32 computes too coarsely fails by both programs alike, which is right, too.
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
from raptor.common.options.option_values import SEARCHED_STAGES
from raptor.compiler.analysis.explain import explain
from raptor.output import files
from validator.load.output_directory import load_output
from validator.validate import validate

BERT_BASE = {"depth": 12, "dim": 768, "heads": 12}
MODELS: Mapping[str, Callable[[], ModelProto]] = {
    name: partial(models.build, name, seed=0)
    for name in (
        *("lenet5", "resnet8", "bert_tiny", "lstm", "resnet18", "squeezenet", "shufflenet_v2", "googlenet"),
        *("densenet121", "mobilenet_v2", "vgg16", "efficientnet_b0", "vit_tiny", "resnet50", "tiny_yolo_v4"),
        *("inception_v3", "unet"),
    )
} | {
    "bert_base": partial(models.build, "bert_tiny", seed=0, **BERT_BASE),
    "resnet20": resnet20,
    "resnet20, int8": partial(quantised, resnet20),
    "resnet18, int8": partial(quantised, partial(models.build, "resnet18", seed=0)),
}
COLUMNS = (
    *("model", "mapping", "cores", "interval, us", "with stages", "of the bound", "with stages", "stages"),
    *("local memory, kB", "with stages", "samples validated"),
)
CHIPS: Mapping[str, Mapping[str, Any]] = {
    "bert_base": {"cores": 144, "xbars_per_core": 96},
    "resnet20": {"cores": 400},
    "resnet20, int8": {"cores": 400, "resident_constants": True},
    "resnet18, int8": {"resident_constants": True},
}
"""Options of models for which the chip of 200 cores is too small or too large."""
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


def find_failures(folder: Path, samples: int) -> set[str]:
    """Returns the kinds of inputs for which a program is not as onnxruntime says."""
    report = validate(folder, samples=samples)
    failed = {kind.kind for kind in report.kinds if kind.verdict != "pass"}
    return failed if failed or report.passed else {"image"}


def compare(name: str, folder: Path, most: int, options: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Returns the cells of a line, and whether the program with at most `most` stages is right."""
    model, chip = MODELS[name](), {"arch": "bench", "cores": 200, **CHIPS.get(name, {})}
    before, after = (
        measure(raptor.compile(model, overlap=stages, **chip, **options), folder / out)
        for stages, out in ((1, "before"), (most, "out"))
    )
    samples = after.stages + AFTER_STAGES
    failed = find_failures(folder / "out", samples)
    passed = not failed or ("image" not in failed and failed == find_failures(folder / "before", samples))
    cells = [
        name,
        options.get("optimize", "default"),
        f"{chip['cores']}",
        *(f"{each.interval_ns / 1e3:.4g}" for each in (before, after)),
    ]
    cells += [f"{each.interval_ns / each.bound_ns:.2f}" for each in (before, after)] + [f"{after.stages}"]
    cells += [f"{each.local_bytes / 1e3:.3g}" for each in (before, after)]
    return [*cells, f"{samples}" if passed else "WRONG"], passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[*MODELS], metavar="MODEL", help="some lines of the table")
    parser.add_argument("--effort", type=int, help="candidates of the search for a mapping; 0: the default mapping")
    parser.add_argument("--overlap", type=int, default=SEARCHED_STAGES, help="samples at once, at most")
    options = parser.parse_args()
    search: dict[str, Any] = {} if options.effort == 0 else {"optimize": "throughput", "effort": options.effort}
    print(format_line(COLUMNS))
    print(format_line(["---", *["---:"] * (len(COLUMNS) - 1)]))
    right = True
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            cells, passed = compare(name, Path(folder), options.overlap, search)
        print(format_line(cells), flush=True)
        right &= passed
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
