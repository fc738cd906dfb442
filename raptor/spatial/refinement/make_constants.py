"""Constants that crossbars produce instead of loads, because the loads of all cores pass through one port.

A core with free crossbars stores constants as a matrix of one row. One MVM with the input 1 returns all of them at
once. Then each is copied to its own tile, repeated as its readers need it. Otherwise the port would be busy with the
constants of one core after another, above all with the weights of depthwise layers, which each core of such a layer
needs.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from raptor.graph.ir import Filter
from raptor.graph.window import Window
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.produced_constants import (
    choose_produced,
    count_crossbars,
    fit_constants,
    loads_at_port_ns,
    relieve_port,
)
from raptor.mapping.refinement import ProducedConstants, RefinementError
from raptor.spatial.compute_op import BodyOp, Compute
from raptor.spatial.ir import SpatialGraph
from raptor.spatial.operation_costs import operation_times_ns
from raptor.spatial.operations import ApplyLine, Move, Stencil, Vector
from raptor.spatial.placed_graph import Partition
from raptor.spatial.repeated_operands import repeated_shape
from raptor.spatial.scheduling.alap_schedule import partition_work
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import SampleWork

LEAST_AT_PORT = 0.02
"""Least time of loads that products could replace, relative to the operations of the busiest core, for more of them to
be considered: to know whether the port binds takes 2 % of a compilation."""

_Shape = tuple[int, int, int]
"""Rows, width and channels of a tile, which has the pixels of a constant, or its single element again and again."""

_Use = tuple[str, _Shape]
"""Name of a constant, and the shape in which an operation needs it."""

_Filled = tuple[bytes, _Shape]
"""Values of a constant, and the shape of the tile that they fill: what the tile holds."""

_Made = Mapping[tuple[int, _Use], Tile]
"""Tiles that hold produced constants, keyed by core and use."""


@dataclass(slots=True)
class _Constants:
    """The constants of a core. first: number of the first compute that reads one. uses: the constant of each use.

    stem: prefix of all new names, which no tensor or layer of the model has.
    """

    stem: str
    core: int
    first: int
    uses: dict[_Use, ConstantTile] = field(default_factory=dict[_Use, ConstantTile])

    @property
    def key(self) -> str:
        return f"{self.stem}@{self.core}"

    @property
    def one(self) -> str:
        """Name of the literal 1 that the matrices of constants are multiplied with."""
        return f"{self.stem}@one"

    def values(self) -> dict[bytes, ConstantTile]:
        """Returns the distinct constants, keyed by their bytes."""
        return {tile.values.tobytes(): tile for tile in self.uses.values()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the constants, each once, in order of their first use."""
        return tuple(dict.fromkeys(name for name, _ in self.uses))

    def without(self, loaded: Collection[str]) -> "_Constants":
        """Returns the constants but those of these names."""
        return replace(self, uses={use: tile for use, tile in self.uses.items() if use[0] not in loaded})

    def xbars(self, arch: Target) -> int:
        """Returns the number of crossbars that hold the distinct constants."""
        return count_crossbars((tile.elements for tile in self.values().values()), arch)


@dataclass(frozen=True, slots=True)
class ConstantUses:
    """The constants of a partition that crossbars could produce. readers: numbers of the computes that read any.

    Crossbars hold finite numbers, so others (the mask of an attention) are loaded.
    """

    by_core: Mapping[int, _Constants]
    readers: Sequence[int]

    @classmethod
    def from_partition(cls, partition: Partition) -> "ConstantUses":
        """Finds the constants of each core, and the computes that read them."""
        by_core: dict[int, _Constants] = {}
        readers: list[int] = []
        stem = _free_stem(partition.graph)
        is_number: dict[str, bool] = {}
        for i, (compute, core) in enumerate(zip(partition.graph.computes, partition.cores, strict=True)):
            for op in compute.body:
                for tile, shape in _wanted(op):
                    if tile.name not in is_number:
                        is_number[tile.name] = tile.element == MODELLED_FLOAT and bool(np.isfinite(tile.values).all())
                    if is_number[tile.name]:
                        readers.append(i)
                        if core not in by_core:
                            by_core[core] = _Constants(stem, core, i)
                        by_core[core].uses[tile.name, shape] = tile
        return cls(by_core, [*dict.fromkeys(readers)])


