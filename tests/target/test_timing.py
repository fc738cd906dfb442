"""The cost model against the simulator: single instructions on random chips take what it says, exactly.

Clocks are whole picoseconds, the simulator's unit: only the end is rounded, to an edge of the core's clock.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raptor.target import timing
from raptor.target.arch import ChipDescription, Target, Widths, mesh_latency
from raptor.target.arch.pimsim_schema import ArchFile
from tests.validator.builder import op, stream
from validator.program.pimsim_program import RawProgram
from validator.simulate.builtin import estimate_program

CORES = 4
Row = tuple[int, ...]


def whole_ps(rng: np.random.Generator) -> float:
    return int(rng.integers(100, 3000)) / 1000


def memory(rng: np.random.Generator) -> dict[str, float]:
    return {
        "data_width": int(rng.integers(1, 100)),
        "period": whole_ps(rng),
        "read_latency_cycle": int(rng.integers(1, 40)),
        "write_latency_cycle": int(rng.integers(2, 40)),
    }


def random_target(rng: np.random.Generator) -> Target:
    rows, cols, bits = int(rng.integers(8, 300)), int(rng.integers(32, 300)), int(rng.integers(4, 17))
    matrix = {
        "xbar_array_count": 32,
        "xbar_size": [rows, cols],
        "cell_precision": int(rng.integers(1, 9)),
        "period": whole_ps(rng),
        "pipeline_mode": bool(rng.integers(2)),
        "dac_resolution": int(rng.integers(1, 5)),
        "dac_count": int(rng.integers(1, rows + 1)),
        "dac_latency_cycle": int(rng.integers(9)),
        "xbar_latency": whole_ps(rng) * 20,
        "sample_hold_latency_cycle": int(rng.integers(9)),
        "adc_count": int(rng.integers(1, cols + 1)),
        "adc_latency_cycle": int(rng.integers(9)),
        "shift_adder_latency_cycle": int(rng.integers(9)),
        "output_buffer_latency_cycle": int(rng.integers(9)),
    }
    core = {
        "period": whole_ps(rng),
        "vector_width": int(rng.integers(1, 100)),
        "vector_latency_cycle": int(rng.integers(1, 50)),
        "matrix_config": matrix,
        "local_memory_config": memory(rng),
    }
    network = {"bus_width": int(rng.integers(1, 64)), "layout": [2, 2]}
    raw = {"core_cnt": CORES, "core_config": core, "global_memory_config": memory(rng), "network_config": network}
    return ChipDescription(ArchFile.model_validate({"chip_config": raw})).target(bits)


def latency_ns(target: Target, *streams: tuple[Row, ...], xbars: int = 1) -> float:
    widths = op("setbw", ibiw=target.widths.activations, obiw=target.widths.accumulators)
    records = tuple(stream(widths, *rows) if rows else stream() for rows in streams)
    count = len(streams)
    raw = RawProgram(count, ((xbars,),) * count, records, (True,) * count, ("",) * count, Path(), Path())
    return estimate_program(raw, target, 0)[0]


def cycles(target: Target, row: Row, xbars: int = 1) -> float:
    """Measures the cycles of one more such instruction, on a core where nothing overlaps."""
    more_ns = latency_ns(target, (row, row), xbars=xbars) - latency_ns(target, (row,), xbars=xbars)
    return more_ns / target.core.period_ns


def ceiled(target: Target, ns: float) -> int:
    """Cycles until the edge at which the core sees the end."""
    return math.ceil(round(ns * 1000) / round(target.core.period_ns * 1000))


@pytest.fixture(params=range(30))
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(request.param)


def test_a_product(rng: np.random.Generator):
    target, xbars = random_target(rng), int(rng.integers(1, 33))
    widths = Widths(int(rng.integers(1, 9)), int(rng.integers(4, 17)), int(rng.choice([8, 16, 24, 32])))
    target = replace(target, widths=widths)
    wanted = ceiled(target, timing.mvmul_ns(target, xbars)) + 3
    assert cycles(target, op("mvmul", mbiw=widths.weights), xbars) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("name", "operands"), [("vvadd", 2), ("vvmul", 2), ("vrelu", 1), ("vsigm", 1)])
def test_a_vector_instruction(name: str, operands: int, rng: np.random.Generator):
    target, length = random_target(rng), int(rng.integers(1, 5000))
    wanted = ceiled(target, timing.vector_ns(target, length, operands)) + 2
    assert cycles(target, op(name, len=length)) == pytest.approx(wanted, abs=1e-6)


def test_a_copy_a_load_and_a_store(rng: np.random.Generator):
    target, length = random_target(rng), int(rng.integers(1, 5000))
    size = length * target.element_bytes
    copied, loaded = timing.copy_ns(target, length), timing.load_ns(target, length)
    assert cycles(target, op("lmv", len=size)) == pytest.approx(ceiled(target, copied) + 2, abs=1e-6)
    assert cycles(target, op("ld", size=size)) == pytest.approx(ceiled(target, loaded) + 2, abs=1e-6)
    stored = timing.store_ns(target, length)
    assert cycles(target, op("st", size=size)) - ceiled(target, stored) == pytest.approx(2.5, abs=0.51)


def test_a_message(rng: np.random.Generator):
    """Both ends begin in the fifth cycle, after the widths are set."""
    target, length = random_target(rng), int(rng.integers(1, 5000))
    to, size = int(rng.integers(1, CORES)), length * target.element_bytes
    streams: list[tuple[Row, ...]] = [()] * CORES
    streams[0], streams[to] = (op("send", core=to, size=size),), (op("recv", core=0, size=size),)
    times = timing.message_times(target, np.array([0]), np.array([to]), np.array([length * target.element_bytes]))
    assert times.request_ns[0] == mesh_latency(0, to, 2)
    wanted = ceiled(target, float((times.request_ns + times.grant_ns + times.receiver_ns)[0])) + 5
    assert latency_ns(target, *streams) / target.core.period_ns == pytest.approx(wanted, abs=1e-6)
