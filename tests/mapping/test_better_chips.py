"""A chip that is better in one number gets a program that is no slower, by default or from a search."""

import random
from collections.abc import Iterator
from typing import Any, get_args

import pytest

import models
import raptor
from benchmarks.programs.slow_models import build_model
from raptor.codegen.pimsim.back_end import PIMSIM_BACKEND
from raptor.compiler.pipeline import complete, generate_code, rewrite_and_map, run_lowering
from raptor.mapping.paces import Pace, default_pace
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE
from raptor.mapping.strategies import ROWS, STRATEGIES
from raptor.target import arch as architectures
from tests.pipeline import passes

INTERVAL = 1.005
"""Allowed ratio of intervals: even a fixed program had one up to 0.7 % longer on a better chip, the best of 16 programs
up to 0.47 %. The cause is the order of requests at the port of global memory (docs/lab/better-chips.md)."""
NOISE = 1.02
"""Allowed ratio of latency and of interval by default. The worst of the 303 cases below were 1.000 and 1.005."""
SIZES: dict[str, dict[str, Any]] = {
    "lenet5": {},
    "squeezenet": {"image_size": 32, "width": 0.5},
    "resnet18": {"image_size": 32, "width": 0.25},
}
ALLOWED: dict[str | None, dict[str, float]] = {
    "latency": {"latency": 1.0},
    "throughput": {"interval": INTERVAL},
    None: {"latency": NOISE, "interval": NOISE},
}
"""Allowed ratios to the chip before, by what is optimised; None: the default mapping."""
PACES: tuple[Pace, ...] = tuple(pace for pace in get_args(Pace) if pace != "own")
NUMBERS: dict[str, tuple[float, ...]] = {
    "vector_width": (8, 16, 32, 64),
    "vector_latency_cycle": (8, 4, 2, 1),
    "matrix_config.dac_count": (32, 64, 128),
    "matrix_config.adc_count": (2, 4, 8, 16, 32),
    "matrix_config.adc_latency_cycle": (40, 20, 10, 5),
    "matrix_config.dac_latency_cycle": (2, 1),
    "matrix_config.xbar_latency": (100.0, 50.0, 25.0, 7.0),
    "local_memory_config.data_width": (16, 32, 64, 128),
    "local_memory_config.read_latency_cycle": (40, 20, 10, 5),
    "local_memory_config.write_latency_cycle": (60, 30, 15, 8),
    "global_memory_config.data_width": (16, 32, 64, 128),
    "global_memory_config.read_latency_cycle": (80, 40, 20),
    "bus_width": (16, 32, 64),
}
"""Fields of the architecture with their values, each better than the one before."""


def improved(chip: dict[str, float]) -> Iterator[dict[str, float]]:
    """Yields a chip for each number that can be better."""
    for name, values in NUMBERS.items():
        better = values[values.index(chip[name]) + 1 :]
        if better:
            yield chip | {name: better[0]}


def figures(model: Any, chip: dict[str, float], sizes: dict[str, int], optimize: Any) -> dict[str, float]:
    """Returns latency and interval in ns by the simulator's command, not by what the search measured."""
    found = raptor.compile(model, fields=chip, xbar=128, optimize=optimize, **sizes).simulate(
        mode="throughput", samples=4
    )
    assert found.interval_ns is not None
    return {"latency": found.latency_ns, "interval": found.interval_ns}


def random_chip(seed: int) -> tuple[dict[str, float], dict[str, int]]:
    """Returns the numbers of a chip and its sizes."""
    rng = random.Random(seed)
    chip = {name: rng.choice(values) for name, values in NUMBERS.items()}
    return chip, {"cores": rng.choice([32, 64, 100, 144]), "xbars_per_core": rng.choice([32, 64])}


def all_no_worse(name: str, seed: int, optimize: str | None) -> None:
    """Checks all better chips against a random one."""
    model, (chip, sizes) = models.build(name, seed=0, **SIZES[name]), random_chip(seed)
    base = figures(model, chip, sizes, optimize)
    for better in improved(chip):
        found = figures(model, better, sizes, optimize)
        changed = {field: value for field, value in better.items() if value != chip[field]}
        for what, ratio in ALLOWED[optimize].items():
            assert found[what] <= ratio * base[what], (changed, what, base, found)


