"""Slices layers that are too large for the chip until each slice fits."""

import math
from dataclasses import replace

from raptor.frontend.segments.cut_points import ModelUnits
from raptor.frontend.segments.slice_layer import LayerSlicer
from raptor.graph.ir import Filter
from raptor.graph.layers import tile_channels
from raptor.mapping.modes.kernel_unfolding import fill_cores, unfold_kernel
from raptor.target.arch import Target


def slice_layers(units: ModelUnits, large: list[int], arch: Target) -> LayerSlicer | None:
    """Slices the layers of these units. Returns the slicer with the new model; None if one cannot be sliced.

    A layer that became several filters, or a grouped convolution, cannot be sliced.
    """
    slicer = LayerSlicer.from_proto(units.asked.proto)
    wanted = [
        (i, imported_filters(units, i)) for unit in large for i in units.nodes[unit] if i in units.cutter.weighted
    ]
    nodes = [(slicer.proto.graph.node[i], found) for i, found in wanted]
    for node, found in nodes:
        sizes = slicer.layer_sizes(node)
        whole = len(found) == 1 and found[0].groups == 1
        ways = _slice_counts(found[0], sizes, arch) if sizes is not None and whole else None
        if ways is None:
            return None
        slicer.slice_layer(node, *ways)
    return slicer


def imported_filters(units: ModelUnits, node: int) -> list[Filter]:
    """Returns the filters of the graph that an ONNX node was imported as."""
    found = (n.operator for n in units.asked.answers[node].nodes)
    return [operator for operator in found if isinstance(operator, Filter)]


def _slice_counts(filter_: Filter, sizes: tuple[int, int], arch: Target) -> tuple[int, int] | None:
    """Returns (output ranges, input ranges) with which each slice fits, the fewest input ranges first; or None."""
    inputs, outputs = sizes
    width = arch.weight_columns(filter_.weight_bits)
    for sums in range(1, -(-inputs // arch.xbar_rows) + 1):
        for parts in range(1, -(-outputs // width) + 1):
            if parts * sums > 1 and _slice_fits(filter_, -(-outputs // parts), inputs, sums, arch):
                return parts, sums
    return None


def _slice_fits(filter_: Filter, outputs: int, inputs: int, sums: int, arch: Target) -> bool:
    """True if a slice of a layer fits the chip alone, by kernel unfolding."""
    rows = math.ceil(filter_.weights.shape[1] * math.ceil(inputs / sums) / inputs)
    slice_ = replace(filter_, weights=filter_.weights[:, :rows, :outputs])
    matrices = tuple(unfold_kernel(slice_, arch, tile_channels(arch, filter_.weight_bits)))
    if any(m.xbars > arch.xbars_per_core for m in matrices):
        return False
    return fill_cores(matrices, 0, arch.xbars_per_core, arch)[1][0] < arch.core_count
