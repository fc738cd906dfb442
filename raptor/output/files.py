"""The files of an output directory: their names, which are defined only here, and their schemas.

The compiler writes and the validator reads by these schemas. Everything that is read is untrusted: schemas are strict,
unknown keys are refused, sizes are checked before memory is allocated, no file name may leave the directory.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from raptor.common.files.matrix_digests import digest_matrix
from raptor.common.files.schema_types import JsonArray, JsonObject, JsonPair, StrictDataclass, StrictSchema, is_none
from raptor.common.options.option_values import Requant
from raptor.target.chip_elements import MOST_EXACT_INTEGER
from raptor.target.tensor_layout import Image, TensorRegion

AnyMatrix = npt.NDArray[np.generic]

CONFIG = "config.json"
MEMORY = "memory.json"
LAYERS, STEPS, TRIM = "layers.json", "steps.json", "trim.json"
MANIFEST = "manifest.json"
PIMSIM = "pimsim"
"""Name of the back end whose programs are instruction streams of pimsim-nn."""
SEGMENTS = "segments.json"
ROUNDS = "rounds.json"
DEVICE = "device.json"
REPORT = "report.json"
MAPPING = "mapping.json"
RESIDENT, DECODER = "resident.json", "decoder.json"
ARCH = "arch.json"
NETWORK = "network.json"
MODEL, ORIGINAL = "model.onnx", "original.onnx"
WEIGHTS = "weights"
INIT, SAVE, RESTORE = AUXILIARY = "init", "save", "restore"
"""Folders of the programs beside those of a sample: after power-up, and to exchange the states of sessions."""
CONSTANTS = f"{WEIGHTS}/constants.npy"

CONSTANT_INPUTS = "constants"
"""Name of the option in the manifest with the model inputs that were made constants, and their values."""

FORMAT_VERSION = 1
Numbers = Literal["float", "int", "mixed"]


def stream_name(core: int, suffix: Literal["json", "pim"]) -> str:
    """Returns the file name of the instruction stream of a core."""
    return f"core_{core}.{suffix}"


def weights_name(core: int, suffix: Literal["json", "npz"]) -> str:
    """Returns the file name of the weights of a core, relative to the output directory."""
    return f"{WEIGHTS}/core_{core}_weights.{suffix}"


def segment_name(number: int, kind: Literal["chip", "host"]) -> str:
    """Returns the name of a segment: a directory for the chip, an ONNX file for the host."""
    return f"segment_{number:03d}{'.onnx' if kind == 'host' else ''}"


Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Address = Annotated[int, Field(ge=0, le=2**62)]
Dimension = Annotated[int, Field(ge=1, le=2**31 - 1)]
Range = JsonPair[Count, Count]


class SimulatorConfig(BaseModel):
    """`config.json` in the simulator's format; unknown keys are allowed because the simulator allows them."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    core_cnt: Annotated[int, Field(ge=1, le=2**20)]
    array_group_map: JsonObject[JsonArray[Dimension]]

    @model_validator(mode="after")
    def _every_core_has_groups(self) -> Self:
        wanted = {f"core{i}" for i in range(self.core_cnt)}
        if wanted != set(self.array_group_map):
            odd = sorted(wanted ^ set(self.array_group_map))[:4]
            raise ValueError(f"array_group_map and core_cnt={self.core_cnt} disagree on {', '.join(odd)}")
        return self

    def group_sizes(self, core: int) -> tuple[int, ...]:
        """Returns the number of crossbars of each array group of a core, in order."""
        return self.array_group_map[f"core{core}"]

    def list_group_writes(
        self, core: int, matrices: Iterable[AnyMatrix], cells_of: Callable[[AnyMatrix], int]
    ) -> Iterator["GroupWrite"]:
        """Yields the writes of the array groups of a core. Crossbars are numbered consecutively over the groups.

        `matrices`: weights of each group. `cells_of`: number of cells that a matrix takes.
        """
        first = 0
        for group, (matrix, xbars) in enumerate(zip(matrices, self.group_sizes(core), strict=True)):
            rows, cols = matrix.shape
            place = {"core": core, "group": group, "first": first, "xbars": xbars, "rows": rows, "cols": cols}
            yield GroupWrite(**place, cells=cells_of(matrix), sha256=digest_matrix(matrix))
            first += xbars


