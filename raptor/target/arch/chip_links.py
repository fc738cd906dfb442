"""Several chips as one network: each chip is a mesh, and links between neighbouring chips cost more.

Chips are in a row. The cores of a chip have neighbouring numbers, and chip k + 1 lies below chip k: a flit passes
the routers on its path, as in one mesh, and takes `link_ns` more for each link. The global memory is on the first chip.
"""

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import argument_error
from raptor.target.arch.flit_cost import FLIT_PJ, MEMORY_NS, ROUTER_NS, mesh_layout
from raptor.target.arch.flit_cost_table import FlitCostTable, make_cost_table
from raptor.target.arch.pimsim_schema import ChipsConfig
from raptor.target.arch.target import Link

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


LINK_PRESETS = {
    # HyperTransport as in ISAAC and PUMA: a packet of 32 bytes in 5 ns at 6.4 GB/s (puma-simulator: ht_lat), 10.4 W;
    # that these are four links is assumed.
    "board-ht": Link(5.0, 13_000.0),
    # Chiplets of one package: UCIe aims at single-digit ns; 0.6 pJ a bit of a flit of 32 bytes is assumed.
    "package-ucie": Link(4.0, 160.0),
}
"""Presets of links."""


def parse_link(value: object) -> Link:
    """Parses a link: the name of a preset, or `NS:PJ`. Raises `UserError`."""
    if not isinstance(value, str):
        raise argument_error("link", value, f"{' or '.join(LINK_PRESETS)}, or ns and pJ of a flit, such as 5:13000")
    text = value
    if text in LINK_PRESETS:
        return LINK_PRESETS[text]
    try:
        ns, pj = (float(part) for part in text.split(":"))
    except ValueError:
        ns = pj = -1.0
    if not (0 <= ns <= 1e9 and 0 <= pj <= 1e12):
        names = " or ".join(LINK_PRESETS)
        raise UserError(f"{spell_option('link', text)}: expected {names}, or ns and pJ of a flit, such as 5:13000")
    return Link(ns, pj)


def linked_mesh_layout(cores_each: int, count: int) -> tuple[int, int]:
    """Returns rows and columns of the mesh of `count` chips below each other."""
    rows, cols = mesh_layout(cores_each)
    return rows * count, cols


def make_linked_table(cores_each: int, chips: ChipsConfig, memory_id: int) -> FlitCostTable:
    """Computes the network table of several chips from the mesh of each and the links."""
    rows, cols = mesh_layout(cores_each)
    cores = np.arange(cores_each * chips.count)
    chip, local = np.divmod(cores, cores_each)
    row, col = chip * rows + local // cols, local % cols
    apart = np.abs(chip[:, None] - chip)
    hops = np.abs(row[:, None] - row) + np.abs(col[:, None] - col)
    latency = ROUTER_NS * (1.0 + hops) + apart * chips.link_ns, MEMORY_NS + chip * chips.link_ns
    energy = FLIT_PJ + apart * chips.link_pj, FLIT_PJ + chip * chips.link_pj
    return make_cost_table(latency, energy, memory_id)
