"""Arguments and results of the tools, from which the client gets their JSON schemas. Times are in ns, energy in pJ."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_ENTRIES = 50
"""Most entries of a list in a result; a `..._total` beside it counts all."""
MOST_LINES = 500
"""Most lines of a page."""

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
    reason: str


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
    unsupported: list[UnsupportedEntry]
    unsupported_total: int
    notes: list[str]


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
    warnings: list[str]


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
    outputs: list[OutputError]
    first_deviation: str | None
    reason: str | None
    message: str | None


class SimulateResult(ToolSchema):
    """Estimated time and energy of a sample; null if not known. `critical_path_ns`: the longest entries, by node."""

    latency_ns: float | None
    interval_ns: float | None
    energy_pj: float | None
    power_average_w: float | None
    area_mm2: float | None
    instructions: int
    critical_path_ns: dict[str, float]
    warnings: list[str]


class LayerEntry(ToolSchema):
    """A layer on its crossbars: `products_ns` on all cores, `work_ns` of the core with most work."""

    node: str
    op_type: str
    unfolding: str
    cores: int
    xbars: int
    products_ns: float
    work_ns: float


class ExplainResult(ToolSchema):
    """Choices of the mapping, and the limit of the time: `binds` is a sentence, `advice` what might help."""

    latency_ns: float
    interval_ns: float
    binds: str
    advice: list[str]
    layers: list[LayerEntry]
    layers_total: int
    warnings: list[str]


class FindingEntry(ToolSchema):
    """A problem of a program at its first place; `count` places have it."""

    rule: str
    severity: str
    message: str
    advice: str
    core: int | None
    pc: int | None
    count: int


class CheckResult(ToolSchema):
    """Problems that the simulator would accept silently."""

    findings: list[FindingEntry]
    findings_total: int


class TextPage(ToolSchema):
    """Lines of a text. `next_line`: first line of the next page; null at the end. Long lines are cut."""

    lines: list[str]
    next_line: int | None
