"""The part of a decision about single computes: what moves, what crossbars produce, what other cores pass on.

These choices need the computes, so they are made after the layers are placed (`raptor.spatial.refine`), and recorded as
differences from the plain lowering of the decision. A compute is named by its number in program order. Each record
counts the computes as the records before it leave them, in the order of the fields of `Refinement`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raptor.common.errors import UserError
from raptor.common.files.schema_types import JsonArray, StrictDataclass


class RefinementError(UserError):
    """A record of a stored refinement does not fit the computes that the decision is lowered to."""


@dataclass(frozen=True, slots=True)
class MovedComputes(StrictDataclass):
    """Consecutive computes, from `first` up to and without `stop`, that run on `core`, not where the lowering says."""

    first: int
    stop: int
    core: int

    def __str__(self) -> str:
        return f"{self.first}:{self.stop} on core {self.core}"


@dataclass(frozen=True, slots=True)
class ProducedConstants(StrictDataclass):
    """Crossbars of each core, from `first` up to and without `stop`, produce the constants that it reads.

    `loaded`: names of constant tiles that are loaded from global memory all the same, for lack of free crossbars.
    """

    first: int
    stop: int
    loaded: JsonArray[str] = ()

    def __str__(self) -> str:
        return f"cores {self.first}:{self.stop}" + (f" without {', '.join(self.loaded)}" if self.loaded else "")


@dataclass(frozen=True, slots=True)
class RelayedTile(StrictDataclass):
    """A tile that compute `reader` takes from a relay. All other computes of its core then read the same copy."""

    tile: str
    reader: int

    def __str__(self) -> str:
        return f"%{self.tile} to {self.reader}"


@dataclass(frozen=True, slots=True)
class Relay(StrictDataclass):
    """Tiles that travel together from the cores that make them through `cores`, in order, to their readers."""

    cores: JsonArray[int]
    tiles: JsonArray[RelayedTile]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.tiles))} through cores {' '.join(map(str, self.cores))}"


@dataclass(frozen=True, slots=True)
class Refinement(StrictDataclass):
    """The differences of a decision from the plain lowering of its other records.

    `lowering`: digest of the plain lowering, whose computes are numbered; empty if nothing differs. `sunk`: computes of
    model inputs only, on the cores of their first readers. `constants`: cores that produce their constants. `balanced`:
    long computes, off the busiest cores. `near`: computes on the core that reads their result first, or on one that has
    other work then, so that relays begin there. `relays`: values that wait on other cores.
    """

    lowering: str = ""
    sunk: JsonArray[MovedComputes] = ()
    constants: JsonArray[ProducedConstants] = ()
    balanced: JsonArray[MovedComputes] = ()
    near: JsonArray[MovedComputes] = ()
    relays: JsonArray[Relay] = ()

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing differs from the plain lowering."""
        return not (self.sunk or self.constants or self.balanced or self.near or self.relays)

    def lines(self) -> Iterator[str]:
        """Yields the lines of the text, which holds everything."""
        yield f"refined: {f'lowering {self.lowering}' if self.lowering else 'nothing'}"
        kinds: tuple[tuple[str, Sequence[object]], ...] = (
            ("sunk", self.sunk),
            ("constants produced", self.constants),
            ("balanced", self.balanced),
            ("near", self.near),
            ("relayed", self.relays),
        )
        for kind, records in kinds:
            yield from (f"  {kind}: {record}" for record in records)
