"""A search for a good mapping: candidates are compiled and run in the built-in simulator (docs/simulation.md).

Deterministic: the candidates are a fixed list, tried in order until the effort, a number of evaluations, is spent. The
reference mapping is one of them, so the result is never worse than it by the simulator's own measure.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from raptor import isa
from raptor.arch import Arch
from raptor.codegen import Streams
from raptor.errors import CapacityError
from raptor.frontend.graph import Graph
from raptor.mapping import Mapping, map_raptor
from raptor.mapping_rows import Knobs, map_rows
from raptor.pim import PimProgram

Objective = Literal["latency", "throughput", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "energy")
EFFORT = 4
"""Evaluations unless the user says otherwise."""

SAMPLES = 4
"""Samples a core begins when throughput and energy are measured."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A candidate and what it costs: ns a sample, or pJ a sample."""

    name: str
    mapping: Mapping
    cost: float


def search(
    graph: Graph,
    arch: Arch,
    objective: Objective,
    effort: int,
    build: Callable[[Mapping], tuple[PimProgram, Streams]],
) -> tuple[Evaluation, ...]:
    """The candidates tried, the best first; among equals the one tried first. At least two are tried.

    Raises `CapacityError` when the chip is too small.
    """
    # NOTE: the simulator runs without Python's lock, beside the compilation of the next candidate.
    with ThreadPoolExecutor(1) as pool:
        costs = [
            (name, mapping, pool.submit(cost_of, *build(mapping), arch, objective))
            for name, mapping in islice(candidates(graph, arch, objective), max(2, effort))
        ]
    tried = [Evaluation(name, mapping, cost.result()) for name, mapping, cost in costs]
    return tuple(sorted(tried, key=lambda e: e.cost))


def candidates(graph: Graph, arch: Arch, objective: Objective) -> Iterator[tuple[str, Mapping]]:
    """Mappings, the most promising first; the reference mapping is the second."""
    usual = Knobs()
    yield "rows", map_rows(graph, arch, usual)
    with suppress(CapacityError):
        yield "raptor", map_raptor(graph, arch)
    for name, knobs in _turned(usual, objective):
        yield f"rows, {name}", map_rows(graph, arch, knobs)


def _turned(usual: Knobs, objective: Objective) -> Iterator[tuple[str, Knobs]]:
    shares = (0.5, 0.75, 0.35) if objective == "energy" else (0.9, 0.8)
    patience = (usual.patience_ns / 3, usual.patience_ns * 2, usual.patience_ns * 4)
    turned_share = [(f"{share:.0%} of the cores", replace(usual, share=share)) for share in shares]
    turned_patience = [(f"patience {p:.0f} ns", replace(usual, patience_ns=p)) for p in patience]
    turned_step = [(f"steps of {s} ns", replace(usual, step_ns=s)) for s in (5_000, 20_000, 40_000)]
    yield from turned_share + turned_patience if objective == "energy" else turned_patience + turned_share
    yield from turned_step


def cost_of(program: PimProgram, streams: Streams, arch: Arch, objective: Objective) -> float:
    """What the built-in simulator says: latency or interval in ns, or energy of a sample in steady state in pJ."""
    from validator.programs import RawProgram
    from validator.simulate.builtin import estimate

    count = arch.core_count
    empty = np.zeros(0, isa.RECORD)
    cores = program.cores
    raw = RawProgram(
        core_cnt=count,
        groups=tuple(tuple(g.matrix.xbars for g in cores[i].groups) if i in cores else () for i in range(count)),
        records=tuple(streams.cores[i].records if i in streams.cores else empty for i in range(count)),
        instantiated=(True,) * count,
        core_files=("",) * count,
        folder=Path(),
        source=Path(),
    )
    latency_ns, interval_ns, energy_pj = estimate(raw, arch.file, 0 if objective == "latency" else SAMPLES)
    return {"latency": latency_ns, "throughput": interval_ns, "energy": energy_pj}[objective]
