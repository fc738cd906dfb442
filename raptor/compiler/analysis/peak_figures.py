"""Peak figures of a chip, derived from its architecture file by the rules of the simulator.

A product is an `mvmul`: one input vector times the matrix of one array group. Times are for an otherwise idle core.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raptor.target.arch import Target
from raptor.target.arch.chip_area import AreaFigures, compute_area
from raptor.target.timing import back_cycles, conversion_rounds, front_cycles, local_port_ns, mvmul_bytes, mvmul_ns
from validator.simulate.analysis.efficiency import OPS_PER_MAC
from validator.simulate.analysis.energy import crossbar_pass_parts_pj, static_mw
from validator.simulate.analysis.uncounted_power import compute_uncounted_power

WRITING = "writing the weights into the crossbars"
NOT_MODELLED = (
    "area of wiring, pads, clock and white space",
    "contention in the network: the table has a time for each pair of cores, whoever else sends",
    "static power of crossbars, converters and network; dynamic power of dispatcher and reorder buffer",
    WRITING,
    "refresh, drift, faults",
    "data: time and energy do not depend on values; bits of converters have a price only in chips from components",
)
"""Aspects that the simulator does not model (except `WRITING` in rounds); docs/explanation/energy.md and simulation.md
list all."""


@dataclass(frozen=True, slots=True)
class PartShare:
    """Share of a part of the chip in a product: the time in which only this part works, and its energy."""

    time_ns: float
    energy_pj: float


@dataclass(frozen=True, slots=True)
class CrossbarProduct:
    """Time and energy of a product of `inputs` x `outputs` weights on one crossbar.

    The crossbar is read `slices` x `passes` times: once for each slice of the input bits, in passes since `rows` share
    `dacs`. Each read takes `conversions`, since `columns` share `adcs`. `parts` add up to the whole time; for the core,
    the product ends at the next tick of its clock.
    """

    inputs: int
    outputs: int
    slices: int
    passes: int
    rows: int
    dacs: int
    conversions: int
    columns: int
    adcs: int
    time_ns: float
    energy_pj: float
    parts: Mapping[str, PartShare]

    @property
    def macs(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class PeakRate:
    """Peak rate of products on all cores, with array groups of `group_xbars` crossbars, which share one input.

    `tops`: 10^12 operations per second, two for each MAC. `power_mw`: dynamic power of these products plus the static
    power that is modelled. `tops_per_w`: None if the file has no energies of crossbars and converters.
    """

    tops: float
    tops_per_w: float | None
    power_mw: float
    group_xbars: int


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Peak rates under a growing set of limits.

    `crossbars`: each crossbar is always busy with a product of its own. `port`: in addition, products are limited by
    the port of local memory. `in_flight`: in addition, at most `rob_size` products are in flight. The last two use the
    best size of array groups. They are upper bounds: groups that take turns at the port reach up to a fifth less.
    """

    crossbars: PeakRate
    port: PeakRate
    in_flight: PeakRate


@dataclass(frozen=True, slots=True)
class ChipFigures:
    """Figures of a chip.

    `weights`: number of weights of `bits` that fit. `static_mw`: static power of all cores and of global memory, as far
    as the simulator counts it; `uncounted_static_mw`: static power of converters, buffers and controllers, which the
    file gives and the simulator does not count. `tops_per_w_with_uncounted`: with it, for all crossbars busy.
    `tops_per_mm2`: for all crossbars busy; null without a known area.
    """

    bits: int
    product: CrossbarProduct
    peak: PeakRates
    rob_size: int
    crossbars: int
    cells: int
    weights: int
    static_mw: float
    uncounted_static_mw: float
    tops_per_w_with_uncounted: float | None
    area: AreaFigures
    tops_per_mm2: float | None
    not_modelled: tuple[str, ...] = NOT_MODELLED


def compute_chip_figures(arch: Target) -> ChipFigures:
    """Returns the figures of a chip for operands of the target's element width."""
    crossbars = arch.core_count * arch.xbars_per_core
    peak, area = _peaks(arch), compute_area(arch)
    busy = peak.crossbars
    uncounted_mw = compute_uncounted_power(arch, 0, 0, 0.0, None).whole_chip.power_w * 1000
    whole_mw = busy.power_mw + uncounted_mw
    return ChipFigures(
        bits=arch.element_bits,
        product=compute_product(arch),
        peak=peak,
        rob_size=arch.rob_size,
        crossbars=crossbars,
        cells=crossbars * arch.xbar_rows * arch.xbar_cols,
        weights=crossbars * arch.xbar_rows * arch.outputs_per_xbar,
        static_mw=static_mw(arch, arch.core_count),
        uncounted_static_mw=uncounted_mw,
        tops_per_w_with_uncounted=busy.tops / whole_mw * 1000 if busy.tops_per_w is not None else None,
        area=area,
        tops_per_mm2=busy.tops / area.area_mm2 if area.area_mm2 else None,
    )


