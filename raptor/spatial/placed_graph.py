"""Program levels between SpatialIR and PimIR: the core of each compute, then the order of all computes.

Three frozen values, each made by one pass and checked by a verifier in `raptor.spatial.verification.verify_placed`:

- `Partition`: a SpatialGraph, and the virtual core of each compute. A strategy numbers virtual cores layer by layer.
- `PlacedGraph`: the same graph, and the core of the chip for each compute. Virtual cores are renamed, one to one.
- `Schedule`: a permutation of the computes, and of the fetches that bring tiles to computes on other cores.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from raptor.spatial.ir import Compute, SpatialGraph, Tile


@dataclass(frozen=True, slots=True)
class Partition:
    """A graph cut into computes, each on a virtual core.

    cores, positions: one entry for each compute. positions: where its rows lie in the image, from 0 (top) to 1
    (bottom); rows nearer to the top are more urgent.
    """

    graph: SpatialGraph
    cores: tuple[int, ...]
    positions: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.graph}{_cores_text('virtual_cores', self.graph, self.cores)}"


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A partition with cores of the chip in `cores`. Its text shows only the cores, because the graph is unchanged."""

    graph: SpatialGraph
    cores: tuple[int, ...]
    positions: tuple[float, ...]

    def __str__(self) -> str:
        return _cores_text("placed_graph", self.graph, self.cores)


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Copies a whole tile to a core before its first use there. `node`: the ONNX node that uses it."""

    tile: Tile
    core: int
    node: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Global order of all computes. It decides which core waits for which, never what is computed.

    order: a permutation of the computes, numbered as in the graph, and of the fetches, numbered after them. stages: the
    stage of each of these by its number, or empty if all are 0: in pass k over the order, a step of stage s works on
    sample k - s (`raptor.mapping.scheduling.sample_stages`).
    """

    placed: PlacedGraph
    fetches: tuple[Fetch, ...]
    order: tuple[int, ...]
    stages: tuple[int, ...] = ()

    def steps(self) -> Iterator[tuple[int, Compute | Fetch]]:
        """Yields (core, compute or fetch) in the order of the schedule."""
        computes, cores = self.placed.graph.computes, self.placed.cores
        for i in self.order:
            if i < len(computes):
                yield cores[i], computes[i]
            else:
                fetch = self.fetches[i - len(computes)]
                yield fetch.core, fetch

    @property
    def graph(self) -> SpatialGraph:
        """The graph, with its computes in the order of the schedule."""
        computes = tuple(step for _, step in self.steps() if isinstance(step, Compute))
        return replace(self.placed.graph, computes=computes)

    def __str__(self) -> str:
        return "".join(("schedule {\n", *(f"  {_step_text(core, step)}\n" for core, step in self.steps()), "}\n"))


def _step_text(core: int, step: Compute | Fetch) -> str:
    if isinstance(step, Fetch):
        return f"core {core}: fetch {step.tile}  # {step.node}"
    return f"core {core}: {', '.join(map(str, step.results))}  # {step.node}"


def _cores_text(title: str, graph: SpatialGraph, cores: tuple[int, ...]) -> str:
    """Returns a text with a line for each core, with the tiles that it computes."""
    made: dict[int, list[str]] = {}
    for core, compute in zip(cores, graph.computes, strict=True):
        made.setdefault(core, []).extend(map(str, compute.results))
    lines = (f"  core {core}: {', '.join(results)}\n" for core, results in sorted(made.items()))
    return "".join((f'{title} "{graph.name}" {{\n', *lines, "}\n"))
