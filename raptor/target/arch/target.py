"""The target: all properties of the hardware to compile for, to simulate and to check, in RAPTOR's own types.

It is read from, and written as, an architecture file of pimsim-nn (`raptor.target.arch.pimsim_file`). It also has
properties without a field in that file, such as the widths of elements. Times are in ns, powers in mW, energies in pJ,
sizes in bytes where a name says nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from raptor.target.arch.area_table import AreaTable
from raptor.target.arch.flit_cost_table import FlitCostTable
from raptor.target.arch.pimsim_schema import Interface
from raptor.target.chip_elements import ElementType, bytes_of

if TYPE_CHECKING:
    from raptor.target.chip_file import Chip
    from raptor.target.mesh_routes import CutRoutes


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths in bits: of a weight in a crossbar, of a value that enters a crossbar, of a value that leaves it."""

    weights: int
    activations: int
    accumulators: int


@dataclass(frozen=True, slots=True)
class MemoryEnergy:
    """Static power of a memory, and the energy to read and to write a beat."""

    static_mw: float
    read_pj: float
    write_pj: float


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory with one port. It reads or writes `beat_bytes` in `read_cycles` or `write_cycles` of `period_ns`.

    `size_given`: True if the source gives the size, which is then a limit; else it is only the simulator's default.
    """

    beat_bytes: int
    period_ns: float
    read_cycles: int
    write_cycles: int
    size_bytes: int
    size_given: bool
    energy: MemoryEnergy


@dataclass(frozen=True, slots=True)
class Converters:
    """DACs and ADCs of a crossbar. Cycles are periods of `period_ns`.

    `pipelined`: a crossbar is read while the ADCs convert the result of the previous read. `adc_bits`: the resolution,
    which has no effect on time and energy in the simulator.
    """

    period_ns: float
    pipelined: bool
    dac_bits: int
    dacs: int
    dac_cycles: int
    sample_hold_cycles: int
    adc_bits: int
    adcs: int
    adc_cycles: int
    shift_add_cycles: int
    output_buffer_cycles: int


@dataclass(frozen=True, slots=True)
class CrossbarPower:
    """Power of a crossbar and its converters: of each part while it works, and its static power.

    The DACs, the ADCs and the sample-and-hold stages are counted one by one. The simulator counts neither static power
    nor input buffers.
    """

    read_mw: float
    dac_mw: float
    dac_static_mw: float
    sample_hold_mw: float
    sample_hold_static_mw: float
    adc_mw: float
    adc_static_mw: float
    shift_add_mw: float
    shift_add_static_mw: float
    input_buffer_mw: float
    input_buffer_static_mw: float
    output_buffer_mw: float
    output_buffer_static_mw: float


@dataclass(frozen=True, slots=True)
class CrossbarHardware:
    """A grid of `rows` x `cols` cells of `cell_bits` each; one read of it takes `read_ns`."""

    rows: int
    cols: int
    cell_bits: int
    read_ns: float
    converters: Converters
    power: CrossbarPower


@dataclass(frozen=True, slots=True)
class CorePower:
    """Power of the units of a core without crossbars and memory: of each while it works, and its static power.

    A step of the vector unit takes `vector_step_pj`, two reads of its registers and a write. The simulator counts
    neither the controller nor the transfer unit at work.
    """

    vector_step_pj: float
    vector_static_mw: float
    vector_read_pj: float
    vector_write_pj: float
    vector_registers_static_mw: float
    fetch_mw: float
    fetch_static_mw: float
    decode_mw: float
    decode_static_mw: float
    decode_offset_mw: float
    decode_offset_static_mw: float
    register_read_mw: float
    register_write_mw: float
    registers_static_mw: float
    scalar_mw: float
    scalar_static_mw: float
    transfer_mw: float
    transfer_static_mw: float
    controller_mw: float
    controller_static_mw: float


@dataclass(frozen=True, slots=True)
class Core:
    """A core: a clock, `xbar_count` crossbars, a vector unit, a local memory.

    `rob_size`: entries of the reorder buffer; with 1, nothing overlaps. `vector_step_ns`: time of the vector
    unit for `vector_width` elements.
    """

    period_ns: float
    rob_size: int
    vector_width: int
    vector_step_ns: float
    xbar_count: int
    xbar: CrossbarHardware
    memory: Memory
    power: CorePower


@dataclass(frozen=True, slots=True)
class Link:
    """A link between neighbouring chips: additional time and energy of a flit. It carries one flit in this time."""

    ns: float
    pj: float


@dataclass(frozen=True, slots=True)
class Network:
    """The links between cores, and to the global memory, which the table calls `memory_id`.

    `rows`, `cols`: size of the mesh, whose cores are numbered row by row. `table`: latencies and energies of each pair
    from the source; None for the mesh model. `link`: link between chips, which the table includes; None for one chip.
    `topology` is a name without effect.
    """

    topology: str
    flit_bytes: int
    rows: int
    cols: int
    memory_id: int
    table: FlitCostTable | None
    link: Link | None


@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """Settings of pimsim-nn for a run. The built-in simulator takes its settings from the caller.

    `is_latency_mode`: one sample runs alone, at most `timeout_ms` of simulated time; else the streams loop for
    `throughput_ms`. `verbosity`: detail of its report.
    """

    is_latency_mode: bool
    throughput_ms: float
    timeout_ms: float
    verbosity: int


@dataclass(frozen=True, slots=True)
class Target:
    """The hardware to compile for: equal cores on `chips` chips, one global memory, one network.

    `core_count`: cores of all chips. `interface`: smallest unit of work that a program can request from crossbars; None
    (not given by the source) means `crossbar`. `area`: areas of the parts, if the source has them. `notes`: changes
    that the user's options made necessary. `places`: the cores that a program may use; None for all. `room`: crossbars
    of each core that it may use; None for all. `defects`: the chip whose defects leave these places and this room.
    """

    core_count: int
    chips: int
    core: Core
    memory: Memory
    network: Network
    widths: Widths
    simulator: SimulatorSettings
    interface: Interface | None = None
    area: AreaTable | None = None
    notes: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None
    room: int | None = None
    defects: "Chip | None" = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Computes the hash once: targets are keys of cost caches, and hashing one takes longer than a cost."""
        network = self.network.flit_bytes, self.network.rows, self.network.cols
        fields = self.core_count, self.chips, self.core, self.memory, network, self.widths, self.places, self.room
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash

    def with_places(self, places: Sequence[int]) -> "Target":
        """Returns the target for a program that may use only these cores of the chip."""
        return intern_target(replace(self, places=tuple(places)))

    def with_timeout_ms(self, simulated_ms: float) -> "Target":
        """Returns the target with a timeout of at least `simulated_ms` for the simulator's latency mode."""
        longer = max(self.simulator.timeout_ms, simulated_ms)
        return replace(self, simulator=replace(self.simulator, timeout_ms=longer))

    def with_xbars_per_core(self, count: int) -> "Target":
        """Returns the target with another number of crossbars per core."""
        return replace(self, core=replace(self.core, xbar_count=count), room=None)

    def with_widths(self, widths: Widths) -> "Target":
        """Returns the target with elements of other widths, for the costs of such elements."""
        return self if widths == self.widths else _with_widths(self, widths)

    def with_element(self, element: ElementType) -> "Target":
        """Returns the target with elements of this type in memory."""
        return self.with_widths(replace(self.widths, activations=self.bits_of(element)))

    @property
    def cores_per_chip(self) -> int:
        return self.core_count // self.chips

    @property
    def usable_cores(self) -> int:
        """Number of cores that a program may use."""
        return self.core_count if self.places is None else len(self.places)

    @property
    def cut_routes(self) -> "CutRoutes | None":
        """The routes on the mesh that dead links of the chip cut; None without any."""
        return None if self.defects is None else self.defects.cut_routes

    @property
    def first_core(self) -> int:
        """First core that a program may use."""
        return self.places[0] if self.places else 0

    @property
    def rob_size(self) -> int:
        """Entries of a core's reorder buffer; with 1, nothing overlaps."""
        return self.core.rob_size

    @property
    def memory_id(self) -> int:
        """The name of the global memory in the network table."""
        return self.network.memory_id

    @property
    def mesh_cols(self) -> int:
        """Number of cores in a row of the mesh; cores are numbered row by row."""
        return self.network.cols

    @property
    def table(self) -> FlitCostTable | None:
        """The network table that the source gives; None for the mesh."""
        return self.network.table

    @property
    def xbars_per_core(self) -> int:
        """Number of crossbars of a core that a program may use."""
        return self.core.xbar_count if self.room is None else self.room

    @property
    def xbar_rows(self) -> int:
        return self.core.xbar.rows

    @property
    def xbar_cols(self) -> int:
        return self.core.xbar.cols

    @property
    def cell_bits(self) -> int:
        return self.core.xbar.cell_bits

    @property
    def rows_at_once(self) -> int:
        """Number of rows of a crossbar that can be driven at once, one for each DAC."""
        return min(self.core.xbar.converters.dacs, self.xbar_rows)

    @property
    def outputs_per_xbar(self) -> int:
        """Number of weight columns in a crossbar: a weight takes as many neighbouring cells as its bits need."""
        return self.weight_columns(self.widths.weights)

    def weight_columns(self, weight_bits: int) -> int:
        """Returns the number of weight columns in a crossbar; `weight_bits` 0 stands for the target's width."""
        return self.cell_bits * self.xbar_cols // (weight_bits or self.widths.weights)

    @property
    def element_bits(self) -> int:
        """Bits of an activation in memory; the only element width of float programs."""
        return self.widths.activations

    @property
    def element_bytes(self) -> int:
        return bytes_of(self.widths.activations)

    def bits_of(self, element: ElementType) -> int:
        """Returns the bits of an element."""
        return element.bits or self.widths.activations

    def bytes_of(self, element: ElementType) -> int:
        """Returns the bytes of an element in memory."""
        return bytes_of(self.bits_of(element))

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of a result that a crossbar writes."""
        return bytes_of(self.widths.accumulators)

    @property
    def memory_size_bytes(self) -> int:
        """Bytes of the local memory of a core."""
        return self.core.memory.size_bytes

    @property
    def memory_size_enforced(self) -> bool:
        """True if a program that needs more local memory is refused; otherwise there is only a warning."""
        return self.core.memory.size_given


@lru_cache(maxsize=64)
def intern_target(target: Target) -> Target:
    """Interns a target: returns the first equal one. Caches keyed by targets find the identical object faster."""
    return target


@cache
def _with_widths(target: Target, widths: Widths) -> Target:
    """Makes one target object for each width, because targets are keys of caches."""
    return replace(target, widths=widths)
