"""The products of a core for a layer that is computed line by line."""

from dataclasses import dataclass

from raptor.mapping.modes.line_streaming import Range


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
