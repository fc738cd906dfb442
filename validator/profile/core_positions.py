"""Positions of the cores on the chip."""

from raptor.target.arch import mesh_layout
from validator.profile.profile_results import Mesh
from validator.profile.profiled_program import ProfiledProgram


def find_mesh(read: ProfiledProgram) -> Mesh:
    """Returns the mesh of the architecture file if it has a place for each core, else the most square mesh."""
    if read.chip is not None:
        network = read.chip.network
        if network.rows * network.cols >= read.chip.core_count:
            return Mesh(network.rows, network.cols, is_known=True)
    count = read.chip.core_count if read.chip is not None else read.subject.core_count
    return Mesh(*mesh_layout(count), is_known=False)
