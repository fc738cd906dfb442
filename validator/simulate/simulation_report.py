"""Result of a simulation, as a table for people and as JSON for programs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Literal

import orjson
from rich.table import Table

from raptor.common.files.schema_types import WallTimes
from raptor.common.terminal.abbreviation import abbreviate_names
from raptor.common.terminal.console import LiteralConsole
from raptor.target.arch.chip_area import AreaFigures, format_area
from validator.options import Mode
from validator.simulate.analysis.efficiency import OPS_PER_MAC, Efficiency
from validator.simulate.analysis.link_use import MOST_LINK_SHARE, LinkUse
from validator.simulate.analysis.mesh_use import MeshUse
from validator.simulate.analysis.power import PowerCurve, find_power_figures
from validator.simulate.analysis.token_figures import TokenFigures
from validator.simulate.analysis.uncounted_power import UncountedPower
from validator.simulate.weight_reloading import ReloadingFigures

_BUSIEST = 5
_UNCOUNTED_NAMES = {
    "adc": "ADCs",
    "dac": "DACs",
    "sample_hold": "sample-and-holds",
    "shift_adder": "shift-adders",
    "input_buffer": "input buffers",
    "output_buffer": "output buffers",
    "controller": "controllers",
}
_LAYERS = 12
_BEFORE_NAMES = len("critical path") + 2 + len("100.0%") + 2 + 12 + 2
"""Characters in a line of the critical path before the name: title, share, time."""


@dataclass(frozen=True, slots=True)
class CoreUse:
    """Use of one core until it finishes, ns. Array groups that work at the same time count each.

    `idle_ns`: the units of the core have nothing to do; with a reorder buffer of 1 also the time of scalar
    instructions.
    """

    core: int
    instructions: int
    finish_ns: float
    vector_ns: float
    matrix_ns: float
    transfer_ns: float
    wait_send_ns: float
    wait_recv_ns: float
    wait_token_ns: float
    idle_ns: float
    energy_pj: float


@dataclass(frozen=True, slots=True)
class AuxiliaryFigures:
    """Time in ns, energy in pJ and number of instructions of a program beside those of a sample."""

    latency_ns: float
    energy_pj: float
    instructions: int


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Report of a simulation, also as JSON; `version` changes with its fields. Unknown values are null or empty.

    `latency_ns`: time of one sample alone. `interval_ns`: time between samples when cores repeat their streams, and
    `samples_per_s` its inverse; both only in throughput mode. `energy_pj`: energy of one sample, in the mode simulated.
    `macs`: MACs of a sample, if the compiler noted them; `tops` (2 operations each), `tops_per_w` and `pj_per_mac`
    follow from them, in the mode simulated. `critical_path_ns`: by ONNX node, or by instruction if nodes are not known.
    `reloading`: figures of a program in rounds. Its `latency_ns` is the time of a batch with writing, its `interval_ns`
    is that time divided by the samples, and its energy contains writing. `links`: links between chips; above a share of
    0.7, times are lower bounds, as the simulator has no contention. `mesh_links`: links of the mesh.
    `power_average_w`: energy of a sample divided by its time, in the mode simulated. `power_peak_w`: highest mean power
    in a window of `power_window_ns`, which begins at `power_peak_start_ns`; null where it is not known (segments that
    work at the same time, rounds, pimsim-nn itself). `beyond_pimsim`: static power that the simulator does not count;
    `tops_per_w_with_uncounted` has that of the crossbars in use. `area`: the whole chip; `tops_per_mm2`: `tops` by it.
    `auxiliary`: programs beside those of a sample, whose time and energy are in no other figure: `init` after power-up,
    `save` and `restore` to exchange the states of sessions. `tokens`: of a program that is a step of a decoder.
    """

    program: str
    estimator: str
    mode: Mode
    version: int = 5
    latency_ns: float | None = None
    interval_ns: float | None = None
    samples_per_s: float | None = None
    energy_pj: float | None = None
    energy_parts_pj: Mapping[str, float] = field(default_factory=dict[str, float])
    macs: int | None = None
    tops: float | None = None
    tops_per_w: float | None = None
    pj_per_mac: float | None = None
    instructions: int = 0
    cores: tuple[CoreUse, ...] = ()
    xbars_used: int = 0
    xbars_available: int = 0
    critical_path_by: Literal["node", "instruction"] = "instruction"
    critical_path_ns: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: WallTimes = field(default_factory=dict[str, float])
    warnings: tuple[str, ...] = ()
    reloading: ReloadingFigures | None = None
    links: tuple[LinkUse, ...] = ()
    mesh_links: MeshUse | None = None
    power_average_w: float | None = None
    power_peak_w: float | None = None
    power_peak_start_ns: float | None = None
    power_window_ns: float | None = None
    beyond_pimsim: UncountedPower | None = None
    tops_per_w_with_uncounted: float | None = None
    area_mm2: float | None = None
    tops_per_mm2: float | None = None
    area: AreaFigures | None = None
    auxiliary: Mapping[str, AuxiliaryFigures] = field(default_factory=dict[str, AuxiliaryFigures])
    tokens: TokenFigures | None = None

    @property
    def crowded_links(self) -> tuple[LinkUse, ...]:
        """Links used so much that times are lower bounds, because the simulator has no contention."""
        return tuple(link for link in self.links if link.share > MOST_LINK_SHARE)


