"""Names of the instructions that RAPTOR has beside the published instruction set of pimsim-nn."""

from raptor.target.isa import INSTRUCTIONS

EXTENDED_INSTRUCTIONS = tuple(i.name for i in INSTRUCTIONS if i.extension)
