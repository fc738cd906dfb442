"""Mapping decisions: which core holds each crossbar matrix (docs/design.md, 8).

A strategy looks at Graph and Arch and returns a `Mapping`, a frozen value; plain passes apply it. A mapping file
holds it as it is, hence the arrays and objects of `raptor.common.strict`.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as ReadOnly
from dataclasses import dataclass, field
from itertools import groupby

from raptor.common.errors import CapacityError
from raptor.common.spelling import option
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
from raptor.target.arch import Arch

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
class FilterMapping(Known):
    """The matrices of one layer in order, and the core of each."""

    matrices: Items[Matrix]
    cores: Items[int]


@dataclass(frozen=True, slots=True)
class LineMapping(Known):
    """A layer computed line by line (`raptor.mapping.line_unfolding`) on a grid of cores.

    Core (s, g, p) multiplies the input channels `ins[g]`, one range after another, for the output columns `cols[s]` and
    the output channels `outs[p]`. `height` and `pixels`: lines of a block, and the most pixels of one. `outputs`:
    output pixels that a block owns, 0 for blocks side by side. A line is computed in steps of `step` blocks, between
    which a core can meet another for a message. `copies`: of each matrix, for the products of a line in turn, since
    crossbars multiply one vector at a time.
    """

    cols: Items[Range]
    ins: Items[Items[Range]]
    outs: Items[Range]
    height: int
    pixels: int
    outputs: int
    step: int
    cores: Items[int]
    copies: int = 1

    def core(self, segment: int, group: int, part: int) -> int:
        return self.cores[(segment * len(self.ins) + group) * len(self.outs) + part]


@dataclass(frozen=True, slots=True)
class Mapping(Known):
    """`tile`: channels of a tile. `filters` and `lines`: by `filter_key`, each layer in one of them.

    With `xbar`, the rows and outputs of a crossbar, tensors are cut into lines of tiles of as many channels as it has
    rows, and every operation that can works line by line. `loaders`: by model input, columns and the core that loads
    them for all others; inputs that are not there are loaded by whoever needs them. `patience_ns`: how much earlier
    than it can start a message is preferred to other work, because both its cores have to be free at once. Unless
    `streamed`, cores pass on nothing before they have done all of a layer: what streaming is compared with.

    With `by_pixel`, tensors are cut into the pixels of each tile.
    """

    strategy: str
    tile: int
    filters: Named[FilterMapping]
    lines: Named[LineMapping] = field(default_factory=dict[str, LineMapping])
    xbar: Pair[int, int] | None = None
    loaders: Named[Items[Pair[Range, int]]] = field(default_factory=dict[str, tuple[tuple[Range, int], ...]])
    patience_ns: float = 0.0
    streamed: bool = True
    by_pixel: bool = False

    def __str__(self) -> str:
        return "".join(_lines(self))


def _lines(mapping: Mapping) -> Iterator[str]:
    yield f"mapping {mapping.strategy} {{{', '.join(_settings(mapping))}}}\n"
    for name, parts in mapping.loaders.items():
        yield f"  %{name}: loaded, {', '.join(f'columns {_range(cols)}: core {core}' for cols, core in parts)}\n"
    for name, line in mapping.lines.items():
        yield f"  %{name}: by line, {_grid(line)}, {_cores(line.cores)}\n"
    for name, layer in mapping.filters.items():
        runs = [(core, len(list(run))) for core, run in groupby(layer.cores)]
        where = ", ".join(f"core {core}: {count}" for core, count in runs)
        yield f"  %{name}: {len(layer.matrices)} matrices, {where}\n"


def _settings(mapping: Mapping) -> Iterator[str]:
    """What holds for all layers, where it is not the default."""
    yield f"tile = {mapping.tile}"
    if mapping.xbar:
        yield f"xbar = {mapping.xbar[0]}x{mapping.xbar[1]}"
        yield f"patience = {mapping.patience_ns:g} ns"
    if not mapping.streamed:
        yield "layer by layer"
    if mapping.by_pixel:
        yield "by pixel"


def _grid(line: LineMapping) -> str:
    """What each core of the grid multiplies, in which blocks."""
    ins = " ".join("+".join(map(_range, group)) for group in line.ins)
    parts = f"columns {' '.join(map(_range, line.cols))} x inputs {ins} x outputs {' '.join(map(_range, line.outs))}"
    owned = f" owning {line.outputs} outputs" if line.outputs else ""
    copies = f", {line.copies} copies" if line.copies > 1 else ""
    return f"{parts}, blocks of {line.height} lines x {line.pixels} pixels{owned}, {line.step} a step{copies}"


def _range(part: Range) -> str:
    return f"{part[0]}:{part[1]}"


def _cores(cores: Sequence[int]) -> str:
    return f"core{'s' if len(cores) > 1 else ''} {' '.join(map(str, cores))}"


def tile_channels(arch: Arch) -> int:
    """Channels of a tile: as many whole crossbars side by side as come closest to the crossbar's rows.

    For a square crossbar whose cell holds a weight that is the crossbar's side (thesis, 4.3.1). Narrow crossbars, or
    weights sliced over cells, are grouped; the group must fit a core.
    """
    side_by_side = max(1, min(arch.xbar_rows // arch.outputs_per_xbar, arch.xbars_per_core))
    return side_by_side * arch.outputs_per_xbar


def kernel_unfolding(filter_: Filter, arch: Arch, tile: int) -> Iterator[Matrix]:
    """One matrix for each input tile, output tile and kernel position, in this order (thesis, 4.3.2 and 4.4).

    A tile wider than the crossbar's rows is cut into row blocks; a block never crosses a tile. Of a grouped
    convolution only the blocks with weights of some group are kept.
    """
    taps, _, outs = filter_.weights.shape
    for block in row_blocks(filter_.in_channels, tile, arch.xbar_rows):
        for col in range(0, outs, tile):
            cols = (col, min(col + tile, outs))
            needed = filter_.needed(cols)
            rows = (max(block[0], needed[0]), min(block[1], needed[1]))
            xbars = -(-(cols[1] - cols[0]) // arch.outputs_per_xbar)
            for tap in range(taps if rows[0] < rows[1] else 0):
                yield Matrix(tap, rows, cols, xbars)


def filter_key(node: Node) -> str:
    """What names a layer's crossbars: its own output, or the key that several steps of a recurrent layer share."""
    assert isinstance(node.operator, Filter)
    return node.operator.key or node.output