def add_rates(
    report: SimulationReport, time_ns: float, macs: int | None, curve: PowerCurve | None = None
) -> SimulationReport:
    """Returns the report with the figures that follow from energy and time: efficiencies, and average and peak power.

    `time_ns`: time of a sample in the mode simulated. `macs`: None if they are not known. `curve`: power over time.
    """
    energy_pj = report.energy_pj or 0.0
    effective = Efficiency.compute(macs, time_ns, energy_pj) if macs else None
    power = find_power_figures(curve, energy_pj) if curve is not None else None
    return replace(
        report,
        macs=effective.macs if effective else None,
        tops=effective.tops if effective else None,
        tops_per_w=effective.tops_per_w if effective else None,
        pj_per_mac=effective.pj_per_mac if effective else None,
        tops_per_w_with_uncounted=_efficiency_with(report.beyond_pimsim, macs, energy_pj),
        tops_per_mm2=effective.tops / report.area_mm2 if effective and report.area_mm2 else None,
        power_average_w=energy_pj / time_ns / 1000 if time_ns > 0 else None,
        power_peak_w=power.peak_w if power else None,
        power_peak_start_ns=power.peak_start_ns if power else None,
        power_window_ns=power.window_ns if power else None,
    )


def _efficiency_with(beyond: UncountedPower | None, macs: int | None, energy_pj: float) -> float | None:
    """Returns TOPS/W with the static power of the crossbars in use that the simulator does not count."""
    total_pj = energy_pj + (beyond.crossbars_in_use.energy_pj if beyond else 0.0)
    return OPS_PER_MAC * macs / total_pj if beyond and macs and energy_pj else None


def to_json(report: SimulationReport) -> bytes:
    return orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n"


def show(report: SimulationReport, console: LiteralConsole, *, quiet: bool = False) -> None:
    """Prints the most important figures; with `quiet` in one line."""
    if quiet:
        _line(console, _summary(report))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    names = abbreviate_names([name for name, _ in _slowest(report)], console.width - _BEFORE_NAMES)
    for name, value in _rows(report, names):
        table.add_row(name, value)
    console.print(table)
    for warning in report.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)


def _summary(report: SimulationReport) -> str:
    figures = [f"{report.program}:"]
    if report.latency_ns is not None:
        figures.append(f"latency {'at least ' if report.crowded_links else ''}{time_text(report.latency_ns)},")
    if report.samples_per_s is not None:
        figures.append(f"{number_text(report.samples_per_s)} samples/s,")
    figures.append(f"energy {energy_text(report.energy_pj or 0.0)}")
    return " ".join(figures)


def _slowest(report: SimulationReport) -> list[tuple[str, float]]:
    """Returns the longest parts of the critical path, which the table shows."""
    return sorted(report.critical_path_ns.items(), key=lambda item: -item[1])[:_LAYERS]


def _rows(report: SimulationReport, names: Mapping[str, str]) -> list[tuple[str, str]]:
    rows = [("estimator", report.estimator)]
    least, most = ("at least ", "at most ") if report.crowded_links else ("", "")
    if report.latency_ns is not None:
        rows.append(("latency", f"{least}{time_text(report.latency_ns)}  ({report.instructions:,} instructions)"))
    if report.interval_ns is not None:
        rate = number_text(report.samples_per_s or 0.0)
        rows.append(("throughput", f"{most}{rate} samples/s, one each {time_text(report.interval_ns)}"))
    if report.energy_pj is not None:
        rows.append(("energy", f"{energy_text(report.energy_pj)} a sample{_parts(report.energy_parts_pj)}"))
    rows += [*_token_rows(report), *_power_rows(report), *_efficiency_rows(report)]
    if report.reloading is not None:
        rows += _reloading_rows(report.reloading)
    rows += [_auxiliary_row(name, figures) for name, figures in report.auxiliary.items()]
    rows += _link_rows(report)
    if report.xbars_available:
        share = report.xbars_used / report.xbars_available
        rows.append(("crossbars", f"{report.xbars_used:,} of {report.xbars_available:,} ({share:.1%})"))
    busiest = sorted(
        report.cores, key=lambda c: c.idle_ns + c.wait_send_ns + c.wait_recv_ns + c.wait_token_ns - c.finish_ns
    )
    for k, core in enumerate(busiest[:_BUSIEST]):
        rows.append(("busiest cores" if k == 0 else "", _use(core)))
    latency = report.latency_ns or 1.0
    for k, (name, ns) in enumerate(_slowest(report)):
        rows.append(("critical path" if k == 0 else "", f"{ns / latency:6.1%}  {time_text(ns):>12}  {names[name]}"))
    if len(report.critical_path_ns) > _LAYERS:
        rows.append(("", f"        and {len(report.critical_path_ns) - _LAYERS} more"))
    return rows


