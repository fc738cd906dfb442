# ruff: noqa: RUF009 `_option` makes a field
"""Options of a compilation. The command line, the Python API, studies and pages are derived from their fields.

A new option is a field of a record of checked values, and a keyword in the `TypedDict` of the functions that accept it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import IntegerRange, OneOf, parse_flag, parse_new_file, parse_path, parse_text
from raptor.common.options.option_texts import (
    CONSTANTS,
    DIMS,
    FIELDS,
    KNOBS,
    NAMES,
    OPERATORS,
    SHAPES,
    STATES,
    NamedValueFormat,
    NameListFormat,
)
from raptor.common.options.option_values import (
    CONSTANTS_LOAD,
    CUTS,
    DEFAULT_DEVICE,
    DEFAULT_STRATEGY,
    DUMP_FORMAT,
    GOAL,
    ISA,
    MAX_BITS,
    MOST_STAGES,
    OBJECTIVE,
    REQUANT,
    SEARCHED_STAGES,
    STREAM_FORMAT,
    WEIGHT_FORMAT,
    CutMethod,
    DumpFormat,
    Objective,
    Requant,
    SearchGoal,
    StreamFormat,
    WeightFormat,
    parse_arch_source,
    parse_dims,
    parse_mapping,
    parse_names,
    parse_shapes,
    parse_states,
    parse_values_by_name,
    parse_xbar,
)

R = TypeVar("R")

ValueCheck = Callable[[str, object], Any]
"""Check of an option: takes keyword and value; returns the value in the type of the field, or raises `UserError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """An option. Its keyword is the name of the field; its flag follows from the keyword (`spelling.flag_name`).

    `shown`: default in `--help` if the field has None. `example`: a value that has an effect, as on the command line.
    `texts`: form of a repeatable option. `typed`: names for False and True on the command line. `completion`: function
    of `raptor.tools.cli.shell_completion`. `only_with`, `not_with`: keyword of an option that must or must not be given
    too, and the reason. `studied`: studies may set it. `is_file`: a study looks for the file in its own folder first.
    """

    check: ValueCheck
    help: str
    default: Any
    metavar: str | None = None
    shown: str | None = None
    example: str = ""
    texts: "NamedValueFormat[Any] | NameListFormat | None" = None
    typed: "OneOf[Any] | None" = None
    short: str = ""
    completion: str = ""
    only_with: tuple[str, str] | None = None
    not_with: tuple[str, str] | None = None
    studied: bool = True
    is_file: bool = False


def _option(check: ValueCheck, help: str, default: Any = None, **more: Any) -> Any:
    """Makes the field of an option, like `dataclasses.field`: for type checkers it is a default of the right type."""
    is_named = isinstance(more.get("texts"), NamedValueFormat)
    factory: Any = {"default_factory": dict} if is_named else {"default": default}
    return field(**factory, metadata={"option": OptionSpec(check=check, help=help, default=default, **more)})


_STOPPED = ("stop_after", "which prints what a pass returns and writes no output")
_OF_ROUNDS = ("rounds", "which it belongs to")


@dataclass(frozen=True, slots=True)
class ChipOptions:
    """The chip: an architecture file or preset (`bench` if None), and values that override its fields.

    `xbar`: rows and columns of a crossbar. `bits`: width of activations and weights of a float model. `chips` are in a
    row, with `cores` cores each. `fields`: other fields of the file by name.
    """

    xbar: tuple[int, int] | None = _option(
        parse_xbar, "Crossbar size: 128, or 128x256 (rows x columns).", metavar="N|RxC", shown="128x128", example="8"
    )
    cores: int | None = _option(IntegerRange(1), "Cores of the chip.", shown="144", example="9")
    xbars_per_core: int | None = _option(IntegerRange(1), "Crossbars of a core.", shown="64", example="2")
    bits: int = _option(IntegerRange(1, MAX_BITS), "Bits of an activation and of a weight.", 8, example="4")
    cell_bits: int | None = _option(IntegerRange(1), "Bits of a crossbar cell.", shown="8", example="4")
    chips: int | None = _option(
        IntegerRange(1, 2**16), "Chips in a row, each with so many cores.", shown="1", example="2"
    )
    link: str | None = _option(
        parse_text, "Cost of a flit from chip to chip.", metavar="board-ht|package-ucie|NS:PJ", example="board-ht"
    )
    arch: str | Path | None = _option(
        parse_arch_source,
        "Architecture file of pimsim-nn, or preset.",
        metavar="FILE|PRESET",
        shown="bench",
        example="chip.json",
        completion="presets",
        is_file=True,
    )
    chip: Path | None = _option(
        parse_path, "Chip file, of which nothing dead is used.", metavar="FILE", example="die.json", is_file=True
    )
    fields: Mapping[str, Any] = _option(
        parse_values_by_name,
        "Field of the architecture: rob_size=4, matrix_config.adc_count=16.",
        example="chip_config.core_config.matrix_config.dac_count=3",
        texts=FIELDS,
    )


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of the model: shapes by input, sizes by symbolic dimension, and values of inputs that become constants."""

    shapes: Mapping[str, Sequence[int]] = _option(
        parse_shapes, "Shape of an input, such as input=1,3,224,224.", example="x=2,4,6,6", texts=SHAPES
    )
    dims: Mapping[str, int] = _option(
        parse_dims, "Size of all dimensions of that name, such as height=224.", example="N=3", texts=DIMS
    )
    constants: Mapping[str, Any] = _option(
        parse_values_by_name,
        "Makes an input a constant: sr=16000, flag=true, scale=1.5,2.",
        example=f"scale={','.join(map(str, range(1, 37)))}",
        texts=CONSTANTS,
    )


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """The mapping: a strategy, a stored mapping, or the goal of a search, which tries `effort` mappings at most.

    `knobs`: tuning numbers of the strategy `rows` that differ from its defaults."""

    mapping: str = _option(
        parse_mapping,
        "Strategy: rows: layers stream; raptor, the reference; pixelwise; or a stored mapping.json.",
        DEFAULT_STRATEGY,
        metavar="NAME|FILE",
        example="raptor",
        completion="strategies",
        not_with=("optimize", "which searches for the mapping"),
        is_file=True,
    )
    optimize: SearchGoal | None = _option(
        GOAL,
        f"Search instead: {OBJECTIVE}, by the built-in simulator; or writes, of rounds.",
        metavar="GOAL",
        example="energy",
        studied=False,
    )
    effort: int | None = _option(
        IntegerRange(1),
        "Mappings that --optimize tries at most.",
        shown="5; more for small models",
        example="2",
        only_with=("optimize", "which it belongs to"),
        studied=False,
    )
    overlap: int | None = _option(
        IntegerRange(1, MOST_STAGES),
        "Samples that the chip works on at once, at most: a core begins one before others have ended the one before.",
        shown=f"1; {SEARCHED_STAGES} with --optimize throughput",
        example="2",
        not_with=("rounds", "whose programs take turns in the same memory"),
    )
    emit_mapping: Path | None = _option(
        parse_new_file, "Also write the mapping to this file.", example="mapping.json", not_with=_STOPPED, studied=False
    )
    emit_ops: Path | None = _option(
        parse_new_file,
        "Also write the flow of operators, as the chip's interface has them.",
        example="flow.txt",
        not_with=_STOPPED,
        studied=False,
    )
    knobs: Mapping[str, float] = _option(
        parse_values_by_name, "Number of the mapping rows: share=0.75, products=2.", example="share=0.1", texts=KNOBS
    )

    @property
    def objective(self) -> Objective | None:
        """Goal of a search by simulation; None without a search. `writes` is a goal of rounds, without a search."""
        return None if self.optimize == "writes" else self.optimize


@dataclass(frozen=True, slots=True)
class NumberOptions:
    """Machine (the name of a back end) and arithmetic: published instructions only, requantisation method."""

    backend: str = _option(
        parse_text, "Machine: pimsim, c, or an installed one.", "pimsim", example="c", completion="backends"
    )
    base_isa: bool = _option(
        parse_flag, f"{ISA}; base: only instructions that pimsim-nn runs.", default=False, example="base", typed=ISA
    )
    requant: Requant | None = _option(
        REQUANT,
        "How a quantised model's sums become integers of few bits: exact; short: faster, rounds some "
        "otherwise; instruction: by the extended vrequant.",
        shown="exact",
        example="short",
    )
    trimmable: bool = _option(
        parse_flag,
        "Keep a gain and a bias for each channel of a quantised layer, which raptor trim sets for a chip.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class ResidencyOptions:
    """Values that stay in local memory between two samples."""

    resident_constants: bool = _option(
        parse_flag,
        f"{CONSTANTS_LOAD}; reloaded: for each sample; resident: once, by a program of its own after power-up.",
        default=False,
        example="resident",
        typed=CONSTANTS_LOAD,
        not_with=("rounds", "whose programs take turns in the same memory"),
    )
    states: Mapping[str, str] = _option(
        parse_states,
        "Output that is the next value of an input and stays on the chip, such as h0=hn; auto: by names.",
        example="x=y",
        texts=STATES,
        not_with=("rounds", "whose programs take turns in the same memory"),
    )
    capacity: int | None = _option(
        IntegerRange(2, 2**16),
        "Rows of states that grow by one a step.",
        example="8",
        only_with=("states", "which it is for"),
    )


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Nodes that run on the host: with `host`, all that the chip cannot compute; named operators and nodes always."""

    host: bool = _option(parse_flag, "Run on the host what the chip cannot compute, in onnxruntime.", default=False)
    host_ops: tuple[str, ...] = _option(
        parse_names, "Operators that run on the host.", (), example="Mul", texts=OPERATORS
    )
    host_nodes: tuple[str, ...] = _option(parse_names, "Nodes that run on the host.", (), example="my_mul", texts=NAMES)

    @property
    def has_named_nodes(self) -> bool:
        """True if the user names operators or nodes for the host."""
        return bool(self.host_ops or self.host_nodes)


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """Rounds of a model that is larger than the chip: samples per batch, device of the crossbars, cutting method."""

    rounds: bool = _option(
        parse_flag, "Cut a model that is too large into rounds, each written before it runs.", default=False
    )
    batch: int = _option(
        IntegerRange(1), "Samples for which a round is written, with --rounds.", 1, example="3", only_with=_OF_ROUNDS
    )
    device: str | Path = _option(
        parse_path,
        "Device file with the costs of writing.",
        DEFAULT_DEVICE,
        metavar="FILE|PRESET",
        example="pcm-occ",
        only_with=_OF_ROUNDS,
        is_file=True,
    )
    cuts: CutMethod = _option(
        CUTS,
        "Where a model in rounds is cut: first-fit and each-layer show what a simpler method takes.",
        "best",
        example="each-layer",
        only_with=_OF_ROUNDS,
        studied=False,
    )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Output of `raptor compile`: files and printed text. The Python API has other functions for these."""

    output: Path = _option(
        parse_path, "Directory to write.", Path("out"), short="-o", example="elsewhere", not_with=_STOPPED
    )
    stream_format: StreamFormat = _option(
        STREAM_FORMAT, f"Streams: {STREAM_FORMAT}.", "json", example="pim", not_with=_STOPPED
    )
    weight_format: WeightFormat = _option(
        WEIGHT_FORMAT, f"Crossbar weights: {WEIGHT_FORMAT}.", "json", example="npz", not_with=_STOPPED
    )
    dump_ir: Path | None = _option(parse_path, "Directory for the text of every level.", example="ir")
    dump_format: DumpFormat = _option(
        DUMP_FORMAT,
        "Form of --dump-ir: text, or mlir where a level has that form.",
        "text",
        example="mlir",
        only_with=("dump_ir", "whose files it describes"),
    )
    from_mlir: Path | None = _option(
        parse_path, "Go on with the program of this file of --dump-format mlir.", metavar="FILE", example="changed.mlir"
    )
    stop_after: str | None = _option(
        parse_text, "Print what this pass returns, and stop.", metavar="PASS", example="schedule", completion="passes"
    )
    force: bool = _option(parse_flag, "Replace an earlier output.", default=False)
    verbose: bool = _option(parse_flag, "Print each stage on a separate line.", default=False, short="-v")
    quiet: bool = _option(parse_flag, "Print nothing but errors.", default=False, short="-q", not_with=_STOPPED)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """All options of a compilation, checked."""

    chip: ChipOptions = ChipOptions()
    inputs: ModelInputs = ModelInputs()
    mapping: MappingOptions = MappingOptions()
    numbers: NumberOptions = NumberOptions()
    residency: ResidencyOptions = ResidencyOptions()
    host: HostOptions = HostOptions()
    rounds: RoundOptions = RoundOptions()
    output: OutputOptions = OutputOptions()

    def __post_init__(self) -> None:
        if self.mapping.optimize == "writes" and not self.rounds.rounds:
            asked, needed = spell_option("optimize", "writes"), spell_option("rounds", True)
            raise UserError(f"{asked}: only with {needed}, which writes for each batch")
        if self.mapping.emit_ops is None and "interface" in self.chip.fields:
            asked, needed = spell_option("fields", "interface"), spell_option("emit_ops")
            raise UserError(f"{asked}: only with {needed}, which alone uses it")


class CrossbarKeywords(TypedDict, total=False):
    """Keywords for crossbars: their size, their number per core, and the bits of a cell."""

    xbar: int | tuple[int, int] | str | None
    xbars_per_core: int | None
    cell_bits: int | None


class CoreKeywords(CrossbarKeywords, total=False):
    """Keywords for crossbars, cores, and other fields of the architecture by name."""

    cores: int | None
    fields: Mapping[str, Any] | None


class WidthKeywords(CrossbarKeywords, total=False):
    """Keywords for crossbars, the architecture, and the bits of activations and weights."""

    arch: str | Path | None
    bits: int


class ChipKeywords(CoreKeywords, WidthKeywords, total=False):
    """All keywords for the chip."""

    chips: int | None
    link: str | None
    chip: str | Path | None


class InputKeywords(TypedDict, total=False):
    """Keywords for the inputs of a model."""

    shapes: Mapping[str, Sequence[int]] | None
    dims: Mapping[str, int] | None
    constants: Mapping[str, Any] | None


class ArchKeywords(CoreKeywords, total=False):
    """Keywords for an architecture, and for values that override its fields."""

    arch: str | Path | None


class PolicyKeywords(ArchKeywords, InputKeywords, total=False):
    """Keywords of `raptor.search_policy` for the chip and the inputs."""


class InspectKeywords(WidthKeywords, InputKeywords, total=False):
    """Keywords of `raptor.inspect`."""

    base_isa: bool
    host: bool
    host_ops: Sequence[str]
    host_nodes: Sequence[str]


class CompileKeywords(ChipKeywords, InspectKeywords, total=False):
    """Keywords of `raptor.compile`."""

    mapping: str | Path | None
    optimize: SearchGoal | None
    effort: int | None
    overlap: int | None
    emit_mapping: str | Path | None
    emit_ops: str | Path | None
    knobs: Mapping[str, float] | None
    requant: Requant | None
    resident_constants: bool
    states: Mapping[str, str] | str | None
    capacity: int | None
    trimmable: bool
    rounds: bool
    batch: int | None
    device: str | Path | None
    cuts: CutMethod | None
    backend: str


def list_keywords(kind: Any) -> tuple[str, ...]:
    """Returns the keywords of one of these classes, in order; inherited ones come first."""
    return tuple(kind.__annotations__)


@cache
def collect_options(record: Any) -> Mapping[str, OptionSpec]:
    """Returns all options of a record, including nested records, by keyword and in order."""
    found: dict[str, OptionSpec] = {}
    for part in fields(record):
        found |= {part.name: part.metadata["option"]} if part.metadata else collect_options(part.type)
    return found


def read_options(record: type[R], given: Mapping[str, Any], kind: Any = None) -> R:
    """Checks each value and all values together, and returns them as a record. None stands for the default.

    `given`: values by keyword. `kind`: class with the keywords that the caller accepts. Raises `UserError` for a wrong
    value, and for one that would have no effect together with the others; `TypeError` for unknown keywords.
    """
    options = collect_options(record)
    known = options if kind is None else list_keywords(kind)
    if unknown := [name for name in given if name not in known]:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
    values = {name: value for name, value in given.items() if value is not None}
    check_conflicts(values)
    return _record(record, {name: options[name].check(name, value) for name, value in values.items()})


def check_conflicts(values: Mapping[str, Any]) -> None:
    """Raises `UserError` for an option without effect together with the others. `values`: given ones, by keyword."""
    options = collect_options(CompileOptions)
    for name in values:
        for pair, wanted in ((options[name].only_with, True), (options[name].not_with, False)):
            if pair is not None and _is_active(values.get(pair[0])) != wanted:
                shown = spell_option(pair[0], True) if options[pair[0]].check is parse_flag else spell_option(pair[0])
                raise UserError(f"{spell_option(name)}: {'only' if wanted else 'not'} with {shown}, {pair[1]}")


def _is_active(value: object) -> bool:
    """Returns True if an option is in use; the goal `writes` of rounds counts as none, because it starts no search."""
    return value is not None and value is not False and not (isinstance(value, str) and value == "writes")


def _record(record: type[R], values: Mapping[str, Any]) -> R:
    parts: dict[str, Any] = {}
    for part in fields(cast(Any, record)):
        if not part.metadata:
            parts[part.name] = _record(cast(Any, part.type), values)
        elif part.name in values:
            parts[part.name] = values[part.name]
    return record(**parts)
