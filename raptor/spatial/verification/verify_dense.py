"""Verifier of fully connected layers: every output adds each product that it needs exactly once, with the right inputs.

Products are traced from `ApplyLine` through `Copy` and `Overlap` to the tiles of the result.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.ir import Filter
from raptor.graph.window import cached_input_pixels
from raptor.mapping.decision import Matrix
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import Copy, SpatialGraph, TensorPart, TensorParts
from raptor.spatial.operations import ApplyLine, Move, Overlap
from raptor.spatial.tiles import Tile
from raptor.spatial.verification.pixel_origins import NOWHERE
from raptor.spatial.verification.relu_sums import sums_before_relu
from raptor.spatial.verification.zero_gaps import misses_only_zeros

Ints = npt.NDArray[np.int64]


def verify_dense(graph: SpatialGraph) -> None:
    """Checks all fully connected layers. Raises `VerifyError` with the ONNX node and the wrong additions."""
    layers: defaultdict[str, list[Compute]] = defaultdict(list)
    copies = _Copies()
    flow = graph.dataflow
    for i in flow.computes_with_class(ApplyLine, Overlap):
        layers[graph.computes[i].layer].append(graph.computes[i])
    for i in flow.computes_with_class(Copy, Move):
        for op in graph.computes[i].body:
            copies.add(op)
    for name, use in graph.filter_of.items():
        if any(isinstance(m, Matrix) for compute in layers[use.key] for m in compute.matrices):
            operator, tensor = graph.filters[use.key], graph.tensors[name]
            sums = sums_before_relu(graph, use.key, tensor) if operator.relu else tensor
            inputs = _Inputs(graph.tensors[use.source], copies)
            _DenseLayerCheck(operator, sums, inputs, copies).check(layers[use.key])


@dataclass(slots=True)
class _Copies:
    """The operations that fill copied tiles and tiles cut out of others, by name of the tile."""

    copied: defaultdict[str, list[Copy[Tile]]] = field(default_factory=lambda: defaultdict(list))
    cut: dict[str, Move[Tile]] = field(default_factory=dict[str, Move[Tile]])

    def add(self, op: BodyOp) -> None:
        if isinstance(op, Copy):
            self.copied[op.result.name].append(op)
        elif isinstance(op, Move):
            self.cut[op.result.name] = op


@dataclass(slots=True)
class _Inputs:
    """Maps elements of tiles to elements of a tensor; `NOWHERE` for elements that come from elsewhere.

    same: for each element the first one in the same storage, because equal parts of a tensor may share a tile. known:
    elements in each tile so far, by name.
    """

    tensor: TensorParts
    copies: _Copies
    same: Ints = field(init=False)
    known: dict[str, Ints] = field(default_factory=dict[str, Ints])

    def __post_init__(self) -> None:
        image = self.tensor.image
        self.same = np.arange(image.elements)
        places = self.same.reshape(image.rows, image.width, image.channels).copy()
        for part in (*self.tensor.parts, *self.tensor.whole):
            held = places[part.region.index()].reshape(-1)
            self.same[held] = self.known.setdefault(part.tile.name, self.same[held])

    def elements_of(self, tile: Tile) -> Ints:
        """Returns the tensor's element at each element of a tile."""
        if tile.name not in self.known:
            self.known[tile.name] = self.copied(tile)
        return self.known[tile.name]

    def copied(self, tile: Tile) -> Ints:
        """Traces the operations that fill a tile; `NOWHERE` for elements that not exactly one of them fills."""
        places, filled = np.full(tile.elements, NOWHERE), np.zeros(tile.elements, np.int64)
        for op in self.copies.copied.get(tile.name, ()):
            places[op.at : op.at + op.elements] = self.elements_of(op.source)[op.first : op.first + op.elements]
            filled[op.at : op.at + op.elements] += 1
        if tile.name in self.copies.cut:
            op = self.copies.cut[tile.name]
            runs: list[list[int]] = op.runs.tolist()
            for target, source, first, stride, count in runs:
                index = first + np.arange(count) * stride
                places[target : target + count] = (
                    self.elements_of(op.sources[source])[index] if source >= 0 else NOWHERE
                )
                filled[target : target + count] += 1
        return np.where(filled == 1, places, NOWHERE)


