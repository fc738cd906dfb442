"""Stages on chips: the programme finds what trying all cuts finds, and programs with a stage on each chip are right."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.graph.ir import Graph
from raptor.mapping.multichip.chip_stages import ChipPipeline
from raptor.mapping.multichip.stage_search import StageProblem
from tests.oversized_models import chain
from tests.tiny_models import make_model, node, random

DEAR: dict[str, Any] = {"xbar": 16, "xbars_per_core": 16, "cores": 4, "chips": 2, "link": "2000:1"}


def problem_of(seed: int) -> tuple[StageProblem, dict[tuple[int, int], float]]:
    """Makes random costs of up to 12 units, of which some ranges are no stage, and random numbers that cross."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 13))
    work = rng.integers(1, 50, count)
    ranges = [(a, b) for a in range(count) for b in range(a + 1, count + 1)]
    cost = {(a, b): float(work[a:b].sum() * rng.uniform(1, 2)) for a, b in ranges}
    cost |= {r: math.inf for r in ranges if r[1] - r[0] > 1 and rng.random() < 0.1}
    crossing = {r: float(rng.integers(1, 100)) if r[0] else 0.0 for r in ranges}
    cuts = frozenset(c for c in range(1, count) if rng.random() < 0.9)
    found = StageProblem(
        count, cuts, int(rng.integers(1, 5)), lambda a, b: cost[a, b], lambda a, b: float(work[a:b].sum())
    )
    return found, crossing


def all_stages(problem: StageProblem) -> Iterator[list[tuple[int, int]]]:
    """Yields all ways to cut."""
    for number in range(problem.stages):
        for chosen in combinations(sorted(problem.cuts), number):
            yield list(pairwise((0, *chosen, problem.count)))


def check(seed: int) -> bool:
    """Compares with all cuts. Returns whether some cut is possible."""
    problem, crossing = problem_of(seed)
    slowest = [max(problem.cost(*r) for r in ranges) for ranges in all_stages(problem)]
    found = problem.minimise_slowest()
    assert (math.inf if found is None else found[1]) == min(slowest)
    if found is None:
        return False
    limit = found[1] * 1.2
    ways = zip(all_stages(problem), slowest, strict=True)
    sums = [sum(crossing[r] for r in ranges) for ranges, own in ways if own <= limit]
    fewest = problem.minimise_traffic(lambda a, b: crossing[a, b], lambda _, __: 0.0, limit)
    assert fewest is not None
    assert fewest[1] == min(sums)
    return True


def test_the_best_of_all_stages():
    assert sum(check(seed) for seed in range(300)) >= 200


def test_dear_links_get_a_stage_on_each_chip(tmp_path: Path):
    """Every layer has the cores of one chip, later layers later ones, and no more crosses than with free links."""
    flits = []
    for link in ("0:1", DEAR["link"]):
        program = raptor.compile(chain(6, 16, 8), **DEAR | {"link": link})
        out = program.save(tmp_path / link[0])
        assert program.validate(samples=1).passed
        flits.append(raptor.simulate(out).links[0].flits)
    layers = json.loads((out / "mapping.json").read_bytes())["decision"]["layers"]
    chips = [{core // 4 for core in layer["cores"]} for layer in layers.values()]
    assert all(len(found) == 1 for found in chips)
    assert [min(found) for found in chips] == sorted(min(found) for found in chips)
    assert 0 < flits[1] <= flits[0]


def test_links_that_are_too_dear_are_not_used(tmp_path: Path):
    """One chip alone is faster than both with any message between them."""
    program = raptor.compile(chain(6, 16, 8), **DEAR | {"link": "20000:1"})
    assert raptor.simulate(program.save(tmp_path / "out")).links[0].flits == 0
    assert program.validate(samples=1).passed


def test_stages_of_attention_and_branches(tmp_path: Path):
    """Tensors that are read twice behind a cut, and an attention, whose layers stay together."""
    nodes = [
        *(node("MatMul", f"x {n}", f"{n}x", name=n) for n in "qkv"),
        node("Transpose", "kx", "kt", perm=[0, 2, 1]),
        node("MatMul", "qx kt", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p vx", "z", name="values"),
        node("MatMul", "z o", "y", name="out"),
        node("Add", "y x", "r", name="first"),
        node("MatMul", "r w", "m", name="wide"),
        node("Relu", "m", "n"),
        node("MatMul", "n u", "t", name="narrow"),
        node("Add", "t r", "e", name="second"),
    ]
    sizes = {**dict.fromkeys("qkvo", (16, 16)), "w": (16, 48), "u": (48, 16)}
    weights = {name: random(*size, seed=k) / 8 for k, (name, size) in enumerate(sizes.items())}
    model = make_model(nodes, {"x": (1, 8, 16)}, ["e"], weights)
    program = raptor.compile(model, **DEAR)
    program.save(tmp_path / "out")
    assert program.validate(samples=1).passed


def test_each_range_is_looked_at_once(monkeypatch: pytest.MonkeyPatch):
    """The programme asks often, and with two aims; what it asked is kept. The chosen stages may be mapped once more."""
    asked = Counter[tuple[int, int]]()
    part = ChipPipeline.stage_graph

    def counted(self: ChipPipeline, first: int, last: int) -> Graph:
        asked[first, last] += 1
        return part(self, first, last)

    monkeypatch.setattr(ChipPipeline, "stage_graph", counted)
    raptor.compile(chain(6, 16, 8), **DEAR | {"link": "5000:1"})
    assert len(asked) > 2
    again = [found for found, count in asked.items() if count > 1]
    assert len(again) <= DEAR["chips"]
    assert max(asked.values()) <= 2


def test_a_wrong_bound_is_found():
    """With a bound that is none, the programme misses the best, and the comparison with all cuts sees that."""
    missed = 0
    for seed in range(60):
        problem, _ = problem_of(seed)
        least = min(max(problem.cost(*r) for r in ranges) for ranges in all_stages(problem))
        found = replace(problem, least=lambda a, b: 1e3 * (b - a)).minimise_slowest()
        missed += (math.inf if found is None else found[1]) != least
    assert missed
