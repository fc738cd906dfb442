"""The cycle model against the numbers of docs/developers/target.md, 4, which were simulated in pimsim-nn one by one."""

from pathlib import Path
from typing import Any

import pytest

from tests.validator.simulate.programs import SETBW, Stream, lldi, mvmul, recv, res, run, send, sldi
from validator.simulate.cycle.state_tables import CoreColumn, RunStop


def finish(tmp_path: Path, *streams: Stream, **options: Any) -> int:
    result = run(tmp_path, *streams, **options)
    assert result.stop is RunStop.DONE
    return result.last_tick


@pytest.mark.parametrize(
    ("streams", "ns"),
    [
        ([SETBW, *([sldi(1, 0)] * 20 + [lldi(64)]) * 3], 159),
        ([SETBW, *[sldi(1, 0), lldi(64)] * 4], 135),
    ],
)
def test_scalars_take_a_cycle_each_without_a_reorder_buffer(tmp_path: Path, streams: Stream, ns: int):
    assert finish(tmp_path, streams) == ns


@pytest.mark.parametrize(("xbars", "ns"), [(1, 1657), (4, 1687), (64, 2587)])
def test_products(tmp_path: Path, xbars: int, ns: int):
    assert res(run(tmp_path, [SETBW, mvmul()], groups=(xbars,)), 1) == ns


def test_products_of_16_bits(tmp_path: Path):
    bits = {"op": "setbw", "ibiw": 16, "obiw": 16}
    assert res(run(tmp_path, [bits, mvmul() | {"mbiw": 16}], groups=(4,)), 1) == 3303


def test_products_without_setbw_are_nearly_free(tmp_path: Path):
    assert res(run(tmp_path, [mvmul()]), 0) == 12


@pytest.mark.parametrize(("op", "times"), [("ld", (86, 126, 1776, 7056)), ("st", (87, 152, 2402, 9602))])
def test_global_memory(tmp_path: Path, op: str, times: tuple[int, ...]):
    for size, ns in zip((1, 64, 1000, 4096), times, strict=True):
        assert res(run(tmp_path, [{"op": op, "rd": 2, "rs1": 4, "size": size}]), 0) == ns


def test_products_of_several_groups_share_the_memory_port(tmp_path: Path):
    products = [mvmul(group, rd=1, rs1=2) for group in range(4)]
    # Apart, so that the hazard check does not keep them apart: x at 100000, y of 128 bytes each.
    setup = [SETBW, sldi(2, 100000), *(sldi(10 + g, 1000 * g) for g in range(4)), sldi(9, 0)]
    stream = [*setup, *(p | {"rd": 10 + g} for g, p in enumerate(products))]
    ends = [finish(tmp_path / str(rob), stream, groups=(1,) * 4, rob_size=rob) for rob in (4, 3, 2, 1)]
    assert ends == [2627, 3325, 3678, 6641]


def test_instructions_of_one_unit_follow_each_other(tmp_path: Path):
    result = run(tmp_path, [lldi(64)] * 4, rob_size=4)
    assert [int(s) // 1000 for s in result.start] == [3, 34, 65, 96]


# Section 4.5: core 0 sends to core `to`; cycles at which both start.
@pytest.mark.parametrize(
    ("size", "to", "wait_send", "wait_recv", "send_end", "recv_end"),
    [(64, 1, 0, 0, 33, 71), (256, 3, 0, 0, 101, 285), (256, 3, 6, 18, 111, 295), (256, 3, 92, 0, 193, 377)],
)
def test_rendezvous(tmp_path: Path, size: int, to: int, wait_send: int, wait_recv: int, send_end: int, recv_end: int):
    """Start at 4 + waits, by as many scalars."""
    streams: list[Stream] = [[] for _ in range(to + 1)]
    streams[0] = [sldi(1, 0)] * (wait_send + 1) + [send(to, size)]
    streams[to] = [sldi(1, 0)] * (wait_recv + 1) + [recv(0, size)]
    result = run(tmp_path, *streams)
    # An end is noticed by the reorder buffer; the table counts to the same edge.
    assert result.core[0, CoreColumn.FINISH] == send_end
    assert result.core[to, CoreColumn.FINISH] == recv_end


def test_global_memory_serves_one_at_a_time(tmp_path: Path):
    load = {"op": "ld", "rd": 2, "rs1": 4, "size": 1000}
    for cores, ns in ((1, 1783), (2, 3063), (4, 5623), (8, 10743)):
        assert finish(tmp_path / str(cores), *[[SETBW, *[sldi(1, 0)] * 3, load]] * cores) == pytest.approx(ns, abs=4)


def test_tokens(tmp_path: Path):
    sync = {"op": "sync", "core": 1, "event_register": 3}
    wait = {"op": "wait", "event_register": 3, "wait_value": 2}
    result = run(tmp_path, [sync, sync], [wait])
    assert res(result, 0) == 3
    # The second sync starts at 7; its token needs 4 ns.
    assert result.core[1, CoreColumn.FINISH] == 7 + 4 + 2
    assert run(tmp_path, [sync], [wait]).stop is RunStop.BLOCKED


@pytest.mark.parametrize("period", [0.5, 1, 1.5, 3])
def test_every_instruction_ends_at_an_edge_of_the_clock(tmp_path: Path, period: float):
    result = run(
        tmp_path, [SETBW, mvmul(), lldi(64), {"op": "vvadd", "rd": 1, "rs1": 2, "rs2": 3, "len": 64}], period=period
    )
    ticks = result.end[1:] / (period * 1000)
    assert (ticks == ticks.round()).all()


@pytest.mark.parametrize(("address", "waits"), [(4000, False), (2065, False), (2064, True)])
def test_a_hazard_of_neighbouring_ranges(tmp_path: Path, address: int, waits: bool):
    """The sum is written to 2000 .. 2064: ranges include both ends."""
    registers = [sldi(1, 0), sldi(2, 1000), sldi(3, 2000), sldi(4, address)]
    add = {"op": "vvadd", "rd": 3, "rs1": 1, "rs2": 2, "len": 64}
    message = send(1, 8) | {"rd": 4, "rs1": 4}
    result = run(tmp_path, [SETBW, *registers, add, message], [recv(0, 8)], rob_size=4)
    assert (result.start[6] > result.end[5]) == waits
