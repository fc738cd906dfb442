"""Arguments and results of the tools, from which the client gets their JSON schemas. Times are in ns, energy in pJ."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")
MOST_ENTRIES = 50
"""Most entries of a list in a result; a `..._total` beside it counts all."""
MOST_LINES = 500
"""Most lines of a page."""
_LONGEST_TEXT = 2000


def cut(text: str) -> str:
    """Returns a text that is not too long for a result."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _first(entries: Sequence[Any]) -> list[Any]:
    return [*islice(entries, MOST_ENTRIES)]


def _longest(times: Mapping[str, float]) -> dict[str, float]:
    return dict(_first(sorted(times.items(), key=lambda entry: -entry[1])))


def _count(found: Any) -> int:
    return found if isinstance(found, int) else len(found)


# These types also limit what they get, so that a result never fills the context of an agent.
Text = Annotated[str, BeforeValidator(lambda text: None if text is None else cut(text))]
Entries = Annotated[list[T], BeforeValidator(_first)]
LongestTimes = Annotated[dict[str, float], BeforeValidator(_longest)]
Count = Annotated[int, BeforeValidator(_count)]

Name = Annotated[str, Field(min_length=1, max_length=200)]
ModelPath = Annotated[str, Field(min_length=1, max_length=300, description="ONNX file, below the served folder")]
ProgramPath = Annotated[
    str, Field(min_length=1, max_length=300, description="folder of a program, as compile_model returns it")
]
FirstLine = Annotated[int, Field(ge=0, description="first line of the page, from 0")]
LineCount = Annotated[int, Field(ge=1, le=MOST_LINES, description="lines of the page at most")]


class ToolSchema(BaseModel):
    """Base of all: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def take(cls, report: object, **more: Any) -> Self:
        """Returns a result: the fields `more`, and each other one from the attribute of `report` with its name."""
        rest = {name: getattr(report, name) for name in cls.model_fields if name not in more}
        return cls.model_validate(rest | more, from_attributes=True)


class InspectChoice(ToolSchema):
    """Crossbars, and sizes of the model's inputs. Unset fields are the defaults of `raptor.compile`."""

    arch: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,40}$")] | None = Field(
        default=None, description="preset, such as bench"
    )
    xbar: Annotated[str, Field(pattern=r"^\d{1,5}(x\d{1,5})?$")] | None = Field(
        default=None, description="128, or 128x256"
    )
    bits: Annotated[int, Field(ge=1, le=32)] | None = Field(
        default=None, description="of an activation and of a weight"
    )
    host: bool | None = Field(default=None, description="run unsupported nodes on the host, in onnxruntime")
    shapes: Annotated[dict[Name, list[int]], Field(max_length=100)] | None = Field(default=None, description="by input")
    dims: Annotated[dict[Name, int], Field(max_length=100)] | None = Field(
        default=None, description="by symbolic dimension"
    )


class CompileChoice(InspectChoice):
    """The chip, and how the model is mapped to it."""

    cores: Annotated[int, Field(ge=1, le=65536)] | None = None
    xbars_per_core: Annotated[int, Field(ge=1, le=65536)] | None = None
    mapping: Literal["rows", "raptor", "pixelwise"] | None = None
    optimize: Literal["latency", "throughput", "energy"] | None = Field(default=None, description="search instead")
    effort: Annotated[int, Field(ge=1, le=50)] | None = Field(
        default=None, description="mappings that the search tries"
    )
    rounds: bool | None = Field(default=None, description="cut a model that is larger than the chip into rounds")
    batch: Annotated[int, Field(ge=1, le=2**20)] | None = Field(default=None, description="samples of a round")


class UnsupportedEntry(ToolSchema):
    """A node that cannot be compiled, and why."""

    node: str
    op_type: str
    reason: Text


class InspectResult(ToolSchema):
    """Needs of a model. `cores_needed`: cores of the chip that its crossbars fill."""

    compiles: bool
    inputs: dict[str, list[int]]
    outputs: dict[str, list[int]]
    parameters: int
    macs: int
    xbars: int
    cores_needed: int
    operators: dict[str, int]
    unsupported: Entries[UnsupportedEntry]
    unsupported_total: int
    notes: Entries[Text]


class CompileResult(ToolSchema):
    """A compiled program. `program`: its folder, which the other tools take. `reused`: it was compiled before."""

    program: str
    reused: bool
    instructions: int
    xbars_used: int
    xbars_available: int
    cores_used: int
    cores_available: int
    peak_local_bytes: int
    warnings: Entries[Text]


class OutputError(ToolSchema):
    """Largest errors of an output in all samples; null: not a number."""

    name: str
    passed: bool
    max_absolute: float | None
    max_relative: float | None


class ValidateResult(ToolSchema):
    """A comparison of the executed instructions with onnxruntime. `message`: why a run did not end."""

    passed: bool
    samples: int
    outputs: Entries[OutputError]
    first_deviation: str | None
    reason: str | None
    message: Text | None


class SimulateResult(ToolSchema):
    """Estimated time and energy of a sample; null if not known. `critical_path_ns`: the longest entries, by node."""

    latency_ns: float | None
    interval_ns: float | None
    energy_pj: float | None
    power_average_w: float | None
    area_mm2: float | None
    instructions: int
    critical_path_ns: LongestTimes
    warnings: Entries[Text]


class LayerEntry(ToolSchema):
    """A layer on its crossbars: `products_ns` on all cores, `work_ns` of the core with most work."""

    node: str
    op_type: str
    unfolding: str
    cores: Count
    xbars: int
    products_ns: float
    work_ns: float


class ExplainResult(ToolSchema):
    """Choices of the mapping, and the limit of the time: `binds` is a sentence, `advice` what might help."""

    latency_ns: float
    interval_ns: float
    binds: Text
    advice: Entries[Text]
    layers: Entries[LayerEntry]
    layers_total: int
    warnings: Entries[Text]


class FindingEntry(ToolSchema):
    """A problem of a program at its first place; `count` places have it."""

    rule: str
    severity: str
    message: Text
    advice: Text
    core: int | None
    pc: int | None
    count: int


class CheckResult(ToolSchema):
    """Problems that the simulator would accept silently."""

    findings: Entries[FindingEntry]
    findings_total: int


class TextPage(ToolSchema):
    """Lines of a text. `next_line`: first line of the next page; null at the end. Long lines are cut."""

    lines: list[str]
    next_line: int | None
