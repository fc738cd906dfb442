"""Candidate cuts of a token layer among cores, with their costs."""

from dataclasses import dataclass
from functools import cache

from raptor.mapping.decision import LineGrid
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, cut_channels, even_ranges
from raptor.mapping.transformer.token_cores import TokenLayerShape
from raptor.target.arch import Target
from raptor.target.timing import message_element_ns, mvmul_ns

BLOCK_TOKENS = 1
"""Tokens of a block: more would take crossbars that copies need."""


@dataclass(frozen=True, slots=True)
class TokenCut:
    """A cut of a layer among cores: each core has a group of input ranges and a range of output channels.

    xbars: crossbars of each core, by group, then by output range. homes: number of cores with complete sums; the others
    have partial sums only. token_ns: time of a core for a token, with the message that brings it.
    """

    ins: tuple[ChannelRanges, ...]
    outs: tuple[Range, ...]
    xbars: tuple[int, ...]
    homes: int
    token_ns: float

    @classmethod
    def from_ranges(cls, shape: TokenLayerShape, ins: tuple[ChannelRanges, ...], outs: tuple[Range, ...]) -> "TokenCut":
        """Makes the cut into these groups and ranges, with its costs."""
        ranges = cut_channels(shape.outputs, shape.arch.xbar_rows)
        parts = ((p, next(i for i, (_, stop) in enumerate(outs) if low < stop)) for p, (low, _) in enumerate(ranges))
        homes = {(p % len(ins), part) for p, part in parts}
        xbars = (
            sum(n for _, n in shape.blocks(group, high - low, BLOCK_TOKENS)) for group in ins for low, high in outs
        )
        widest = max(high - low for low, high in shape.parts)
        sent_ns = len(outs) * widest * message_element_ns(shape.arch)
        return cls(ins, outs, tuple(xbars), len(homes), shape.token_ns(ins, outs, BLOCK_TOKENS) + sent_ns)

    def grid(self, cols: tuple[Range, ...], arch: Target, step_ns: float) -> LineGrid:
        """Returns the grid for these segments of tokens."""
        step = max(1, int(step_ns / mvmul_ns(arch, max(self.xbars))))
        return LineGrid(cols, self.ins, self.outs, 1, BLOCK_TOKENS, 0, step)


@cache
def enumerate_cuts(shape: TokenLayerShape, cores: int) -> tuple[TokenCut, ...]:
    """Returns the cuts of a layer among at most `cores` cores, one for each number of groups and of output ranges."""
    ranges = cut_channels(shape.outputs, shape.arch.xbar_rows)
    found: list[TokenCut] = []
    for groups in range(1, min(len(shape.parts), cores) + 1):
        ins = tuple(shape.parts[a:b] for a, b in even_ranges(len(shape.parts), groups))
        for pieces in range(1, min(len(ranges), cores // groups) + 1):
            outs = tuple((ranges[a][0], ranges[b - 1][1]) for a, b in even_ranges(len(ranges), pieces))
            found.append(TokenCut.from_ranges(shape, ins, outs))
    return tuple(found)
