"""The network table of a mesh: what a flit costs between each two cores, and to global memory.

2 ns for each router on the path and 46 pJ a flit; 15 ns and 46 pJ to global memory, as in the simulator's example;
without contention, as the simulator has none. Complete for every ordered pair: a missing one would cost nothing.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

from raptor.arch.chip import Arch
from raptor.arch.schema import GLOBAL_MEMORY_ID, ArchFile
from raptor.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

ROUTER_NS = 2
MEMORY_NS = 15
FLIT_PJ = 46
MOST_CORES = 10_000
"""The table of so many has 2 GB."""


def mesh_layout(cores: int) -> tuple[int, int]:
    """Rows and columns of the most square mesh that holds `cores`, filled row by row."""
    cols = max(1, math.isqrt(max(cores, 1) - 1) + 1)
    return max(1, -(-cores // cols)), cols


def check_network_size(arch: Arch) -> None:
    """Raises `UserError` for a chip whose table would fill the disk."""
    if arch.core_count > MOST_CORES:
        raise UserError(
            f"the chip has {arch.core_count} cores; at most {MOST_CORES} can be compiled for, as the network table of "
            "the simulator has an entry for every two of them"
        )


def network_table(arch: Arch) -> dict[str, dict[str, dict[str, int]]]:
    """The table as a value; `write_network` needs no memory for it."""
    cols, count, memory = arch.mesh_cols, arch.core_count, str(GLOBAL_MEMORY_ID)
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
    memory, cores = GLOBAL_MEMORY_ID, range(chip.core_cnt)
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


def write_network(arch: Arch) -> Iterator[bytes]:
    """The table as JSON, a source core at a time: the bytes of `network_table`, in memory for one row only."""
    yield b'{"latency":{'
    yield from _latencies(arch.core_count, arch.mesh_cols)
    yield b'},"energy":{'
    yield from _energies(arch.core_count)
    yield b"}}\n"


def _latencies(count: int, cols: int) -> Iterator[bytes]:
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
        yield _line(a, [*entries, f'"{GLOBAL_MEMORY_ID}":{MEMORY_NS}'])
    yield _memory_line(count, MEMORY_NS)


def _energies(count: int) -> Iterator[bytes]:
    entries = [f'"{b}":{FLIT_PJ}' for b in [*range(count), GLOBAL_MEMORY_ID]]
    for a in range(count):
        yield _line(a, entries[:a] + entries[a + 1 :])
    yield _memory_line(count, FLIT_PJ)


def _line(source: int, entries: list[str]) -> bytes:
    return f'"{source}":{{{",".join(entries)}}},'.encode()


def _memory_line(count: int, cost: int) -> bytes:
    return _line(GLOBAL_MEMORY_ID, [f'"{b}":{cost}' for b in range(count)])[:-1]
