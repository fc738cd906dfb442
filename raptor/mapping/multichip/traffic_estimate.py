"""Estimates the flits between cores for a sample, before the graph is cut into tiles and cores have places.

Every element of a tensor is followed from the core that makes it to the cores that read it, as the lowering of lines,
tokens and attentions would send it. Vectors that are combined with every pixel are small and left out.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import cycle, pairwise, product
from math import prod
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Concat, Dot, Filter, Graph, Move, Node, Pool, Stencil
from raptor.graph.layers import filter_key
from raptor.graph.window import Window, WindowTable
from raptor.mapping.decision import DotGrid, FullyConnected, KernelUnfolding, LayerRecord, LineFlow, LineUnfolding
from raptor.mapping.modes.critical_operand import CriticalPosition, find_critical_positions
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, line_channel_ranges
from raptor.mapping.modes.line_unfolding import input_columns
from raptor.mapping.modes.window_axis import input_lines_read
from raptor.target.arch import Target
from raptor.target.tensor_layout import Image

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ELSEWHERE, IN_MEMORY = -1, -2
"""Values in place of the core that holds an element: some core of another stage, or global memory."""


def tensor_flits(graph: Graph, name: str, arch: Target) -> int:
    """Returns the flits of a tensor."""
    tensor = graph.tensors[name]
    return -(-tensor.image.elements * arch.bytes_of(tensor.element) // arch.network.flit_bytes)


def estimate_traffic(
    graph: Graph, layers: Mapping[str, LayerRecord], flow: LineFlow, arch: Target, fed: Collection[str] | None = None
) -> Floats:
    """Estimates the traffic of a sample in flits: [cores + 1, cores + 1], from core (row) to core (column).

    `graph` has all rewrites. `fed`: inputs of a stage that earlier stages make; None for a whole model. The last row
    is the traffic from earlier stages, and the last column the traffic to later stages: each element of an output
    once, because the number of its readers is not known.
    """
    found = _Exchange(graph, layers, flow, arch)
    for name in graph.inputs:
        found.begin(name, fed=name in (fed or ()))
    for node in graph.nodes:
        found.follow(node)
    for name in () if fed is None else graph.outputs:
        found.bytes[:, ELSEWHERE] += found.held_bytes(name)
    np.fill_diagonal(found.bytes, 0.0)
    return found.bytes / arch.network.flit_bytes


def link_flits(exchanged: Floats, arch: Target) -> list[float]:
    """Returns the flits over each link between neighbouring chips. `exchanged`: see `estimate_traffic`."""
    both = (exchanged + exchanged.T)[:-1, :-1]
    begins = range(arch.cores_per_chip, arch.core_count, arch.cores_per_chip)
    return [float(both[:begin, begin:].sum()) for begin in begins]


def offchip_flits(exchanged: Floats, arch: Target) -> dict[int, float]:
    """Returns, for each core that exchanges flits with other chips, their number."""
    chip = np.append(np.arange(len(exchanged) - 1) // arch.cores_per_chip, -1)
    both = np.where(chip[:, None] != chip, exchanged + exchanged.T, 0.0).sum(axis=0)[:-1]
    return {core: float(both[core]) for core in np.flatnonzero(both).tolist()}


@dataclass(slots=True)
class _Exchange:
    """State of the estimate: the core that holds each element, and the bytes sent so far.

    held: core of each element by tensor, [rows, width, channels]; an axis along which the core is constant has size 1.
    bytes: [cores + 1, cores + 1], from core to core; the last one is `ELSEWHERE`. born: position of each tensor in the
    critical path (`find_critical_positions`). seen: (core, tensor, region) that was read already.
    """

    graph: Graph
    layers: Mapping[str, LayerRecord]
    flow: LineFlow
    arch: Target
    parts: dict[str, ChannelRanges] = field(init=False)
    held: dict[str, Ints] = field(default_factory=dict[str, Ints])
    bytes: Floats = field(init=False)
    born: dict[str, CriticalPosition] = field(init=False)
    seen: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])

    def __post_init__(self) -> None:
        self.parts = line_channel_ranges(self.graph, self.arch)
        self.born = find_critical_positions(self.graph)
        self.bytes = np.zeros((self.arch.core_count + 1, self.arch.core_count + 1))

    def begin(self, name: str, *, fed: bool) -> None:
        """Records the holders of an input: its loaders, else global memory, or with `fed` a core of another stage."""
        loaders = self.flow.loaders.get(name, ())
        held = np.full((1, self.image(name).width if loaders else 1, 1), ELSEWHERE if fed else IN_MEMORY)
        for cols, core in loaders:
            held[:, slice(*cols)] = core
        self.held[name] = held

    def follow(self, node: Node) -> None:
        """Counts the traffic of a node's operands, and records the holders of its result."""
        operator = node.operator
        layer = self.layers.get(filter_key(node)) if isinstance(operator, Filter) else None
        if isinstance(operator, Filter) and isinstance(layer, LineUnfolding):
            self.held[node.output] = self.by_line(node, operator.window, layer)
        elif isinstance(layer, KernelUnfolding | FullyConnected):
            self.held[node.output] = self.by_matrix(node, layer)
        elif isinstance(operator, Dot):
            self.held[node.output] = self.product(node, self.product_places(node))
        elif isinstance(operator, Move):
            self.held[node.output] = self.moved(node, operator)
        elif isinstance(operator, Pool | Stencil) and _has_lines(operator.window):
            self.held[node.output] = self.windowed(node, operator.window)
        elif isinstance(operator, Concat):
            self.held[node.output] = np.concatenate([self.whole(name) for name in node.inputs], axis=2)
        else:
            self.held[node.output] = self.combined(node)

    def by_line(self, node: Node, window: Window, layer: LineUnfolding) -> Ints:
        """Counts the traffic of a layer with line unfolding: inputs and partial sums. Returns the holders."""
        (name,), image, grid = node.inputs, self.image(node.output), layer.grid
        held = np.full((1, image.width, image.channels), IN_MEMORY)
        # With a stride, a layer may skip lines.
        rows = 0, len({line for lines in input_lines_read(window) for line, _ in lines})
        for s, cols in enumerate(grid.cols):
            for g, group in enumerate(grid.ins):
                for n, part in product(range(len(grid.outs)), group):
                    self.add_read(layer.core(s, g, n), name, rows, input_columns(window, cols), channels=part)
            for n, outs in enumerate(grid.outs):
                adding = [layer.core(s, g, n) for g in range(len(grid.ins))]
                for p, (low, high) in enumerate(self.parts[node.output]):
                    if outs[0] <= low < outs[1]:
                        held[:, slice(*cols), low:high] = adding[p % len(adding)]
                        size = image.rows * (cols[1] - cols[0]) * (high - low) * self.element_bytes(node.output)
                        self.bytes[adding, adding[p % len(adding)]] += size
        return held

    def by_matrix(self, node: Node, layer: KernelUnfolding | FullyConnected) -> Ints:
        """Counts the traffic of a layer of whole tiles. Returns the holders: the last core of each output range."""
        read, held = dict[tuple[int, Range], None](), np.full((1, 1, self.image(node.output).channels), IN_MEMORY)
        for matrix, core in zip(cycle(layer.matrices), layer.cores, strict=False):
            read[core, matrix.rows] = None
            held[:, :, slice(*matrix.cols)] = core
        for core, channels in read:
            self.add_read(core, node.inputs[0], channels=channels)
        return held

    def product(self, node: Node, places: Iterable[tuple[Range, Range, int]]) -> Ints:
        """Counts the traffic of a product of computed tensors. Returns the holders of the result."""
        (left, right), image = node.inputs, self.image(node.output)
        held = np.full((image.rows, image.width, 1), IN_MEMORY)
        for rows, cols, core in places:
            self.add_read(core, left, rows, cols)
            self.add_read(core, right, rows)
            held[slice(*rows), slice(*cols)] = core
        return held

    def product_places(self, node: Node) -> Iterator[tuple[Range, Range, int]]:
        """Yields (lines, pixels, core) of each part of a product: as decided, else where the first operand is."""
        if node.output in self.flow.products:
            yield from self.flow.products[node.output].places()
            return
        for y, line in enumerate(self.whole(node.inputs[0])[:, :, 0]):
            yield from (((y, y + 1), cols, int(line[cols[0]])) for cols in _segments(line))

    def moved(self, node: Node, operator: Move) -> Ints:
        """Returns the holders of a rearranged tensor: its elements stay where they are until they are read."""
        given = [self.whole(name).reshape(-1) for name in node.inputs]
        zero = np.array([IN_MEMORY])  # number -1
        return np.concatenate([*given, zero])[operator.sources].reshape(_shape(self.image(node.output)))

    def combined(self, node: Node) -> Ints:
        """Counts the traffic of an operator that runs where its leading operand is. Returns the holders."""
        image = self.image(node.output)
        lead = self.lead(node)
        if lead is None:
            return np.full((1, 1, 1), IN_MEMORY)
        held = _resampled(self.held[lead], self.image(lead), image)
        relay = next((grid for grid in self.flow.products.values() if set(node.inputs) & set(grid.relays)), None)
        for name in node.inputs:
            if name != lead and _shape(self.image(name)) == _shape(image):
                source = self.held[name]
                if relay is not None and name in relay.relays:
                    source = self.sent(name, source, self.relaying(relay, name))
                self.sent(name, source, held)
        return held

    def windowed(self, node: Node, window: Window) -> Ints:
        """Counts the traffic of a pool or depthwise layer: the halos of its columns. Returns the holders."""
        (name,) = node.inputs
        held = _resampled(self.held[name], self.image(name), self.image(node.output))
        for channels in self.parts.get(name, ()):
            line = np.broadcast_to(held, _shape(self.image(node.output)))[0, :, channels[0]]
            for cols in _segments(line):
                self.add_read(int(line[cols[0]]), name, cols=input_columns(window, cols), channels=channels)
        return held

    def relaying(self, grid: DotGrid, name: str) -> Ints:
        """Returns the relay core of each element of a tensor."""
        image = self.image(name)
        found = np.full((1, image.width, image.channels), IN_MEMORY)
        for p, channels in enumerate(self.parts[name]):
            found[:, :, slice(*channels)] = np.array([grid.relay_core(x, p) for x in range(image.width)])[:, None]
        return found

    def lead(self, node: Node) -> str | None:
        """Returns the operand on whose cores a node runs: among operands on cores, the last to be made; else None."""
        there = [name for name in node.inputs if (self.held[name] != IN_MEMORY).any()]
        fitting = [name for name in there if self.image(name).pixels == self.image(node.output).pixels] or there
        return max(fitting, key=lambda name: self.born[name], default=None)

    # Messages

    def add_read(
        self, core: int, name: str, rows: Range | None = None, cols: Range | None = None, channels: Range | None = None
    ) -> None:
        """Counts the traffic of a region that a core reads; a repeated region is sent once."""
        region = core, name, rows, cols, channels
        if core != IN_MEMORY and region not in self.seen:
            self.seen.add(region)
            self.bytes[:, core] += self.held_bytes(name, rows, cols, channels)

    def held_bytes(
        self, name: str, rows: Range | None = None, cols: Range | None = None, channels: Range | None = None
    ) -> Floats:
        """Returns [cores + 1]: the bytes of a region of a tensor that each core holds, `ELSEWHERE` last."""
        held, sizes = self.held[name], _shape(self.image(name))
        chosen = [slice(*(part or (0, size))) for part, size in zip((rows, cols, channels), sizes, strict=True)]
        alike = [size == 1 for size in held.shape]
        some = held[tuple(slice(None) if one else part for one, part in zip(alike, chosen, strict=True))]
        times = prod(max(0, part.stop - part.start) for one, part in zip(alike, chosen, strict=True) if one)
        found = np.bincount(some.reshape(-1) - IN_MEMORY, minlength=len(self.bytes) + 1)
        return np.append(found[2:], found[1]).astype(np.float64) * (times * self.element_bytes(name))

    def sent(self, name: str, source: Ints, to: Ints) -> Ints:
        """Counts the traffic of a tensor whose elements go from cores `source` to cores `to`. Returns `to`."""
        a, b = np.broadcast_arrays(source, to)
        times = prod(_shape(self.image(name))) / a.size
        known = (a != IN_MEMORY) & (b != IN_MEMORY)
        np.add.at(self.bytes, (a[known], b[known]), times * self.element_bytes(name))
        return to

    def whole(self, name: str) -> Ints:
        """Returns the holder of each element, broadcast to the full image."""
        return np.broadcast_to(self.held[name], _shape(self.image(name)))

    def image(self, name: str) -> Image:
        return self.graph.tensors[name].image

    def element_bytes(self, name: str) -> int:
        return self.arch.bytes_of(self.graph.tensors[name].element)


def _has_lines(window: Window | WindowTable) -> TypeGuard[Window]:
    """True if a window moves over the columns of an image."""
    return isinstance(window, Window) and len(window.kernel) >= 2 and not window.transposed


def _segments(line: Ints) -> Iterator[Range]:
    """Yields the ranges of neighbouring pixels with the same core."""
    return pairwise([0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), len(line)])


def _shape(image: Image) -> tuple[int, int, int]:
    return image.rows, image.width, image.channels


def _resampled(held: Ints, before: Image, after: Image) -> Ints:
    """Resamples the holders of an operand to the size of a result that is computed in place."""
    for axis, (size, wanted) in enumerate(zip(_shape(before), _shape(after), strict=True)):
        if held.shape[axis] > 1 and size != wanted:
            held = held.take(np.arange(wanted) * size // wanted, axis=axis)
    return held
