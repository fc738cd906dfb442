"""The target of a compilation: what the compiler knows of the hardware, as values of ours.

pimsim-nn's architecture file and network table are one source of them (`raptor.target.arch.pimsim`). What its file has
no field for (several chips, element widths, the device of a cell) has its place here.
"""

from dataclasses import dataclass, replace

from raptor.target.arch.schema import ArchFile
from raptor.target.arch.table import Table


@dataclass(frozen=True, slots=True)
class Widths:
    """Bits of an element: of a weight in a crossbar, of a value that enters one, and of a value that leaves one."""

    weights: int
    activations: int
    accumulators: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory with one port, which moves `beat_bytes` in so many cycles of `period_ns`.

    `size_given`: whether the source names the size. Then it is a limit, else a default of the simulator.
    """

    beat_bytes: int
    period_ns: float
    read_cycles: int
    write_cycles: int
    size_bytes: int
    size_given: bool


@dataclass(frozen=True, slots=True)
class Converters:
    """DACs and ADCs of a crossbar. Cycles are those of the crossbars, of `period_ns`.

    `pipelined`: a crossbar is read while the ADCs convert what was read before.
    """

    period_ns: float
    pipelined: bool
    dac_bits: int
    dacs: int
    dac_cycles: int
    sample_hold_cycles: int
    adcs: int
    adc_cycles: int
    shift_add_cycles: int
    output_buffer_cycles: int


@dataclass(frozen=True, slots=True)
class Device:
    """A cell as it is: what a device file says. A target without one has ideal cells, written before the program runs.

    `row_write_ns`: time to write a row of a crossbar while the program runs; None if that is not possible.
    """

    name: str
    source: str
    row_write_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Crossbar:
    """[rows, cols] cells, each of `cell_bits`; reading all of them takes `read_ns`."""

    rows: int
    cols: int
    cell_bits: int
    read_ns: float
    converters: Converters
    device: Device | None = None


@dataclass(frozen=True, slots=True)
class Core:
    """A core: a clock, `xbar_count` crossbars, a vector unit, a local memory.

    `rob_size`: most instructions that it has started; with 1 nothing overlaps. `vector_step_ns`: time of the vector
    unit for each `vector_width` elements.
    """

    period_ns: float
    rob_size: int
    vector_width: int
    vector_step_ns: float
    xbar_count: int
    xbar: Crossbar
    memory: Memory


@dataclass(frozen=True, slots=True)
class Network:
    """The links between cores, and to the global memory, which the table calls `memory_id`.

    `rows`, `cols`: of the mesh, whose cores are numbered row by row. `table`: the latencies and energies that the
    source gives for each pair, None for those of the mesh. Links between chips are entries of the table.
    """

    flit_bytes: int
    rows: int
    cols: int
    memory_id: int
    table: Table | None


@dataclass(frozen=True, slots=True)
class Target:
    """The hardware that is compiled for: `chips` chips of equal cores, one global memory, one network.

    `file`: the architecture file that it was made from, which the output has a copy of. `notes`: what was changed in
    it for the options of the user.
    """

    file: ArchFile
    chips: int
    cores_per_chip: int
    core: Core
    memory: Memory
    network: Network
    widths: Widths
    notes: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Hashes two fields only: a target keys caches of costs, and hashing all of it takes longer than a cost."""
        return hash((self.widths, self.core_count))

    def with_timeout_ms(self, simulated_ms: float) -> "Target":
        """The same target; the simulator's latency mode goes on for at least so long before it gives up."""
        sim = self.file.sim_config
        longer = max(sim.latency_timeout_ms, simulated_ms)
        file = self.file.model_copy(update={"sim_config": sim.model_copy(update={"latency_timeout_ms": longer})})
        return replace(self, file=file)

    def with_xbars_per_core(self, count: int) -> "Target":
        """The same target with another number of crossbars in a core."""
        chip = self.file.chip_config
        matrix = chip.core_config.matrix_config.model_copy(update={"xbar_array_count": count})
        core = chip.core_config.model_copy(update={"matrix_config": matrix})
        file = self.file.model_copy(update={"chip_config": chip.model_copy(update={"core_config": core})})
        return replace(self, file=file, core=replace(self.core, xbar_count=count))

    @property
    def core_count(self) -> int:
        return self.chips * self.cores_per_chip

    @property
    def rob_size(self) -> int:
        """Instructions that a core has begun at most; with 1 nothing overlaps."""
        return self.core.rob_size

    @property
    def memory_id(self) -> int:
        """The name of the global memory in the network table."""
        return self.network.memory_id

    @property
    def mesh_cols(self) -> int:
        """Cores in a row of the mesh, which are numbered row by row."""
        return self.network.cols

    @property
    def table(self) -> Table | None:
        """The network table that the source gives; None for the mesh."""
        return self.network.table

    @property
    def xbars_per_core(self) -> int:
        return self.core.xbar_count

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
    def outputs_per_xbar(self) -> int:
        """Columns of weights in one crossbar: a weight takes as many neighbouring cells as its bits need."""
        return self.cell_bits * self.xbar_cols // self.widths.weights

    @property
    def element_bits(self) -> int:
        """Bits of an element in memory: of an activation. Programs of floats have no other width."""
        return self.widths.activations

    @property
    def element_bytes(self) -> int:
        return bytes_of(self.widths.activations)

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
        """Whether a program that needs more local memory is refused (else there is a warning)."""
        return self.core.memory.size_given


def bytes_of(bits: int) -> int:
    """Bytes that an element takes in memory."""
    return -(-bits // 8)
