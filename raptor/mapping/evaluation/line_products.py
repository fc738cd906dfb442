"""The products of a core for a layer by line, and how many of them each output pixel is the sum of."""

from dataclasses import dataclass
from functools import lru_cache

from raptor.graph.window import Window
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.modes.line_unfolding import cut_bands, cut_line_blocks


@dataclass(frozen=True, slots=True)
class LineProducts:
    """The products of a core with one range of input channels, for all lines of a sample.

    products_ns: time of the MVMs. terms: number of output pixels of the core that products are added to. runs: number
    of contiguous runs that are added. span: input pixels that are read. crossbars: for one copy of each matrix.
    """

    products_ns: float
    terms: int
    runs: int
    span: Range
    crossbars: int


@lru_cache(maxsize=1024)
def count_line_terms(window: Window, height: int, *, clipped: bool) -> int:
    """Returns the number of pairs of an input band of `height` lines and an output line of the image that reads it."""
    dims = window.out_dims[:-1]
    outs = (out for band, _ in cut_bands(window, height, clipped=clipped) for out in band.outs)
    return sum(all(0 <= at < size for at, size in zip(out, dims, strict=True)) for out in outs)


@lru_cache(maxsize=4096)
def count_pixel_terms(window: Window, outs: Range, pixels: int, outputs: int, *, clipped: bool) -> tuple[int, int]:
    """Returns the number of pairs of a block and an output pixel among `outs` of it, and of blocks with such a pixel.

    Arguments: see `cut_line_blocks`. A block also has results for pixels of other cores, which are not added.
    """
    blocks = cut_line_blocks(window, outs, pixels, outputs, clipped=clipped)
    inside = [sum(outs[0] <= out < outs[1] for out in block.outs) for block in blocks]
    return sum(inside), sum(count > 0 for count in inside)
