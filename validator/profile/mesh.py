"""Positions of the cores on the chip."""

from raptor.target.arch import mesh_layout
from validator.profile.facts import Mesh
from validator.profile.source import Source


def mesh_of(read: Source) -> Mesh:
    """Returns the mesh of the architecture file if it has a place for each core, else the most square mesh."""
    if read.chip is not None:
        rows, cols = read.chip.chip_config.network_config.layout
        if rows * cols >= read.chip.chip_config.core_cnt:
            return Mesh(rows, cols, known=True)
    count = read.chip.chip_config.core_cnt if read.chip is not None else read.subject.core_count
    return Mesh(*mesh_layout(count), known=False)
