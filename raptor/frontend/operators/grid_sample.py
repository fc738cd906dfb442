"""GridSample and Col2Im."""

import itertools
import math

import numpy as np

from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder, read_constant_ints
from raptor.frontend.formulas.grid_sampling import GridSampling, compute_grid_taps
from raptor.frontend.formulas.reductions import ReductionLayout
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Indices, Stencil
from raptor.graph.rearrangement import c_order
from raptor.graph.window import WindowTable
from raptor.target.tensor_layout import Image


@importer("GridSample", since=16, limits="a constant grid")
def import_grid_sample(node: NodeView, ctx: ImportContext) -> None:
    """Interpolation of an image at given coordinates: nearest, linear or cubic, with every padding mode."""
    build = OperatorBuilder(node, ctx)
    x, grid = build.natural_operand(node.inputs[0]), ctx.read_float32(node.inputs[1])
    batch, dims = x.shape[0], x.shape[2:]
    if grid.shape[-1] != len(dims) or grid.shape[0] != batch:
        raise ImportRefusal(f"its grid {grid.shape} does not fit the image {x.shape}")
    mode = node.string("mode", "bilinear" if node.version < 20 else "linear")
    how = GridSampling(mode, node.string("padding_mode", "zeros"), bool(node.integer("align_corners", 0)))
    count = math.prod(dims)
    found = [compute_grid_taps(g.reshape(-1, len(dims)), dims, how) for g in grid]
    pixels = np.concatenate([np.where(p < 0, -1, p + i * count) for i, (p, _) in enumerate(found)])
    weights = np.concatenate([w for _, w in found])
    stencil = Stencil(np.ascontiguousarray(weights[:, :, None]), WindowTable(pixels.astype(np.int32), batch * count))
    build.finish(build.add(stencil, Image((batch, x.shape[1], *grid.shape[1:-1]), 1), x))


@importer("Col2Im", since=18, limits="constant shapes")
def import_col2im(node: NodeView, ctx: ImportContext) -> None:
    """Image from columns: one shifted image for each position in a block, summed where blocks overlap."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    dims, block = read_constant_ints(node, ctx, 1) or (), read_constant_ints(node, ctx, 2) or ()
    batch, channels = x.shape[0], x.shape[1] // math.prod(block)
    blocks = c_order(x.shape).reshape(batch, channels, math.prod(block), x.shape[2])
    wanted = _shifted(node, blocks, dims, block)
    shifted = build.rearrange(wanted, x)
    whole = ReductionLayout(build.lay_out(shifted, Image(wanted.shape, 2)), (True, *(False,) * (wanted.ndim - 1)))
    build.finish(reductions.emit_reduction(build, whole, "sum"))


def _shifted(node: NodeView, blocks: Indices, dims: tuple[int, ...], block: tuple[int, ...]) -> Indices:
    """Returns [positions in a block, batch, channels, *dims]: the element that each position contributes, or -1."""
    rank = len(dims)
    pads = node.ints("pads", (0,) * 2 * rank)
    strides, dilations = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    spread = [d * (k - 1) + 1 for d, k in zip(dilations, block, strict=True)]
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(dims)]
    counts = [(n - s) // stride + 1 for n, s, stride in zip(padded, spread, strides, strict=True)]
    batch, channels = blocks.shape[:2]
    if math.prod(counts) != blocks.shape[3]:
        raise ImportRefusal(f"{blocks.shape[3]} blocks, but its image has {math.prod(counts)}")
    wanted = np.full((math.prod(block), batch, channels, *padded), -1, np.int64)
    for place, taps in enumerate(itertools.product(*map(range, block))):
        at = [slice(t * d, t * d + c * s, s) for t, d, c, s in zip(taps, dilations, counts, strides, strict=True)]
        wanted[(place, slice(None), slice(None), *at)] = blocks[:, :, place].reshape(batch, channels, *counts)
    inner = (slice(pads[i], pads[i] + n) for i, n in enumerate(dims))
    return wanted[(slice(None), slice(None), slice(None), *inner)]