def choose_constants(
    partition: Partition, uses: ConstantUses, arch: Target
) -> tuple[tuple[ProducedConstants, ...], Partition]:
    """Chooses cores on which products make constants. Returns records of them, and the partition with the products.

    A core makes its constants if that takes less time than their loads. More cores make theirs where the port of global
    memory binds (`relieve_port`).
    """
    used, kept, spare = _used_xbars(partition), dict[int, set[bytes]](), dict[int, dict[bytes, int]]()
    for core, constants in sorted(uses.by_core.items()):
        elements = {key: tile.elements for key, tile in constants.values().items()}
        free = arch.xbars_per_core - used[core]
        if some := choose_produced(elements, free, arch):
            kept[core] = some
        elif some := fit_constants(elements, free, arch):
            spare[core] = {key: elements[key] for key in elements if key in some}
    chosen = _as_records(uses, kept)
    made = make_constants(partition, uses, chosen, arch)
    if not spare or not _is_worth_asking(made, spare, arch):
        return chosen, made
    work = partition_work(made, arch)
    relieved = relieve_port(spare, _core_ns(work), float(work.memory_ns.sum()), arch)
    if not relieved:
        return chosen, made
    chosen = _as_records(uses, kept | {core: set(spare[core]) for core in relieved})
    return chosen, make_constants(partition, uses, chosen, arch)


def _as_records(uses: ConstantUses, made: Mapping[int, Collection[bytes]]) -> tuple[ProducedConstants, ...]:
    """Returns the records of cores that make these constants, by bytes; neighbours with equal records share one."""
    chosen: list[ProducedConstants] = []
    for core, kept in sorted(made.items()):
        uses_of_core = uses.by_core[core].uses.items()
        loaded = tuple(dict.fromkeys(name for (name, _), t in uses_of_core if t.values.tobytes() not in kept))
        if chosen and (chosen[-1].stop, chosen[-1].loaded) == (core, loaded):
            chosen[-1] = replace(chosen[-1], stop=core + 1)
        else:
            chosen.append(ProducedConstants(core, core + 1, loaded))
    return tuple(chosen)


def _is_worth_asking(partition: Partition, spare: Mapping[int, Mapping[bytes, int]], arch: Target) -> bool:
    """True if loads of `spare` constants take enough of the port to ask whether it binds."""
    loads_ns = sum(loads_at_port_ns(sizes.values(), arch) for sizes in spare.values())
    flow = partition.graph.dataflow
    times_ns = operation_times_ns(flow, partition.graph.filters, arch)
    core_ns = np.bincount(np.array(partition.cores)[flow.op_compute], times_ns)
    return loads_ns > LEAST_AT_PORT * float(core_ns.max())


def _core_ns(work: "SampleWork") -> dict[int, float]:
    """Returns the time in ns for which the steps of a sample occupy each core, as readers and as senders."""
    sends = work.peer >= 0
    owners = np.concatenate([work.core, work.peer[sends]])
    times_ns = np.concatenate([work.occupied_ns, (work.sender_ns + work.wire_ns)[sends]])
    found: list[float] = np.bincount(owners, times_ns).tolist()
    return dict(enumerate(found))


def make_constants(
    partition: Partition, uses: ConstantUses, chosen: Sequence[ProducedConstants], arch: Target
) -> Partition:
    """Returns the partition with the products of the `chosen` cores; the partition itself if there are none."""
    kept = [uses.by_core[core].without(run.loaded) for run in chosen for core in range(run.first, run.stop)]
    return _with_products(partition, {c.first: c for c in kept}, uses.readers, arch) if kept else partition


def check_constants(
    partition: Partition, uses: ConstantUses, chosen: Sequence[ProducedConstants], arch: Target
) -> None:
    """Raises `RefinementError` for a core without such constants, or without crossbars for them."""
    used, end = _used_xbars(partition), 0
    for i, run in enumerate(chosen):
        if not end <= run.first < run.stop <= arch.usable_cores:
            raise RefinementError(f"constants[{i}]: {run}, expected some of {end} to {arch.usable_cores}, in order")
        for core in range(run.first, run.stop):
            constants, loaded = uses.by_core.get(core), set(run.loaded)
            if constants is None or not loaded < set(constants.names):
                names = () if constants is None else constants.names
                raise RefinementError(f"constants[{i}]: {run}, but the constants of core {core} are {names}")
            free, needed = arch.xbars_per_core - used[core], constants.without(loaded).xbars(arch)
            if needed > free:
                raise RefinementError(f"constants[{i}]: need {needed} crossbars of core {core}, it has {free} free")
        end = run.stop


def _used_xbars(partition: Partition) -> defaultdict[int, int]:
    """Returns the number of crossbars that the matrices of each core occupy."""
    # NOTE: computes of a core share their tuple of matrices, so its identity skips most of them.
    tuples = {
        (core, compute.layer, id(compute.matrices)): compute.matrices
        for compute, core in zip(partition.graph.computes, partition.cores, strict=True)
        if compute.matrices
    }
    held = {(core, layer, m): m.xbars for (core, layer, _), matrices in tuples.items() for m in matrices}
    used: defaultdict[int, int] = defaultdict(int)
    for (core, _, _), xbars in held.items():
        used[core] += xbars
    return used


def _free_stem(graph: SpatialGraph) -> str:
    """Returns a prefix that no tensor or layer name starts with."""
    stem = "constants"
    while any(name.startswith(stem) for name in (*graph.tensors, *graph.filters)):
        stem += "'"
    return stem


