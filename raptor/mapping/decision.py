"""The decision: how each layer is computed, and on which cores (docs/developers/mapping.md).

A strategy looks at Graph and Target and returns a `Decision`, a frozen value. Each layer has one record, and the
record's class says how the layer is computed. Three passes complete it: `raptor.spatial.refine` adds what it decides
about single computes, `raptor.spatial.choose_placement` the places of cores on the chip, and
`raptor.spatial.choose_order` names the order of work. Later passes only apply the decision.
A mapping file holds the same value: therefore its arrays and objects are those of `raptor.common.files.schema_types`,
and a field `kind` tells a reader the class."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, groupby, product
from operator import itemgetter
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from raptor.common.files.schema_types import (
    JsonArray,
    JsonObject,
    JsonPair,
    StrictDataclass,
    is_empty,
    is_false,
    is_none,
)
from raptor.graph.ir import (
    Filter,
    Node,
    Numbers,
)
from raptor.mapping.paces import StoredPace
from raptor.mapping.refinement import Refinement
from raptor.transforms.rewrite_choices import JoinedLayer, OnVectorUnit, RewriteChoice, describe_record

Range = JsonPair[int, int]


@dataclass(frozen=True, slots=True)
class Matrix(StrictDataclass):
    """The part of a layer's weights that one `mvmul` multiplies by: weights[tap, rows, cols].

    `rows` and `cols` are ranges of the layer's input and output channels. The matrix takes `xbars` crossbars side by
    side.
    """

    tap: int
    rows: Range
    cols: Range
    xbars: int

    def values(self, filter_: Filter) -> Numbers:
        """Returns the weights as [rows, cols], with zeros where channels are of different groups."""
        return filter_.matrix(self.tap, self.rows, self.cols)


@dataclass(frozen=True, slots=True)
class LineGrid(StrictDataclass):
    """A grid of cores for a layer that is computed line by line, and the blocks that each core multiplies.

    Core (s, g, p) multiplies the input channels `ins[g]`, one range after another, for the outputs of segment s and the
    output channels `outs[p]`. A segment is a range of columns `cols` of a lane. `lanes`: ranges of output lines, each
    of which has cores of its own; none if all lines have the same cores. `height` and `pixels`: number of lines of a
    block, and its largest number of pixels. `outputs`: number of output pixels that a block owns, 0 for blocks side by
    side (`raptor.mapping.modes.line_unfolding`). A line is computed in steps of `step` blocks; between two steps, a
    core can exchange messages. `copies`: number of equal matrices, which the products of a line use in turn, because a
    crossbar multiplies one vector at a time. `clipped`: matrices have no columns for outputs beyond the image or the
    columns of the core."""

    cols: JsonArray[Range]
    ins: JsonArray[JsonArray[Range]]
    outs: JsonArray[Range]
    height: int
    pixels: int
    outputs: int
    step: int
    copies: int = 1
    clipped: bool = False
    lanes: Annotated[JsonArray[Range], Field(exclude_if=is_empty)] = ()

    @property
    def segment_count(self) -> int:
        """Number of segments, over all lanes."""
        return max(1, len(self.lanes)) * len(self.cols)

    @property
    def cores(self) -> int:
        """Number of cores of the grid."""
        return self.segment_count * len(self.ins) * len(self.outs)

    def segments(self, lines: int) -> Iterator[tuple[Range, Range]]:
        """Yields the output lines and columns of each segment, lane by lane. `lines`: output lines of the layer."""
        yield from product(self.lanes or ((0, lines),), self.cols)

    def segments_at(self, line: int) -> Iterator[tuple[int, Range]]:
        """Yields the number and the columns of each segment in the lane of an output line."""
        lane = next((n for n, (low, high) in enumerate(self.lanes) if low <= line < high), 0)
        yield from enumerate(self.cols, lane * len(self.cols))


@dataclass(frozen=True, slots=True)
class KernelUnfolding(StrictDataclass):
    """A matrix for each kernel position, input tile and output tile, in order.

    See `raptor.mapping.modes.kernel_unfolding`. `cores`: the core of each matrix. Partial sums go from core to core.
    """

    matrices: JsonArray[Matrix]
    cores: JsonArray[int]
    kind: Literal["kernel"] = "kernel"


@dataclass(frozen=True, slots=True)
class FullyConnected(StrictDataclass):
    """A layer of one output pixel, with matrices of several output tiles (`raptor.mapping.modes.dense_unfolding`).

    `cores`: the core of each matrix. All cores multiply at once; then each output tile is added up on one of them. The
    steps of a recurrent layer may have several copies of the matrices: then the cores of each copy follow one another.
    `trees`: inputs are passed on from core to core, and sums are added, as trees, where cores are many.
    """

    matrices: JsonArray[Matrix]
    cores: JsonArray[int]
    kind: Literal["fully_connected"] = "fully_connected"
    trees: bool = False

    def step_record(self, step: int, steps: int) -> "FullyConnected":
        """Returns the record of step `step` of `steps` time steps; neighbouring steps share a copy of the matrices."""
        count = len(self.matrices)
        first = step * (len(self.cores) // count) // steps * count
        return replace(self, cores=self.cores[first : first + count])

    def reading_core(self, channels: Range) -> int:
        """Returns the core of the first matrix that multiplies some of these input channels."""
        places = zip(self.matrices, self.cores, strict=False)
        return next(core for m, core in places if m.rows[0] < channels[1] and channels[0] < m.rows[1])


@dataclass(frozen=True, slots=True)
class LineUnfolding(StrictDataclass):
    """A layer computed line by line. `cores`: the cores of the grid in order; output channels change fastest.

    A core may have several column segments, if it needs the same matrices for them.
    """

    grid: LineGrid
    cores: JsonArray[int]
    kind: Literal["line"] = "line"

    def core(self, segment: int, group: int, part: int) -> int:
        """Returns the core at a place in the grid: segment, group of input channels, part of the output channels."""
        return self.cores[(segment * len(self.grid.ins) + group) * len(self.grid.outs) + part]

    def receiving_core(self, segment: int, channels: Range) -> int:
        """Returns the core that receives a range of input channels first; the cores of a group take turns."""
        for g, group in enumerate(self.grid.ins):
            if channels in group:
                return self.core(segment, g, group.index(channels) % len(self.grid.outs))
        return self.core(segment, 0, 0)


LayerRecord = KernelUnfolding | FullyConnected | LineUnfolding | OnVectorUnit | JoinedLayer


def record_cores(record: LayerRecord) -> tuple[int, ...]:
    """Returns the cores of the matrices of a layer, some of them more than once; none for a layer without matrices."""
    return () if isinstance(record, OnVectorUnit | JoinedLayer) else record.cores


def count_matrix_crossbars(matrices: Iterable[Matrix], cores: Iterable[int]) -> Counter[int]:
    """Counts the crossbars on each core. `cores`: the core of each matrix, for each copy of all matrices."""
    found = Counter[int]()
    for matrix, core in zip(cycle(matrices), cores, strict=False):
        found[core] += matrix.xbars
    return found


@dataclass(frozen=True, slots=True)
class TileFlow(StrictDataclass):
    """The flow in which a value is a whole channel tile of a tensor, with all its pixels."""

    kind: Literal["tile"] = "tile"


@dataclass(frozen=True, slots=True)
class DotGrid(StrictDataclass):
    """A grid of cores for a product of two computed tensors, such as the scores of an attention.

    Core (r, c) computes the lines `rows[r]` of the result, which are its heads, and of these the pixels `cols[c]`,
    which are its queries. Each core needs the other operand of its lines whole. `cores`: in order; columns change
    fastest; a core may come several times. `relays`: tensors of tokens that pass through these cores to the layers
    behind the attention, so that they do not wait on the cores that made them. `chain`: number of successive cores of
    a line of which the first gets the other operand from where it is made, and passes it on to the next.
    """

    rows: JsonArray[Range]
    cols: JsonArray[Range]
    cores: JsonArray[int]
    relays: JsonArray[str] = ()
    chain: int = 1

    def places(self) -> Iterator[tuple[Range, Range, int]]:
        """Yields lines, pixels and core of each place of the grid."""
        places = ((rows, cols) for rows in self.rows for cols in self.cols)
        yield from ((rows, cols, core) for (rows, cols), core in zip(places, self.cores, strict=True))

    def relay_core(self, pixel: int, part: int) -> int:
        """Returns the relay core of a pixel and channel range; the cores of the pixel take turns."""
        column = next(i for i, (_, stop) in enumerate(self.cols) if pixel < stop)
        return self.cores[part % len(self.rows) * len(self.cols) + column]


@dataclass(frozen=True, slots=True)
class SharedDot(StrictDataclass):
    """Cores that share each line of a product, so that none holds the other operand whole, such as a cache.

    Core (r, p) computes, for the lines `rows[r]` of the result, its channels `parts[p]` for all pixels. The channels of
    a pixel are then collected on one of these cores. `cores`: in order; parts change fastest.
    """

    rows: JsonArray[Range]
    parts: JsonArray[Range]
    cores: JsonArray[int]

    def shares(self) -> Iterator[tuple[Range, tuple[tuple[Range, int], ...]]]:
        """Yields ranges of lines, each with the channels and the core of all parts."""
        count = len(self.parts)
        for r, rows in enumerate(self.rows):
            yield rows, tuple(zip(self.parts, self.cores[r * count : (r + 1) * count], strict=True))

    def collectors(self, pixels: int) -> Iterator[tuple[Range, Range, int]]:
        """Yields lines, pixel and core of each pixel of the result, where its channels come together."""
        for rows, shares in self.shares():
            yield from ((rows, (x, x + 1), shares[x % len(shares)][1]) for x in range(pixels))


ProductCores = DotGrid | SharedDot
PlacedRecord = TypeVar("PlacedRecord", bound=KernelUnfolding | FullyConnected | LineUnfolding | DotGrid | SharedDot)


def renumber_record(record: PlacedRecord, number: Callable[[int], int]) -> PlacedRecord:
    """Returns a record of a layer or a product in which core k is `number(k)`."""
    return replace(record, cores=tuple(map(number, record.cores)))


@dataclass(frozen=True, slots=True)
class StageSplit(StrictDataclass):
    """The stages of samples that overlap (`raptor.mapping.scheduling.sample_stages`).

    `method`: a modulo schedule, in the order that the flow names, or slices of the time of one sample. `interval_ns`:
    of the modulo schedule, or of a slice. `patience_ns` and `sample`: name the order of a pass as those of the flow
    name an order of one sample.
    """

    interval_ns: float
    patience_ns: float
    sample: int
    method: Literal["modulo", "slices"] = "modulo"


@dataclass(frozen=True, slots=True)
class LineFlow(StrictDataclass):
    """The flow in which a value is a piece of an image line, and operations work line by line if they can.

    `xbar`: rows and outputs of a crossbar; a range of channels of a line is never wider than these rows. `patience_ns`:
    how much earlier other work may start and still wait for a message, because a message needs both its cores at once.
    `sample`: the list schedule of several samples, one after another, has an order for each; the order of this one is
    taken, 0 for the first, which finds an idle chip. `loaders`: for a model input, or the result of a move or lookup
    that has cores of its own, ranges of columns and the core that loads or gathers each for all others; an input
    without loaders is loaded by every core that needs it. `products`: cores of
    products of two computed tensors; without a record, such a product runs where its first operand is. If not
    `streamed`, a core passes nothing on before it has done all of a layer; streaming is measured against this. If it
    `makes_constants`, a core with free crossbars makes its constants by a product, where that takes less time than to
    load them. `stages`: how samples overlap; None if a core does all of a sample before the next one. `turned`: lines
    are columns of high images (`raptor.transforms.turn_images`).
    """

    xbar: JsonPair[int, int]
    patience_ns: float
    loaders: JsonObject[JsonArray[JsonPair[Range, int]]] = field(
        default_factory=dict[str, tuple[tuple[Range, int], ...]]
    )
    streamed: bool = True
    products: JsonObject[ProductCores] = field(default_factory=dict[str, ProductCores])
    sample: int = 0
    makes_constants: bool = False
    stages: Annotated[StageSplit | None, Field(exclude_if=is_none)] = None
    turned: Annotated[bool, Field(exclude_if=is_false)] = False
    kind: Literal["line"] = "line"


@dataclass(frozen=True, slots=True)
class PixelFlow(StrictDataclass):
    """The flow in which a value is one pixel of a channel tile."""

    kind: Literal["pixel"] = "pixel"


Flow = TileFlow | LineFlow | PixelFlow


@dataclass(frozen=True, slots=True)
class CorePlacement(StrictDataclass):
    """The core of the chip that each virtual core is.

    `places[k]`: the place of virtual core k, a number among the cores of the chip that the program may use. Empty if
    each core has the place of its own number.
    """

    places: JsonArray[int] = ()

    def __str__(self) -> str:
        return f"placed: {' '.join(map(str, self.places)) or 'as numbered'}"


@dataclass(frozen=True, slots=True)
class Decision(StrictDataclass):
    """The decision about a model and a chip.

    `tile`: number of channels of a tile. `flow`: the kind of values that cores pass on. `layers`: the record of each
    layer, by `filter_key`. `pace`: the times by which the layers were divided, and by which the work is put in order.
    `refinement`: what differs from the plain lowering of these records. `placement`: the cores of the chip. Both are
    None until they are decided, without which the decision cannot be lowered.
    """

    strategy: str
    tile: int
    flow: Annotated[Flow, Field(discriminator="kind")]
    layers: JsonObject[Annotated[LayerRecord, Field(discriminator="kind")]]
    pace: StoredPace = "own"
    refinement: Refinement | None = None
    placement: CorePlacement | None = None

    @property
    def cores(self) -> Iterator[int]:
        """All cores that the decision names, for matrices, grids and loaders; some are repeated."""
        for layer in self.layers.values():
            yield from record_cores(layer)
        if isinstance(self.flow, LineFlow):
            yield from (core for loaders in self.flow.loaders.values() for _, core in loaders)
            yield from (core for grid in self.flow.products.values() for core in grid.cores)

    def find_dense_reader(self, readers: Sequence[Node]) -> FullyConnected | None:
        """Returns the record of the first fully connected layer among some nodes, if it is not recurrent."""
        for node in readers:
            if isinstance(node.operator, Filter) and not node.operator.key:
                layer = self.layers.get(node.output)
                return layer if isinstance(layer, FullyConnected) else None
        return None

    @property
    def rewrites(self) -> RewriteChoice:
        """The rewrites of the graph for which the decision was made."""
        records = {k: x if isinstance(x, OnVectorUnit | JoinedLayer) else None for k, x in self.layers.items()}
        flow = self.flow if isinstance(self.flow, LineFlow) else None
        return RewriteChoice(flow is not None, records, flow is not None and flow.turned)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        """Yields the lines of the text, which holds everything: different decisions have different texts."""
        settings, *loaders = _flow_lines(self.flow)
        pace = "" if self.pace == "own" else f", times of {self.pace}"
        yield f"mapping {self.strategy} {{tile = {self.tile}, {settings}{pace}}}"
        yield from loaders
        for name, layer in self.layers.items():
            first, *more = _layer_lines(layer)
            yield f"  %{name}: {first}"
            yield from (f"    {line}" for line in more)
        if self.refinement is not None:
            yield from (f"  {line}" for line in self.refinement.lines())
        if self.placement is not None:
            yield f"  {self.placement}"


def _flow_lines(flow: Flow) -> Iterator[str]:
    """Yields the settings, then a line for each model input with loaders, and for each product with cores."""
    if not isinstance(flow, LineFlow):
        yield f"by {flow.kind}"
        return
    order = "streamed" if flow.streamed else "layer by layer"
    patience = f"patience = {flow.patience_ns:.17g} ns, order of sample {flow.sample}"
    more = ", constants by products" if flow.makes_constants else ""
    more += ", high images turned" if flow.turned else ""
    yield f"by line, xbar = {flow.xbar[0]}x{flow.xbar[1]}, {patience}, {order}{more}"
    if flow.stages is not None:
        named = f"patience = {flow.stages.patience_ns:.17g} ns, order of sample {flow.stages.sample}"
        yield f"  stages by {flow.stages.method} of {flow.stages.interval_ns:.17g} ns, {named}"
    for name, parts in flow.loaders.items():
        loaders = ", ".join(f"columns {_range(cols)}: core {core}" for cols, core in parts)
        yield f"  %{name}: loaded, {loaders}"
    for name, grid in flow.products.items():
        if isinstance(grid, SharedDot):
            lines, parts = (" ".join(map(_range, ranges)) for ranges in (grid.rows, grid.parts))
            yield f"  %{name}: lines {lines} x channels {parts}, cores {' '.join(map(str, grid.cores))}"
            continue
        lines, pixels = (" ".join(map(_range, ranges)) for ranges in (grid.rows, grid.cols))
        relays = "".join(f", passes on %{tensor}" for tensor in grid.relays)
        chain = f", in chains of {grid.chain}" if grid.chain > 1 else ""
        yield f"  %{name}: lines {lines} x pixels {pixels}, cores {' '.join(map(str, grid.cores))}{chain}{relays}"


def _layer_lines(layer: LayerRecord) -> Iterator[str]:
    """Yields how and where a layer is computed, then a line for each run of matrices on one core, if it has any."""
    match layer:
        case LineUnfolding(grid, cores):
            yield f"by line, {_grid(grid)}, core{'s' if len(cores) > 1 else ''} {' '.join(map(str, cores))}"
        case OnVectorUnit() | JoinedLayer():
            yield describe_record(layer)
        case KernelUnfolding(matrices, cores) | FullyConnected(matrices, cores):
            runs = [
                (core, [m for _, m in run])
                for core, run in groupby(zip(cores, cycle(matrices), strict=False), key=itemgetter(0))
            ]
            how = "fully connected, " if isinstance(layer, FullyConnected) else ""
            how += "by trees, " if isinstance(layer, FullyConnected) and layer.trees else ""
            yield f"{how}{len(matrices)} matrices, {', '.join(f'core {core}: {len(run)}' for core, run in runs)}"
            yield from (f"core {core}: {', '.join(_matrices(run))}" for core, run in runs)


def _matrices(run: Sequence[Matrix]) -> Iterator[str]:
    """Yields the matrices of a run; neighbours that differ only in the kernel position are one text."""
    for (rows, cols, xbars), same in groupby(run, key=lambda m: (m.rows, m.cols, m.xbars)):
        taps = " ".join(str(m.tap) for m in same)
        yield f"taps {taps} of inputs {_range(rows)} x outputs {_range(cols)} on {xbars} xbars"


def _grid(grid: LineGrid) -> str:
    """Describes the part of the layer that each core of a grid multiplies, and the blocks."""
    ins = " ".join("+".join(map(_range, group)) or "none" for group in grid.ins)
    parts = f"columns {' '.join(map(_range, grid.cols))} x inputs {ins} x outputs {' '.join(map(_range, grid.outs))}"
    owned = f" owning {grid.outputs} outputs" if grid.outputs else ""
    more = f", {grid.copies} copies" if grid.copies != 1 else ""
    more += ", clipped" if grid.clipped else ""
    parts += f" x lines {' '.join(map(_range, grid.lanes))}" if grid.lanes else ""
    return f"{parts}, blocks of {grid.height} lines x {grid.pixels} pixels{owned}, {grid.step} a step{more}"


def _range(part: Range) -> str:
    return f"{part[0]}:{part[1]}"
