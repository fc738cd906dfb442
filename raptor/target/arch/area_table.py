"""Table of the areas of a chip's parts, each with its source and the kind of evidence for it."""

from dataclasses import dataclass
from typing import Literal, get_args

AreaKind = Literal["MEASURED", "PUBLISHED", "MODELLED", "ASSUMED"]
AreaLevel = Literal["crossbar", "core", "chip"]
KINDS: tuple[AreaKind, ...] = get_args(AreaKind)
"""Kinds of evidence, best first: silicon, the model of a paper, the model of a tool, nothing that can be looked up."""


@dataclass(frozen=True, slots=True)
class AreaPart:
    """A part of the chip. `count`: how many there are in each crossbar, core or chip (`level`); shared parts below 1.

    `um2`: area of one; None if it is not known. `low_um2`, `high_um2`: range in which it lies. `source`: citation.
    """

    name: str
    level: AreaLevel
    count: float
    um2: float | None
    low_um2: float | None
    high_um2: float | None
    kind: AreaKind
    source: str


@dataclass(frozen=True, slots=True)
class AreaTable:
    """The parts of a chip, and the sizes for which they hold; None for any.

    `node_nm`: process node.
    """

    node_nm: float
    cores: int | None
    xbars_per_core: int | None
    xbar_size: tuple[int, int] | None
    adc_count: int | None
    adc_bits: int | None
    parts: tuple[AreaPart, ...]
