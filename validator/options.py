"""Choices that the command line and the functions behind it share. Importing this costs nothing."""

from typing import Literal

Engine = Literal["numba", "python"]
Schedule = Literal["block", "round-robin"]
Mode = Literal["latency", "throughput"]
DEFAULT_TOLERANCE = 1e-4
FEWEST_SAMPLES, MOST_SAMPLES = 2, 100
