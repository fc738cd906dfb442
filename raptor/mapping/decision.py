"""The decision: how each layer is computed, and on which cores (docs/design.md, "Mapping").

A strategy looks at Graph and Arch and returns a `Decision`, a frozen value; plain passes apply it. Each layer has one
record, and the record's class says how the layer is computed. A mapping file holds the value as it is, hence the arrays
and objects of `raptor.common.strict`, and the field `kind`, by which a reader tells the classes apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Literal

from pydantic import Field

from raptor.common.strict import (
    Items,
    Known,
    Named,
    Pair,
)
from raptor.graph.ir import (
    Filter,
    Floats,
    Graph,
    Node,
)

Range = Pair[int, int]


@dataclass(frozen=True, slots=True)
class Matrix(Known):
    """Part of a layer's weights that one `mvmul` multiplies with: weights[tap, rows, cols].

    `rows` and `cols` are ranges of the layer's input and output channels. It occupies `xbars` crossbars side by side.
    """

    tap: int
    rows: Range
    cols: Range
    xbars: int

    def values(self, filter_: Filter) -> Floats:
        """[rows, cols]; zero where channels are of different groups."""
        return filter_.matrix(self.tap, self.rows, self.cols)


@dataclass(frozen=True, slots=True)
class LineGrid(Known):
    """A grid of cores for a layer that is computed line by line, and the blocks that each core multiplies.

    Core (s, g, p) multiplies the input channels `ins[g]`, one range after another, for the output columns `cols[s]` and
    the output channels `outs[p]`. `height` and `pixels`: lines of a block, and the most pixels of one. `outputs`:
    output pixels that a block owns, 0 for blocks side by side (`raptor.mapping.line_unfolding`). A line is computed in
    steps of `step` blocks, between which a core can meet another for a message. `copies`: of each matrix, for the
    products of a line in turn, since crossbars multiply one vector at a time.
    """

    cols: Items[Range]
    ins: Items[Items[Range]]
    outs: Items[Range]
    height: int
    pixels: int
    outputs: int
    step: int
    copies: int = 1

    @property
    def cores(self) -> int:
        """How many cores the grid has."""
        return len(self.cols) * len(self.ins) * len(self.outs)


@dataclass(frozen=True, slots=True)
class KernelUnfolding(Known):
    """A matrix for each kernel position, input tile and output tile (`raptor.mapping.kernel_unfolding`), in order.

    `cores`: the core of each matrix. Partial sums go from core to core.
    """

    matrices: Items[Matrix]
    cores: Items[int]
    kind: Literal["kernel"] = "kernel"


@dataclass(frozen=True, slots=True)
class FullyConnected(Known):
    """A layer of one output pixel, with matrices of several output tiles (`raptor.mapping.fully_connected`).

    `cores`: the core of each matrix. All cores multiply at once; then each output tile is added up on one of them.
    """

    matrices: Items[Matrix]
    cores: Items[int]
    kind: Literal["fully_connected"] = "fully_connected"


@dataclass(frozen=True, slots=True)
class LineUnfolding(Known):
    """A layer computed line by line. `cores`: of the grid, the output channels changing fastest."""

    grid: LineGrid
    cores: Items[int]
    kind: Literal["line"] = "line"

    def core(self, segment: int, group: int, part: int) -> int:
        """The core of one place in the grid: column segment, group of input channels, part of the outputs."""
        return self.cores[(segment * len(self.grid.ins) + group) * len(self.grid.outs) + part]


@dataclass(frozen=True, slots=True)
class OnVectorUnit(Known):
    """A depthwise layer without crossbars: vector products, where the layer's input is."""

    kind: Literal["vector"] = "vector"


Layer = KernelUnfolding | FullyConnected | LineUnfolding | OnVectorUnit


@dataclass(frozen=True, slots=True)
class ByTile(Known):
    """A value is a whole channel tile of a tensor, with all its pixels."""

    kind: Literal["tile"] = "tile"


@dataclass(frozen=True, slots=True)
class ByLine(Known):
    """A value is a piece of an image line, and every operation that can works line by line.

    `xbar`: rows and outputs of a crossbar; a line is cut into ranges of as many channels as it has rows. `patience_ns`:
    how much earlier than it can start a message is preferred to other work, because both its cores have to be free at
    once. `loaders`: by model input, columns and the core that loads them for all others; inputs that are not there are
    loaded by whoever needs them. Unless `streamed`, cores pass on nothing before they have done all of a layer: what
    streaming is compared with.
    """

    xbar: Pair[int, int]
    patience_ns: float
    loaders: Named[Items[Pair[Range, int]]] = field(default_factory=dict[str, tuple[tuple[Range, int], ...]])
    streamed: bool = True
    kind: Literal["line"] = "line"


