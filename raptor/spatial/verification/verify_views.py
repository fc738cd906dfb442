"""Verifier of views and of products of two computed tensors: operands have the elements that the Graph names."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.spatial.ir import Copy, ProductUse, SpatialGraph, TensorPart
from raptor.spatial.operations import Dot
from raptor.spatial.tiles import Tile
from raptor.spatial.verification.element_origins import ElementOrigins, region_entries
from raptor.target.tensor_layout import Image, TensorRegion

Ints = npt.NDArray[np.int64]


def verify_views(graph: SpatialGraph, origins: ElementOrigins) -> None:
    """Raises `VerifyError` with the ONNX node unless each tile of a view holds the elements of its region."""
    for name, view in graph.views.items():
        for part in view.tiles:
            if len(origins.find_wrong(part.tile, view.inputs, region_entries(view.sources, view.image, part.region))):
                raise VerifyError(f"spatial: {view.node}: {part.tile} does not hold {part.region} of {name}")


def verify_products(graph: SpatialGraph, origins: ElementOrigins) -> None:
    """Raises `VerifyError` unless each part of a product multiplies its pixels of `left` with all of `right`."""
    if not graph.product_of:
        return
    made = {op.result.name: op for c in graph.computes for op in c.body if isinstance(op, Dot)}
    for name, use in graph.product_of.items():
        left, right = (_ProductOperand.from_graph(graph, operand) for operand in (use.left, use.right))
        for part in graph.tensors[name].parts:
            where = f"spatial: {graph.tensors[name].node}: {part.tile}"
            op = made.get(part.tile.name)
            if op is None and part.tile.name in origins.makers:
                _check_collected(where, part, origins, (left, right), made)
                continue
            if op is None or not _is_whole(op, use, part):
                raise VerifyError(f"{where} is not one product of all channels with its columns")
            (first, last), cols = part.region.rows, part.region.cols
            if last != first + 1:
                raise VerifyError(f"{where} has several lines, which have different operands")
            wanted = TensorRegion((0, left.image.channels), (first, last), cols)
            if not left.holds(origins, op.left, wanted):
                raise VerifyError(f"{where} multiplies {op.left}, which does not hold {wanted} of {use.left}")
            wanted = TensorRegion((0, right.image.channels), (first, last))
            if not right.holds(origins, op.right, wanted):
                raise VerifyError(f"{where} multiplies {op.right}, which does not hold {wanted} of {use.right}")


def _check_collected(
    where: str,
    part: TensorPart,
    origins: ElementOrigins,
    operands: "tuple[_ProductOperand, _ProductOperand]",
    made: Mapping[str, Dot[Tile]],
) -> None:
    """Raises `VerifyError` unless copies put the results of products of one line together, each in its place once."""
    (low, high), line = part.region.channels, part.region.rows
    left_of = (part.region.cols or (0, 0))[0]
    times = np.zeros(part.tile.elements, np.int64)
    if line[1] != line[0] + 1:
        raise VerifyError(f"{where} has several lines, which have different operands")
    for _, copy in origins.makers[part.tile.name]:
        op = made.get(copy.source.name) if isinstance(copy, Copy) else None
        if op is None or not isinstance(copy, Copy):
            raise VerifyError(f"{where} is not made of products")
        width = op.result.channels
        (pixel, channel), (at, place) = divmod(copy.first, width), divmod(copy.at, high - low)
        if (op.batch, op.first, op.cols) != (1, 0, width) or channel + copy.elements > width:
            raise VerifyError(f"{where} takes {copy.source}, which is not one product of all channels with its columns")
        pixels, keys = left_of + at - pixel, low + place - channel
        wanted = (pixels, pixels + op.result.pixels), (keys, keys + width)
        for operand, tile, cols in zip(operands, (op.left, op.right), wanted, strict=True):
            region = TensorRegion((0, operand.image.channels), line, cols)
            if not 0 <= cols[0] <= cols[1] <= operand.image.width or not operand.holds(origins, tile, region):
                raise VerifyError(f"{where} multiplies {tile}, which does not hold {region}")
        times[copy.at : copy.at + copy.elements] += 1
    if (times != 1).any():
        raise VerifyError(f"{where} has channels that no product makes, or several")


def _is_whole(op: Dot[Tile], use: ProductUse, part: TensorPart) -> bool:
    """Returns whether an operation computes all columns of its part in one product per pixel."""
    low, high = part.region.channels
    return (op.batch, op.first, op.cols, op.result.channels) == (1, low, use.cols, high - low)


@dataclass(frozen=True, slots=True)
class _ProductOperand:
    """The source index of each element of an operand, which may be a view: [pixels, channels], as in `ViewUse`."""

    inputs: tuple[str, ...]
    sources: Ints
    image: Image

    @classmethod
    def from_graph(cls, graph: SpatialGraph, name: str) -> "_ProductOperand":
        if name in graph.views:
            view = graph.views[name]
            return cls(view.inputs, view.sources, view.image)
        image = graph.tensors[name].image
        return cls((name,), np.arange(image.elements).reshape(image.pixels, -1), image)

    def holds(self, origins: ElementOrigins, tile: Tile, region: TensorRegion) -> bool:
        """Returns whether a tile holds a region, pixel by pixel."""
        wanted = region_entries(self.sources, self.image, region)
        return tile.channels == region.channel_count and not len(origins.find_wrong(tile, self.inputs, wanted))
