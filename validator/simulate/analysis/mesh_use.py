"""Use of the links of the mesh: an account beside the simulator, which has no contention and changes no time.

Flits take the shortest path, first along the row, then along the column. Each router has a link to its neighbours and
to its core. pimsim-nn gives global memory no place: here it is at the router of core 0, with a link in and one out. Its
answers, which are free in the simulator, take the links that their data need.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from raptor.target.arch import Target
from raptor.target.arch.flit_cost import ROUTER_NS
from raptor.target.isa import OPCODE, Timing
from validator.simulate.cycle.cycle_model import CycleModel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CROWDED_SHARE = 0.1
"""Share of the time above which a link deserves a warning: messages may then wait for it, which is not modelled."""
_SHOWN = 5
_A, _D = 1, 4
"""Indices of the words of an instruction that hold its partner and its length."""
_EAST, _WEST, _SOUTH, _NORTH, _CORE = range(5)
_DIRECTIONS = ("east", "west", "south", "north", "to its core")


@dataclass(frozen=True, slots=True)
class MeshLinkUse:
    """A link: from the router of a core into a direction of the mesh or to the core, or of global memory.

    `flits`: flits of a sample. `share`: part of the time of a sample in which it carries them.
    """

    link: str
    flits: float
    share: float


@dataclass(frozen=True, slots=True)
class MeshUse:
    """Use of the mesh by a sample. `hottest`: the links that are used most. `mean_share`: mean of the links in use.

    `flit_ns`: time for which a flit keeps a link.
    """

    flit_ns: float
    links_used: int
    mean_share: float
    hottest: tuple[MeshLinkUse, ...]

    @property
    def warning(self) -> str:
        """A warning if a link is used so much that waiting for it could matter, otherwise empty."""
        if not self.hottest or self.hottest[0].share <= CROWDED_SHARE:
            return ""
        most = self.hottest[0]
        return (
            f"network: the link {most.link} is used {most.share:.1%} of the time; messages that wait for a link are "
            "not modelled, so times may be too short"
        )


def measure_mesh_use(machine: CycleModel, weights: Floats, time_ns: float) -> MeshUse | None:
    """Measures the links for a sample of `time_ns`; None for several chips, and for a mesh too small for its cores.

    `weights`: runs of each core's stream in that time.
    """
    target = machine.chip.target
    if target.chips > 1 or time_ns <= 0 or target.network.rows * target.network.cols < target.core_count:
        return None
    router, port = count_link_flits(machine, target, weights)
    flit_ns = _find_flit_ns(machine, target)
    used = cast(list[tuple[int, int]], np.argwhere(router > 0).tolist())
    names = [f"of core {core} {_DIRECTIONS[way]}" for core, way in used]
    flits = np.concatenate([router[router > 0], port[port > 0]])
    names += [f"{way} global memory" for way, count in zip(("into", "out of"), port.tolist(), strict=True) if count > 0]
    shares = flits * flit_ns / time_ns
    order: list[int] = np.argsort(-shares, kind="stable")[:_SHOWN].tolist()
    hottest = tuple(MeshLinkUse(names[k], float(flits[k]), float(shares[k])) for k in order)
    return MeshUse(flit_ns, len(flits), float(shares.mean()) if len(shares) else 0.0, hottest)


def _find_flit_ns(machine: CycleModel, target: Target) -> float:
    """Returns the time of a flit at a router: the median of latency by number of routers, over pairs that talk."""
    costs = machine.network
    source, count = np.repeat(np.arange(machine.core_count), np.diff(costs.first)), machine.core_count
    known = (costs.destination < count) & ~costs.is_missing
    a, b = machine.cores[source[known]], machine.cores[costs.destination[known]]
    cols = target.network.cols
    hops = np.abs(a // cols - b // cols) + np.abs(a % cols - b % cols)
    return float(np.median(costs.latency_ns[known] / (1 + hops))) if len(hops) else float(ROUTER_NS)


def count_link_flits(machine: CycleModel, target: Target, weights: Floats) -> tuple[Floats, Floats]:
    """Returns the flits over the links of each core's router, [places of the mesh, 5], and into and out of memory."""
    source, to, flits, from_memory, to_memory = _count_messages(machine, target, weights)
    rows, cols = target.network.rows, target.network.cols
    router = np.zeros((rows * cols, len(_DIRECTIONS)))
    np.add.at(router[:, _CORE], to[~to_memory], flits[~to_memory])
    row, end_row = source // cols, to // cols
    col, end_col = source % cols, to % cols
    across = router.reshape(rows, cols, len(_DIRECTIONS))
    for way, begin, end in ((_EAST, col, end_col), (_WEST, end_col, col)):
        across[:, :, way] = _count_passes((rows, cols), row, begin, end, flits, shift=int(way == _WEST))
    for way, begin, end in ((_SOUTH, row, end_row), (_NORTH, end_row, row)):
        across[:, :, way] = _count_passes((cols, rows), end_col, begin, end, flits, shift=int(way == _NORTH)).T
    return router, np.array([flits[to_memory].sum(), flits[from_memory].sum()])


