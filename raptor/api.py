"""The Python API: a compiled program, in memory or in a directory."""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raptor.common import arguments
from raptor.common.errors import UserError
from raptor.common.options import (
    DEFAULT_STRATEGY,
    MOST_BITS,
    OBJECTIVE,
    STREAM_FORMAT,
    WEIGHT_FORMAT,
    Objective,
    StreamFormat,
    WeightFormat,
    parse_dims,
    parse_mapping,
    parse_named,
    parse_shapes,
)
from raptor.common.packages import require_own
from raptor.common.spelling import option
from raptor.driver import Driver, without_collector
from raptor.output import writer
from raptor.output.compile_report import Report, read_report
from raptor.output.writer import Artifacts
from raptor.target import arch as architectures
from raptor.target import isa

if TYPE_CHECKING:
    import onnx

    from raptor.analysis.explain import Explanation
    from validator.checks import Finding
    from validator.options import Mode
    from validator.report import Report as Verdict
    from validator.simulate.report import Report as Simulation

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """A compiled program. Made by `compile` (in memory) or `load` (in `folder`)."""

    report: Report
    artifacts: Artifacts | None = None
    folder: Path | None = None
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    _scratch: Path | None = field(default=None, init=False, repr=False)

    def save(
        self,
        folder: str | Path,
        *,
        stream_format: StreamFormat = "json",
        weight_format: WeightFormat = "json",
        force: bool = False,
    ) -> Path:
        """Writes the output directory (docs/files.md), whole or not at all.

        `stream_format`: `json`, `pim` or `both`; `weight_format`: `json` or `npz`. Raises `UserError` when `folder`
        exists (unless `force`, and it is an earlier output) or cannot be written.
        """
        folder = arguments.path("folder", folder)
        streams, weights = STREAM_FORMAT.parse(stream_format), WEIGHT_FORMAT.parse(weight_format)
        self._write(folder, streams, weights, force=arguments.flag("force", force))
        self.folder = folder
        return folder

    def check(self) -> "tuple[Finding, ...]":
        """Problems that pimsim-nn would accept silently (docs/checks.md); none, unless RAPTOR has a bug."""
        require_own("validator")
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
        require_own("validator")
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
        intermediate tensor too. What is off by more than the tolerance passes if it is as near to the model in float64
        as float32 can be; the verdict's `reason` says so in a sentence (docs/verdict.md).
        """
        require_own("validator")
        from validator.validate import validate

        given = () if inputs is None else arguments.by_name("inputs", inputs, "arrays by name of the input")
        folder = self._directory()
        return validate(folder, inputs=given, seed=seed, samples=samples, tolerance=tolerance, layers=layers)

    def simulate(
        self,
        *,
        arch: str | Path | None = None,
        mode: "Mode" = "latency",
        samples: int = 16,
        trace_file: str | Path | None = None,
    ) -> "Simulation":
        """Estimates time and energy as pimsim-nn does (docs/simulation.md).

        `arch`: an architecture file or preset to run on instead of the chip that the program was compiled for.
        `mode`: `latency`, of one sample, or `throughput`, in which each core begins `samples`. `trace_file`: where to
        write a Chrome trace. Raises `UserError`, and `DeadlockError` with every core that waits.
        """
        require_own("validator")
        from validator.simulate.builtin import simulate

        found = simulate(self._directory(), arch, mode=mode, samples=samples, trace_file=trace_file)
        return replace(found, program=self._name())

    def explain(self) -> "Explanation":
        """What the mapping chose for each layer, what else it might have chosen, and what bounds time.

        Raises `UserError`, and `DeadlockError` with every core that waits.
        """
        require_own("validator")
        from raptor.analysis.explain import explain

        return replace(explain(self._directory()), program=self._name())

    def _name(self) -> str:
        """Where it is saved, or the name of its model."""
        if self.folder is not None or self.artifacts is None:
            return str(self.folder)
        return self.artifacts.name

    def _directory(self) -> Path:
        """Where its files are: in a temporary directory as long as it is not saved."""
        if self.folder is not None:
            return self.folder
        if self._scratch is None:
            # NOTE: not a TemporaryDirectory, which warns when the program is simply dropped.
            scratch = tempfile.mkdtemp(prefix="raptor-")
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            self._write(Path(scratch) / "out", "pim", "npz")
            self._scratch = Path(scratch) / "out"
        return self._scratch

    def _write(self, folder: Path, streams: StreamFormat, weights: WeightFormat, *, force: bool = False) -> None:
        from raptor import __version__

        if self.artifacts is None:
            raise UserError(f"{self.folder}: already saved; copy the directory instead")
        writer.write(
            self.artifacts, folder, version=__version__, stream_format=streams, weight_format=weights, force=force
        )


def compile(
    model: "str | Path | onnx.ModelProto",
    *,
    xbar: int | tuple[int, int] | str | None = None,
    cores: int | None = None,
    xbars_per_core: int | None = None,
    bits: int = 8,
    cell_bits: int | None = None,
    arch: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    mapping: str | Path | None = None,
    optimize: Objective | None = None,
    effort: int | None = None,
    emit_mapping: str | Path | None = None,
    base_isa: bool = False,
    driver: Driver | None = None,
) -> Program:
    """Compiles an ONNX model.

    `xbar` is rows and columns of a crossbar (one number: square; `"128x256"` is understood too); `arch` an architecture
    file or preset, whose fields the other sizes override; `bits` the width of an activation and a weight. `shapes`
    fixes whole inputs, `dims` the sizes of dimensions with names ({"H": 48}), and `constants` makes inputs constants
    ({"sr": 16000}; small ones). `mapping` is the strategy: `rows` (layers stream line by line over all cores; used if
    none is named), `raptor` (the reference), `pixelwise` (a second reference, for small images), or a stored one for
    the same model and sizes of the chip: `mapping.json` of an output, or what `emit_mapping` wrote. With `optimize`
    (`latency`, `throughput` or `energy`), a search instead: `effort` mappings (4 if none is said) are tried in the
    built-in simulator, the best is taken. `base_isa` refuses nodes that need instructions that pimsim-nn does not have.
    Raises `UserError` with what to change, `UnsupportedError` with all nodes that cannot be compiled, `CapacityError`
    for a chip that is too small.
    """
    from raptor.compiler import Choice, compile_model
    from raptor.search import EFFORT

    if optimize is not None and mapping is not None:
        raise UserError(f"{option('mapping')}: not with {option('optimize')}, which searches for the mapping")
    if effort is not None and optimize is None:
        raise UserError(f"{option('effort')}: only with {option('optimize')}, which it belongs to")
    bits = arguments.whole("bits", bits, 1, MOST_BITS)
    chip = architectures.load(
        arch, xbar=xbar, cores=cores, xbars_per_core=xbars_per_core, cell_bits=cell_bits, element_bits=bits
    )
    bound, sizes, fixed = parse_shapes(shapes), parse_dims(dims), parse_named("constants", constants)
    choice = Choice(
        DEFAULT_STRATEGY if mapping is None else parse_mapping(mapping),
        None if optimize is None else OBJECTIVE.parse(optimize),
        arguments.whole_or_none("effort", effort, 1) or EFFORT,
        arguments.new_file("emit_mapping", emit_mapping),
    )
    base_isa = arguments.flag("base_isa", base_isa)
    driver = _driver(driver)
    options = {
        "xbar": [chip.xbar_rows, chip.xbar_cols],
        "cores": chip.core_count,
        "xbars_per_core": chip.xbars_per_core,
        "cell_bits": chip.cell_bits,
        "bits": bits,
        "shapes": {name: list(shape) for name, shape in bound.items()},
        "dims": sizes,
        "mapping": choice.strategy,
        "isa": "base" if base_isa else "extended",
    } | ({"optimize": choice.optimize, "effort": choice.effort} if choice.optimize else {})
    with without_collector():
        artifacts = compile_model(
            model,
            chip,
            driver,
            shapes=bound,
            dims=sizes,
            constants=fixed,
            base_isa=base_isa,
            choice=choice,
            options=options,
        )
    return Program(artifacts.report, artifacts, seconds=driver.seconds)


def _driver(value: object) -> Driver:
    if value is None:
        return Driver()
    if not isinstance(value, Driver):
        raise arguments.fault("driver", value, "a raptor.driver.Driver")
    return value


def load(folder: str | Path) -> Program:
    """A program saved earlier. Its files are checked when it runs. Raises `UserError` when it is not an output."""
    folder = arguments.path("folder", folder)
    return Program(read_report(folder)[0], folder=folder)


def simulate(
    program: str | Path,
    *,
    arch: str | Path | None = None,
    mode: "Mode" = "latency",
    samples: int = 16,
    trace_file: str | Path | None = None,
) -> "Simulation":
    """Simulates anyone's program, a directory of streams or one JSON file (also gzipped), as `Program.simulate` does.

    `arch`: an architecture file or preset; without it `arch.json` in, or beside, the program.
    Raises `UserError` for what cannot be read, and `DeadlockError` with every core that waits.
    """
    require_own("validator")
    from validator.simulate import builtin

    return builtin.simulate(program, arch, mode=mode, samples=samples, trace_file=trace_file)
