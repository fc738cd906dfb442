"""Decisions with their evaluated times."""

from collections.abc import Mapping
from dataclasses import dataclass

from raptor.mapping.decision import Decision
from raptor.mapping.evaluation.evaluate import WorkBounds
from raptor.mapping.knobs import TuningKnobs

PORT_BINDS = 0.85
"""Least share of the interval for which the port is busy where it binds."""


@dataclass(frozen=True, slots=True)
class EvaluatedDecision:
    """A decision with its evaluated latency and interval in ns. steps: number of scheduled steps.

    knobs, corrections: by which it was made; see `RowMapper.plan`.
    """

    decision: Decision
    knobs: TuningKnobs
    corrections: Mapping[str, float]
    bounds: WorkBounds
    latency_ns: float
    interval_ns: float
    steps: int

    @property
    def waits_for_port(self) -> bool:
        """True if the port of global memory binds the interval."""
        return self.bounds.port_ns >= PORT_BINDS * self.interval_ns

    def cost(self, latency: float) -> float:
        """Returns interval x latency^`latency`."""
        return self.interval_ns * self.latency_ns**latency
