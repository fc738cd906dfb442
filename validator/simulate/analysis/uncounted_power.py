"""Static power that the architecture file gives and pimsim-nn never adds: converters, buffers, controllers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class UncountedStatic:
    """Static power in W, by part, of a share of the chip, and its energy in the time of a sample."""

    power_w: float
    energy_pj: float
    parts_w: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UncountedPower:
    """Static power that pimsim-nn does not count, and that `energy_pj` does not contain.

    For the crossbars in use, for all crossbars of the cores in use, and for the whole chip. `times_counted`: energy of
    the crossbars in use divided by the counted energy of a sample; null without counted energy.
    """

    crossbars_in_use: UncountedStatic
    cores_in_use: UncountedStatic
    whole_chip: UncountedStatic
    times_counted: float | None


def compute_uncounted_power(
    target: Target, xbars: int, cores: int, time_ns: float, energy_pj: float | None
) -> UncountedPower:
    """Computes the uncounted static power for a program that uses `xbars` crossbars on `cores` cores.

    `time_ns`, `energy_pj`: time and counted energy of a sample.
    """
    each, whole = target.xbars_per_core, target.core_count
    cases = [_static_parts_w(target, *used) for used in ((xbars, cores), (cores * each, cores), (whole * each, whole))]
    return _with_time(cases, time_ns, energy_pj)


def join_uncounted_power(
    found: Sequence[UncountedPower | None],
    join: Callable[[Iterable[float]], float],
    time_ns: float,
    energy_pj: float | None,
) -> UncountedPower | None:
    """Joins the power of segments: with `sum` for segments that share no core, with `max` for rounds on the same ones.

    None if it is not known for a segment.
    """
    known = [one for one in found if one is not None]
    if len(known) < len(found) or not known:
        return None
    joined = [
        {name: join([one.parts_w[name] for one in ones]) for name in ones[0].parts_w}
        for ones in ([k.crossbars_in_use for k in known], [k.cores_in_use for k in known])
    ]
    return _with_time([*joined, dict(known[0].whole_chip.parts_w)], time_ns, energy_pj)


def _static_parts_w(target: Target, xbars: int, cores: int) -> dict[str, float]:
    """Returns the static power by part; converters are counted one by one, the other parts once a crossbar."""
    xbar = target.core.xbar
    power, parts = xbar.power, xbar.converters
    mw = {
        "adc": xbars * parts.adcs * power.adc_static_mw,
        "dac": xbars * parts.dacs * power.dac_static_mw,
        "sample_hold": xbars * xbar.cols * power.sample_hold_static_mw,
        "shift_adder": xbars * power.shift_add_static_mw,
        "input_buffer": xbars * power.input_buffer_static_mw,
        "output_buffer": xbars * power.output_buffer_static_mw,
        "controller": cores * target.core.power.controller_static_mw,
    }
    return {name: value / 1000 for name, value in mw.items()}


def _with_time(cases: Sequence[Mapping[str, float]], time_ns: float, energy_pj: float | None) -> UncountedPower:
    used, cores, chip = (
        UncountedStatic(sum(parts.values()), sum(parts.values()) * 1000 * time_ns, parts) for parts in cases
    )
    return UncountedPower(used, cores, chip, used.energy_pj / energy_pj if energy_pj else None)