class TilePlace(StrictSchema):
    """A tile of a tensor in global memory: channel, row and column range, and the byte address of its first element.

    Without `cols`, it covers whole rows.
    """

    channels: Range
    rows: Range
    cols: Range | None = None
    address: Address

    @property
    def region(self) -> TensorRegion:
        return TensorRegion(self.channels, self.rows, self.cols)


class TensorCoding(StrictSchema):
    """The representation on the chip of a tensor of the model, whose values have the type `dtype` (numpy's name).

    An element is a number of `kind` and `bits`, in whole bytes, the low byte first; integers are in two's complement.
    If `scale` is empty, value = element + `offset` (uint8 is stored as int8 with offset 128). Otherwise values are
    floats: value = (element - `zero_point`) * scale, and element = round(value / scale) + zero_point, ties to even, in
    float32, within the range of `bits`. `scale` and `zero_point` have one entry, or one for each index of `axis`.

    An element of kind `float` is the value itself as a float32: false and true are 0 and 1, integers are exact. Its
    `bits` are 0 in a program of floats, where the target gives the width. `low`, `high`: range of an integer input for
    which the program is exact.
    """

    kind: Literal["float", "int"]
    bits: Annotated[int, Field(ge=0, le=32)]
    dtype: Annotated[
        str, Field(pattern="^(bool|bfloat16|float(16|32|64|4_e2m1fn|8_e[0-9a-z]{3,7})|u?int(2|4|8|16|32|64))$")
    ]
    offset: Annotated[int, Field(ge=-(2**31), le=2**31)] = 0
    scale: JsonArray[Annotated[float, Field(gt=0)]] = ()
    zero_point: JsonArray[Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]] = (0,)
    axis: Count | None = None
    low: Annotated[int, Field(ge=-MOST_EXACT_INTEGER, le=MOST_EXACT_INTEGER)] | None = Field(
        default=None, exclude_if=is_none
    )
    high: Annotated[int, Field(ge=-MOST_EXACT_INTEGER, le=MOST_EXACT_INTEGER)] | None = Field(
        default=None, exclude_if=is_none
    )


class CodedTensor(StrictSchema):
    """A tensor with a `coding`, which is left out for float32 tensors in programs of floats."""

    coding: TensorCoding | None = Field(default=None, exclude_if=is_none)


class TensorPlace(CodedTensor):
    """A model input or output in global memory.

    `shape` is the ONNX shape; `image_shape` has the same elements in C order. Its `channel_axis` is divided into tiles,
    stored pixel by pixel (`raptor.target.tensor_layout`). `turned`, if true: rows of a tile are columns of the image.
    """

    name: str
    shape: JsonArray[Dimension]
    image_shape: JsonArray[Dimension]
    channel_axis: Count
    turned: bool = Field(default=False, exclude_if=lambda turned: not turned)
    tiles: JsonArray[TilePlace]

    @property
    def image(self) -> Image:
        return Image(self.image_shape, self.channel_axis, self.turned)


class ConstantsPlace(StrictSchema):
    """The constants in global memory. Their values are in `weights/constants.npy`.

    The file holds one float32 for each element; in integer programs, one uint8 for each byte of memory.
    """

    address: Address
    elements: Count


class TablePlace(StrictSchema):
    """A table among the constants, whose rows `ld` loads from computed addresses.

    Row r is at `address` + r * `stride`, for r below `rows`. A core computes the address from r, which it reads from
    global memory; any other r is an error.
    """

    address: Address
    rows: Dimension
    stride: Dimension

    @property
    def end_address(self) -> int:
        """Address of the byte after the last row."""
        return self.address + self.rows * self.stride


class MemoryMap(StrictSchema):
    """`memory.json`: the map of global memory. Addresses and sizes are bytes at the modelled element width.

    In programs with integers, memory is counted in bytes: `element_bytes` is 1, and each tensor has a `coding`.
    """

    version: Literal[1] = FORMAT_VERSION
    element_bits: Annotated[int, Field(ge=1, le=32)]
    element_bytes: Annotated[int, Field(ge=1, le=4)]
    size_bytes: Address
    local_bytes: JsonArray[Count] = Field(description="local memory used by each core")
    inputs: JsonArray[TensorPlace]
    constants: ConstantsPlace
    tables: JsonArray[TablePlace] = Field(
        default=(), exclude_if=lambda tables: not tables, description="left out if there are none"
    )
    outputs: JsonArray[TensorPlace]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTile(StrictDataclass):
    """A tile of an intermediate tensor, in local memory of `core` at `address` just before it executes `pc`."""

    # NOTE: a dataclass, because a program has tens of thousands of tiles, and a model takes five times as long to make.
    channels: Range
    rows: Range
    cols: Range | None = None
    core: Count
    pc: Count
    address: Count

    @property
    def region(self) -> TensorRegion:
        return TensorRegion(self.channels, self.rows, self.cols)


