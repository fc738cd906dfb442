"""Types, choices and limits of options that the command line and the Python functions share. Imports nothing slow."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from raptor.common.options.arguments import OneOf

Engine = Literal["auto", "numba", "python"]
Schedule = Literal["block", "round-robin"]
Mode = Literal["latency", "throughput"]
CrossbarKind = Literal["ideal", "integer", "sliced", "noisy"]
ENGINE: OneOf[Engine] = OneOf("engine", get_args(Engine))
SCHEDULE: OneOf[Schedule] = OneOf("schedule", get_args(Schedule))
CROSSBAR: OneOf[CrossbarKind] = OneOf("crossbar", get_args(CrossbarKind))
MODE: OneOf[Mode] = OneOf("mode", get_args(Mode))
DEFAULT_TOLERANCE = 1e-4
FEWEST_SAMPLES, MOST_SAMPLES = 2, 100
FEWEST_ROUNDS, MOST_ROUNDS = 2, 100_000
"""Limits of the samples that a core begins in a simulation of throughput: two make an interval."""


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """Settings of a validation: `tolerance`, and the other options of `validate`."""

    tolerance: float
    layers: bool
    engine: Engine
    schedule: Schedule
    max_steps: int

    @property
    def run_options(self) -> dict[str, Any]:
        """Options of `validator.execution.run.run_program`."""
        return {"engine": self.engine, "schedule": self.schedule, "max_steps": self.max_steps}
