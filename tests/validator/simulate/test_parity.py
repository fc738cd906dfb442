"""The cycle model against figures measured in pimsim-nn on random programs (tests/validator/simulate/data)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.validator.simulate import figures
from tests.validator.simulate.generator import Case, random_case, widths_case, write
from validator.program.pimsim_program import read_program
from validator.simulate import builtin
from validator.simulate.analysis import energy
from validator.simulate.cycle import cycle_model, simulated_chip


@dataclass(frozen=True)
class Miss:
    """Relative deviations from the simulator."""

    seed: int
    latency: float
    energy: float


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return figures.load()


@pytest.fixture(scope="module")
def latency_misses(measured: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Miss]:
    folder = tmp_path_factory.mktemp("latency")
    return [_miss(folder / seed, int(seed), random_case(int(seed)), *x) for seed, x in measured["latency"].items()]


def _miss(folder: Path, seed: int, case: Case, ms: float, pj: float) -> Miss:
    write(case, folder)
    target = simulated_chip.read_simulated_chip(folder / "arch.json")
    machine = cycle_model.build_cycle_model(read_program(folder), target)
    run = cycle_model.run_cycle_model(machine, counting=energy.needs_counting(target.target))
    ns = run.last_tick * machine.period_ns
    used = energy.compute_energy(machine, energy.count_uses(machine), run.port, ns).total
    return Miss(seed, ns / (ms * 1e6) - 1, used / pj - 1)


def test_the_generator_is_the_one_that_was_measured(measured: dict[str, Any]):
    assert figures.digest(measured) == measured["digest"]


def test_latency(latency_misses: list[Miss]):
    unequal = [m for m in latency_misses if abs(m.latency) > 1e-9]
    assert len(latency_misses) >= 300
    # Those that differ do where a group and another unit reach the memory in the same cycle: the simulator's order
    # is that of its objects in memory (`test_ordered_addresses`).
    assert len(unequal) <= 0.05 * len(latency_misses)
    assert max(abs(m.latency) for m in latency_misses) < 0.01


def test_energy(latency_misses: list[Miss]):
    equal = [m for m in latency_misses if abs(m.latency) <= 1e-9]
    assert max(abs(m.energy) for m in equal) < 1e-9
    assert max(abs(m.energy) for m in latency_misses) < 0.005


def test_ordered_addresses(measured: dict[str, Any], latency_misses: list[Miss], tmp_path: Path):
    """If the addresses of the simulator's objects grow in the order of allocation, its figures are the model's."""
    unequal = {str(m.seed) for m in latency_misses if abs(m.latency) > 1e-9}
    assert unequal == set(measured["ordered"])
    misses = [_miss(tmp_path / seed, int(seed), random_case(int(seed)), *measured["ordered"][seed]) for seed in unequal]
    assert max(max(abs(m.latency), abs(m.energy)) for m in misses) < 1e-9


def test_many_widths(measured: dict[str, Any], tmp_path: Path):
    found = measured["widths"].items()
    misses = [_miss(tmp_path / seed, int(seed), widths_case(int(seed)), *x) for seed, x in found]
    assert len(misses) >= 60
    assert max(max(abs(m.latency), abs(m.energy)) for m in misses) < 1e-9


def test_throughput(measured: dict[str, Any], tmp_path: Path):
    for seed, ((ms1, rounds1, pj1), (ms2, rounds2, pj2)) in measured["throughput"].items():
        folder = tmp_path / seed
        write(random_case(int(seed), mode=0), folder)
        report = builtin.simulate(folder, folder / "arch.json", mode="throughput")
        interval = (ms2 - ms1) / (rounds2 - rounds1) * 1e6
        each = (pj2 * rounds2 - pj1 * rounds1) / (rounds2 - rounds1)
        assert report.interval_ns == pytest.approx(interval, rel=0.005)
        assert report.energy_pj == pytest.approx(each, rel=0.001)
