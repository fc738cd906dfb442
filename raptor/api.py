"""The Python API: functions to compile, load and simulate, and compiled programs."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from raptor.common import arguments
from raptor.common.collector import without_collector
from raptor.common.errors import UserError
from raptor.common.options import (
    CUTS,
    DEFAULT_DEVICE,
    DEFAULT_STRATEGY,
    GOAL,
    MOST_BITS,
    OBJECTIVE,
    REQUANT,
    STREAM_FORMAT,
    WEIGHT_FORMAT,
    Cuts,
    Goal,
    Requant,
    StreamFormat,
    WeightFormat,
    parse_dims,
    parse_mapping,
    parse_named,
    parse_names,
    parse_shapes,
)
from raptor.common.packages import require_own
from raptor.common.spelling import option
from raptor.driver import Driver, parse_driver
from raptor.output import writer
from raptor.output.compile_report import CompileReport, read_any_report
from raptor.output.writer import Artifacts, HostedArtifacts
from raptor.target import arch as architectures
from raptor.target import isa

if TYPE_CHECKING:
    import onnx

    from raptor.analysis.explain import Explanation
    from raptor.device import Device
    from raptor.rounds.compiling import Wanted
    from validator.checks import Finding
    from validator.options import Mode
    from validator.simulate.simulation_report import SimulationReport as Simulation
    from validator.validation_report import ValidationReport as Verdict

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """A compiled program, made by `compile` (in memory) or `load` (in `folder`).

    `report`: resources and warnings. `artifacts`: contents of the files; None if loaded. `folder`: the directory; None
    if not saved yet. `seconds`: compile time by stage. `_finish`: waits for the checks of the compilation, and raises
    the error of one that failed; before, nothing is written.
    """

    report: CompileReport
    artifacts: Artifacts | HostedArtifacts | None = None
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
        folder = arguments.path("folder", folder)
        streams, weights = STREAM_FORMAT.parse(stream_format), WEIGHT_FORMAT.parse(weight_format)
        self._write(folder, streams, weights, force=arguments.flag("force", force))
        self.folder = folder
        return folder

    def check(self) -> "tuple[Finding, ...]":
        """Returns problems that pimsim-nn would accept silently (docs/reference/checks.md); none, unless RAPTOR has a
        bug."""
        require_own("validator")
        from validator import checks

        if self.artifacts is None or isinstance(self.artifacts, HostedArtifacts):
            return checks.check(self._directory())
        parts = self.artifacts
        cores = range(parts.config.core_cnt)
        empty = np.zeros(0, isa.RECORD)
        return checks.check_output(
            [parts.records.get(core, empty) for core in cores],
            parts.config,
            parts.arch,
            parts.memory,
            [parts.weights[core].shapes if core in parts.weights else () for core in cores],
            extended=parts.options.get("isa") == "extended",
        )

    def run(self, inputs: Mapping[str, Array], *, device: "Device | str | None" = None) -> dict[str, Array]:
        """Executes the instruction streams on `inputs` (by name, ONNX shapes) and returns the outputs by name.

        With a `device` (open, or the name of a back end), its crossbars are written and multiply, and the reference
        engine does all else (docs/how-to/device.md).
        """
        require_own("validator")
        from validator.any_program import load_any, run_any

        program = load_any(self._directory())
        if device is None:
            return dict(run_any(program, inputs))
        from raptor.device.programs import Chips

        with Chips(device) as chips:
            return dict(run_any(program.on_device(chips), inputs))

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

        Without `inputs`, they are standard normal numbers made from `seed`, `samples` times, or as often as is quick.
        `layers`: compare every intermediate tensor, too. An output that is off by more than `tolerance` still passes if
        it is as near to the model in float64 as float32 can be; then `reason` of the verdict says so
        (docs/explanation/verdict.md).
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
        rate: float | None = None,
    ) -> "Simulation":
        """Estimates time and energy as pimsim-nn does (docs/explanation/simulation.md).

        `arch`: an architecture file or preset to run on instead of the chip that the program was compiled for. `mode`:
        `latency` for one sample, or `throughput`, in which each core begins `samples`. `trace_file`: a path for a
        Chrome trace. `rate`: samples a second, for the lifetime of a program in rounds. Raises `UserError` for bad
        arguments or files, and `DeadlockError` with every core that waits.
        """
        require_own("validator")
        from validator.simulate.segments import simulate

        found = simulate(self._directory(), arch, mode=mode, samples=samples, trace_file=trace_file, rate=rate)
        return replace(found, program=self._name())

    def explain(self) -> "Explanation":
        """Explains the mapping: the choice for each layer, its alternatives, and the bounds on time.

        Raises `UserError` for files that cannot be read, and `DeadlockError` with every core that waits.
        """
        require_own("validator")
        from raptor.analysis.explain import explain

        return replace(explain(self._directory()), program=self._name())

    def _name(self) -> str:
        """Returns the folder in which it is saved, or the name of its model."""
        if self.folder is not None or self.artifacts is None:
            return str(self.folder)
        return self.artifacts.name

    @property
    def directory(self) -> Path:
        """The directory of its files; a temporary one, as long as it is not saved and the program is in use."""
        return self._directory()

    def _directory(self) -> Path:
        """Returns the directory of its files, which is a temporary one as long as it is not saved."""
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
        """Writes the directory. Raises `UserError` if the program was loaded, as its contents are not in memory."""
        from raptor import __version__

        if self.artifacts is None:
            raise UserError(f"{self.folder}: already saved; copy the directory instead")
        form: Any = {"version": __version__, "stream_format": streams, "weight_format": weights, "force": force}
        form |= {"ready": self._finish}
        if isinstance(self.artifacts, HostedArtifacts):
            writer.write_hosted(self.artifacts, folder, **form)
        else:
            writer.write(self.artifacts, folder, **form)


def compile(
    model: "str | Path | onnx.ModelProto",
    *,
    xbar: int | tuple[int, int] | str | None = None,
    cores: int | None = None,
    xbars_per_core: int | None = None,
    bits: int = 8,
    cell_bits: int | None = None,
    chips: int | None = None,
    link: str | None = None,
    arch: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    mapping: str | Path | None = None,
    optimize: Goal | None = None,
    effort: int | None = None,
    emit_mapping: str | Path | None = None,
    emit_ops: str | Path | None = None,
    knobs: Mapping[str, float] | None = None,
    base_isa: bool = False,
    requant: Requant | None = None,
    host: bool = False,
    host_ops: Sequence[str] = (),
    host_nodes: Sequence[str] = (),
    rounds: bool = False,
    batch: int | None = None,
    device: str | Path | None = None,
    cuts: Cuts | None = None,
    driver: Driver | None = None,
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
    the strategy `rows` that differ from its defaults, such as {"share": 0.75} (docs/developers/design.md, "Mapping").
    `base_isa` refuses nodes that need instructions that pimsim-nn does not have. `emit_ops` is a file for the flow of
    operators, in the words of the chip's interface: whole cores, crossbars or word lines, as the field `interface` says
    (docs/how-to/operator-flow.md).

    Integers: `requant` says how sums become integers of fewer bits: `exact` (the default), `short` (with multipliers of
    one word, which round some sums otherwise; a note says how many), or `instruction` (with the extended `vrequant`).

    Host: `host` runs nodes that the chip cannot compute in onnxruntime, on the host; `host_ops` and `host_nodes` name
    operators and nodes that run there in any case. The program then has segments (docs/how-to/host.md).

    Rounds: a model that is larger than the chip is refused, or with `rounds` cut into parts that are written to the
    crossbars one after another (docs/how-to/rounds.md), for `batch` samples (1 by default) at a time. `device` is a
    device file or preset with the costs of writing (`reram-puma` by default). Cuts and copies of layers are those with
    the least time of a batch, or, if `optimize` is `writes`, with the fewest written cells. `cuts` other than `best`
    are for comparison: `first-fit` makes each round as long as it fits, `each-layer` as short as possible.

    Raises `UserError` with what to change, `UnsupportedError` with all nodes that cannot be compiled, and
    `CapacityError` if the chip is too small.
    """
    from raptor.compiler import Choice
    from raptor.frontend.fixed import Fixed
    from raptor.frontend.segments import Wishes
    from raptor.hosting import Request, compile_any
    from raptor.mapping.knobs import DEFAULT, changed, parse_knobs

    fewest_writes = optimize is not None and GOAL.parse(optimize) == "writes"
    if fewest_writes and not rounds:
        raise UserError(
            f"{option('optimize', optimize)}: only with {option('rounds', True)}, which writes for each batch"
        )
    if optimize is not None and mapping is not None and not fewest_writes:
        raise UserError(f"{option('mapping')}: not with {option('optimize')}, which searches for the mapping")
    chosen_knobs = parse_knobs(knobs)
    if chosen_knobs != DEFAULT and (optimize is not None or mapping not in (None, "rows")):
        raise UserError(f"{option('knobs')}: only with the mapping rows, whose numbers they are")
    if effort is not None and (optimize is None or fewest_writes):
        raise UserError(f"{option('effort')}: only with {option('optimize')}, which it belongs to")
    bits = arguments.whole("bits", bits, 1, MOST_BITS)
    chip = architectures.load(
        arch,
        xbar=xbar,
        cores=cores,
        xbars_per_core=xbars_per_core,
        cell_bits=cell_bits,
        element_bits=bits,
        chips=chips,
        link=link,
        fields=parse_named("fields", fields),
    )
    if emit_ops is None and "interface" in (fields or {}):
        raise UserError(f"{option('fields', 'interface')}: only with {option('emit_ops')}, which alone uses it")
    bound, sizes, fixed = parse_shapes(shapes), parse_dims(dims), parse_named("constants", constants)
    driver = parse_driver(driver)
    choice = Choice(
        DEFAULT_STRATEGY if mapping is None else parse_mapping(mapping),
        None if optimize is None or fewest_writes else OBJECTIVE.parse(optimize),
        arguments.whole_or_none("effort", effort, 1),
        arguments.new_file("emit_mapping", emit_mapping),
        arguments.new_file("emit_ops", emit_ops),
        chosen_knobs,
        driver.beside is not None,
    )
    base_isa = arguments.flag("base_isa", base_isa)
    wishes = Wishes(
        arguments.flag("host", host), parse_names("host_ops", host_ops), parse_names("host_nodes", host_nodes)
    )
    reload = _reload(arguments.flag("rounds", rounds), batch, device, cuts, "writes" if fewest_writes else "time")
    options = {
        "xbar": [chip.xbar_rows, chip.xbar_cols],
        "cores": chip.cores_per_chip,
        "xbars_per_core": chip.xbars_per_core,
        "cell_bits": chip.cell_bits,
        "bits": bits,
        "shapes": {name: list(shape) for name, shape in bound.items()},
        "dims": sizes,
        "mapping": choice.strategy,
        "isa": "base" if base_isa else "extended",
        **({"chips": chip.chips} if chip.chips > 1 else {}),
    }
    options |= {"optimize": choice.optimize} if choice.optimize else {}
    options |= {"effort": choice.effort} if choice.effort else {}
    options |= {"fields": parse_named("fields", fields)} if fields else {}
    options |= {"knobs": changed(choice.knobs)} if choice.knobs != DEFAULT else {}
    chosen = None if requant is None else REQUANT.parse(requant)
    request = Request(chip, Fixed(bound, sizes, fixed), base_isa, chosen, choice, options)
    with without_collector():
        artifacts = compile_any(model, request, driver, wishes, reload)
    return Program(artifacts.report, artifacts, seconds=driver.seconds, _finish=driver.finish)