def _token_rows(report: SimulationReport) -> Iterator[tuple[str, str]]:
    """Yields tokens a second of a decoder, the time to the first one after a prompt, and the energy of one."""
    found = report.tokens
    if found is None:
        return
    rates = [f"{number_text(found.session_per_s, 4)}/s of one session"]
    if found.stream_per_s is not None:
        rates.append(f"{number_text(found.stream_per_s, 4)}/s of many sessions")
    yield "tokens", f"{', '.join(rates)}  (a cache of {found.capacity:,})"
    if found.first_ns is not None:
        yield "", f"the first one after a prompt of {found.prompt}: {time_text(found.first_ns)}"
    if found.with_uncounted_pj is not None:
        more = f"{energy_text(found.with_uncounted_pj)} with the static power that is not counted"
        yield "", f"{energy_text(found.energy_pj)} each, {more}"
    if found.cache_bytes is not None:
        yield "", f"{found.cache_bytes:,} bytes of caches for each session"
    if found.cache_share is not None and found.product_share is not None and found.growth_ns is not None:
        parts = f"{found.cache_share:.0%} of the time with caches, {found.product_share:.0%} in layers with crossbars"
        yield "", f"{parts}; at most {time_text(found.growth_ns)} for a further token of capacity"


def _power_rows(report: SimulationReport) -> Iterator[tuple[str, str]]:
    """Yields average and peak power, and the static power that pimsim-nn does not count."""
    if report.power_average_w is not None:
        peak = ""
        if report.power_peak_w is not None and report.power_window_ns is not None:
            at, window = time_text(report.power_peak_start_ns or 0.0), time_text(report.power_window_ns)
            peak = f", at most {power_text(report.power_peak_w)} in {window}, at {at}"
        yield "power", f"{power_text(report.power_average_w)} on average{peak}"
    beyond = report.beyond_pimsim
    if beyond is not None and beyond.whole_chip.power_w:
        yield "not counted", uncounted_text(beyond)


def _efficiency_rows(report: SimulationReport) -> Iterator[tuple[str, str]]:
    """Yields rate and energy of operations, and the area of the chip."""
    if report.tops is not None and report.tops_per_w is not None and report.pj_per_mac is not None:
        figures = (number_text(value, 4) for value in (report.tops, report.tops_per_w, report.pj_per_mac))
        shown = "{} TOPS, {} TOPS/W, {} pJ a MAC".format(*figures)
        yield "effective", f"{shown}  ({report.macs:,} MACs, 2 operations each)"
        with_it = report.tops_per_w_with_uncounted
        if with_it is not None and with_it != report.tops_per_w:
            yield "", f"{number_text(with_it, 4)} TOPS/W with the static power that is not counted"
    if report.area is not None:
        rate = "" if report.tops_per_mm2 is None else f"; {number_text(report.tops_per_mm2, 3)} TOPS/mm2"
        yield "area", f"{format_area(report.area)}{rate}"


def uncounted_text(beyond: UncountedPower) -> str:
    """Writes what pimsim-nn does not count: static power of the parts in use, and its factor to the counted energy."""
    used = beyond.crossbars_in_use
    parts = [_UNCOUNTED_NAMES[name] for name, watts in used.parts_w.items() if watts]
    times = (
        "" if beyond.times_counted is None else f" ({number_text(beyond.times_counted, 3)} times the counted energy)"
    )
    return (
        f"{power_text(used.power_w)} static of {', '.join(parts) or 'parts'} in use{times}; "
        f"{power_text(beyond.whole_chip.power_w)} on the whole chip"
    )


def _auxiliary_row(name: str, figures: AuxiliaryFigures) -> tuple[str, str]:
    title = {"init": "after power-up", "save": "state saved", "restore": "state restored"}[name]
    spent = f"{time_text(figures.latency_ns)}, {energy_text(figures.energy_pj)}"
    return title, f"{spent}, once  ({figures.instructions:,} instructions)" if name == "init" else spent