@dataclass(slots=True)
class _DenseLayerCheck:
    """A layer to check. The time steps of a recurrent layer are checked one by one.

    makers: compute and operation that make each tile of products and sums. matrices: the matrix of each product. terms:
    for each traced tile, the products that its elements add: [terms, 3], rows (element, number of the product, output
    channel), sorted by element.
    """

    operator: Filter
    tensor: TensorParts
    inputs: _Inputs
    copies: _Copies
    makers: dict[str, tuple[Compute, BodyOp]] = field(default_factory=dict[str, tuple[Compute, BodyOp]])
    matrices: list[Matrix] = field(default_factory=list[Matrix])
    terms: dict[str, Ints] = field(default_factory=dict[str, Ints])

    def error(self, what: str) -> VerifyError:
        return VerifyError(f"spatial: {self.tensor.node}: {what}")

    def check(self, computes: list[Compute]) -> None:
        """Traces the products of the layer from each part of the output, and checks the part."""
        self.makers = {op.result.name: (compute, op) for compute in computes for op in compute.body}
        for part in self.tensor.parts:
            self.check_part(part)

    def products(self, op: ApplyLine[Tile], compute: Compute) -> Ints:
        """Returns the terms of the products of `op`. Raises `VerifyError` if a matrix multiplies wrong inputs."""
        pixels = cached_input_pixels(self.operator.window)[0]
        terms: list[Ints] = []
        rows: list[list[int]] = op.products.tolist()
        for weight, line, source, target in rows:
            matrix = compute.matrices[weight]
            assert isinstance(matrix, Matrix), "layers of one pixel have no other"
            wanted = pixels[matrix.tap] * self.operator.in_channels + np.arange(*matrix.rows)
            given = self.inputs.elements_of(op.lines[line])[source : source + len(wanted)]
            if pixels[matrix.tap] < 0 or not np.array_equal(given, self.inputs.same[wanted]):
                raise self.error(f"{op.result} multiplies {op.lines[line]} from element {source} on with {matrix}")
            channels = np.arange(*matrix.cols)
            number = np.full(len(channels), len(self.matrices))
            terms.append(np.stack([target + channels - matrix.cols[0], number, channels], axis=1))
            self.matrices.append(matrix)
        return _concatenate_terms(terms)

    def terms_of(self, tile: Tile) -> Ints:
        """Returns the terms of a tile that is computed or copied."""
        if tile.name not in self.terms:
            self.terms[tile.name] = self.followed(tile)
        return self.terms[tile.name]

    def followed(self, tile: Tile) -> Ints:
        """Returns the terms of a tile from the operation that makes it."""
        compute, op = self.makers.get(tile.name, (None, None))
        if compute is not None and isinstance(op, ApplyLine):
            return self.products(op, compute)
        if isinstance(op, Overlap):
            runs: list[list[int]] = op.runs.tolist()
            return _concatenate_terms([_moved(self.terms_of(op.sources[s]), at, first, n) for at, s, first, n in runs])
        copied = self.copies.copied.get(tile.name, ())
        return _concatenate_terms([_moved(self.terms_of(c.source), c.at, c.first, c.elements) for c in copied])

    def check_part(self, part: TensorPart) -> None:
        """Checks that each channel of a tile adds each input of each kernel position once."""
        low, high = part.region.channels
        element, number, channel = self.terms_of(part.tile).T
        if (channel != low + element).any():
            raise self.error(f"{part.tile} adds channel {channel[channel != low + element][0]} where another belongs")
        if len(np.unique(number * (high - low) + element)) < len(element):
            raise self.error(f"{part.tile} adds a product twice")
        spans: defaultdict[tuple[int, int], set[tuple[int, tuple[int, int]]]] = defaultdict(set)
        counts: list[int] = np.bincount(number, minlength=len(self.matrices)).tolist()
        for matrix, count in ((m, n) for m, n in zip(self.matrices, counts, strict=True) if n):
            cols = max(low, matrix.cols[0]), min(high, matrix.cols[1])
            if count != cols[1] - cols[0] or (matrix.tap, matrix.rows) in spans[cols]:
                raise self.error(f"{part.tile} adds {count} of channels {cols} of {matrix}, or another like it")
            spans[cols].add((matrix.tap, matrix.rows))
        self.check_cover(part, spans)

    def check_cover(self, part: TensorPart, spans: dict[tuple[int, int], set[tuple[int, tuple[int, int]]]]) -> None:
        """Checks that no product is missing, but for weights of 0.

        `spans`: by output channels, (tap, input rows) of each product.
        """
        used = np.flatnonzero(cached_input_pixels(self.operator.window)[0] >= 0).tolist()
        if used and not _follow(sorted(spans), *part.region.channels):
            raise self.error(f"{part.tile} has channels without products: {sorted(spans)}")
        for cols, products in spans.items():
            for tap in used:
                rows = sorted(span for t, span in products if t == tap)
                if not misses_only_zeros(self.operator, tap, rows, (0, self.operator.in_channels), cols):
                    raise self.error(f"{part.tile}: channels {cols} miss products of tap {tap}: {rows}")


def _follow(ranges: list[tuple[int, int]], low: int, high: int) -> bool:
    """True if the ranges are adjacent in this order and cover `low` to `high`."""
    ends = [low, *(stop for _, stop in ranges)]
    return [start for start, _ in ranges] == ends[:-1] and ends[-1] == high


def _moved(terms: Ints, at: int, first: int, elements: int) -> Ints:
    """Returns the terms of elements `first` to `first + elements`, shifted to element `at`."""
    low, high = np.searchsorted(terms[:, 0], (first, first + elements))
    return terms[low:high] + np.array([at - first, 0, 0])


def _concatenate_terms(terms: list[Ints]) -> Ints:
    """Concatenates terms, sorted by element."""
    table = np.concatenate([np.zeros((0, 3), np.int64), *terms])
    return table[np.argsort(table[:, 0], kind="stable")]
