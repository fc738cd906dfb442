"""Layout of global memory: inputs, constants and outputs, one after another."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.common.errors import CapacityError
from raptor.common.option_spelling import spell_option
from raptor.pim.allocate_memory import ALIGNMENT
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import SpatialGraph, TakeRows
from raptor.spatial.placed_graph import Fetch, Schedule
from raptor.spatial.tiles import ConstantTile, Tile
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT, Bytes, to_bytes

WORD_BYTES = 4
"""Number of bytes that `sld` reads."""
REGISTER_BYTES = 2**32
"""Number of bytes that one 32-bit register can address."""

Constants = npt.NDArray[np.float32 | np.int32 | np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class GlobalMemory:
    """Map of global memory. Addresses and sizes are in bytes.

    inputs, outputs: by tensor, an address for each of its parts; for a state, that of its first value. constants: by
    name of the ConstantTile. ids: by name and core, addresses of computed tiles that the core reads into registers.
    constant_values: all constants, stored from `constants_address` to `constants_end`: values of the elements in a
    float program, else bytes.
    """

    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, int]
    constant_values: Constants
    constants_address: int
    constants_end: int
    ids: Mapping[tuple[str, int], int]
    size_bytes: int

    def __str__(self) -> str:
        places = [("input", self.inputs), ("output", self.outputs), ("constant", self.constants)]
        lines = [f"  {kind} %{name}: {address}\n" for kind, table in places for name, address in table.items()]
        lines += (f"  ids %{name} of core {core}: {address}\n" for (name, core), address in self.ids.items())
        return f"global memory of {self.size_bytes} bytes\n{''.join(lines)}"


def map_global_memory(schedule: Schedule, arch: Target) -> GlobalMemory:
    """Returns addresses for all input tiles, constants (in order of first use) and output tiles."""
    graph = schedule.placed.graph
    inputs, position = _place_tensors(graph, graph.inputs, 0, arch)
    pool = _Pool(position, arch.element_bytes)
    constants: dict[str, int] = {}
    for constant in _constants(schedule):
        if constant.name not in constants:
            constants[constant.name] = pool.place(constant)
    stored = tuple(name for name in graph.outputs if name not in graph.residency.state_outputs)
    constants_end = position + pool.size
    outputs, end = _place_tensors(graph, stored, constants_end, arch)
    values = np.concatenate(pool.chunks or [np.zeros(0, np.float32 if graph.numbers == "float" else np.uint8)])
    ids, end = _place_ids(schedule, constants, end, arch)
    return GlobalMemory(inputs, outputs, constants, values, position, constants_end, ids, end)


def _place_ids(
    schedule: Schedule, constants: Mapping[str, int], position: int, arch: Target
) -> tuple[dict[tuple[str, int], int], int]:
    """Places the computed ids of each core from `position` on. Returns their addresses, and the first free address.

    Registers are loaded from global memory only, by words, so a word is reserved after the last id. Raises
    `CapacityError` for a table beyond the addresses that one register can hold.
    """
    graph = schedule.placed.graph
    inputs = (name for name in graph.inputs if name not in graph.residency.state_inputs)
    given = {p.tile.name for name in inputs for p in graph.tensors[name].parts} | graph.literals.keys()
    places: dict[tuple[str, int], int] = {}
    steps = schedule.steps() if graph.dataflow.is_op_class(TakeRows).any() else ()
    takes = [(core, op) for core, work in steps for op in _takes(work)]
    for core, op in takes:
        last = constants[op.table.name] + _size(op.table, arch)
        if last > REGISTER_BYTES:
            raise CapacityError(
                "bytes of global memory up to the end of a table",
                last,
                REGISTER_BYTES,
                where=f"{op.result}",
                levers=(f"fewer {spell_option('element_bits')}", "a smaller table"),
            )
        for tile in (t for t in op.ids if t.name not in given and (t.name, core) not in places):
            places[tile.name, core] = position
            position += _size(tile, arch)
    return places, position + (-(-WORD_BYTES // arch.element_bytes) * arch.element_bytes if takes else 0)


def _takes(work: Compute | Fetch) -> Iterator[TakeRows[Tile]]:
    if isinstance(work, Compute):
        yield from (op for op in work.body if isinstance(op, TakeRows))


@dataclass(slots=True)
class _Pool:
    """Constants in global memory; equal ones are stored once.

    base: address of the first one. modelled_bytes: bytes of an element of a float program. known: address of each
    stored constant, by its label and bytes.
    """

    base: int
    modelled_bytes: int
    chunks: list[Constants] = field(default_factory=list[Constants])
    known: dict[tuple[str, bytes], int] = field(default_factory=dict[tuple[str, bytes], int])
    size: int = 0

    def place(self, constant: ConstantTile) -> int:
        """Returns the address of a constant; adds it unless an equal one is stored."""
        modelled = constant.element == MODELLED_FLOAT
        values: Constants = constant.values if modelled else _padded(to_bytes(constant.values, constant.element))
        key = constant.label, values.tobytes()
        if key not in self.known:
            self.known[key] = self.base + self.size
            self.chunks.append(values)
            self.size += values.size * (self.modelled_bytes if modelled else 1)
        return self.known[key]


def _padded(values: Bytes) -> Bytes:
    """Pads bytes with zeros to a multiple of `ALIGNMENT`."""
    return np.concatenate([values, np.zeros(-len(values) % ALIGNMENT, np.uint8)])


def _constants(schedule: Schedule) -> Iterator[ConstantTile]:
    """Yields the literals of the graph, then the constants of operations in order of first use."""
    graph, flow = schedule.placed.graph, schedule.placed.graph.dataflow
    yield from graph.literals.values()
    order = np.array(schedule.order, np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    used = flow.use_constant[np.argsort(rank[flow.op_compute[flow.use_op]], kind="stable")]
    yield from (flow.constants[number] for number in dict.fromkeys(used.tolist()))


def _place_tensors(
    graph: SpatialGraph, names: tuple[str, ...], position: int, arch: Target
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Places tensors from `position` on. Returns the addresses of their parts, and the first free address."""
    places: dict[str, tuple[int, ...]] = {}
    for name in names:
        sizes = [_size(part.tile, arch) for part in graph.tensors[name].parts]
        starts = np.cumsum([position, *sizes]).tolist()
        places[name], position = tuple(starts[:-1]), starts[-1]
    return places, position


def _size(tile: Tile, arch: Target) -> int:
    """Returns the bytes of a tile in global memory. Integers are padded to a multiple of `ALIGNMENT`."""
    size = tile.elements * arch.bytes_of(tile.element)
    return size if tile.element == MODELLED_FLOAT else size + -size % ALIGNMENT
