"""Trials of a search for a mapping: candidates, and the cost of their programs."""

from dataclasses import dataclass
from math import inf

from raptor.common.errors import CapacityError
from raptor.common.options.option_values import Objective
from raptor.mapping.decision import Decision

STEADY_SAMPLES = 4
"""Samples that each core begins in a simulation of the steady state, which gives throughput and energy."""


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """Latency of a sample in ns, interval between samples in ns, energy of a sample in pJ.

    If one sample ran alone, the interval is its latency, and the energy is the energy of this run; if several ran, both
    are figures of the steady state.
    """

    latency_ns: float
    interval_ns: float
    energy_pj: float

    def figure(self, objective: Objective) -> float:
        """Returns the figure that an objective minimises: the latency, the interval or the energy."""
        return {"latency": self.latency_ns, "throughput": self.interval_ns, "energy": self.energy_pj}[objective]


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """A candidate of a search for `objective`, with its cost, or the `fault` if it does not fit the chip."""

    name: str
    objective: Objective
    decision: Decision | None = None
    cost: ProgramCost | None = None
    fault: CapacityError | None = None

    @property
    def figure(self) -> float:
        """Figure that the search minimises; infinite if the candidate does not fit."""
        return inf if self.cost is None else self.cost.figure(self.objective)
