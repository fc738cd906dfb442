"""Cost of a flit between two cores, and to global memory: from the chip's network table, or by the mesh model.

In the mesh, a flit takes 2 ns for each router on its path, and 46 pJ; to global memory 15 ns and 46 pJ, as in the
simulator's example. There is no contention, as in the simulator. The table has every ordered pair, because a missing
one would cost nothing.
"""

import math
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.arch.target import Target

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROUTER_NS = 2
MEMORY_NS = 15
FLIT_PJ = 46
MESH_FLIT_NS = ROUTER_NS * (1 + 4)
"""Estimated time of a flit between two cores of a mesh without places yet: four hops are assumed."""
MOST_CORES = 10_000
"""Largest number of cores; the network table then has 2 GB."""


def mesh_layout(cores: int) -> tuple[int, int]:
    """Returns rows and columns of the most square mesh that holds `cores`, filled row by row."""
    cols = max(1, math.isqrt(max(cores, 1) - 1) + 1)
    return max(1, -(-cores // cols)), cols


def check_network_size(target: Target) -> None:
    """Raises `UserError` for a chip with so many cores that its network table would fill the disk."""
    if target.core_count > MOST_CORES:
        raise UserError(
            f"the chip has {target.core_count} cores; at most {MOST_CORES} can be compiled for, as the network table "
            "of the simulator has an entry for every two of them"
        )


def make_mesh_table(target: Target) -> dict[str, dict[str, dict[str, int]]]:
    """Returns the network table of the mesh; `write_network` writes it with less memory."""
    cols, count, memory = target.mesh_cols, target.core_count, str(target.memory_id)
    latency = {str(a): dict(_row(a, count, cols)) | {memory: MEMORY_NS} for a in range(count)}
    latency[memory] = {str(a): MEMORY_NS for a in range(count)}
    energy = {src: dict.fromkeys(row, FLIT_PJ) for src, row in latency.items()}
    return {"latency": latency, "energy": energy}


def _row(a: int, count: int, cols: int) -> Iterator[tuple[str, int]]:
    for b in range(count):
        if a != b:
            yield str(b), mesh_latency(a, b, cols)


def mesh_pair_cost(target: Target, source: int, to: int) -> tuple[int, int] | None:
    """Returns latency (ns) and energy (pJ) of a pair, as in `make_mesh_table`; None for a pair that is not in it."""
    memory, cores = target.memory_id, range(target.core_count)
    if source == to or not all(end == memory or end in cores for end in (source, to)):
        return None
    if memory in (source, to):
        return MEMORY_NS, FLIT_PJ
    return mesh_latency(source, to, target.mesh_cols), FLIT_PJ


@overload
def mesh_latency(a: int, b: int, cols: int) -> int: ...
@overload
def mesh_latency(a: "Ints", b: "Ints", cols: int) -> "Ints": ...
def mesh_latency(a: Any, b: Any, cols: int) -> Any:
    """Returns the time in ns of a flit from core a to core b, for numbers or arrays of cores."""
    return ROUTER_NS * (1 + abs(a // cols - b // cols) + abs(a % cols - b % cols))


def flit_ns(target: Target, source: Ints, to: Ints) -> Ints | Floats:
    """Returns the time in ns of a flit from core `source` to core `to`, for arrays of cores."""
    if target.table is not None:
        return target.table.latency_ns[source, to]
    return mesh_latency(source, to, target.mesh_cols)


def estimate_flit_ns(target: Target) -> float:
    """Estimates the time in ns of a flit between two cores of one chip that have no places yet."""
    if target.table is not None:
        count = target.cores_per_chip
        between = target.table.latency_ns[:count, :count][~np.eye(count, dtype=np.bool_)]
        return float(np.median(between)) if count > 1 else 0.0
    return MESH_FLIT_NS


def upper_bound_flit_ns(target: Target) -> float:
    """Returns an upper bound on the time in ns of a flit."""
    if target.table is not None:
        return float(target.table.latency_ns.max())
    return ROUTER_NS * (1 + target.network.rows + target.network.cols)


def memory_flit_ns(target: Target, core: int | None = None) -> float:
    """Returns the time in ns of a flit from a core to global memory; without `core`, from a typical one of its chip."""
    if target.table is None:
        return MEMORY_NS
    there_ns = target.table.to_memory_ns
    return float(np.median(there_ns[: target.cores_per_chip]) if core is None else there_ns[core])


def write_network(target: Target) -> Iterator[bytes]:
    """Yields the network table as JSON: the chip's own as it was read, or the table of the mesh, row by row."""
    if target.table is not None:
        yield target.table.content
        return
    yield from write_mesh(target.core_count, target.mesh_cols, target.memory_id)


def write_mesh(count: int, cols: int, memory_id: int) -> Iterator[bytes]:
    """Yields the bytes of `make_mesh_table` as JSON, one row at a time."""
    yield b'{"latency":{'
    yield from _latencies(count, cols, memory_id)
    yield b'},"energy":{'
    yield from _energies(count, memory_id)
    yield b"}}\n"


def _latencies(count: int, cols: int, memory_id: int) -> Iterator[bytes]:
    names = [f'"{b}":' for b in range(count)]
    texts = [str(ROUTER_NS * (1 + hops)) for hops in range(count + cols)]
    across = [[abs(x - y) for y in range(cols)] for x in range(cols)]
    for a in range(count):
        costs: list[str] = []
        for row in range(-(-count // cols)):
            far = abs(a // cols - row)
            costs += [texts[far + hops] for hops in across[a % cols]]
        entries = [name + cost for name, cost in zip(names, costs, strict=False)]
        del entries[a]
        yield _line(a, [*entries, f'"{memory_id}":{MEMORY_NS}'])
    yield _memory_line(count, MEMORY_NS, memory_id)


def _energies(count: int, memory_id: int) -> Iterator[bytes]:
    entries = [f'"{b}":{FLIT_PJ}' for b in [*range(count), memory_id]]
    for a in range(count):
        yield _line(a, entries[:a] + entries[a + 1 :])
    yield _memory_line(count, FLIT_PJ, memory_id)


def _line(source: int, entries: list[str]) -> bytes:
    return f'"{source}":{{{",".join(entries)}}},'.encode()


def _memory_line(count: int, cost: int, memory_id: int) -> bytes:
    return _line(memory_id, [f'"{b}":{cost}' for b in range(count)])[:-1]