def _reload(
    wanted: bool, batch: object, device: str | Path | None, cuts: object, goal: Literal["time", "writes"]
) -> "Wanted | None":
    """Returns the rounds that are wanted; None without. Raises `UserError` for options that then have no effect."""
    from raptor.rounds.compiling import Wanted
    from raptor.target.device_file import load_device

    if wanted:
        found = load_device(DEFAULT_DEVICE if device is None else device)
        if not found.write.ns:
            raise UserError(f"{option('device', device)}: it does not know what a write takes, which rounds need")
        method = "best" if cuts is None else CUTS.parse(cuts)
        return Wanted(arguments.whole_or_none("batch", batch, 1) or 1, found, goal, method)
    for keyword, value in (("batch", batch), ("device", device), ("cuts", cuts)):
        if value is not None:
            raise UserError(f"{option(keyword)}: only with {option('rounds', True)}, which it belongs to")
    return None


def load(folder: str | Path) -> Program:
    """Loads a saved program. Its files are checked when it runs. Raises `UserError` if it is not an output."""
    folder = arguments.path("folder", folder)
    return Program(read_any_report(folder), folder=folder)


def simulate(
    program: str | Path,
    *,
    arch: str | Path | None = None,
    mode: "Mode" = "latency",
    samples: int = 16,
    trace_file: str | Path | None = None,
    rate: float | None = None,
) -> "Simulation":
    """Simulates a program of any compiler: a directory of streams, or one JSON file (also gzipped).

    `arch`: an architecture file or preset; the default is `arch.json` in or beside the program. The other options are
    those of `Program.simulate`. Raises `UserError` for files that cannot be read, and `DeadlockError` with every core
    that waits.
    """
    require_own("validator")
    from validator.simulate import segments

    return segments.simulate(program, arch, mode=mode, samples=samples, trace_file=trace_file, rate=rate)
