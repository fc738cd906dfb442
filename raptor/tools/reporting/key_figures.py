"""Key figures of an output: the head of its page, and the rows of a comparison."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from raptor.compiler.analysis.peak_figures import NOT_MODELLED as NOT_MODELLED_OF_CHIPS
from raptor.compiler.analysis.peak_figures import WRITING
from raptor.output import files
from raptor.target.arch import Target
from raptor.target.arch.chip_area import compute_area, format_area
from raptor.tools.reporting import number_texts, rounds_section
from raptor.tools.reporting.key_figure import KeyFigure
from raptor.tools.reporting.program_facts import LayerFacts, ProgramFacts
from raptor.tools.reporting.token_section import list_token_figures
from validator.profile.profile_results import GLOBAL_MEMORY, Profile, SampleEstimate
from validator.simulate.analysis.efficiency import Efficiency
from validator.simulate.simulation_report import (
    energy_text,
    number_text,
    power_text,
    time_text,
    uncounted_text,
)

NOT_MODELLED = (
    *NOT_MODELLED_OF_CHIPS,
    "instructions that pimsim-nn does not have are charged like one of the same shape (see the warnings)",
)
"""Effects that are not modelled, in short; docs/explanation/energy.md and docs/explanation/simulation.md have the full
list."""


def list_unmodelled(profile: Profile) -> tuple[str, ...]:
    """Returns the effects that the estimate of a program omits. Crossbar writes are estimated only for rounds."""
    return tuple(line for line in NOT_MODELLED if line != WRITING or profile.reloading is None)


def list_key_figures(facts: ProgramFacts) -> list[KeyFigure]:
    """Returns the key figures that can be compared between outputs.

    Efficiencies are missing without the number of multiply-accumulates, which only the compiler's report has.
    """
    profile = facts.profile
    reloaded = rounds_section.list_round_figures(profile.reloading) if profile.reloading else ()
    return [
        *_estimates(profile),
        *(list_token_figures(facts.tokens) if facts.tokens else ()),
        *reloaded,
        *_efficiency(facts),
        *_power(profile),
        *_area(facts),
        *_resources(facts),
        *_traffic(profile),
    ]


def _area(facts: ProgramFacts) -> Iterator[KeyFigure]:
    """Yields the area of the chip, and the effective rate by it when samples are streamed."""
    chip, known = facts.profile.chip, facts.profile.estimate
    area = compute_area(chip) if chip else None
    mm2 = area.area_mm2 if area else None
    note = format_area(area) if area else "there is no architecture"
    yield KeyFigure("area", mm2, _maybe(mm2, lambda value: f"{value:.3g} mm2"), note, "mm2")
    macs = facts.report.macs if facts.report else None
    rate = Efficiency.compute(macs, known.interval_ns, sum(known.interval_energy_pj.values())) if known else None
    value = rate.tops / mm2 if rate and mm2 else None
    if macs:
        yield KeyFigure(
            "TOPS/mm2", value, _maybe(value, _four_digits), "effective TOPS of the whole chip, when streaming"
        )


def _resources(facts: ProgramFacts) -> Iterator[KeyFigure]:
    profile, chip = facts.profile, facts.profile.chip
    live = [c for c in profile.cores if c.instructions]
    xbars = sum(c.xbars for c in profile.cores)
    yield _part("cores with work", len(live), chip.core_count if chip else None)
    yield _part("crossbars", xbars, chip.core_count * chip.xbars_per_core if chip else None)
    crossbars = profile.crossbars
    fill = float(np.mean(crossbars.fill)) if crossbars is not None and len(crossbars.fill) else None
    yield KeyFigure(
        "crossbars filled", fill, _maybe(fill, number_texts.format_share), "cells that matrices cover, zeros included"
    )
    yield _count("instructions", profile.instructions)
    products = sum(p.products for p in profile.parts)
    yield _count("products (mvmul)", products)
    skipped = sum(layer.products_skipped for layer in facts.report.layers) if facts.report else None
    shown = (
        "not known"
        if skipped is None
        else f"{skipped:,} ({number_texts.format_share(skipped / max(skipped + products, 1))})"
    )
    note = "of the compiler: all that they read is padding"
    yield KeyFigure("products skipped", skipped, shown, note, short=_maybe(skipped, lambda n: f"{n:,.0f}"))
    local = [c.local_bytes for c in profile.cores if c.local_bytes is not None]
    most = max(local) if local else None
    note = "in the fullest core, as the compiler laid it out"
    yield KeyFigure("local memory", most, _maybe(most, number_texts.format_size), note, "bytes")


def _traffic(profile: Profile) -> Iterator[KeyFigure]:
    between = [f for f in profile.traffic if GLOBAL_MEMORY not in (f.source, f.to)]
    moved = sum(f.bytes for f in between)
    yield KeyFigure("bytes between cores", moved, number_texts.format_size(moved), "sizes of all send")
    yield _count("messages", sum(f.messages for f in between))
    hops = sum(f.bytes * (f.hops or 0) for f in between) / moved if moved else 0.0
    yield KeyFigure("hops of a byte", hops, f"{hops:.2f}", "mean, shortest way through the mesh")
    stored = sum(f.bytes for f in profile.traffic if GLOBAL_MEMORY in (f.source, f.to))
    yield KeyFigure("bytes of global memory", stored, number_texts.format_size(stored), "sizes of all ld and st")


def _estimates(profile: Profile) -> Iterator[KeyFigure]:
    known = profile.estimate
    if known is None:
        unknown = {"latency": "ns", "samples/s": "", "energy": "pJ", "energy when streaming": "pJ"}
        yield from (KeyFigure(name, None, "not known", profile.untimed, unit) for name, unit in unknown.items())
        return
    by = known.estimator
    batch = profile.reloading.batch if profile.reloading else None
    alone = "one sample alone" if batch is None else f"a batch of {batch:,}, with writing"
    yield KeyFigure("latency", known.latency_ns, time_text(known.latency_ns), f"{by}, {alone}", "ns")
    yield _rate(known) if batch is None else _batch_rate(known)
    for label, parts in (("energy", known.energy_pj), ("energy when streaming", known.interval_energy_pj)):
        total = sum(parts.values()) if parts else None
        note = f"{by}; {_shares(parts)}" if parts else known.no_interval
        yield KeyFigure(label, total, _maybe(total, energy_text), note, "pJ")


def _power(profile: Profile) -> Iterator[KeyFigure]:
    """Yields average and peak power, of one sample and when streaming, and the static power that is not counted."""
    known, found = profile.estimate, profile.power
    if known is None:
        return
    when = (
        ("", known.latency_ns, known.energy_pj, found.alone if found else None),
        (" when streaming", known.interval_ns, known.interval_energy_pj, found.streaming if found else None),
    )
    for more, ns, parts, figures in when:
        average = sum(parts.values()) / ns / 1000 if ns else None
        yield KeyFigure(f"power average{more}", average, _maybe(average, power_text), "energy by time", "W")
        note = "not known for segments, which have no common time"
        if figures is not None:
            at = time_text(float(f"{figures.peak_start_ns:.4g}"))
            note = f"highest mean of {time_text(figures.window_ns)}, which begins at {at}"
        peak = figures.peak_w if figures is not None else None
        yield KeyFigure(f"power peak{more}", peak, _maybe(peak, power_text), note, "W")
    if found is not None:
        watts = found.uncounted.crossbars_in_use.power_w
        yield KeyFigure("static power not counted", watts, power_text(watts), uncounted_text(found.uncounted), "W")


def _batch_rate(known: SampleEstimate) -> KeyFigure:
    rate = known.samples_per_s
    return KeyFigure(
        "samples/s", rate, _maybe(rate, _four_digits), f"{known.estimator}, batch after batch, with writing"
    )


def _rate(known: SampleEstimate) -> KeyFigure:
    if known.samples_per_s is None:
        return KeyFigure("samples/s", None, "not known", known.no_interval)
    note = f"{known.estimator}, streams looping, {known.samples} samples begun"
    return KeyFigure("samples/s", known.samples_per_s, _four_digits(known.samples_per_s), note)


def _efficiency(facts: ProgramFacts) -> Iterator[KeyFigure]:
    """Yields efficiencies when samples are streamed: at that throughput and energy per sample."""
    macs, known = facts.report.macs if facts.report else None, facts.profile.estimate
    if not macs:
        return
    efficiency = Efficiency.compute(macs, known.interval_ns, sum(known.interval_energy_pj.values())) if known else None
    note = f"when streaming; {macs:,} multiply-accumulates a sample, 2 operations each"
    for name, unit, value in (
        ("effective TOPS", "", efficiency.tops if efficiency else None),
        ("effective TOPS/W", "", efficiency.tops_per_w if efficiency else None),
        ("energy of a MAC", "pJ", efficiency.pj_per_mac if efficiency else None),
    ):
        shown = "not known" if value is None else f"{_four_digits(value)} {unit}".strip()
        yield KeyFigure(name, value, shown, note, unit)


def _four_digits(value: float) -> str:
    return number_text(value, 4)


def _shares(parts: Mapping[str, float]) -> str:
    total = sum(parts.values()) or 1.0
    return ", ".join(
        f"{n.replace('_', ' ')} {number_texts.format_share(v / total)}" for n, v in parts.items() if v / total >= 0.0005
    )


def _part(name: str, used: int, available: int | None) -> KeyFigure:
    shown = (
        f"{used:,}"
        if available is None
        else f"{used:,} of {available:,} ({number_texts.format_share(used / available)})"
    )
    return KeyFigure(name, used, shown, short=f"{used:,}")


def _count(name: str, number: int) -> KeyFigure:
    return KeyFigure(name, number, f"{number:,}", "")


def _maybe(value: float | None, shown: Callable[[float], str]) -> str:
    return "not known" if value is None else shown(value)


# Head of the page: words instead of numbers


def list_head_figures(facts: ProgramFacts) -> list[KeyFigure]:
    """Returns model, compiler, options, chip and verdict."""
    manifest = facts.manifest
    options = ", ".join(f"{k} {_option(v)}" for k, v in _options(manifest).items()) if manifest else "not known"
    return [
        KeyFigure("model", None, manifest.model if manifest else "not known"),
        KeyFigure("compiled by", None, manifest.tool if manifest else "not known"),
        KeyFigure("options", None, options),
        KeyFigure("chip", None, _chip(facts.profile.chip) if facts.profile.chip else "not known"),
        KeyFigure("validation", None, *_validation(facts)),
    ]


def _options(manifest: files.OutputManifest | files.SegmentList) -> dict[str, Any]:
    """Returns the options to show: `bits` only for float programs, because integers have the types of the model."""
    shown = {name: value for name, value in manifest.options.items() if value not in ({}, [])}
    if isinstance(manifest, files.OutputManifest) and manifest.numbers != "float":
        shown.pop("bits", None)
        shown["numbers"] = manifest.numbers
    return shown


def _option(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore


def _chip(chip: Target) -> str:
    return (
        f"{chip.core_count} cores ({chip.network.rows}x{chip.network.cols} mesh), {chip.xbars_per_core} crossbars of "
        f"{chip.xbar_rows}x{chip.xbar_cols} a core, cells of {chip.cell_bits} bits, "
        f"{number_texts.format_size(chip.memory_size_bytes)} of local memory, "
        f"{chip.rob_size} instruction{'s' if chip.rob_size > 1 else ''} in flight, clock {chip.core.period_ns:g} ns"
    )


def _validation(facts: ProgramFacts) -> tuple[str, str]:
    verdict = facts.verdict
    if verdict is None:
        return "no verdict", facts.no_verdict
    worst = max((c.max_relative for c in verdict.outputs), default=0.0)
    shown = f"largest relative error {worst:.3g}, tolerance {verdict.tolerance:g}"
    shown += f"; {verdict.reason}" if verdict.reason else ""
    return verdict.verdict.upper(), f"executed and compared with onnxruntime, random input; {shown}"


def find_slowest_layer(facts: ProgramFacts) -> tuple[LayerFacts, float] | None:
    """Returns the layer with the largest share of the critical path, and the share; None without times."""
    known = facts.profile.estimate
    timed = [x for x in facts.layers if x.counted is not None and x.counted.critical_ns]
    if known is None or not timed or not known.latency_ns:
        return None
    most = max(timed, key=_critical)
    return most, _critical(most) / known.latency_ns


def _critical(layer: LayerFacts) -> float:
    return (layer.counted.critical_ns or 0.0) if layer.counted else 0.0
