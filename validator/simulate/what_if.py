"""Simulates the same streams again, as if one part of the chip were twice as fast.

The numbers of the model are changed, not those of the architecture file, because the model can express half a cycle.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from raptor.target.arch import MatrixConfig
from validator.simulate import builtin, cycle_model, simulated_chip
from validator.simulate.cycle_model import CycleModel

_CYCLES = (
    "dac_latency_cycle",
    "sample_hold_latency_cycle",
    "adc_latency_cycle",
    "shift_adder_latency_cycle",
    "output_buffer_latency_cycle",
)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Latency and interval, ns, if `part` were twice as fast."""

    part: str
    latency_ns: float
    interval_ns: float


def what_if(machine: CycleModel, samples: int) -> tuple[WhatIf, ...]:
    """Simulates with each of `PARTS` twice as fast, one at a time.

    `samples`: number of samples that each core begins; the interval is measured over the later half.
    """
    return tuple(_run(part, change(machine), samples) for part, change in PARTS.items())


def _run(part: str, machine: CycleModel, samples: int) -> WhatIf:
    run = cycle_model.run(machine)
    builtin.check_ended(machine, run)
    interval_ns, _, _ = builtin.steady_state(machine, samples, counting=False)
    return WhatIf(part, run.last_tick * machine.period_ns, interval_ns)


def _numbers(machine: CycleModel, **changed: float) -> CycleModel:
    return replace(machine, numbers=machine.numbers._replace(**changed))


def _products(machine: CycleModel) -> CycleModel:
    return _numbers(machine, matrix_period_ns=machine.numbers.matrix_period_ns / 2)


def of_product(*fast: str) -> Callable[[CycleModel], CycleModel]:
    """Returns a change that halves the latencies `fast` of a crossbar.

    The clock of the crossbar gets twice as fast, and all other latencies take twice as many cycles.
    """

    def change(machine: CycleModel) -> CycleModel:
        matrix = machine.target.file.chip_config.core_config.matrix_config
        front, back = simulated_chip.stage_cycles(_finer(matrix, fast))
        return _numbers(_products(machine), front_cycles=front, back_cycles=back)

    return change


def _finer(matrix: MatrixConfig, fast: tuple[str, ...]) -> MatrixConfig:
    cycles = {name: getattr(matrix, name) * (1 if name in fast else 2) for name in _CYCLES}
    period, read = matrix.period / 2, math.ceil(matrix.xbar_latency / matrix.period)
    # Half a cycle less than the whole number, because the model rounds up.
    latency = ((1 if "xbar_latency" in fast else 2) * read - 0.5) * period
    return matrix.model_copy(update={**cycles, "period": period, "xbar_latency": latency})


def _vector(machine: CycleModel) -> CycleModel:
    return _numbers(machine, vector_ps=machine.numbers.vector_ps // 2)


def _local_memory(machine: CycleModel) -> CycleModel:
    return _numbers(machine, local_period_ns=machine.numbers.local_period_ns / 2)


def _global_memory(machine: CycleModel) -> CycleModel:
    return _numbers(machine, global_period_ns=machine.numbers.global_period_ns / 2)


def _network(machine: CycleModel) -> CycleModel:
    return replace(machine, network=replace(machine.network, latency_ns=machine.network.latency_ns / 2))


PARTS: Mapping[str, Callable[[CycleModel], CycleModel]] = {
    "products (all of a crossbar)": _products,
    "DACs": of_product("dac_latency_cycle"),
    "crossbar reads": of_product("xbar_latency"),
    "ADCs": of_product("adc_latency_cycle"),
    "shift adders, output buffers": of_product("shift_adder_latency_cycle", "output_buffer_latency_cycle"),
    "ports of local memory": _local_memory,
    "vector units": _vector,
    "network": _network,
    "port of global memory": _global_memory,
}
"""Parts of the chip that can be faster, by name, and the change of the model."""
