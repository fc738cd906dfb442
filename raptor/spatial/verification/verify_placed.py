"""Verifiers of partition, placement and schedule: a renaming of cores, and a permutation that respects dependences.

The values that computes make are verified once, in the partition (`raptor.spatial.verification.verify_tiles`). They
cannot change afterwards, because later forms hold the same graph."""

from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.spatial.compute_op import Compute
from raptor.spatial.dataflow import GroupedLists
from raptor.spatial.ir import Copy
from raptor.spatial.placed_graph import Partition, PlacedGraph, Schedule
from raptor.spatial.verification.verify_tiles import verify_spatial
from raptor.target.arch import Target

Ints = npt.NDArray[np.int64]


def verify_partition(partition: Partition, arch: Target) -> None:
    """Raises `VerifyError` for a wrong graph, a core outside the chip, or a core with too few crossbars."""
    verify_spatial(partition.graph, arch)
    _check_columns("partition", partition)
    _check_range("partition", partition, arch)
    groups: defaultdict[int, dict[object, int]] = defaultdict(dict)
    for core, compute in zip(partition.cores, partition.graph.computes, strict=True):
        if compute.matrices:  # computes of equal matrices share their crossbars
            groups[core][compute.layer, compute.matrices[0]] = sum(m.xbars for m in compute.matrices)
    for core, xbars in groups.items():
        if sum(xbars.values()) > arch.xbars_per_core:
            needed = sum(xbars.values())
            raise VerifyError(f"partition: core {core} needs {needed} crossbars, a core has {arch.xbars_per_core}")


def verify_placed(placed: PlacedGraph, partition: Partition, arch: Target) -> None:
    """Raises `VerifyError` unless the partition's cores are renamed one to one, to cores that the program may use.

    No two cores that exchange values may be where dead links cut the way between them.
    Crossbars are not counted again: all cores are alike, so the same work fits.
    """
    if placed.graph is not partition.graph or placed.positions is not partition.positions:
        raise VerifyError("place_cores: the computes are not those of the partition")
    _check_columns("place_cores", placed)
    _check_range("place_cores", placed, arch)
    taken = sorted(set(placed.cores).difference(arch.places)) if arch.places is not None else []
    if taken:
        raise VerifyError(f"place_cores: core {taken[0]} is not one that the program may use")
    renamed = set(zip(partition.cores, placed.cores, strict=True))
    for side, kind in enumerate(("virtual core", "core")):
        core, times = max(Counter(pair[side] for pair in renamed).items(), key=lambda item: item[1], default=(0, 1))
        if times > 1:
            raise VerifyError(f"place_cores: {kind} {core} stands for {times} others, not one")
    _check_routes(placed, arch)


def _check_routes(placed: PlacedGraph, arch: Target) -> None:
    """Raises `VerifyError` if a tile is read on a core to which dead links cut the way from its maker's core."""
    if arch.cut_routes is None:
        return
    flow, cores = placed.graph.dataflow, np.array(placed.cores, np.int64)
    home = np.full(len(flow.tiles), -1)
    home[flow.op_result] = cores[flow.op_compute]
    source, to = home[flow.read_tile], cores[flow.op_compute[flow.read_op]]
    away = (source >= 0) & (source != to)
    pairs = np.unique(np.stack([source[away], to[away]], axis=1), axis=0)
    for first, second in pairs[arch.cut_routes.cut(*pairs.T)][:1].tolist():
        raise VerifyError(f"place_cores: cores {first} and {second} exchange values over a dead link")


def _check_columns(name: str, placed: Partition | PlacedGraph) -> None:
    count = len(placed.graph.computes)
    if len(placed.cores) != count or len(placed.positions) != count:
        raise VerifyError(f"{name}: {len(placed.cores)} cores, {len(placed.positions)} positions, {count} computes")


def _check_range(name: str, placed: Partition | PlacedGraph, arch: Target) -> None:
    outside = sorted(core for core in set(placed.cores) if not 0 <= core < arch.core_count)
    if outside:
        raise VerifyError(f"{name}: core {outside[0]} of {arch.core_count}")


def verify_schedule(schedule: Schedule, placed: PlacedGraph) -> None:
    """Raises `VerifyError` unless each compute and fetch is done once, after everything that it depends on."""
    if schedule.placed is not placed:
        raise VerifyError("schedule: the computes are not those that were placed")
    count = len(placed.graph.computes) + len(schedule.fetches)
    order = np.array(schedule.order, np.int64)
    if len(order) != count or not np.array_equal(np.sort(order), np.arange(count)):
        raise VerifyError(f"schedule: {len(order)} steps are no permutation of {count} computes and fetches")
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    before, after = _dependencies(schedule)
    stages = np.array(schedule.stages or np.zeros(count), np.int64)
    older = stages[after] - stages[before]
    late = np.flatnonzero((older < 0) | ((older == 0) & (rank[before] >= rank[after])))
    if schedule.stages:
        _check_stages(schedule, stages)
    if len(late):
        first, second = (_named(schedule, int(i)) for i in (before[late[0]], after[late[0]]))
        raise VerifyError(f"schedule: {second} needs {first}, which comes later")


