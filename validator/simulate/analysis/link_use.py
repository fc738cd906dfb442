"""Use of the links between chips: the simulator has no contention, so times are too short if a link is overloaded."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target.arch import Target
from raptor.target.isa import OPCODE
from validator.simulate.cycle.cycle_model import CycleModel

Ints = npt.NDArray[np.int64]

MOST_LINK_SHARE = 0.7
"""Utilisation of a link above which messages would queue, so that times are lower bounds only."""
_A, _D = 1, 4
"""Indices of the words of an instruction that hold its partner and its length."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link from one chip to the next. `share`: part of a sample's time in which it carries `flits`, both ways."""

    chips: tuple[int, int]
    flits: int
    share: float


def measure_link_use(machine: CycleModel, target: Target, time_ns: float) -> tuple[LinkUse, ...]:
    """Returns the use of each link for a sample that takes `time_ns`; none on one chip."""
    link = target.network.link
    if link is None:
        return ()
    crossed = _crossed(machine, target)
    return tuple(
        LinkUse((k, k + 1), int(flits), float(flits) * link.ns / max(time_ns, 1e-9))
        for k, flits in enumerate(crossed.tolist())
    )


def _crossed(machine: CycleModel, target: Target) -> Ints:
    """Returns the flits over each link: a message crosses all links between its chips; chip 0 has the memory."""
    sends = np.flatnonzero(machine.opcodes == OPCODE["send"])
    memory = np.flatnonzero(np.isin(machine.opcodes, (OPCODE["ld"], OPCODE["st"])))
    used = np.concatenate([sends, memory])
    source = machine.cores[machine.core_index[used]] // target.cores_per_chip
    ends = np.concatenate([machine.words[sends, _A], np.zeros(len(memory), np.int64)]).astype(np.int64)
    to = ends // target.cores_per_chip
    flits = -(-machine.words[used, _D] // target.network.flit_bytes)
    links = np.zeros(target.chips - 1, np.int64)
    for k in range(target.chips - 1):
        links[k] = flits[(np.minimum(source, to) <= k) & (np.maximum(source, to) > k)].sum()
    return links
