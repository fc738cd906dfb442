"""Metrics that can be objectives and constraints of a study, and their units."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["min", "max"]
MetricNeed = Literal["steady", "accuracy", "endurance", "power", "area"]

_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_ENERGIES = {"pJ": 1.0, "nJ": 1e3, "uJ": 1e6, "mJ": 1e9, "J": 1e12}
_POWERS = {"mW": 1e-3, "W": 1.0, "kW": 1e3}
_AREAS = {"um2": 1e-6, "mm2": 1.0, "cm2": 100.0}
_BYTES = {"B": 1.0, "kB": 1e3, "KiB": 1024.0, "MB": 1e6, "MiB": 1024.0**2}
_PLAIN: Mapping[str, float] = {}

_LIMIT = re.compile(r"(<=|>=)\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*2?)")


@dataclass(frozen=True, slots=True)
class StudyMetric:
    """A metric. `units`: unit -> its size in the unit of the metric. `joined`: combines the values of several models.

    `needs`: a requirement in addition to the simulation of one sample: a simulation of several samples (`steady`),
    labelled data (`accuracy`), a device file with the endurance of a cell (`endurance`), power over time (`power`), or
    areas of the chip's parts (`area`).
    """

    meaning: str
    units: Mapping[str, float]
    combine: Callable[[list[float]], float] = max
    requires: MetricNeed | None = None


METRICS: Mapping[str, StudyMetric] = {
    "latency_ns": StudyMetric("time of one sample alone (the sum)", _TIMES, sum),
    "interval_ns": StudyMetric("time between samples in steady state (the sum)", _TIMES, sum, "steady"),
    "energy_pj": StudyMetric("energy of one sample alone (the sum)", _ENERGIES, sum),
    "steady_energy_pj": StudyMetric("energy of a sample in steady state (the sum)", _ENERGIES, sum, "steady"),
    "xbars_used": StudyMetric("crossbars that hold weights (the most)", _PLAIN),
    "cores_used": StudyMetric("cores with work (the most)", _PLAIN),
    "xbars": StudyMetric("crossbars of the chip", _PLAIN),
    "cells": StudyMetric("cells of all crossbars of the chip", _PLAIN),
    "local_bytes": StudyMetric("local memory of the core that needs most (the most)", _BYTES),
    "instructions": StudyMetric("instructions of all cores (the sum)", _PLAIN, sum),
    "power_peak_w": StudyMetric(
        "highest mean power in a microsecond of one sample alone (the most)", _POWERS, max, "power"
    ),
    "area_mm2": StudyMetric("area of the chip", _AREAS, max, "area"),
    "writes": StudyMetric("writes of the worst cell for a sample, by rounds (the most)", _PLAIN),
    "wear_per_year": StudyMetric(
        "share of the life of the worst cell that a year takes (the most)", _PLAIN, max, "endurance"
    ),
    "top1": StudyMetric("share of samples whose label has the largest score (the least)", _PLAIN, min, "accuracy"),
    "top5": StudyMetric("share of samples whose label is among the first five (the least)", _PLAIN, min, "accuracy"),
    "adc_bits": StudyMetric("bits of the converters (the most)", _PLAIN, max, "accuracy"),
    "agreement": StudyMetric("share of samples with the answer of onnxruntime (the least)", _PLAIN, min, "accuracy"),
}
"""All metrics by name. In brackets: how values of several models are combined."""
MISSING_REASONS: Mapping[MetricNeed | None, str] = {
    None: "not known",
    "steady": "not known",
    "accuracy": "the data have no labels, or the converters are ideal",
    "power": "the peak power of segments that overlap is not known",
    "area": "the architecture file has no areas for these sizes (raptor arch show says what is missing)",
    "endurance": "the device file does not say how often a cell can be written",
}
"""Requirement of a metric -> reason why a program has no value."""


@dataclass(frozen=True, slots=True)
class MetricLimit:
    """A constraint: a metric must be at most (`is_upper`) or at least `bound`, in the unit of the metric."""

    metric: str
    is_upper: bool
    bound: float

    def excess(self, value: float) -> float:
        """Returns the relative violation of the limit by a value; 0 or less if the limit holds."""
        over = value - self.bound if self.is_upper else self.bound - value
        return over / self.bound if self.bound else over


def parse_limit(metric: str, text: str) -> MetricLimit:
    """Parses a limit such as `<= 5 ms` or `>= 0.9`. Raises `ValueError` that states the expected form."""
    units = METRICS[metric].units
    found = _LIMIT.fullmatch(text.strip())
    example = f"<= 5 {list(units)[-2]}" if units else "<= 5"
    if found is None:
        raise ValueError(f"{text!r}: expected a limit such as {example!r}")
    unit = found[3]
    if unit and unit not in units:
        raise ValueError(f"{text!r}: no such unit here; expected one of: {', '.join(units) or 'none'}")
    try:
        number = float(found[2])
    except ValueError:
        raise ValueError(f"{text!r}: expected a limit such as {example!r}") from None
    return MetricLimit(metric, found[1] == "<=", number * (units[unit] if unit else 1.0))
