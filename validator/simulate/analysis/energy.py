"""Energy of a run, by part, in pJ (mW times ns). Every term is explained in docs/explanation/energy.md."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.target.arch import Core, CorePower, CrossbarHardware, Target
from validator.simulate.cycle.cycle_model import CycleModel, make_kernel_program
from validator.simulate.cycle.state_tables import CountColumn, PortColumn

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleEnergy:
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
        return sum(self.by_part().values())

    def by_part(self) -> dict[str, float]:
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}


def needs_counting(target: Target) -> bool:
    """Checks whether energy depends on accesses that only the slower model counts: decode, registers, scalar unit."""
    power = target.core.power
    return any((_decode_mw(power), power.register_read_mw, power.register_write_mw, power.scalar_mw))


def count_uses(machine: CycleModel) -> Floats:
    """Counts the use of the chip's parts by one run of each core's stream: rows are cores, columns are `Count`."""
    return count_uses_by(machine, machine.core_index, machine.core_count)


def count_uses_by(machine: CycleModel, rows: Ints, count: int) -> Floats:
    """Counts as `counts` does, for any division of the instructions: instruction i adds to row `rows[i]` of `count`."""
    from validator.simulate.analysis.count_kernels import add_use_counts as add_counts  # pyright: ignore[reportUnknownVariableType]

    out = np.zeros((count, len(CountColumn)), np.float64)
    program, flit_pj, widths = make_kernel_program(machine), machine.network.energy_table, np.zeros(3, np.int64)
    add_counts(machine.numbers, program, machine.first, flit_pj, rows, widths, out)
    return out


def compute_energy(machine: CycleModel, per_core: Floats, port: npt.NDArray[Any], time_ns: float) -> SampleEnergy:
    """Computes the energy of a sample during which the chip is on for `time_ns`.

    `per_core`: rows of `counts`, each multiplied by the number of times that the core runs its stream. `port`: accesses
    counted by the model (columns `PortColumn`), all 0 if `needs_counting` is false.
    """
    target = machine.chip.target
    core, power = target.core, target.core.power
    local, memory = core.memory.energy, target.memory.energy
    total = per_core.sum(axis=0)
    step_pj = power.vector_step_pj
    step_pj += 2 * power.vector_read_pj + power.vector_write_pj
    return SampleEnergy(
        products=total[CountColumn.CROSSBAR_PASSES] * crossbar_pass_pj(core.xbar),
        vector=total[CountColumn.VECTOR_STEPS] * step_pj,
        local_memory=total[CountColumn.LOCAL_READ_BEATS] * local.read_pj
        + total[CountColumn.LOCAL_WRITE_BEATS] * local.write_pj,
        global_memory=total[CountColumn.GLOBAL_READ_BEATS] * memory.read_pj
        + total[CountColumn.GLOBAL_WRITE_BEATS] * memory.write_pj,
        network=total[CountColumn.NETWORK_PJ],
        fetch=total[CountColumn.INSTRUCTIONS] * core.period_ns * power.fetch_mw,
        decode=port[:, PortColumn.DECODES].sum() * core.period_ns * _decode_mw(power),
        register_file=_registers_pj(core, port),
        scalar=port[:, PortColumn.SCALARS].sum() * core.period_ns * power.scalar_mw,
        static=static_mw(target, machine.core_count) * time_ns,
    )


def unit_prices_pj(target: Target) -> tuple[float, ...]:
    """Returns the energy of one use of each part, pJ, in the order of `CountColumn`."""
    core, power, local, memory = target.core, target.core.power, target.core.memory.energy, target.memory.energy
    step_pj = power.vector_step_pj + 2 * power.vector_read_pj + power.vector_write_pj
    prices = {
        CountColumn.CROSSBAR_PASSES: crossbar_pass_pj(core.xbar),
        CountColumn.VECTOR_STEPS: step_pj,
        CountColumn.LOCAL_READ_BEATS: local.read_pj,
        CountColumn.LOCAL_WRITE_BEATS: local.write_pj,
        CountColumn.GLOBAL_READ_BEATS: memory.read_pj,
        CountColumn.GLOBAL_WRITE_BEATS: memory.write_pj,
        CountColumn.NETWORK_PJ: 1.0,
        CountColumn.INSTRUCTIONS: core.period_ns * power.fetch_mw,
    }
    return tuple(prices[column] for column in CountColumn)


def access_powers_mw(power: CorePower) -> dict[PortColumn, float]:
    """Returns the power of a core while it does one of the accesses that the model counts, mW; each takes a period."""
    return {
        PortColumn.DECODES: _decode_mw(power),
        PortColumn.READS: power.register_read_mw,
        PortColumn.WRITES: power.register_write_mw,
        PortColumn.SCALARS: power.scalar_mw,
    }


def _registers_pj(core: Core, port: npt.NDArray[Any]) -> float:
    reads, writes = port[:, PortColumn.READS].sum(), port[:, PortColumn.WRITES].sum()
    return core.period_ns * (reads * core.power.register_read_mw + writes * core.power.register_write_mw)


def _decode_mw(power: CorePower) -> float:
    return power.decode_mw + power.decode_offset_mw


def crossbar_pass_pj(xbar: CrossbarHardware) -> float:
    """Returns the energy of one pass of one crossbar, pJ: the rows of one DAC pass, one slice of the input bits."""
    return sum(crossbar_pass_parts_pj(xbar).values())


def crossbar_pass_parts_pj(xbar: CrossbarHardware) -> dict[str, float]:
    """Returns the energy of one pass of one crossbar, pJ, for each part of the crossbar and its periphery."""
    parts, power = xbar.converters, xbar.power
    turns = xbar.cols // parts.adcs * parts.period_ns
    return {
        "DAC": parts.period_ns * power.dac_mw * parts.dac_cycles * parts.dacs,
        "crossbar read": power.read_mw * xbar.read_ns,
        "sample and hold": parts.period_ns * power.sample_hold_mw * parts.sample_hold_cycles * xbar.cols,
        "ADC": turns * power.adc_mw * parts.adc_cycles * parts.adcs,
        "shift and add": turns * power.shift_add_mw * parts.shift_add_cycles,
        "output buffer": turns * power.output_buffer_mw * parts.output_buffer_cycles,
    }


def static_mw(target: Target, cores: int) -> float:
    """Returns the static power of `cores` instantiated cores and the global memory, as the simulator counts it."""
    power = target.core.power
    counted = (
        power.fetch_static_mw,
        power.decode_static_mw,
        power.decode_offset_static_mw,
        power.registers_static_mw,
        power.scalar_static_mw,
        power.vector_static_mw,
        power.vector_registers_static_mw,
        power.transfer_static_mw,
        target.core.memory.energy.static_mw,
    )
    return cores * sum(counted) + target.memory.energy.static_mw
