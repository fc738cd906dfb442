"""Work without matrices, moved from the cores that work most to those that work least.

It runs where its operand is. Behind the heads of a detector, for instance, moves and softmax of whole tensors follow
one another on the core of one layer; a wide depthwise layer has no more cores than the layer before it. These cores
then work longer than all others. Such a compute can run on any core: its operands are sent there once, and its result
to its readers.

A core begins a sample when it has done its work of the one before. If one of a late layer also got work of an early
layer, every sample would wait for the whole way between them. So there is a limit for the time that a sample may occupy
a core that gets work. Two are tried: the longest time so far, and the least one with which the busiest core works no
longer than with that. Of both results and of no moves, the best one by latency x interval in a schedule is taken.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.mapping.knobs import patience_on
from raptor.spatial.costs import Costs
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy
from raptor.spatial.mesh_placement import usable
from raptor.spatial.orders import balanced_cost
from raptor.spatial.placed import Partition
from raptor.spatial.spans import Times, work_of
from raptor.target.arch import Target
from raptor.target.timing import message_element_ns, message_ns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST = 0.02
"""Share of the work of the busiest core below which a compute is not moved."""
_UNEVEN = 1.5
"""Times the work that cannot move that a core may do: waiting for messages outweighs a smaller difference."""
_HALVINGS = 5
"""Number of times that the range in which the limit of a core's time lies is halved."""


def even_out(partition: Partition, decision: Decision, arch: Target) -> Partition:
    """Returns the partition with long computes on other cores, as long as the core that works most works less then.

    Computes stay on their chip. Layer by layer, cores take turns, so their work need not be even; and where products of
    computed tensors have cores of their own, the mapping has evened out the work of the chains.
    """
    if not isinstance(decision.flow, ByLine) or not decision.flow.streamed or decision.flow.products:
        return partition
    if not partition.cores:
        return partition
    graph, cores = partition.graph, np.array(partition.cores, np.int64)
    flow, costs = graph.dataflow, Costs(arch, graph.filters)
    of_form = np.array([costs.op_ns(op, compute) for op, compute in flow.forms])
    work_ns = np.bincount(flow.op_compute, of_form[flow.op_form], len(cores)).astype(np.float64)
    core_ns = np.bincount(cores, work_ns, len(usable(arch))).astype(np.float64)
    messages_ns = _elements(flow, len(cores)) * message_element_ns(arch) + 2 * message_ns(arch, 1)
    is_long = (work_ns >= _LEAST * core_ns.max()) & (work_ns >= messages_ns)
    long = np.flatnonzero(movable(partition) & is_long)
    enough_ns = _UNEVEN * float((core_ns - np.bincount(cores[long], work_ns[long], len(core_ns))).max())
    if not len(long) or core_ns.max() <= enough_ns:
        return partition
    # NOTE: not with the patience of the decision, which names the order of work that is chosen later.
    patience_ns, times = patience_on(arch), Times.of(partition, 0.0, arch)
    chip = np.arange(len(core_ns)) // arch.cores_per_chip
    moves = _Moves(times, long, work_ns, messages_ns, enough_ns, chip)
    _, *moved = moves.choices(_State(cores, core_ns, *times.occupied_ns(len(core_ns))))
    others = [Partition(graph, tuple(state.cores.tolist()), partition.positions) for state in moved]
    works = [(partition, times.work), *((other, work_of(other, arch)) for other in others)]
    return min(works, key=lambda choice: balanced_cost(choice[1], patience_ns))[0]


def movable(partition: Partition) -> npt.NDArray[np.bool_]:
    """Tells for each compute whether it can run on any core: it has no matrices, and makes all of its results."""
    flow = partition.graph.dataflow
    found = np.array([not compute.matrices for compute in partition.graph.computes], np.bool_)
    found[flow.op_compute[flow.is_form(Copy)]] = False
    makers = np.bincount(flow.op_result, minlength=len(flow.tiles))
    found[flow.op_compute[makers[flow.op_result] > 1]] = False
    return found


def _elements(flow: Dataflow, computes: int) -> Floats:
    """Returns how many elements each compute reads and makes for others."""
    user, tile = flow.inputs()
    users, tiles = np.concatenate([user, flow.result_compute]), np.concatenate([tile, flow.result_tile])
    return np.bincount(users, flow.tile_elements[tiles], computes).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """The core of each compute, and for each core its work, and when it begins and ends; changed by moves."""

    cores: Ints
    core_ns: Floats
    first_ns: Floats
    last_ns: Floats

    @property
    def busiest_ns(self) -> float:
        return float(self.core_ns.max())

    @property
    def longest_ns(self) -> float:
        """The longest time that a sample occupies a core."""
        return float((self.last_ns - self.first_ns).max())

    def copy(self) -> "_State":
        return _State(self.cores.copy(), self.core_ns.copy(), self.first_ns.copy(), self.last_ns.copy())


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """Moves computes from the busiest core to others.

    times: when computes work, before any move. long: the computes that may move. work_ns, messages_ns: time of each
    compute, and to send what it reads and makes. enough_ns: work of a core that is little enough. chip: of each core.
    """

    times: Times
    long: Ints
    work_ns: Floats
    messages_ns: Floats
    enough_ns: float
    chip: Ints

    def choices(self, before: _State) -> tuple[_State, ...]:
        """Returns the states without moves, with the longest time so far as the limit, and with the least limit."""
        longest = self.all(before, before.longest_ns)
        return before, longest, self.least(before, longest)

    def least(self, before: _State, longest: _State) -> _State:
        """Returns the state after the moves with the least limit that leaves the busiest core no more work.

        longest: that with the longest time so far as the limit.
        """
        low_ns, high_ns, found = 0.0, before.longest_ns, longest
        for _ in range(_HALVINGS):
            limit_ns = (low_ns + high_ns) / 2
            tried = self.all(before, limit_ns)
            if tried.busiest_ns <= found.busiest_ns:
                found, high_ns = tried, limit_ns
            else:
                low_ns = limit_ns
        return found

    def all(self, before: _State, limit_ns: float) -> _State:
        """Returns the state after moves, as long as the larger work of both cores falls and is not little enough."""
        state = before.copy()
        while state.busiest_ns > self.enough_ns and self.move(state, limit_ns):
            pass
        return state

    def move(self, state: _State, limit_ns: float) -> bool:
        """Moves the compute of the busiest core that relieves it most; tells whether there is one.

        It goes to the core that works least of those on the chip that are then occupied for at most `limit_ns`.
        """
        busiest = int(state.core_ns.argmax())
        own = self.long[state.cores[self.long] == busiest]
        if not len(own):
            return False
        first_ns = np.minimum(state.first_ns, self.times.at_ns[own, None])
        last_ns = np.maximum(state.last_ns, self.times.end_ns[own, None])
        free = (last_ns - first_ns <= limit_ns) & (self.chip == self.chip[busiest])
        there_ns = np.where(free, state.core_ns + self.work_ns[own, None], np.inf)
        here_ns = state.core_ns[busiest] - self.work_ns[own]
        after_ns = np.maximum(here_ns, there_ns.min(axis=1)) + self.messages_ns[own]
        best = int(after_ns.argmin())
        if after_ns[best] >= state.core_ns[busiest]:
            return False
        compute, core = int(own[best]), int(there_ns[best].argmin())
        state.cores[compute] = core
        state.core_ns[busiest] = here_ns[best] + self.messages_ns[compute]
        state.core_ns[core] += self.messages_ns[compute] + self.work_ns[compute]
        state.first_ns[core], state.last_ns[core] = first_ns[best, core], last_ns[best, core]
        return True
