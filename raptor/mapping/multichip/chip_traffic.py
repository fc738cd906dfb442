"""The traffic of a decision between cores and over the links between chips, from its evaluated work."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.mapping.evaluation.node_work import NodeWork
from raptor.target.arch import Target

Floats = npt.NDArray[np.float64]


def sum_core_traffic(works: Sequence[NodeWork], arch: Target) -> Floats:
    """Returns the flits of a sample from core to core: [cores, cores], sender by receiver."""
    found = np.zeros((arch.core_count, arch.core_count))
    for work in works:
        for (source, to), message in work.messages.items():
            found[source, to] += message.size
    return found / arch.network.flit_bytes


def sum_memory_traffic(works: Sequence[NodeWork], arch: Target, *, loads: bool) -> tuple[Counter[int], float]:
    """Returns the flits that each core stores (with `loads`, also loads) in a sample, and the flits of all loads."""
    found, loaded = Counter[int](), 0.0
    for work in works:
        for core, moved in work.memory.items():
            found.update({core: (moved.stored + loads * moved.loaded) / arch.network.flit_bytes})
            loaded += loads * moved.loaded / arch.network.flit_bytes
    return found, loaded


def link_flits(traffic: Floats, arch: Target) -> list[float]:
    """Returns the flits over each link between neighbouring chips. `traffic`: see `sum_core_traffic`."""
    both = traffic + traffic.T
    begins = range(arch.cores_per_chip, arch.core_count, arch.cores_per_chip)
    return [float(both[:begin, begin:].sum()) for begin in begins]


def offchip_flits(traffic: Floats, arch: Target) -> Counter[int]:
    """Returns, for each core that exchanges flits with other chips, their number."""
    chip = np.arange(len(traffic)) // arch.cores_per_chip
    both = np.where(chip[:, None] != chip, traffic + traffic.T, 0.0).sum(axis=0)
    return Counter({core: float(both[core]) for core in np.flatnonzero(both).tolist()})