def compute_product(arch: Target) -> CrossbarProduct:
    """Returns time and energy of a product on one crossbar."""
    converters = arch.core.xbar.converters
    times, energies = dict(_parts_ns(arch)), _parts_pj(arch, 1)
    return CrossbarProduct(
        inputs=arch.xbar_rows,
        outputs=arch.outputs_per_xbar,
        slices=arch.widths.activations // converters.dac_bits,
        passes=arch.xbar_rows // converters.dacs,
        rows=arch.xbar_rows,
        dacs=converters.dacs,
        conversions=arch.xbar_cols // converters.adcs,
        columns=arch.xbar_cols,
        adcs=converters.adcs,
        time_ns=mvmul_ns(arch, 1),
        energy_pj=sum(energies.values()),
        parts={name: PartShare(times[name], energies[name]) for name in times},
    )


def _parts_ns(arch: Target) -> Iterator[tuple[str, float]]:
    """Yields the time of each part of a product, in ns. If the two stages are pipelined, the faster one counts once."""
    converters, rounds = arch.core.xbar.converters, conversion_rounds(arch)
    front, back = front_cycles(arch), back_cycles(arch)
    front_longer = sum(front.values()) > sum(back.values())
    if rounds == 0:
        # The simulator's formula then gives the time of the shorter stage.
        times = (int(not front_longer), int(front_longer))
    elif converters.pipelined:
        times = (rounds, 1) if front_longer else (1, rounds)
    else:
        times = (rounds, rounds)
    for stage, count in zip((front, back), times, strict=True):
        for name, cycles in stage.items():
            yield name, count * cycles * converters.period_ns
    yield "local memory", local_port_ns(arch, 1)


def _parts_pj(arch: Target, xbars: int) -> dict[str, float]:
    """Returns the energy by part of a product with `xbars` crossbars side by side, which read their input once."""
    memory, rounds = arch.core.memory, conversion_rounds(arch)
    found = {name: xbars * rounds * pj for name, pj in crossbar_pass_parts_pj(arch.core.xbar).items()}
    read, write = (math.ceil(size / memory.beat_bytes) for size in mvmul_bytes(arch, xbars))
    found["local memory"] = read * memory.energy.read_pj + write * memory.energy.write_pj
    return found


def _peaks(arch: Target) -> PeakRates:
    return PeakRates(
        crossbars=_peak(arch, 1, _crossbar_limited(arch, 1)),
        port=_best_peak(_peak(arch, n, _port_limited(arch, n)) for n in _group_sizes(arch)),
        in_flight=_best_peak(_peak(arch, n, _rob_limited(arch, n)) for n in _group_sizes(arch)),
    )


def _best_peak(peaks: Iterator[PeakRate]) -> PeakRate:
    return max(peaks, key=lambda peak: peak.tops)


def _group_sizes(arch: Target) -> Iterator[int]:
    """Yields the group sizes to try: powers of two, and all crossbars of a core."""
    size = 1
    while size < arch.xbars_per_core:
        yield size
        size *= 2
    yield arch.xbars_per_core


# The next functions return products per ns of one core, with array groups of `xbars` crossbars.


def _crossbar_limited(arch: Target, xbars: int) -> float:
    """Returns the rate limited by the crossbars alone."""
    return _per_ns(arch.xbars_per_core // xbars, mvmul_ns(arch, xbars))


def _port_limited(arch: Target, xbars: int) -> float:
    """Returns the rate limited by the crossbars and the port of local memory."""
    return min(_crossbar_limited(arch, xbars), _per_ns(1, local_port_ns(arch, xbars)))


def _rob_limited(arch: Target, xbars: int) -> float:
    """Returns the rate limited by the crossbars, the port of local memory and `rob_size`."""
    return min(_port_limited(arch, xbars), _per_ns(arch.rob_size, mvmul_ns(arch, xbars)))


def _per_ns(count: int, time_ns: float) -> float:
    return count / time_ns if time_ns else math.inf


def _peak(arch: Target, xbars: int, per_core: float) -> PeakRate:
    """Returns the peak rate of a chip. `per_core`: products per ns of a core, in groups of `xbars` crossbars."""
    products = arch.core_count * per_core
    energies = _parts_pj(arch, xbars)
    known = sum(energies.values()) > energies["local memory"]
    # pJ per ns are mW.
    power_mw = products * sum(energies.values()) + static_mw(arch, arch.core_count)
    tops = OPS_PER_MAC * products * xbars * arch.xbar_rows * arch.outputs_per_xbar / 1e3
    return PeakRate(tops, tops / (power_mw / 1e3) if known else None, power_mw, xbars)