def _wanted(op: BodyOp) -> Sequence[tuple[ConstantTile, _Shape]]:
    """Returns the constant operands that a product can replace, each with the shape of the tile that replaces it.

    That of a single element fills a row for an element-wise function: one move does both. Other tiles have the shape of
    the constant.
    """
    if not isinstance(op, Vector | Stencil):
        return ()
    constants = [tile for tile in op.operands if isinstance(tile, ConstantTile)]
    found = constants if len(constants) < 2 else [*dict.fromkeys(constants)]  # hashes of tiles take long
    shapes = (repeated_shape(op, tile) if tile.elements == 1 and isinstance(op, Vector) else None for tile in found)
    return [(t, shape or (t.rows, t.width, t.channels)) for t, shape in zip(found, shapes, strict=True)]


def _with_products(
    partition: Partition, chosen: dict[int, _Constants], readers: Sequence[int], arch: Target
) -> Partition:
    """Inserts the product of each core before the first compute that reads one of its constants."""
    graph = partition.graph
    products: dict[int, Compute] = {}
    filters: dict[str, Filter] = {}
    known: dict[str, ConstantTile] = {}
    made: dict[tuple[int, _Use], Tile] = {}
    for i, constants in sorted(chosen.items()):
        products[i], filters[constants.key], tiles = _product(constants, graph.computes[i], arch)
        made |= {(constants.core, use): tiles[_filled(use, t)] for use, t in constants.uses.items()}
        known |= {tiles[_filled(use, t)].name: t for use, t in constants.uses.items()}
    reading = list(graph.computes)
    for i in readers:
        core, c = partition.cores[i], reading[i]
        body = tuple([_reading(op, core, made) for op in c.body])
        # NOTE: `replace` takes three times as long, and these may be half of all computes.
        reading[i] = Compute(c.node, c.op_type, c.layer, c.matrices, body, c.results)
    computes: list[Compute] = []
    cores: list[int] = []
    positions: list[float] = []
    for first, last in pairwise([0, *products, len(reading)]):
        computes += reading[first:last]
        cores += partition.cores[first:last]
        positions += partition.positions[first:last]
        if last in products:
            computes.append(products[last])
            cores.append(partition.cores[last])
            positions.append(0.0)
    one = next(iter(chosen.values())).one
    literals = {**graph.literals, one: ConstantTile.from_pixels(one, np.ones((1, 1, 1)))}
    filters = {**graph.filters, **filters}
    changed = replace(graph, computes=tuple(computes), filters=filters, literals=literals, made=known)
    return Partition(changed, tuple(cores), tuple(positions))


def _filled(use: _Use, constant: ConstantTile) -> _Filled:
    """Returns what a tile for a use of a constant holds: uses for which it is equal share the tile."""
    return constant.values.tobytes(), use[1]


def _product(constants: _Constants, reader: Compute, arch: Target) -> tuple[Compute, Filter, dict[_Filled, Tile]]:
    """Returns the compute that produces a core's constants, its weights, and the tile of each constant and shape."""
    values = constants.values()
    starts = dict(zip(values, np.cumsum([0, *(t.elements for t in values.values())]).tolist(), strict=False))
    weights = np.concatenate([tile.values for tile in values.values()])
    together = Tile(constants.key, 1, 1, weights.size)
    matrix = Matrix(0, (0, 1), (0, weights.size), -(-weights.size // arch.outputs_per_xbar))
    tiles: dict[_Filled, Tile] = {}
    body: list[BodyOp] = [ApplyLine(together, (Tile(constants.one, 1, 1, 1),), np.zeros((1, 4), np.int64))]
    for use, tile in constants.uses.items():
        key = _filled(use, tile)
        if key not in tiles:
            tiles[key] = Tile(f"{constants.key}.{len(tiles)}", *use[1])
            stride = int(tile.elements == tiles[key].elements)
            run = 0, 0, starts[key[0]], stride, tiles[key].elements
            body.append(Move(tiles[key], (together,), np.array([run])))
    product = Compute(reader.node, reader.op_type, constants.key, (matrix,), tuple(body), tuple(tiles.values()))
    return product, Filter(weights.reshape(1, 1, -1), Window.pointwise((1,))), tiles


def _reading(op: BodyOp, core: int, made: _Made) -> BodyOp:
    """Returns the operation with produced tiles in place of its constants."""
    uses = [(tile.name, shape) for tile, shape in _wanted(op)]
    known = {use[0]: made[core, use] for use in uses if (core, use) in made}
    if not known:
        return op
    if isinstance(op, Stencil):
        return structs.replace(op, vectors=next(iter(known.values())))
    assert isinstance(op, Vector)
    return Vector(op.result, op.function, tuple([known.get(t.name, t) for t in op.sources]))
