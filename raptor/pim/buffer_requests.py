"""Buffer requests of operations: the first request for a value on a core creates its buffer, and may fill it."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.pim.global_order import GlobalOrder, TurnLayout
from raptor.pim.sample_versions import SampleVersions
from raptor.pim.step_columns import TRANSFERS
from raptor.pim.value_numbering import ValueNumbering

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNUSED = -1
"""Entry of `BufferRequests.place` for a value that the operation of the turn itself does not use."""
MADE_BY_OPERATION = -1
"""Entry of `BufferRequests.fill` for a buffer that the operation of the turn itself fills."""


@dataclass(frozen=True, slots=True, eq=False)
class BufferRequests:
    """Requests for values on cores, as columns; sorted by core, then by time.

    at: time in the global order. core, value: the requested value and its core. buffer: number of its buffer on the
    core. new: True for the first request of a value on a core. turn: turn of the operation that makes the request.
    place: index of the value among operands, result and scratch of the operation, or `UNUSED`. fill: how a new buffer
    is filled: the form of an operation on value `base`, `LOAD` for a load or message, or `MADE`.
    """

    at: Ints
    core: Ints
    value: Ints
    buffer: Ints
    new: Bools
    turn: Ints
    place: Ints
    fill: Ints
    base: Ints
    known: "_BufferIndex"

    def buffer_of(self, value: Ints, core: Ints) -> Ints:
        """Returns the buffer numbers of values, each on the core given with it, where it must have a buffer."""
        known, key = self.known, value * self.known.cores + core
        index = np.minimum(np.searchsorted(known.keys, key), len(known.keys) - 1)
        assert np.array_equal(known.keys[index], key), "a value is taken from a core that does not have it"
        return known.buffer[index]


@dataclass(frozen=True, slots=True, eq=False)
class _BufferIndex:
    """The buffers by key (value * `cores` + core); keys are sorted."""

    keys: Ints
    buffer: Ints
    cores: int


@dataclass(slots=True)
class RequestCollector:
    """Requests so far, in any order, as columns."""

    turns: GlobalOrder
    times: TurnLayout
    columns: list[tuple[Ints, ...]] = field(default_factory=list[tuple[Ints, ...]])

    def add(
        self,
        turn: Ints,
        within: Ints | int,
        value: Ints,
        place: Ints | int = UNUSED,
        *,
        fill: int = MADE_BY_OPERATION,
        base: Ints | int = 0,
    ) -> None:
        """Adds requests of turns for values on their cores, at slot `within` of each turn.

        See `BufferRequests` for the rest.
        """
        at, core = self.times.slot_time(turn, within), self.turns.core[turn]
        columns = at, core, value, turn, np.asarray(place), np.asarray(fill), np.asarray(base)
        self.columns.append(tuple(np.broadcast_arrays(*columns)))

    def use_versions(self, versions: SampleVersions, values: ValueNumbering) -> None:
        """Makes each request one for the value of its sample, and adds those of the copies of older values."""
        at, core, value, turn, place, fill, base = (
            np.concatenate(column) for column in zip(*self.columns, strict=True)
        )
        read = versions.request(values, value, core, turn)
        repeated = np.flatnonzero(fill >= len(TRANSFERS))
        base = base.copy()
        base[repeated] = versions.request(values, base[repeated], core[repeated], turn[repeated])
        self.columns = [(at, core, read, turn, place, np.where(read != value, MADE_BY_OPERATION, fill), base)]
        versions.request_sent(values)
        copies = np.array(versions.moves(), np.int64).reshape(-1, 4)
        late = copies[:, 1].max(initial=0) - copies[:, 1]
        self.add(copies[:, 0], late, copies[:, 3])

    def sort_requests(self, versions: SampleVersions | None, values: ValueNumbering) -> BufferRequests:
        """Returns all requests in order, and drops them here to save memory: a transformer has millions.

        versions: of samples that overlap, or None. Then the buffer of a value that a turn writes is created there, and
        may be read before; else by the first request.
        """
        if versions is not None:
            self.use_versions(versions, values)
        columns, self.columns = list(zip(*self.columns, strict=True)), []
        order = np.lexsort([np.concatenate(column) for column in columns[:2]])
        at, core, value, turn, place, fill, base = (np.concatenate(columns.pop(0))[order] for _ in range(7))
        cores = int(core.max()) + 1
        keys, first, which = np.unique(value * cores + core, return_index=True, return_inverse=True)
        if versions is not None:
            which = which.reshape(-1)
            by = np.lexsort((np.arange(len(at)), versions.written[turn] != value, which))
            first = by[np.searchsorted(which[by], np.arange(len(keys)))]
        new = np.zeros(len(at), np.bool_)
        new[first] = True
        before = np.cumsum(new) - new
        buffer = (before - before[np.searchsorted(core, core)])[first]
        known = _BufferIndex(keys, buffer, cores)
        return BufferRequests(at, core, value, buffer[which.reshape(-1)], new, turn, place, fill, base, known)
