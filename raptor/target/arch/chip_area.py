"""Area of a chip: sums over the table of its parts that keep the worst kind of evidence.

Areas are of silicon as far as a source is known: wiring, pads, clock trees and white space are in no sum unless a part
says so. Unknown areas stay unknown (None), and are never counted as 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from raptor.target.arch.area_table import KINDS, AreaKind, AreaTable
from raptor.target.arch.target import Target

_UM2_PER_MM2 = 1e6


@dataclass(frozen=True, slots=True)
class AreaFigures:
    """Area of a whole chip in mm2; null if an area of a part is not known, or if the table is of another chip.

    `kind`: the worst kind of evidence in the sum. `shares`: part of the area with each kind. `parts_mm2`: by part.
    `unknown`: what is missing.
    """

    node_nm: float | None
    area_mm2: float | None
    low_mm2: float | None
    high_mm2: float | None
    kind: AreaKind | None
    shares: Mapping[str, float]
    parts_mm2: Mapping[str, float]
    unknown: tuple[str, ...]


def compute_area(target: Target) -> AreaFigures:
    """Adds up the area of the chip."""
    table = target.area
    if table is None:
        return _unknown(None, ("the architecture file has no areas",))
    missing = (*list_differences(table, target), *(part.name for part in table.parts if part.um2 is None))
    if missing or not table.parts:
        return _unknown(table.node_nm, missing or ("the table of areas has no parts",))
    counts = {
        "crossbar": target.core_count * target.xbars_per_core,
        "core": target.core_count,
        "chip": target.chips,
    }
    sums = [0.0, 0.0, 0.0]
    kinds, parts = dict.fromkeys(KINDS, 0.0), dict[str, float]()
    for part in table.parts:
        number = part.count * counts[part.level] / _UM2_PER_MM2
        area = number * (part.um2 or 0.0)
        for k, um2 in enumerate((part.um2, part.low_um2, part.high_um2)):
            sums[k] += area if um2 is None else number * um2
        kinds[part.kind] += area
        parts[part.name] = parts.get(part.name, 0.0) + area
    used: set[AreaKind] = {part.kind for part in table.parts}
    worst: AreaKind = max(used, key=KINDS.index)
    shares = {kind: kinds[kind] / sums[0] if sums[0] else 0.0 for kind in KINDS if kind in used}
    area, low, high = sums
    return AreaFigures(table.node_nm, area, low, high, worst, shares, parts, ())


def _unknown(node_nm: float | None, unknown: tuple[str, ...]) -> AreaFigures:
    return AreaFigures(node_nm, None, None, None, None, {}, {}, unknown)


def list_differences(table: AreaTable, target: Target) -> tuple[str, ...]:
    """Returns the sizes in which the chip differs from the chip of the table."""
    converters = target.core.xbar.converters
    sizes = (
        ("cores", table.cores, target.cores_per_chip),
        ("crossbars a core", table.xbars_per_core, target.xbars_per_core),
        ("crossbar size", table.xbar_size, (target.xbar_rows, target.xbar_cols)),
        ("ADCs a crossbar", table.adc_count, converters.adcs),
        ("bits of an ADC", table.adc_bits, converters.adc_bits),
    )
    return tuple(
        f"{name}: the areas are for {_text(known)}, the chip has {_text(has)}"
        for name, known, has in sizes
        if known is not None and known != has
    )


def _text(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType]


def format_area(found: AreaFigures) -> str:
    """Writes an area with its range and the share of each kind of evidence, or what is unknown."""
    if found.area_mm2 is None or found.low_mm2 is None or found.high_mm2 is None:
        more = f", and {len(found.unknown) - 3} more" if len(found.unknown) > 3 else ""
        return f"not known: {'; '.join(found.unknown[:3])}{more}"
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in found.shares.items())
    return f"{found.area_mm2:.3g} mm2 ({found.low_mm2:.3g} to {found.high_mm2:.3g}), {found.node_nm:g} nm; {shares}"