def _link_rows(report: SimulationReport) -> Iterator[tuple[str, str]]:
    """Yields the use of each link between chips, and of the hottest links of the mesh."""
    mesh = report.mesh_links
    if mesh is not None and mesh.hottest:
        shown = ", ".join(f"{link.link} {link.share:.2%}" for link in mesh.hottest[:3])
        yield "hottest links", f"{shown} of the time  (mean of {mesh.links_used:,} in use {mesh.mean_share:.2%})"
    for link in report.links:
        wait = ": others would wait, which is not modelled, so no time is known" if link in report.crowded_links else ""
        a, b = link.chips
        yield f"link {a}-{b}", f"{link.flits:,} flits a sample, used {link.share:.1%} of the time{wait}"


def _reloading_rows(found: ReloadingFigures) -> Iterator[tuple[str, str]]:
    """Yields the rows on rounds: time and energy with and without writing, writes of a cell, and lifetime."""
    each = f"batch of {found.batch}, {found.batch_ns and found.writing_ns / found.batch_ns:.1%} of its time is writing"
    yield "rounds", f"{len(found.rounds)}  ({each})"
    yield "a sample", f"{time_text(found.sample_ns)} with writing, {time_text(found.without_ns)} without"
    with_pj = "not known" if found.sample_pj is None else energy_text(found.sample_pj)
    yield "", f"{with_pj} with writing, {energy_text(found.without_pj)} without"
    mean, worst = number_text(found.writes_per_cell, 3), number_text(found.worst_per_sample, 3)
    yield "writes", f"{mean} of a cell (mean), {worst} of the worst cell, a sample"
    rate = f"{number_text(found.rate_per_s, 4)} samples/s"
    unknown = "no cell is written again" if found.endurance_cycles else "not known: the device file has no endurance"
    life = unknown if found.years is None else years_text(found.years)
    yield "lifetime", f"{life}, at {rate}"
    if found.batch_for_tenth is not None:
        yield "writing a tenth", f"from a batch of {found.batch_for_tenth:,}"
    yield "device", f"{found.device}: {found.source}"
    for k, one in enumerate(found.rounds):
        written = f"{one.crossbars_written:,} crossbars in {time_text(one.write_ns)}"
        runs = time_text(one.run_ns(found.batch))
        yield "each round" if k == 0 else "", f"{one.path}: writes {written}, runs {runs} on {one.cores} cores"


def years_text(years: float) -> str:
    """Writes a lifetime in a unit in which it is easy to read."""
    for unit, scale in (("years", 1.0), ("days", 365.25), ("hours", 365.25 * 24)):
        if years * scale >= 1:
            return f"{number_text(years * scale, 3)} {unit}"
    return f"{number_text(years * 365.25 * 24 * 3600, 3)} seconds"


def _parts(parts: Mapping[str, float]) -> str:
    total = sum(parts.values()) or 1.0
    shown = [
        f"{name.replace('_', ' ')} {value / total:.1%}" for name, value in parts.items() if value / total >= 0.0005
    ]
    return f"  ({', '.join(shown)})" if shown else ""


def _use(core: CoreUse) -> str:
    whole = core.finish_ns or 1.0
    shares = {
        "matrix": core.matrix_ns,
        "vector": core.vector_ns,
        "transfer": core.transfer_ns,
        "waiting": core.wait_send_ns + core.wait_recv_ns + core.wait_token_ns,
        "idle": core.idle_ns,
    }
    shown = ", ".join(f"{name} {ns / whole:.0%}" for name, ns in shares.items() if ns / whole >= 0.005)
    return f"{core.core}: until {time_text(core.finish_ns)}, {shown}"


def number_text(value: float, digits: int = 6) -> str:
    """Writes a number with `digits` significant digits and separated thousands: `14,570`, not `1.457e+04`."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def time_text(ns: float) -> str:
    """Writes a time in a unit in which it is easy to read: `1.5 ms`."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= scale:
            return f"{ns / scale:,.6g} {unit}"
    return f"{ns:,.6g} ns"


def energy_text(pj: float) -> str:
    """Writes an energy in a unit in which it is easy to read: `1.5 uJ`."""
    for unit, scale in (("J", 1e12), ("mJ", 1e9), ("uJ", 1e6), ("nJ", 1e3)):
        if pj >= scale:
            return f"{pj / scale:,.6g} {unit}"
    return f"{pj:,.6g} pJ"


def power_text(watts: float) -> str:
    """Writes a power with three digits, in a unit in which it is easy to read: `1.5 W`."""
    for unit, scale in (("W", 1.0), ("mW", 1e-3)):
        if watts >= scale:
            return f"{number_text(watts / scale, 3)} {unit}"
    return f"{number_text(watts * 1e6, 3)} uW"


def _line(console: LiteralConsole, text: str) -> None:
    console.print(text, soft_wrap=True)