def _check_stages(schedule: Schedule, stages: Ints) -> None:
    """Raises `VerifyError` unless inputs are read in stage 0, and the makers of a tile or an output have one stage."""
    graph, flow = schedule.placed.graph, schedule.placed.graph.dataflow
    reader = flow.op_compute[flow.read_op]
    for name in graph.inputs:
        tiles = [flow.number[p.tile.name] for p in graph.tensors[name].parts if p.tile.name in flow.number]
        late = np.flatnonzero(np.isin(flow.read_tile, tiles) & (stages[reader] > 0))
        if len(late):
            raise VerifyError(
                f"schedule: {_named(schedule, int(reader[late[0]]))} reads the input {name} in a later stage"
            )
    maker = stages[flow.op_compute]
    least, most = np.full(len(flow.tiles), np.iinfo(np.int64).max), np.full(len(flow.tiles), -1)
    np.minimum.at(least, flow.op_result, maker)
    np.maximum.at(most, flow.op_result, maker)
    for tile in np.flatnonzero(most > least)[:1].tolist():
        raise VerifyError(f"schedule: parts of {flow.tiles[tile]} are made in stages {least[tile]} to {most[tile]}")
    for name in graph.outputs:
        tiles = [flow.number.get(part.tile.name, -1) for part in graph.tensors[name].parts]
        stored = np.maximum(np.append(most, -1)[tiles], 0)  # what no compute makes is stored in stage 0
        if len(found := np.unique(stored)) > 1:
            raise VerifyError(f"schedule: parts of the output {name} are made in stages {found.tolist()}")


def _dependencies(schedule: Schedule) -> tuple[Ints, Ints]:
    """Returns pairs (earlier, later) of steps, numbered as in the schedule.

    The makers of a tile come before its fetches and readers, and a fetch before the readers on its core. A tile that
    several computes fill needs all of them.
    """
    flow, cores = schedule.placed.graph.dataflow, np.array(schedule.placed.cores, np.int64)
    makers = GroupedLists.group_by(flow.op_result, flow.op_compute, len(flow.tiles))
    tile, core = _fetched(schedule, makers)
    early, fetch = makers.select_keys(tile)
    maker, read = makers.select_keys(flow.read_tile)
    reader = flow.op_compute[flow.read_op]
    others = maker != reader[read]
    # A copy reads a tile on the core that made it.
    whole = np.flatnonzero(~flow.is_op_class(Copy)[flow.read_op])
    width = int(max(cores.max(initial=0), core.max(initial=0))) + 1
    keys = tile * width + core
    order = np.argsort(keys)
    wanted = flow.read_tile[whole] * width + cores[reader[whole]]
    at = np.searchsorted(keys[order], wanted)
    there = np.append(keys[order], -1)[at] == wanted
    before = maker[others], len(cores) + order[at[there]], early
    after = reader[read][others], reader[whole][there], len(cores) + fetch
    return np.concatenate(before), np.concatenate(after)


def _fetched(schedule: Schedule, makers: GroupedLists) -> tuple[Ints, Ints]:
    """Returns tile and core of each fetch. Raises `VerifyError` for a repeated fetch, or one of an unknown tile."""
    tiles = schedule.placed.graph.dataflow.tiles
    number = {tiles[i].name: i for i in np.flatnonzero(np.diff(makers.first)).tolist()}
    seen: set[tuple[str, int]] = set()
    for fetch in schedule.fetches:
        if (fetch.tile.name, fetch.core) in seen or fetch.tile.name not in number:
            raise VerifyError(f"schedule: {fetch.tile} is fetched to core {fetch.core} twice, or never made")
        seen.add((fetch.tile.name, fetch.core))
    pairs = [(number[fetch.tile.name], fetch.core) for fetch in schedule.fetches]
    tile, core = np.array(pairs, np.int64).reshape(-1, 2).T
    return tile, core


def _named(schedule: Schedule, i: int) -> str:
    """Returns the name of a step for a message."""
    computes = schedule.placed.graph.computes
    if i >= len(computes):
        fetch = schedule.fetches[i - len(computes)]
        return f"the fetch of {fetch.tile} to core {fetch.core}"
    compute: Compute = computes[i]
    return f"{', '.join(map(str, compute.results))} of {compute.node}"