class TensorProbe(CodedTensor):
    """A tensor of the model, and where its tiles can be read while the program runs. Layout as in `TensorPlace`."""

    tensor: str
    node: str = Field(description="ONNX node that computes it")
    image_shape: JsonArray[Dimension]
    channel_axis: Count
    turned: bool = Field(default=False, exclude_if=lambda turned: not turned)
    tiles: JsonArray[ProbeTile]

    @property
    def image(self) -> Image:
        return Image(self.image_shape, self.channel_axis, self.turned)


class ProbeList(StrictSchema):
    """`layers.json`: every tensor of the model that exists in the program, in the order of computation."""

    version: Literal[1] = FORMAT_VERSION
    probes: JsonArray[TensorProbe]


class CoreSteps(StrictSchema):
    """The steps of a core: step k has the instructions from `ends[k - 1]` (0 for the first) up to `ends[k]`.

    `nodes` and `operations` are indices into the names of `Steps`, one for each step.
    """

    core: Count
    ends: JsonArray[Count]
    nodes: JsonArray[Count]
    operations: JsonArray[Count]


class StepTable(StrictSchema):
    """`steps.json`: the ONNX node, and the operation of PimIR, that each instruction belongs to."""

    version: Literal[1] = FORMAT_VERSION
    nodes: JsonArray[str]
    operations: JsonArray[str]
    cores: JsonArray[CoreSteps]

    @model_validator(mode="after")
    def _indices_exist(self) -> Self:
        for core in self.cores:
            if not len(core.ends) == len(core.nodes) == len(core.operations):
                raise ValueError(f"core {core.core}: ends, nodes and operations differ in length")
            if any(a > b for a, b in pairwise(core.ends)):
                raise ValueError(f"core {core.core}: ends are not in order")
            if max(core.nodes, default=-1) >= len(self.nodes):
                raise ValueError(f"core {core.core}: node {max(core.nodes)} of {len(self.nodes)}")
            if max(core.operations, default=-1) >= len(self.operations):
                raise ValueError(f"core {core.core}: operation {max(core.operations)} of {len(self.operations)}")
        return self


class FileEntry(StrictSchema):
    """Size and digest of a file of the output directory."""

    size_bytes: Address
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class IntegerProofs(StrictSchema):
    """Results of proofs about an integer program, from its weights and the ranges of its types.

    No sum, product or shift overflows its width. Each of `requantisations` has a recipe that gives the defined result
    for all operands, except for `flips` values of sums in total (with short multipliers).
    """

    requant: Requant
    requantisations: Count
    flips: Address
    sum_bits: JsonObject[Count] = Field(description="layers on crossbars by the bits of their sums")
    float_nodes: JsonArray[str] = Field(description="ONNX nodes that are computed in float32")


class OutputManifest(StrictSchema):
    """`manifest.json`, written last: a directory without it is not a finished output."""

    version: Literal[1] = FORMAT_VERSION
    tool: str
    numbers: Numbers = Field(
        default="float",
        description="float: float32 values at modelled widths. int: integers, bit for bit. mixed: with float sections",
    )
    model: str = Field(description="name of the ONNX file compiled")
    options: dict[str, Any]
    backend: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        default=None, exclude_if=is_none, description="machine of the program; left out for pimsim"
    )
    streams: JsonArray[Literal["json", "pim"]]
    weights: Literal["json", "npz"]
    integers: IntegerProofs | None = Field(default=None, exclude_if=is_none)
    files: JsonObject[FileEntry]

    @model_validator(mode="after")
    def _files_stay_inside(self) -> Self:
        for name in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or str(path) != name:
                raise ValueError(f"file name {name!r} leaves the directory")
        return self


