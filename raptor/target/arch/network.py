"""What a flit costs between each two cores, and to global memory: the chip's own table, or that of a mesh.

The mesh: 2 ns for each router on the path and 46 pJ a flit; 15 ns and 46 pJ to global memory, as in the simulator's
example; without contention, as the simulator has none. Complete for every ordered pair: a missing one would cost
nothing.
"""

import math
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.arch.schema import ArchFile
from raptor.target.arch.target import Target

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROUTER_NS = 2
MEMORY_NS = 15
FLIT_PJ = 46
MESH_FLIT_NS = ROUTER_NS * (1 + 4)
"""Between two cores of a mesh that have no places yet: four routers apart, as an estimate."""
MOST_CORES = 10_000
"""The table of so many has 2 GB."""


def mesh_layout(cores: int) -> tuple[int, int]:
    """Rows and columns of the most square mesh that holds `cores`, filled row by row."""
    cols = max(1, math.isqrt(max(cores, 1) - 1) + 1)
    return max(1, -(-cores // cols)), cols


def check_network_size(target: Target) -> None:
    """Raises `UserError` for a chip whose table would fill the disk."""
    if target.core_count > MOST_CORES:
        raise UserError(
            f"the chip has {target.core_count} cores; at most {MOST_CORES} can be compiled for, as the network table "
            "of the simulator has an entry for every two of them"
        )


def network_table(target: Target) -> dict[str, dict[str, dict[str, int]]]:
    """The table of the mesh as a value; `write_network` needs no memory for it."""
    cols, count, memory = target.mesh_cols, target.core_count, str(target.memory_id)
    latency = {str(a): dict(_row(a, count, cols)) | {memory: MEMORY_NS} for a in range(count)}
    latency[memory] = {str(a): MEMORY_NS for a in range(count)}
    energy = {src: dict.fromkeys(row, FLIT_PJ) for src, row in latency.items()}
    return {"latency": latency, "energy": energy}


def _row(a: int, count: int, cols: int) -> Iterator[tuple[str, int]]:
    for b in range(count):
        if a != b:
            yield str(b), mesh_latency(a, b, cols)


def mesh_cost(file: ArchFile, source: int, to: int) -> tuple[int, int] | None:
    """The entries of `network_table` for a pair, latency and energy, without the table; None if it has none."""
    chip = file.chip_config
    memory, cores = chip.global_memory_switch_id, range(chip.core_cnt)
    if source == to or not all(end == memory or end in cores for end in (source, to)):
        return None
    if memory in (source, to):
        return MEMORY_NS, FLIT_PJ
    return mesh_latency(source, to, chip.network_config.layout[1]), FLIT_PJ


@overload
def mesh_latency(a: int, b: int, cols: int) -> int: ...
@overload
def mesh_latency(a: "Ints", b: "Ints", cols: int) -> "Ints": ...
def mesh_latency(a: Any, b: Any, cols: int) -> Any:
    """ns that a flit takes from core a to core b, for numbers or arrays of cores."""
    return ROUTER_NS * (1 + abs(a // cols - b // cols) + abs(a % cols - b % cols))


def flit_ns(target: Target, source: Ints, to: Ints) -> Ints | Floats:
    """What a flit takes from core to core, for arrays of cores."""
    if target.table is not None:
        return target.table.latency_ns[source, to]
    return mesh_latency(source, to, target.mesh_cols)


def typical_flit_ns(target: Target) -> float:
    """Between two cores that have no places yet."""
    if target.table is not None:
        return float(np.median(target.table.between_cores_ns)) if target.core_count > 1 else 0.0
    return MESH_FLIT_NS


def longest_flit_ns(target: Target) -> float:
    """No flit takes longer."""
    if target.table is not None:
        return float(target.table.latency_ns.max())
    return ROUTER_NS * (1 + target.network.rows + target.network.cols)


def memory_flit_ns(target: Target, core: int | None = None) -> float:
    """From a core to the global memory; without `core`, from one that has no place yet."""
    if target.table is None:
        return MEMORY_NS
    return float(np.median(target.table.to_memory_ns) if core is None else target.table.to_memory_ns[core])


def write_network(target: Target) -> Iterator[bytes]:
    """The table as JSON: the chip's own as it was read, that of a mesh a source core at a time."""
    if target.table is not None:
        yield target.table.content
        return
    yield from write_mesh(target.core_count, target.mesh_cols, target.memory_id)


def write_mesh(count: int, cols: int, memory_id: int) -> Iterator[bytes]:
    """The bytes of `network_table`, in memory for one row only."""
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
