"""The Python API: functions that compile, load and simulate, and the class of compiled programs."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy.typing as npt

from raptor.codegen.pimsim.stream_files import pimsim_files
from raptor.common.errors import UserError
from raptor.common.options import arguments
from raptor.common.options.option_values import STREAM_FORMAT, WEIGHT_FORMAT, StreamFormat, WeightFormat
from raptor.common.package_clashes import require_own_packages
from raptor.common.process.gc_policy import pause_gc
from raptor.compiler.pass_driver import Driver, parse_driver, parse_passes
from raptor.options import CompileKeywords, CompileOptions, read_options
from raptor.output import writer
from raptor.output.compile_report import CompileReport, read_any_report
from raptor.output.writer import HostedArtifacts, ProgramArtifacts

if TYPE_CHECKING:
    import onnx

    from raptor.compiler.analysis.explain import MappingExplanation
    from raptor.device import Device
    from validator.checks import Finding
    from validator.judge.validation_report import ValidationReport as Verdict
    from validator.options import Mode
    from validator.simulate.simulation_report import SimulationReport as Simulation

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """A compiled program, made by `compile` (in memory) or `load` (in `folder`).

    `report`: resources and warnings. `artifacts`: contents of the files; None if loaded. `folder`: the directory; None
    before `save`. `seconds`: compile time by stage. `_finish`: waits for the verification of the compilation, and
    raises the error of a failed one; it is called before files get their final names.
    """

    report: CompileReport
    artifacts: ProgramArtifacts | HostedArtifacts | None = None
    folder: Path | None = None
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    _finish: Callable[[], None] = field(default=lambda: None, repr=False)
    _scratch: Path | None = field(default=None, init=False, repr=False)

    def save(
        self,
        folder: str | Path,
        *,
        stream_format: StreamFormat = "json",
        weight_format: WeightFormat = "json",
        force: bool = False,
    ) -> Path:
        """Writes the output directory (docs/reference/files.md), completely or not at all. Returns its path.

        `stream_format`: `json`, `pim` or `both`. `weight_format`: `json` or `npz`. `force`: replace an earlier output.
        Raises `UserError` if `folder` may not be replaced or cannot be written.
        """
        folder = arguments.parse_path("folder", folder)
        streams, weights = STREAM_FORMAT.parse(stream_format), WEIGHT_FORMAT.parse(weight_format)
        self._write(folder, streams, weights, force=arguments.parse_flag("force", force))
        self.folder = folder
        return folder

    def check(self) -> "tuple[Finding, ...]":
        """Returns problems that pimsim-nn would not report (docs/reference/checks.md); they would be bugs of RAPTOR."""
        require_own_packages("validator")
        from validator import checks

        if self.artifacts is not None and not self._has_streams:
            return ()  # what `check` knows is about pimsim-nn; the back end has verified its code
        if self.artifacts is None or isinstance(self.artifacts, HostedArtifacts):
            return checks.check(self._directory())
        parts, streams = self.artifacts, pimsim_files(self.artifacts)
        cores = range(streams.config.core_cnt)
        return checks.check_output(
            [streams.records_of(core) for core in cores],
            streams.config,
            parts.arch,
            parts.memory,
            [streams.weights[core].shapes if core in streams.weights else () for core in cores],
            extended=parts.options.get("isa") == "extended",
            resident=streams.resident,
        )

    @property
    def _has_streams(self) -> bool:
        """True if a program in memory consists of instruction streams of pimsim-nn."""
        if isinstance(self.artifacts, HostedArtifacts):
            return all(part.artifacts.has_streams for part in self.artifacts.segments if part.artifacts)
        return self.artifacts is not None and self.artifacts.has_streams

    def run(self, inputs: Mapping[str, Array], *, device: "Device | str | None" = None) -> dict[str, Array]:
        """Executes the instruction streams on `inputs` (by name, ONNX shapes) and returns the outputs by name.

        With a `device` (open, or the name of a back end), its crossbars compute the products, and the reference engine
        all other instructions (docs/how-to/device.md).
        """
        require_own_packages("validator")
        from validator.hosted.any_program import load_any, run_any

        program = load_any(self._directory())
        if device is None:
            return dict(run_any(program, inputs))
        from raptor.device.program_execution import DeviceWriter

        with DeviceWriter(device) as chips:
            return dict(run_any(program.write_to_device(chips), inputs))

    def validate(
        self,
        inputs: Mapping[str, Array] | None = None,
        *,
        seed: int = 0,
        samples: int | None = None,
        tolerance: float | None = None,
        layers: bool = False,
    ) -> "Verdict":
        """Executes the streams and compares the outputs with onnxruntime on the original model, optimisations off.

        Without `inputs`, `samples` standard normal inputs are drawn from `seed`; by default as many as run quickly.
        `layers`: compare every intermediate tensor, too. An output with an error above `tolerance` still passes if it
        is as near to the model in float64 as float32 arithmetic can be; `reason` of the verdict then explains it
        (docs/explanation/verdict.md).
        """
        require_own_packages("validator")
        from validator.validate import validate

        given = () if inputs is None else arguments.parse_dict("inputs", inputs, "arrays by name of the input")
        folder = self._directory()
        return validate(folder, inputs=given, seed=seed, samples=samples, tolerance=tolerance, layers=layers)

    def simulate(
        self,
        *,
        arch: str | Path | None = None,
        mode: "Mode" = "latency",
        samples: int = 16,
        trace_file: str | Path | None = None,
        power_file: str | Path | None = None,
        window: str | float | None = None,
        rate: float | None = None,
    ) -> "Simulation":
        """Estimates time and energy as pimsim-nn does (docs/explanation/simulation.md).

        `arch`: an architecture file or preset to run on instead of the chip that the program was compiled for. `mode`:
        `latency` for one sample, or `throughput`, in which each core begins `samples`. `trace_file`: a path for a
        Chrome trace. `power_file`: a path for a CSV file of power over time, in W by part, in windows of `window` (ns,
        or text such as "10us"; default 1 us). `rate`: samples a second, for the lifetime of a program in rounds. Raises
        `UserError` for bad arguments or files, and `DeadlockError` with every core that waits.
        """
        require_own_packages("validator")
        from validator.simulate.segment_simulation import simulate_any

        found = simulate_any(
            self._directory(),
            arch,
            mode=mode,
            samples=samples,
            trace_file=trace_file,
            power_file=power_file,
            window=window,
            rate=rate,
        )
        return replace(found, program=self._name())

    def explain(self) -> "MappingExplanation":
        """Explains the mapping: the choice for each layer, its alternatives, and the bounds on time.

        Raises `UserError` for files that cannot be read, and `DeadlockError` with every core that waits.
        """
        require_own_packages("validator")
        from raptor.compiler.analysis.explain import explain

        return replace(explain(self._directory()), program=self._name())

    def _name(self) -> str:
        """Returns the folder of a saved program, otherwise the name of its model."""
        if self.folder is not None or self.artifacts is None:
            return str(self.folder)
        return self.artifacts.name

    @property
    def directory(self) -> Path:
        """Directory of the files: a temporary one, which lives as long as this object, until the program is saved."""
        return self._directory()

    def _directory(self) -> Path:
        """Returns `folder`; for a program that is not saved, writes and returns a temporary directory."""
        if self.folder is not None:
            return self.folder
        if self._scratch is None:
            # NOTE: a TemporaryDirectory would warn if the program is dropped without a close.
            scratch = tempfile.mkdtemp(prefix="raptor-")
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            self._write(Path(scratch) / "out", "pim", "npz")
            self._scratch = Path(scratch) / "out"
        return self._scratch

    def _write(self, folder: Path, streams: StreamFormat, weights: WeightFormat, *, force: bool = False) -> None:
        """Writes the output directory. Raises `UserError` if the program was loaded, so that nothing is in memory."""
        from raptor import __version__

        if self.artifacts is None:
            raise UserError(f"{self.folder}: already saved; copy the directory instead")
        form: Any = {"version": __version__, "stream_format": streams, "weight_format": weights, "force": force}
        form |= {"ready": self._finish}
        if isinstance(self.artifacts, HostedArtifacts):
            writer.write_hosted_directory(self.artifacts, folder, **form)
        else:
            writer.write_directory(self.artifacts, folder, **form)


def compile(
    model: "str | Path | onnx.ModelProto",
    *,
    driver: Driver | None = None,
    passes: Mapping[str, Callable[[Any], Any]] | None = None,
    **options: Unpack[CompileKeywords],
) -> Program:
    """Compiles an ONNX model.

    Chip: `arch` is an architecture file or preset; the other sizes override its fields. `xbar` is rows and columns of a
    crossbar (one number for a square; `"128x256"` works, too). `bits` is the width of activations and weights. `fields`
    are other fields of the architecture by name, such as {"rob_size": 4} or {"matrix_config.adc_count": 16}.

    Chips: `chips` of them are in a row, each with `cores` cores, and `link` says what a flit costs from one to the
    next: a preset (`board-ht`, `package-ucie`), or ns and pJ, such as `5:13000` (docs/how-to/rounds.md).

    Model: `shapes` gives the shapes of whole inputs, `dims` the sizes of dimensions with names ({"H": 48}), and
    `constants` makes small inputs constants ({"sr": 16000}).

    Mapping: `mapping` is a strategy: `rows` (the default: layers stream line by line over all cores), `raptor` (the
    reference) or `pixelwise` (a second reference, for small images). It may also be the path of a stored mapping for
    the same model and sizes of the chip: `mapping.json` of an output, or a file that `emit_mapping` wrote. With
    `optimize` (`latency`, `throughput` or `energy`; `writes` is for rounds, below), `effort` mappings are tried in the
    built-in simulator instead (by default 5, or all 17 of a small model), and the best is used. `knobs` are numbers of
    the strategy `rows` that differ from its defaults, such as {"share": 0.75} (`TuningKnobs` in
    raptor/mapping/knobs.py). `base_isa` refuses nodes that need instructions that pimsim-nn does not have. `emit_ops`
    is a file for the flow of operators, in the words of the chip's interface: whole cores, crossbars or word lines, as
    the field `interface` says (docs/how-to/operator-flow.md).

    Integers: `requant` says how sums become integers of fewer bits: `exact` (the default), `short` (with multipliers of
    one word, which round some sums otherwise; a note says how many), or `instruction` (with the extended `vrequant`).

    Host: `host` runs nodes that the chip cannot compute in onnxruntime, on the host; `host_ops` and `host_nodes` name
    operators and nodes that run there in any case. The program then has segments (docs/how-to/host.md).

    Rounds: a model that is larger than the chip is refused, or with `rounds` cut into parts that are written to the
    crossbars one after another (docs/how-to/rounds.md), for `batch` samples (1 by default) at a time. `device` is a
    device file or preset with the costs of writing (`reram-puma` by default). Cuts and copies of layers are those with
    the least time of a batch, or, if `optimize` is `writes`, with the fewest written cells. `cuts` other than `best`
    are for comparison: `first-fit` makes each round as long as it fits, `each-layer` as short as possible.

    Passes: `passes` are functions by the name of the pass whose result they get, such as {"lower": change}. Each
    returns a value of the same type, which the verifier of that pass checks, and the compilation goes on with it
    (docs/how-to/mlir.md).

    Raises `UserError` with what to change, `UnsupportedError` with all nodes that cannot be compiled, and
    `CapacityError` if the chip is too small.
    """
    own = parse_driver(driver)
    own.passes = {**own.passes, **parse_passes(passes)}
    return compile_program(model, read_options(CompileOptions, options, CompileKeywords), own)


def compile_program(model: "str | Path | onnx.ModelProto", options: CompileOptions, driver: Driver) -> Program:
    """Compiles an ONNX model like `compile`, with options that are checked already, and a driver."""
    from raptor.compiler.compilation import make_request
    from raptor.compiler.segmented_compile import compile_or_segment

    request = make_request(options)
    with pause_gc():
        artifacts = compile_or_segment(model, request, driver)
    return Program(artifacts.report, artifacts, seconds=driver.seconds, _finish=driver.finish)


def load(folder: str | Path) -> Program:
    """Loads a saved program; most files are checked when it runs. Raises `UserError` if it is no output directory."""
    folder = arguments.parse_path("folder", folder)
    return Program(read_any_report(folder), folder=folder)


def simulate(
    program: str | Path,
    *,
    arch: str | Path | None = None,
    mode: "Mode" = "latency",
    samples: int = 16,
    trace_file: str | Path | None = None,
    power_file: str | Path | None = None,
    window: str | float | None = None,
    rate: float | None = None,
) -> "Simulation":
    """Simulates a program of any compiler: a directory of streams, or one JSON file (also gzipped).

    `arch`: an architecture file or preset; the default is `arch.json` in or beside the program. The other options are
    those of `Program.simulate`. Raises `UserError` for files that cannot be read, and `DeadlockError` with every core
    that waits.
    """
    require_own_packages("validator")
    from validator.simulate import segment_simulation

    return segment_simulation.simulate_any(
        program,
        arch,
        mode=mode,
        samples=samples,
        trace_file=trace_file,
        power_file=power_file,
        window=window,
        rate=rate,
    )