@dataclass(frozen=True, slots=True)
class ByPixel(Known):
    """A value is one pixel of a channel tile."""

    kind: Literal["pixel"] = "pixel"


Flow = ByTile | ByLine | ByPixel


@dataclass(frozen=True, slots=True)
class Decision(Known):
    """All that a strategy has decided about a model and a chip.

    `tile`: channels of a tile. `flow`: what a value is, and so what cores pass on. `layers`: by `filter_key`.
    """

    strategy: str
    tile: int
    flow: Annotated[Flow, Field(discriminator="kind")]
    layers: Named[Annotated[Layer, Field(discriminator="kind")]]

    @property
    def cores(self) -> Iterator[int]:
        """Every core that is named: of matrices, of grids, of loaders."""
        for layer in self.layers.values():
            if not isinstance(layer, OnVectorUnit):
                yield from layer.cores
        if isinstance(self.flow, ByLine):
            yield from (core for loaders in self.flow.loaders.values() for _, core in loaders)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        """Everything that was decided: no two decisions have the same text."""
        settings, *loaders = _flow_lines(self.flow)
        yield f"mapping {self.strategy} {{tile = {self.tile}, {settings}}}"
        yield from loaders
        for name, layer in self.layers.items():
            first, *more = _layer_lines(layer)
            yield f"  %{name}: {first}"
            yield from (f"    {line}" for line in more)


def _flow_lines(flow: Flow) -> Iterator[str]:
    """The settings, then a line for each model input that has loaders."""
    if not isinstance(flow, ByLine):
        yield f"by {flow.kind}"
        return
    order = "streamed" if flow.streamed else "layer by layer"
    yield f"by line, xbar = {flow.xbar[0]}x{flow.xbar[1]}, patience = {flow.patience_ns:.17g} ns, {order}"
    for name, parts in flow.loaders.items():
        loaders = ", ".join(f"columns {_range(cols)}: core {core}" for cols, core in parts)
        yield f"  %{name}: loaded, {loaders}"


def _layer_lines(layer: Layer) -> Iterator[str]:
    """How and where; of matrices, then a line for each run of them on one core."""
    match layer:
        case LineUnfolding(grid, cores):
            yield f"by line, {_grid(grid)}, core{'s' if len(cores) > 1 else ''} {' '.join(map(str, cores))}"
        case OnVectorUnit():
            yield "on the vector unit"
        case KernelUnfolding(matrices, cores) | FullyConnected(matrices, cores):
            runs = [
                (core, [m for _, m in run])
                for core, run in groupby(zip(cores, matrices, strict=True), key=itemgetter(0))
            ]
            how = "fully connected, " if isinstance(layer, FullyConnected) else ""
            yield f"{how}{len(matrices)} matrices, {', '.join(f'core {core}: {len(run)}' for core, run in runs)}"
            yield from (f"core {core}: {', '.join(_matrices(run))}" for core, run in runs)


def _matrices(run: Sequence[Matrix]) -> Iterator[str]:
    """Matrices one after another that differ in the kernel position only are named together."""
    for (rows, cols, xbars), same in groupby(run, key=lambda m: (m.rows, m.cols, m.xbars)):
        taps = " ".join(str(m.tap) for m in same)
        yield f"taps {taps} of inputs {_range(rows)} x outputs {_range(cols)} on {xbars} xbars"


def _grid(grid: LineGrid) -> str:
    """Multiplications of each core of the grid, and the blocks they are done in."""
    ins = " ".join("+".join(map(_range, group)) or "none" for group in grid.ins)
    parts = f"columns {' '.join(map(_range, grid.cols))} x inputs {ins} x outputs {' '.join(map(_range, grid.outs))}"
    owned = f" owning {grid.outputs} outputs" if grid.outputs else ""
    copies = f", {grid.copies} copies" if grid.copies != 1 else ""
    return f"{parts}, blocks of {grid.height} lines x {grid.pixels} pixels{owned}, {grid.step} a step{copies}"


def _range(part: Range) -> str:
    return f"{part[0]}:{part[1]}"


def filter_key(node: Node) -> str:
    """Names a layer's crossbars: its own output, or the key that several steps of a recurrent layer share."""
    assert isinstance(node.operator, Filter)
    return node.operator.key or node.output


def layer_nodes(graph: Graph) -> dict[str, Node]:
    """The node of each layer by its key, in the order of the graph: of several that share crossbars the first."""
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if isinstance(node.operator, Filter):
            found.setdefault(filter_key(node), node)
    return found


def filters_of(graph: Graph) -> dict[str, Filter]:
    """The filter of each layer by its key, in the order of the graph."""
    return {key: node.operator for key, node in layer_nodes(graph).items() if isinstance(node.operator, Filter)}
