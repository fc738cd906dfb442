"""The Python API: a compiled program, in memory or in a directory."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raptor import arch as architectures
from raptor import files, isa, output
from raptor.driver import Driver, without_collector
from raptor.errors import UserError
from raptor.options import DEFAULT_STRATEGY
from raptor.output import Artifacts, StreamFormat, WeightFormat
from raptor.report import Report

if TYPE_CHECKING:
    import onnx

    from raptor.search import Objective
    from validator.checks import Finding
    from validator.report import Report as Verdict

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """A compiled program. Made by `compile` (in memory) or `load` (in `folder`)."""

    report: Report
    artifacts: Artifacts | None = None
    folder: Path | None = None
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])

    def save(
        self,
        folder: str | Path,
        *,
        stream_format: StreamFormat = "json",
        weight_format: WeightFormat = "json",
        force: bool = False,
    ) -> Path:
        """Writes the output directory (docs/files.md), whole or not at all.

        Raises `UserError` when `folder` exists (unless `force`, and it is an earlier output) or cannot be written.
        """
        from raptor import __version__

        if self.artifacts is None:
            raise UserError(f"{self.folder}: already saved; copy the directory instead")
        folder = Path(folder)
        output.write(
            self.artifacts,
            folder,
            version=__version__,
            stream_format=stream_format,
            weight_format=weight_format,
            force=force,
        )
        self.folder = folder
        return folder

    def check(self) -> "tuple[Finding, ...]":
        """What pimsim-nn would do to this program without saying so (docs/checks.md); nothing, if RAPTOR is right."""
        from validator import checks

        if self.artifacts is None:
            return checks.check(self._directory())
        parts = self.artifacts
        cores = range(parts.config.core_cnt)
        empty = np.zeros(0, isa.RECORD)
        return checks.check_output(
            [parts.records.get(core, empty) for core in cores],
            parts.config,
            parts.arch.file,
            parts.memory,
            [[(m.shape[0], m.shape[1]) for m in parts.weights.get(core, ())] for core in cores],
            extended=parts.options.get("isa") == "extended",
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Executes the instruction streams on `inputs` (by name, ONNX shapes) and returns the outputs by name."""
        from validator.load import load
        from validator.run import run

        return dict(run(load(self._directory()), inputs).outputs)

    def validate(
        self,
        inputs: Mapping[str, Array] | None = None,
        *,
        seed: int = 0,
        samples: int | None = None,
        tolerance: float = 1e-4,
        layers: bool = False,
    ) -> "Verdict":
        """Executes the streams and compares with onnxruntime on the original model, optimisations off.

        Without `inputs`, standard normal numbers, `samples` times, or as often as is quick. `layers` compares every
        intermediate tensor too.
        """
        from validator.validate import validate

        folder = self._directory()
        return validate(folder, inputs=inputs or (), seed=seed, samples=samples, tolerance=tolerance, layers=layers)

    def _directory(self) -> Path:
        if self.folder is None:
            # NOTE: not a TemporaryDirectory, which warns when the program is simply dropped.
            scratch = tempfile.mkdtemp(prefix="raptor-")
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            self.save(Path(scratch) / "out", stream_format="pim", weight_format="npz")
        assert self.folder is not None
        return self.folder


def compile(
    model: "str | Path | onnx.ModelProto",
    *,
    xbar: int | tuple[int, int] | None = None,
    cores: int | None = None,
    xbars_per_core: int | None = None,
    bits: int = 8,
    cell_bits: int | None = None,
    arch: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    mapping: str | Path = DEFAULT_STRATEGY,
    optimize: "Objective | None" = None,
    effort: int | None = None,
    emit_mapping: str | Path | None = None,
    base_isa: bool = False,
    driver: Driver | None = None,
) -> Program:
    """Compiles an ONNX model.

    `xbar` is rows and columns of a crossbar (one number: square); `arch` an architecture file or preset, whose fields
    the other sizes override; `bits` the width of an activation and a weight; `shapes` fixes symbolic input dimensions;
    `mapping` is the strategy: `rows` (layers stream line by line over all cores), `raptor` (the reference), `pixelwise`
    (a second reference, for small images), or a file that `emit_mapping` wrote for the same model and chip. With
    `optimize`, a search instead: `effort` mappings are tried in the built-in simulator, the best is taken.
    Raises `UserError` with what to change, `UnsupportedError` with all nodes that cannot be compiled.
    """
    from raptor.compiler import EFFORT, Choice, compile_model

    size = (xbar, xbar) if isinstance(xbar, int) else xbar
    chip = architectures.load(
        arch, xbar=size, cores=cores, xbars_per_core=xbars_per_core, cell_bits=cell_bits, element_bits=bits
    )
    driver = driver or Driver()
    options = {
        "xbar": [chip.xbar_rows, chip.xbar_cols],
        "cores": chip.core_count,
        "xbars_per_core": chip.xbars_per_core,
        "cell_bits": chip.cell_bits,
        "bits": bits,
        "shapes": {name: list(shape) for name, shape in (shapes or {}).items()},
        "mapping": str(mapping),
        "isa": "base" if base_isa else "extended",
    } | ({"optimize": optimize, "effort": effort or EFFORT} if optimize else {})
    emit = None if emit_mapping is None else Path(emit_mapping)
    choice = Choice(str(mapping), optimize, effort or EFFORT, emit)
    with without_collector():
        artifacts = compile_model(
            model, chip, driver, shapes=shapes or {}, base_isa=base_isa, choice=choice, options=options
        )
    return Program(artifacts.report, artifacts, seconds=driver.seconds)


def load(folder: str | Path) -> Program:
    """A program saved earlier. Its files are checked when it runs. Raises `UserError` when it is not an output."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: not a directory")
    files.read(files.Manifest, folder, files.MANIFEST)
    return Program(files.read(Report, folder, files.REPORT), folder=folder)