class BorderTensor(StrictSchema):
    """A tensor at a border: between segments, or between the program and its caller.

    `size_bytes`: size of its numpy array; null if a size depends on values, or elements have no fixed size.
    """

    name: str
    type: str = Field(description="as onnxruntime writes it: tensor(float), seq(tensor(int64))")
    shape: JsonArray[Count | None] = Field(description="null: this size depends on values; empty if it is not a tensor")
    size_bytes: Address | None


class HostNode(StrictSchema):
    """A node that runs on the host, and the reason."""

    node: str
    op_type: str
    reason: str


class SegmentFile(StrictSchema):
    """A part of the model: a directory with a complete program for the chip, or an ONNX file for the host.

    `sha256` and `size_bytes` describe the ONNX file, or the manifest of the directory, which lists its files.
    """

    kind: Literal["chip", "host"]
    path: Annotated[str, Field(pattern=r"^segment_[0-9]{3,6}(\.onnx)?$")]
    size_bytes: Address
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    nodes: JsonArray[str]
    reads: JsonArray[str]
    makes: JsonArray[str]
    macs: Address
    uncounted: Count = Field(
        default=0,
        exclude_if=lambda count: not count,
        description="nodes whose multiply-accumulates are not known, and not in `macs`; left out if there are none",
    )

    @property
    def entry(self) -> FileEntry:
        """Size and digest of the ONNX file, or of the manifest of the directory."""
        return FileEntry(size_bytes=self.size_bytes, sha256=self.sha256)


class SegmentList(StrictSchema):
    """`segments.json`, written last: the segments of a program, in the order in which they run.

    `inputs` and `outputs` have the types of the model, `crossings` the types at the borders of segments. `files`: all
    other files of the directory.
    """

    version: Literal[1] = FORMAT_VERSION
    tool: str
    model: str = Field(description="name of the ONNX file compiled")
    options: dict[str, Any]
    inputs: JsonArray[BorderTensor]
    outputs: JsonArray[BorderTensor]
    crossings: JsonArray[BorderTensor]
    segments: JsonArray[SegmentFile]
    host_nodes: JsonArray[HostNode]
    files: JsonObject[FileEntry]

    @model_validator(mode="after")
    def _each_is_made_before_it_is_read(self) -> Self:
        known, crossings = {c.name for c in self.inputs}, {c.name for c in self.crossings}
        for number, segment in enumerate(self.segments):
            if segment.path != segment_name(number, segment.kind):
                raise ValueError(f"segment {number} is {segment.path}, not {segment_name(number, segment.kind)}")
            missing = [name for name in segment.reads if name not in known]
            if missing:
                raise ValueError(f"{segment.path} reads {missing[0]!r}, which nothing before it makes")
            again = [name for name in segment.makes if name in known]
            if again or len(set(segment.makes)) != len(segment.makes):
                raise ValueError(f"{segment.path} makes {(again or segment.makes)[0]!r} a second time")
            known.update(segment.makes)
        odd = sorted(known ^ crossings) + [c.name for c in self.outputs if c.name not in known]
        if odd or len(crossings) != len(self.crossings):
            raise ValueError(f"{odd[0] if odd else 'a tensor'!r}: tensors and borders disagree")
        return self

    @model_validator(mode="after")
    def _files_are_known(self) -> Self:
        if set(self.files) - {ROUNDS, DEVICE} != {MODEL, REPORT} or (ROUNDS in self.files) != (DEVICE in self.files):
            raise ValueError(f"files: expected {MODEL} and {REPORT}, with {ROUNDS} also {DEVICE}")
        return self

    def find_crossing(self, name: str) -> BorderTensor:
        """Returns the border tensor of this name."""
        return next(c for c in self.crossings if c.name == name)


class GroupWrite(StrictSchema):
    """An array group to be written: crossbars from `first` on, for a matrix of `rows` x `cols` weights.

    `sha256`: digest of the matrix, its shape included (`raptor.common.files.matrix_digests`).
    """

    core: Count
    group: Count
    first: Count
    xbars: Dimension
    rows: Dimension
    cols: Dimension
    cells: Dimension
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    def list_crossbars(self) -> Iterator[tuple[tuple[int, int], tuple[str, int]]]:
        """Yields for each crossbar its core and number, and its content: digest of the matrix and index of the part."""
        for k in range(self.xbars):
            yield (self.core, self.first + k), (self.sha256, k)