def map_raptor(graph: Graph, arch: Arch) -> Mapping:
    """The baseline: kernel unfolding, one replica, cores filled in order, layers after one another (thesis, 4.4).

    Raises `CapacityError` when the chip has too few crossbars or cores.
    """
    tile = tile_channels(arch)
    filters, cores = _fill(graph, arch, tile)
    if cores > arch.core_count:
        raise _too_small(graph, filters, arch, cores)
    return Mapping("raptor", tile, filters)


def _fill(graph: Graph, arch: Arch, tile: int) -> tuple[dict[str, FilterMapping], int]:
    """Matrices into cores in order, and how many cores that takes."""
    filters: dict[str, FilterMapping] = {}
    core, free = 0, arch.xbars_per_core
    for node in graph.nodes:
        if not isinstance(node.operator, Filter) or filter_key(node) in filters:
            continue
        matrices = tuple(kernel_unfolding(node.operator, arch, tile))
        cores, (core, free) = fill_cores(matrices, core, free, arch)
        filters[filter_key(node)] = FilterMapping(matrices, cores)
    return filters, core + 1


def fill_cores(matrices: Sequence[Matrix], core: int, free: int, arch: Arch) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The cores of matrices one after another, from `core` with `free` crossbars; the last, and what is left on it."""
    cores: list[int] = []
    for matrix in matrices:
        if matrix.xbars > free:
            core, free = core + 1, arch.xbars_per_core
        free -= matrix.xbars
        cores.append(core)
    return tuple(cores), (core, free)


def _too_small(graph: Graph, filters: ReadOnly[str, FilterMapping], arch: Arch, cores: int) -> CapacityError:
    weighted = (n for n in graph.nodes if isinstance(n.operator, Filter))
    first_out = next(n for n in weighted if filters[filter_key(n)].cores[-1] >= arch.core_count)
    needed = sum(m.xbars for f in filters.values() for m in f.matrices)
    return CapacityError(
        "cores",
        cores,
        arch.core_count,
        where=f"{needed} crossbars of {arch.xbar_rows}x{arch.xbar_cols}, {arch.xbars_per_core} a core, "
        f"full at layer {_label(first_out)}",
        levers=(
            option("cores", cores),
            option("xbars_per_core", _enough_xbars(graph, arch)),
            f"larger crossbars ({option('xbar')})",
        ),
    )


def _enough_xbars(graph: Graph, arch: Arch) -> int:
    """A number of crossbars a core with which the cores there are suffice, found by filling them."""
    count = arch.xbars_per_core
    while True:
        count += (count + 3) // 4
        larger = arch.with_xbars_per_core(count)
        if _fill(graph, larger, tile_channels(larger))[1] <= arch.core_count:
            return count


def _label(node: Node) -> str:
    return f"{node.name} ({node.op_type})"


def row_blocks(channels: int, tile: int, xbar_rows: int) -> Iterator[Range]:
    """Channels in ranges of at most a crossbar's rows, none of which crosses a tile."""
    for start in range(0, channels, tile):
        stop = min(start + tile, channels)
        yield from ((row, min(row + xbar_rows, stop)) for row in range(start, stop, xbar_rows))
