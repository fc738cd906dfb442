"""The levels between SpatialIR and PimIR: the core of each compute, then the order of all computes.

Three frozen values, each made by one pass and verified as what it is (`raptor.spatial.verify_placed`):

- `Partition`: a SpatialGraph, and the virtual core of each compute, which a mapping numbers layer by layer.
- `PlacedGraph`: the same graph, and the core of the chip of each compute: virtual cores are renamed, one to one.
- `Schedule`: a permutation of the computes, and of the fetches that are done ahead of computes on other cores.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raptor.spatial.ir import Compute, SpatialGraph, Tile


@dataclass(frozen=True, slots=True)
class Partition:
    """A graph cut into computes. One entry a compute in `cores`, its virtual core, and in `positions`.

    positions: how far down the image the rows of the compute are, 0 to 1; what comes first is more urgent.
    """

    graph: SpatialGraph
    cores: tuple[int, ...]
    positions: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.graph}{_cores_text('virtual_cores', self.graph, self.cores)}"


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A partition whose `cores` are those of the chip. Prints the cores only: the graph is that of the partition."""

    graph: SpatialGraph
    cores: tuple[int, ...]
    positions: tuple[float, ...]

    def __str__(self) -> str:
        return _cores_text("placed_graph", self.graph, self.cores)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A whole tile is copied to a core ahead of its use. `node`: the ONNX node that uses it."""

    tile: Tile
    core: int
    node: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """The global order in which computes are visited. It decides who waits for whom, never what is computed.

    order: a permutation of the computes, numbered as in the graph, and of the fetches, numbered after them.
    """

    placed: PlacedGraph
    fetches: tuple[Fetch, ...]
    order: tuple[int, ...]

    def steps(self) -> Iterator[tuple[int, Compute | Fetch]]:
        """Core and work, in order."""
        computes, cores = self.placed.graph.computes, self.placed.cores
        for i in self.order:
            if i < len(computes):
                yield cores[i], computes[i]
            else:
                fetch = self.fetches[i - len(computes)]
                yield fetch.core, fetch

    @property
    def graph(self) -> SpatialGraph:
        """The graph, its computes in the order of the schedule."""
        computes = tuple(step for _, step in self.steps() if isinstance(step, Compute))
        return replace(self.placed.graph, computes=computes)

    def __str__(self) -> str:
        return "".join(("schedule {\n", *(f"  {_step_text(core, step)}\n" for core, step in self.steps()), "}\n"))


def _step_text(core: int, step: Compute | Fetch) -> str:
    if isinstance(step, Fetch):
        return f"core {core}: fetch {step.tile}  # {step.node}"
    return f"core {core}: {', '.join(map(str, step.results))}  # {step.node}"


def _cores_text(title: str, graph: SpatialGraph, cores: tuple[int, ...]) -> str:
    """What each core computes."""
    made: dict[int, list[str]] = {}
    for core, compute in zip(cores, graph.computes, strict=True):
        made.setdefault(core, []).extend(map(str, compute.results))
    lines = (f"  core {core}: {', '.join(results)}\n" for core, results in sorted(made.items()))
    return "".join((f'{title} "{graph.name}" {{\n', *lines, "}\n"))
