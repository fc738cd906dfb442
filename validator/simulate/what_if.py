"""Simulates the same streams again, as if one part of the chip were twice as fast.

The numbers of the model are changed, not the architecture file, because the model can express half a cycle.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from raptor.target.arch import CrossbarHardware
from validator.simulate import builtin
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.cycle.cycle_model import CycleModel

_CYCLES = (
    "dac_cycles",
    "sample_hold_cycles",
    "adc_cycles",
    "shift_add_cycles",
    "output_buffer_cycles",
)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Latency and interval, ns, if `part` were twice as fast."""

    part: str
    latency_ns: float
    interval_ns: float


def try_faster_parts(machine: CycleModel, samples: int) -> tuple[WhatIf, ...]:
    """Simulates with each of `PARTS` twice as fast, one at a time.

    `samples`: number of samples that each core begins; the interval is measured over the later half.
    """
    return tuple(_run(part, change(machine), samples) for part, change in FASTER_PARTS.items())


def _run(part: str, machine: CycleModel, samples: int) -> WhatIf:
    run = cycle_model.run_cycle_model(machine)
    builtin.check_ended(machine, run)
    interval_ns = builtin.measure_steady_state(machine, samples, counting=False).interval_ns
    return WhatIf(part, run.last_tick * machine.period_ns, interval_ns)


def speed_up_part(part: str) -> Callable[[CycleModel], CycleModel]:
    """Returns a change that halves all times of a part: the numbers `PART_..._ps` and `PART_..._ns`."""

    def change(machine: CycleModel) -> CycleModel:
        times = {name: n for name, n in machine.numbers._asdict().items() if name.startswith(f"{part}_")}
        halves = {name: n // 2 for name, n in times.items() if name.endswith("_ps")}
        halves |= {name: n / 2 for name, n in times.items() if name.endswith("_ns")}
        return replace(machine, numbers=machine.numbers._replace(**halves))

    return change


def speed_up_crossbar(*fast: str) -> Callable[[CycleModel], CycleModel]:
    """Returns a change that halves the latencies `fast` of a crossbar.

    The clock of the crossbar gets twice as fast, and all other latencies take twice as many cycles.
    """

    def change(machine: CycleModel) -> CycleModel:
        front, back = simulated_chip.stage_cycles(_finer(machine.chip.target.core.xbar, fast))
        faster = speed_up_part("matrix")(machine)
        return replace(faster, numbers=faster.numbers._replace(front_cycles=front, back_cycles=back))

    return change


def _finer(xbar: CrossbarHardware, fast: tuple[str, ...]) -> CrossbarHardware:
    converters = xbar.converters
    cycles = {name: getattr(converters, name) * (1 if name in fast else 2) for name in _CYCLES}
    period_ns, read = converters.period_ns / 2, math.ceil(xbar.read_ns / converters.period_ns)
    # Half a cycle less than the whole number, because the model rounds up.
    read_ns = ((1 if "read_ns" in fast else 2) * read - 0.5) * period_ns
    return replace(xbar, read_ns=read_ns, converters=replace(converters, period_ns=period_ns, **cycles))


def _network(machine: CycleModel) -> CycleModel:
    return replace(machine, network=replace(machine.network, latency_ns=machine.network.latency_ns / 2))


FASTER_PARTS: Mapping[str, Callable[[CycleModel], CycleModel]] = {
    "products (all of a crossbar)": speed_up_part("matrix"),
    "DACs": speed_up_crossbar("dac_cycles"),
    "crossbar reads": speed_up_crossbar("read_ns"),
    "ADCs": speed_up_crossbar("adc_cycles"),
    "shift adders, output buffers": speed_up_crossbar("shift_add_cycles", "output_buffer_cycles"),
    "ports of local memory": speed_up_part("local"),
    "vector units": speed_up_part("vector"),
    "network": _network,
    "port of global memory": speed_up_part("global"),
}
"""Parts of the chip that can be faster, by name, and the change of the model."""
