"""Every property of the hardware, changed one at a time: who must know it knows it, and nobody else.

A new field of `Target` is found by itself. A test here fails if the cost model has it and the simulator, a bound or
the figures of a product have not, if programs for fixed times depend on it, and if it is an energy that nobody counts.
Of the architecture file, no field may be lost by reader or writer.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import orjson
import pytest

from raptor.compiler.analysis.peak_figures import compute_product
from raptor.mapping.mapping_file import target_digest
from raptor.mapping.paces import Pace, apply_pace
from raptor.target import timing
from raptor.target.arch import Target, arch_json, load, parse_arch
from raptor.target.arch.field_names import field_paths
from tests.target.test_timing import ceiled, cycles, latency_ns
from tests.validator.builder import op, stream
from validator.program.network_table import MeshTable
from validator.program.pimsim_program import RawProgram
from validator.simulate.analysis import energy
from validator.simulate.cycle import cycle_model
from validator.simulate.cycle.simulated_chip import SimulatedChip

TARGET = load("bench", cores=4)
LENGTH, XBARS = 3000, 3
SIZES = {
    *("core_count", "network.rows", "network.cols", "core.xbar.rows", "core.xbar.cols", "core.xbar.cell_bits"),
    *("widths.weights", "widths.activations", "widths.accumulators"),
}
"""Fields that a program for fixed times may depend on, although times do: they say what fits."""
TIMES = {"core.period_ns", "memory.write_cycles"}
"""Times that are not in the times of the instructions below."""
AREA = {
    "node_nm": 32.0,
    "cores": 4,
    "xbars_per_core": None,
    "xbar_size": [128, 128],
    "adc_count": 1,
    "adc_bits": 8,
    "parts": [
        {"name": "all", "level": "chip", "count": 1.0, "um2": 9.0, "low_um2": 8.0, "high_um2": 9.5}
        | {"kind": "MODELLED", "source": "somewhere"}
    ],
}
"""A section of areas, with every field."""
ONE_WAY = ("net_config_file_path", "core_config.global_memory_switch_id")
"""Fields of the file that RAPTOR sets itself: the table beside the output, and the name in chip_config."""


def numbers(record: Any, where: str = "") -> Iterator[str]:
    """Yields the paths of all fields that are numbers or truth values."""
    for field in fields(record):
        value = getattr(record, field.name)
        if is_dataclass(value):
            yield from numbers(value, f"{where}{field.name}.")
        elif field.init and isinstance(value, (int, float)):
            yield f"{where}{field.name}"


def changed(record: Any, path: str, factor: int, more: int) -> Any:
    """Returns the record with a number times `factor`, plus `more`; with a truth value turned round."""
    name, _, rest = path.partition(".")
    value = getattr(record, name)
    if rest:
        return replace(record, **{name: changed(value, rest, factor, more)})
    return replace(record, **{name: not value if isinstance(value, bool) else value * factor + more})


def times(target: Target) -> tuple[float, ...]:
    """Returns the times of all kinds of instructions."""
    return (
        timing.mvmul_ns(target, XBARS),
        timing.vector_ns(target, LENGTH, 2),
        timing.copy_ns(target, LENGTH),
        timing.load_ns(target, LENGTH),
        timing.store_ns(target, LENGTH),
        float(np.sum(message(target))),
    )


def message(target: Target) -> list[float]:
    size = np.array([LENGTH * target.element_bytes])
    found = timing.message_times(target, np.array([0]), np.array([1]), size)
    return [float(column[0]) for column in (found.request_ns, found.grant_ns, found.receiver_ns)]


@pytest.mark.parametrize("path", [p for p in numbers(TARGET) if p not in ("core.rob_size", "network.memory_id")])
def test_the_simulator_knows_what_the_cost_model_knows(path: str):
    """Not with `rob_size`, as instructions then overlap."""
    target: Target = changed(TARGET, path, 1, 3)
    size = LENGTH * target.element_bytes
    product, vector, copied, loaded, stored, _ = times(target)
    assert cycles(target, op("mvmul", mbiw=target.widths.weights), XBARS) == ceiled(target, product) + 3
    assert cycles(target, op("vvadd", len=LENGTH)) == ceiled(target, vector) + 2
    assert cycles(target, op("lmv", len=size)) == ceiled(target, copied) + 2
    assert cycles(target, op("ld", size=size)) == ceiled(target, loaded) + 2
    assert cycles(target, op("st", size=size)) - ceiled(target, stored) in (2, 3)
    sent = latency_ns(target, (op("send", core=1, size=size),), (op("recv", core=0, size=size),))
    assert sent / target.core.period_ns == ceiled(target, sum(message(target))) + 5


@pytest.mark.parametrize("path", [p for p in numbers(TARGET) if p != "core.rob_size"])
@pytest.mark.parametrize(("factor", "more"), [(1, 3), (10**6, 10**8)])
def test_bounds_know_what_the_simulator_knows(path: str, factor: int, more: int):
    """The latency timeout of an output, and the bound that keeps times within 64 bits."""
    target: Target = changed(TARGET, path, factor, more)
    widths = op("setbw", ibiw=target.widths.activations, obiw=target.widths.accumulators)
    size = min(LENGTH * target.element_bytes, 2**31 - 1)
    moves = op("lmv", len=size), op("ld", size=size), op("st", size=size), op("send", core=1, size=size)
    records = (
        stream(widths, op("mvmul", mbiw=target.widths.weights), op("vvadd", len=LENGTH), *moves),
        stream(widths, op("recv", core=0, size=size)),
    )
    program = RawProgram(2, ((XBARS,),) * 2, records, (True,) * 2, ("",) * 2, Path(), Path())
    machine = cycle_model.build_cycle_model(program, SimulatedChip(target, MeshTable(target), "", ()))
    taken_ns = cycle_model.run_cycle_model(machine).last_tick * machine.period_ns
    assert taken_ns <= cycle_model.bound_time_ps(machine) / 1000
    assert taken_ns <= sum(timing.upper_bound_ns(core, XBARS, target) for core in records)


@pytest.mark.parametrize("path", [*numbers(TARGET)])
def test_the_parts_of_a_product_are_all_of_it(path: str):
    target: Target = changed(TARGET, path, 1, 3)
    product = compute_product(target)
    assert sum(part.time_ns for part in product.parts.values()) == pytest.approx(timing.mvmul_ns(target, 1))


NOT_COUNTED = {
    *(f"core.xbar.power.{part}_static_mw" for part in ("dac", "sample_hold", "adc", "shift_add", "output_buffer")),
    *("core.xbar.power.input_buffer_mw", "core.xbar.power.input_buffer_static_mw"),
    *("core.power.transfer_mw", "core.power.controller_mw", "core.power.controller_static_mw"),
}
"""Powers that pimsim-nn reads and does not count (docs/explanation/energy.md)."""


@pytest.mark.parametrize("path", [p for p in numbers(TARGET) if p.endswith(("_mw", "_pj"))])
def test_the_simulator_counts_every_energy(path: str):
    free = TARGET
    for each in numbers(TARGET):
        if each.endswith(("_mw", "_pj")):
            free = changed(free, each, 0, 0)
    target: Target = changed(free, path, 0, 1)
    assert spent_pj(free) == 0
    assert (spent_pj(target) > 0) == (path not in NOT_COUNTED)


def spent_pj(target: Target) -> float:
    """Returns the energy of a core with an instruction of each unit; the network's is in its table."""
    widths = op("setbw", ibiw=target.widths.activations, obiw=target.widths.accumulators)
    units = op("sldi", rd=1), op("mvmul", mbiw=target.widths.weights), op("vvadd", len=8), op("ld", size=8)
    records = (stream(widths, *units, op("st", size=8)),)
    program = RawProgram(1, ((XBARS,),), records, (True,), ("",), Path(), Path())
    chip = SimulatedChip(target, MeshTable(target), "", ())
    machine = cycle_model.build_cycle_model(program, chip)
    machine = replace(machine, network=replace(machine.network, energy_pj=np.zeros_like(machine.network.energy_pj)))
    run = cycle_model.run_cycle_model(machine, counting=energy.needs_counting(target))
    return energy.compute_energy(machine, energy.count_uses(machine), run.port, 1.0).total