def _count_passes(shape: tuple[int, int], line: Ints, begin: Ints, end: Ints, flits: Floats, *, shift: int) -> Floats:
    """Returns the flits that leave each place of a line in one direction: places `begin` to `end` - 1, plus `shift`."""
    changes = np.zeros((shape[0], shape[1] + 1))
    used = begin < end
    np.add.at(changes, (line[used], begin[used]), flits[used])
    np.add.at(changes, (line[used], end[used]), -flits[used])
    # Each sum starts anew in its line; what rounding leaves of sums that cancel is no flit.
    passes = np.rint(np.cumsum(changes, axis=1)[:, :-1] * 1e6) / 1e6
    return np.roll(passes, shift, axis=1)


def _count_messages(
    machine: CycleModel, target: Target, weights: Floats
) -> tuple[Ints, Ints, Floats, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns source, destination and flits of all messages, and whether each comes from or goes to global memory.

    A `send` is a request and its data, a `recv` the permission; `sync` and `ld` are one flit, and the answer of an `ld`
    its data. The place of global memory is that of core 0.
    """
    talks = machine.timing_mask(Timing.SEND, Timing.RECEIVE, Timing.GIVE_TOKEN)
    loads = np.flatnonzero(machine.timing_mask(Timing.LOAD))
    stores = np.flatnonzero(machine.timing_mask(Timing.STORE))
    between = np.flatnonzero(talks)
    core_of, place = machine.core_index, machine.cores
    beats = -(-machine.words[:, _D].astype(np.int64) // target.network.flit_bytes)
    here = {name: place[core_of[at]] for name, at in (("between", between), ("loads", loads), ("stores", stores))}
    sent = np.where(machine.opcodes[between] == OPCODE["send"], 1 + beats[between], 1)
    memory = np.zeros(len(loads) + len(stores), np.int64)
    source = np.concatenate([here["between"], here["loads"], here["stores"], memory[: len(loads)]])
    to = np.concatenate([machine.words[between, _A].astype(np.int64), memory, here["loads"]])
    flits = np.concatenate([sent, np.ones(len(loads), np.int64), beats[stores], beats[loads]])
    weight = weights[np.concatenate([core_of[at] for at in (between, loads, stores, loads)])]
    kinds = np.repeat(np.arange(3), [len(between), len(memory), len(loads)])
    key, at = np.unique((kinds * target.core_count + source) * target.core_count + to, return_inverse=True)
    total = np.bincount(at, weights=flits * weight, minlength=len(key)).astype(np.float64)
    kind, pair = np.divmod(key, target.core_count**2)
    return pair // target.core_count, pair % target.core_count, total, kind == 2, kind == 1