@pytest.mark.slow
@pytest.mark.parametrize("optimize", ALLOWED)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("seed", range(10))
def test_a_better_chip_is_never_slower(seed: int, name: str, optimize: str | None):
    all_no_worse(name, seed, optimize)


def test_a_better_chip_is_hardly_slower_by_default():
    """With seed 1, faster converters change the pace. (With seed 0, they did by a lower limit: 18 % in the interval. By
    the chip's own times, an interval got 4 % longer with seed 5. These and more are slow tests.)
    """
    all_no_worse("lenet5", 1, None)


@pytest.mark.parametrize("name", ["image_grey", "image_last_axis", "unrolled_loop"])
def test_more_cores_are_no_worse(name: str):
    """Products of latency and interval are compared. A few layers, which do not need 400 cores, read the inputs."""
    found = [figures(build_model(name), {}, {"cores": cores}, None) for cores in (64, 400)]
    few, many = (each["latency"] * each["interval"] for each in found)
    assert many <= NOISE * few


@pytest.mark.parametrize(
    ("fields", "pace"),
    [
        ({}, "own"),
        ({"bus_width": 64}, "bench"),
        ({"matrix_config.adc_latency_cycle": 5}, "bench"),
        ({"matrix_config.adc_latency_cycle": 40}, "bench"),
        ({"matrix_config.adc_latency_cycle": 80}, "products x4"),
    ],
)
def test_the_usual_pace_depends_on_the_time_of_a_product(fields: dict[str, float], pace: Pace):
    small, large = (models.build("resnet18", seed=0, image_size=size, width=0.25) for size in (32, 128))
    arch = architectures.load("bench", xbar=128, cores=64, fields=fields)
    assert default_pace(passes(small).graph, arch) == pace
    assert default_pace(passes(large).graph, arch) == "own"
    assert rewrite_and_map(passes(small).graph, arch, STRATEGIES["rows"]).decision.pace == pace


@pytest.mark.slow
@pytest.mark.parametrize("optimize", ALLOWED)
def test_twice_the_converters(optimize: Any):
    """A user's case: by the mapping for its own times, the better chip took 34 % longer than by that of the other."""
    model = models.build("squeezenet", seed=0, **SIZES["squeezenet"])
    sizes, half = {"cores": 64, "xbars_per_core": 32}, {"dac_count": 128, "adc_count": 16}
    found: list[dict[str, float]] = []
    for factor in (1, 2):
        fields = {f"matrix_config.{field}": count * factor for field, count in half.items()}
        program = raptor.compile(model, fields=fields, xbar=256, optimize=optimize, **sizes)
        report = program.simulate(mode="throughput", samples=4)
        assert report.interval_ns is not None
        found.append({"latency": report.latency_ns, "interval": report.interval_ns})
    for what, ratio in ALLOWED[optimize].items():
        assert found[1][what] <= ratio * found[0][what]


@pytest.mark.parametrize("pace", PACES)
def test_a_program_of_a_pace_is_the_same_on_every_chip_of_its_sizes(pace: Pace):
    """No pass reads a time of the chip itself: all of them differ between the worst chip and the best."""
    graph = passes(models.build("lenet5", seed=0, width=0.5), cores=32).graph
    _, sizes = random_chip(0)
    found: set[bytes] = set()
    for end in (0, -1):
        chip = {name: values[end] for name, values in NUMBERS.items()}
        arch = architectures.load("bench", xbar=128, fields=chip, **sizes)
        mapped = rewrite_and_map(graph, arch, ROWS.at_pace(pace))
        lowered = run_lowering(complete(mapped, arch, aim=BALANCED_OBJECTIVE).mapped, arch)
        streams = generate_code(lowered, PIMSIM_BACKEND)
        found.add(b"".join(streams.cores[i].records.tobytes() for i in sorted(streams.cores)))
    assert len(found) == 1