@pytest.mark.parametrize("pace", [pace for pace in get_args(Pace) if pace != "own"])
def test_fixed_times_depend_on_no_time_of_the_chip(pace: Pace):
    for path in numbers(TARGET):
        target: Target = changed(TARGET, path, 1, 3)
        if path not in SIZES and times(target) != times(TARGET):
            assert apply_pace(target, pace) == apply_pace(TARGET, pace), path
        else:
            assert path in TIMES or apply_pace(target, pace) != apply_pace(TARGET, pace), f"{path} is lost, but no time"


@pytest.mark.parametrize("path", [p for p in field_paths() if not p.endswith(ONE_WAY)])
def test_a_field_of_the_file_is_read_and_written(path: str):
    *sections, last = path.split(".")
    file = orjson.loads(arch_json(load("bench", cores=4, chips=2, link="package-ucie")))
    before, _ = parse_arch(file)
    inner = file
    for section in sections:
        inner = inner[section]
    wanted = AREA if last == "area" else 0 if last == "sim_mode" else other(inner.get(last, "core"))
    inner[last] = wanted
    after, problems = parse_arch(file)
    assert before is not None
    assert after is not None, problems
    assert after.target() != before.target()
    written = orjson.loads(arch_json(after.target()))
    for section in sections:
        written = written[section]
    assert written[last] == wanted
    if sections[:1] == ["chip_config"]:
        assert target_digest(after.target()) != target_digest(before.target())


def other(value: Any) -> Any:
    """Returns another value that is allowed."""
    if isinstance(value, dict):
        return value | {"link_ns": 7.0}
    if isinstance(value, list):
        return [n + 1 for n in value]
    if isinstance(value, str):
        return "wordline" if value == "core" else f"{value}2"
    return not value if isinstance(value, bool) else value + 1
