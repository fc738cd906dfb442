"""Energy of a run, by part, in pJ (mW times ns). Every term is explained in docs/explanation/energy.md."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.target.arch import ArchFile, CoreConfig, MatrixConfig
from validator.simulate.cycle_model import CycleModel, program_of
from validator.simulate.state import Count, Port

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of one sample by part, pJ."""

    products: float
    vector: float
    local_memory: float
    global_memory: float
    network: float
    fetch: float
    decode: float
    register_file: float
    scalar: float
    static: float

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}


def needs_counting(arch: ArchFile) -> bool:
    """Tells whether energy depends on accesses that only the slower model counts: decode, registers, scalar unit."""
    core = arch.chip_config.core_config
    return any(
        (
            _decode_mw(core),
            core.reg_file_read_dynamic_power,
            core.reg_file_write_dynamic_power,
            core.scalar_dynamic_power,
        )
    )


def counts(machine: CycleModel) -> Floats:
    """Counts the use of the chip's parts by one run of each core's stream: rows are cores, columns are `Count`."""
    return counts_by(machine, machine.core_of, machine.count)


def counts_by(machine: CycleModel, rows: Ints, count: int) -> Floats:
    """Counts as `counts` does, for any division of the instructions: instruction i adds to row `rows[i]` of `count`."""
    from validator.simulate.count_kernels import count as add_counts  # pyright: ignore[reportUnknownVariableType]

    out = np.zeros((count, len(Count)), np.float64)
    add_counts(machine.numbers, program_of(machine), machine.first, machine.network.energies, rows, out)
    return out


def energy_of(machine: CycleModel, per_core: Floats, port: npt.NDArray[Any], time_ns: float) -> Energy:
    """Computes the energy of a sample during which the chip is on for `time_ns`.

    `per_core`: rows of `counts`, each multiplied by the number of times that the core runs its stream. `port`: accesses
    counted by the model (columns `Port`), all 0 if `needs_counting` is false.
    """
    arch = machine.target.file
    core, memory = arch.chip_config.core_config, arch.chip_config.global_memory_config
    local = core.local_memory_config
    total = per_core.sum(axis=0)
    step_pj = core.vector_alu_dynamic_energy
    step_pj += 2 * core.vector_reg_read_dynamic_energy + core.vector_reg_write_dynamic_energy
    return Energy(
        products=total[Count.CROSSBAR_PASSES] * pass_pj(core.matrix_config),
        vector=total[Count.VECTOR_STEPS] * step_pj,
        local_memory=total[Count.LOCAL_READ_BEATS] * local.read_dynamic_energy
        + total[Count.LOCAL_WRITE_BEATS] * local.write_dynamic_energy,
        global_memory=total[Count.GLOBAL_READ_BEATS] * memory.read_dynamic_energy
        + total[Count.GLOBAL_WRITE_BEATS] * memory.write_dynamic_energy,
        network=total[Count.NETWORK_PJ],
        fetch=total[Count.INSTRUCTIONS] * core.period * core.inst_fetch_dynamic_power,
        decode=port[:, Port.DECODES].sum() * core.period * _decode_mw(core),
        register_file=_registers_pj(core, port),
        scalar=port[:, Port.SCALARS].sum() * core.period * core.scalar_dynamic_power,
        static=static_mw(arch, machine.count) * time_ns,
    )


def _registers_pj(core: CoreConfig, port: npt.NDArray[Any]) -> float:
    reads, writes = port[:, Port.READS].sum(), port[:, Port.WRITES].sum()
    return core.period * (reads * core.reg_file_read_dynamic_power + writes * core.reg_file_write_dynamic_power)


def _decode_mw(core: CoreConfig) -> float:
    return core.inst_decode_dynamic_power + core.inst_decode_offset_dynamic_power


def pass_pj(matrix: MatrixConfig) -> float:
    """Returns the energy of one pass of one crossbar, pJ: the rows of one DAC pass, one slice of the input bits."""
    return sum(pass_parts_pj(matrix).values())


def pass_parts_pj(matrix: MatrixConfig) -> dict[str, float]:
    """Returns the energy of one pass of one crossbar, pJ, for each part of the crossbar and its periphery."""
    period, columns = matrix.period, matrix.xbar_size[1]
    turns = columns // matrix.adc_count * period
    return {
        "DAC": period * matrix.dac_dynamic_power * matrix.dac_latency_cycle * matrix.dac_count,
        "crossbar read": matrix.xbar_read_power * matrix.xbar_latency,
        "sample and hold": period * matrix.sample_hold_dynamic_power * matrix.sample_hold_latency_cycle * columns,
        "ADC": turns * matrix.adc_dynamic_power * matrix.adc_latency_cycle * matrix.adc_count,
        "shift and add": turns * matrix.shift_adder_dynamic_power * matrix.shift_adder_latency_cycle,
        "output buffer": turns * matrix.output_buffer_dynamic_power * matrix.output_buffer_latency_cycle,
    }


def static_mw(arch: ArchFile, cores: int) -> float:
    """Returns the static power of `cores` instantiated cores and the global memory, as the simulator counts it."""
    core = arch.chip_config.core_config
    counted = (
        core.inst_fetch_static_power,
        core.inst_decode_static_power,
        core.inst_decode_offset_static_power,
        core.reg_file_static_power,
        core.scalar_static_power,
        core.vector_alu_static_power,
        core.vector_reg_static_power,
        core.transfer_static_power,
        core.local_memory_config.static_power,
    )
    return cores * sum(counted) + arch.chip_config.global_memory_config.static_power
