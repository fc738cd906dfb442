"""What the compiler needs to know of a chip."""

from dataclasses import dataclass, replace

from raptor.target.arch.schema import ArchFile, MatrixConfig
from raptor.target.arch.table import Table


@dataclass(frozen=True, slots=True)
class Arch:
    """What the compiler needs to know of a chip.

    `memory_size_bytes` is the local memory of a core; `memory_size_enforced` says whether the architecture file names
    it (then exceeding it is an error) or it is the simulator's default (then it is a warning). `table`: the chip's own
    network table; None for the built-in mesh.
    """

    file: ArchFile
    element_bits: int
    memory_size_enforced: bool
    notes: tuple[str, ...] = ()
    table: Table | None = None

    def __hash__(self) -> int:
        """Of little, as costs are cached by chip: hashing the whole file each time would take longer than they do."""
        return hash((self.element_bits, self.core_count))

    def with_timeout_ms(self, simulated_ms: float) -> "Arch":
        """The same chip; the simulator's latency mode goes on for at least so long before it gives up."""
        sim = self.file.sim_config
        longer = max(sim.latency_timeout_ms, simulated_ms)
        file = self.file.model_copy(update={"sim_config": sim.model_copy(update={"latency_timeout_ms": longer})})
        return replace(self, file=file)

    def with_xbars_per_core(self, count: int) -> "Arch":
        """The same chip with another number of crossbars in a core."""
        chip = self.file.chip_config
        matrix = chip.core_config.matrix_config.model_copy(update={"xbar_array_count": count})
        core = chip.core_config.model_copy(update={"matrix_config": matrix})
        file = self.file.model_copy(update={"chip_config": chip.model_copy(update={"core_config": core})})
        return replace(self, file=file)

    @property
    def core_count(self) -> int:
        return self.file.chip_config.core_cnt

    @property
    def rob_size(self) -> int:
        """Instructions that a core has begun at most; with 1 nothing overlaps."""
        return self.file.chip_config.core_config.rob_size

    @property
    def memory_id(self) -> int:
        """The name of the global memory in the network table."""
        return self.file.chip_config.global_memory_switch_id

    @property
    def mesh_cols(self) -> int:
        """Cores in a row of the mesh, which are numbered row by row."""
        return self.file.chip_config.network_config.layout[1]

    @property
    def xbars_per_core(self) -> int:
        return self._matrix.xbar_array_count

    @property
    def xbar_rows(self) -> int:
        return self._matrix.xbar_size[0]

    @property
    def xbar_cols(self) -> int:
        return self._matrix.xbar_size[1]

    @property
    def cell_bits(self) -> int:
        return self._matrix.cell_precision

    @property
    def outputs_per_xbar(self) -> int:
        """Columns of weights in one crossbar: a weight takes `element_bits` of neighbouring cells."""
        return self.cell_bits * self.xbar_cols // self.element_bits

    @property
    def element_bytes(self) -> int:
        return -(-self.element_bits // 8)

    @property
    def memory_size_bytes(self) -> int:
        return self.file.chip_config.core_config.local_memory_config.memory_size

    @property
    def _matrix(self) -> MatrixConfig:
        return self.file.chip_config.core_config.matrix_config
