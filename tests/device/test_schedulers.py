"""Graphs and their schedulers: OCC's kernels with closed forms, and schedules that are wrong."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from random import Random
from typing import Any

import numpy as np
import pytest

import raptor.device
from benchmarks.programs.occ_kernels import KERNELS
from raptor.common.errors import UserError
from raptor.device import Account, DeviceError, ShapeError
from raptor.device.graph import GraphValue, PlacedProduct, ProductGraph, check_schedule
from raptor.device.kernels import contraction, convolution, kronecker, matmul
from raptor.device.networks import lstm, mlp
from raptor.device.schedulers import SCHEDULERS, alap, asap, min_writes

ROWS, COLS = 4, 3
Build = Callable[[ProductGraph], GraphValue]


def opened(crossbars: int = 4) -> raptor.device.Device:
    return raptor.device.open("numpy", xbar=(ROWS, COLS), crossbars=crossbars, device="pcm-occ")


def integers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(np.float32)


def ran(build: Build, schedule: str, crossbars: int = 4) -> tuple[Any, Account, ProductGraph]:
    with opened(crossbars) as device:
        with device.graph(schedule) as graph:
            node = build(graph)
        return node.result(5), device.account, graph


def tiles(m: int, k: int, n: int) -> tuple[int, int, int]:
    """Row, inner and column tiles of a product."""
    return ceil(m / ROWS), ceil(k / ROWS), ceil(n / COLS)


@pytest.mark.parametrize("crossbars", [1, 4])
@pytest.mark.parametrize("sizes", [(4, 4, 3), (9, 10, 7), (16, 8, 6), (1, 12, 5)])
def test_writes_of_a_product_of_matrices(sizes: tuple[int, int, int], crossbars: int):
    m, k, n = sizes
    a, b = integers(m, k), integers(k, n)
    rows, inner, columns = tiles(m, k, n)
    for schedule in SCHEDULERS:
        got, account, graph = ran(lambda graph: matmul(graph, a, b), schedule, crossbars)
        np.testing.assert_array_equal(got, a @ b)
        assert account.writes == inner * columns * (1 if schedule == "min_writes" else rows)
        assert account.products == m * inner * columns
        assert graph.share == m * k * n / (m * k * n + m * n * (inner - 1))


def test_the_product_of_256_of_occ():
    """The tiled loops write 64 tiles of 64 x 64; after the interchange it is 16, as there are 4 tiles of rows."""
    a, b = integers(256, 256, seed=1), integers(256, 256, seed=2)
    found: dict[tuple[str, int], Account] = {}
    for schedule in ("asap", "min_writes"):
        for crossbars in (1, 4):
            with raptor.device.open("numpy", xbar=64, crossbars=crossbars, device="pcm-occ") as device:
                with device.graph(schedule) as graph:
                    node = matmul(graph, a, b)
                np.testing.assert_array_equal(node.result(), a @ b)
                found[schedule, crossbars] = device.account
    assert {key: account.writes for key, account in found.items()} == {
        ("asap", 1): 64,
        ("asap", 4): 64,
        ("min_writes", 1): 16,
        ("min_writes", 4): 16,
    }
    assert {account.products for account in found.values()} == {256 * 16}
    # A write is 64 rows of 2.5 us, a tile's products are 64 of 1 us; nothing overlaps on one crossbar.
    assert found["asap", 1].time_ns == 64 * (160_000 + 64_000)
    assert found["min_writes", 1].time_ns == 16 * 160_000 + 64 * 64_000
    assert found["asap", 4].time_ns == found["asap", 1].time_ns / 4
    assert found["min_writes", 4].time_ns == found["min_writes", 1].time_ns / 4
    years = {key: account.years_spread for key, account in found.items()}
    assert years["min_writes", 1] is not None
    assert years["asap", 1] is not None
    assert years["min_writes", 1] > years["asap", 1]


def test_the_account_does_not_depend_on_the_schedule_but_for_writes_and_time():
    build = next(kernel.build for kernel in KERNELS if kernel.name == "3mm")
    found = {schedule: ran(lambda graph: build(graph, 8), schedule)[1] for schedule in SCHEDULERS}
    assert len({(a.products, a.pj_product) for a in found.values()}) == 1
    assert found["min_writes"].writes < found["asap"].writes == found["alap"].writes


def diamond(graph: ProductGraph) -> GraphValue:
    top = graph.product(integers(1, 3), integers(3, 3))
    left, right = graph.product(top, integers(3, 3, seed=1)), graph.product(top, integers(3, 3, seed=2))
    graph.product(integers(1, 3), integers(3, 3, seed=3))
    return graph.host(np.add, [left, right], (1, 3), 3)


def starts(schedule: Any, crossbars: int) -> list[tuple[int, int, int]]:
    with opened() as device:
        diamond(graph := ProductGraph(device, schedule, crossbars))
        return sorted((p.op.number, p.start_step, p.await_step) for p in schedule(graph, crossbars))


def test_steps_by_hand():
    """Products 0, then 1 and 2 that need it, and 3 that nobody reads. Who reads a result first says when to wait."""
    assert starts(asap, 2) == [(0, 0, 1), (1, 1, 2), (2, 1, 2), (3, 0, 2)]
    assert starts(alap, 3) == [(0, 0, 1), (1, 1, 2), (2, 1, 2), (3, 1, 2)]
    assert starts(asap, 1) == [(0, 0, 1), (1, 1, 4), (2, 2, 4), (3, 3, 4)]


def test_random_graphs_have_the_same_values_under_every_schedule():
    for seed in range(15):
        random = Random(seed)
        matrices = [integers(3, 3, seed=k) for k in range(4)]

        def build(graph: ProductGraph, random: Random = random, matrices: Any = matrices) -> GraphValue:
            nodes: list[Any] = [integers(2, 3)]
            for _ in range(random.randrange(1, 12)):
                matrix = random.choice(matrices)
                nodes.append(graph.product(random.choice(nodes), matrix))
                nodes.append(graph.host(np.sign, [nodes[-1]], (2, 3)))
            return graph.host(lambda *a: sum(a), [n for n in nodes if isinstance(n, GraphValue)], (2, 3))

        state, results = random.getstate(), []
        for schedule in SCHEDULERS:
            random.setstate(state)
            results.append(ran(build, schedule, 2))
        assert len({got.tobytes() for got, _, _ in results}) == 1
        assert results[2][1].writes <= results[0][1].writes


def planted(graph: ProductGraph, placed: list[PlacedProduct], fault: str) -> list[PlacedProduct]:
    first, second = placed[0], placed[1]
    if fault == "twice":
        return [*placed, first]
    if fault == "missing":
        return placed[1:]
    if fault == "early":
        return [first, replace(second, start_step=0, crossbar=2), *placed[2:]]
    if fault == "together":
        return [replace(p, start_step=5, await_step=9, crossbar=0) if p.op.number else p for p in placed]
    if fault == "unwritten":
        return [replace(first, writes=False), *placed[1:]]
    if fault == "other":
        return [replace(p, start_step=k, await_step=9, crossbar=0, writes=not k) for k, p in enumerate(placed)]
    return [replace(first, await_step=0), *placed[1:]]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("twice", "does not place every product once"),
        ("missing", "does not place every product once"),
        ("early", "product 1 starts in step 0, before its operands are ready"),
        ("together", "are on one crossbar in one step"),
        ("unwritten", "its crossbar holds no matrix"),
        ("other", "its crossbar holds another matrix"),
        ("await", "awaited in step 0"),
    ],
)
def test_schedules_that_are_wrong(fault: str, message: str):
    with opened() as device:
        diamond(graph := ProductGraph(device, asap, 4))
        placed = sorted(asap(graph, 4), key=lambda p: p.op.number)
        check_schedule(graph, placed, 4)
        with pytest.raises(DeviceError, match=message):
            check_schedule(graph, planted(graph, placed, fault), 4)


def test_a_scheduler_of_ones_own():
    def one_by_one(graph: ProductGraph, crossbars: int) -> list[PlacedProduct]:
        return [PlacedProduct(op, 0, k, k + 1, writes=True) for k, op in enumerate(graph.products)]

    with opened() as device:
        with device.graph(one_by_one) as graph:
            node = diamond(graph)
            with pytest.raises(DeviceError, match="does not run yet"):
                node.result()
        assert node.result().shape == (1, 3)
        assert {p.crossbar for p in graph.placed} == {0}
        with pytest.raises(UserError, match="expected one of: asap, alap, min_writes"):
            device.graph("nosuch")
        with pytest.raises(UserError, match="schedule"):
            device.graph(5)  # type: ignore[arg-type]


def test_kernels_that_cannot_be():
    with opened() as device:
        graph = device.graph()
        with pytest.raises(ShapeError, match="is no product of matrices"):
            matmul(graph, integers(2, 3), integers(2, 3))
        with pytest.raises(ShapeError, match="is no product for a crossbar"):
            graph.product(integers(1, 5), integers(5, 3))
        with pytest.raises(ShapeError, match="do not fit an image"):
            convolution(graph, integers(1, 2, 3, 3), integers(1, 2, 4, 4))
        with pytest.raises(ShapeError, match="do not fit an image"):
            convolution(graph, integers(1, 2, 3), integers(1, 2, 2), dilation=3)
        with pytest.raises(ShapeError, match="2 matrices do not fit vectors"):
            kronecker(graph, [integers(2, 2), integers(2, 2)], integers(4, 2))
        with pytest.raises(ShapeError, match="at least one layer"):
            mlp(graph, integers(2, 2), [])
        with pytest.raises(ShapeError, match="are no LSTM"):
            lstm(graph, integers(2, 2), integers(2, 8), integers(2, 9), integers(8))
        for formula in ("ab-ab-ab", "ab", "aa-ac-ca", "ab-ac-db"):
            with pytest.raises(UserError, match="contraction"):
                contraction(graph, formula, integers(2, 2), integers(2, 2))


def test_a_failure_reaches_what_depends_on_it():
    def fail(_: Any) -> Any:
        raise ValueError("no number")

    with opened() as device:
        with device.graph() as graph:
            bad = graph.host(fail, [graph.product(integers(1, 3), integers(3, 3))], (1, 3))
            after = graph.product(bad, integers(3, 3))
        with pytest.raises(ValueError, match="no number"):
            after.result()
        assert device.free == 4


def test_min_writes_is_used_by_default():
    assert SCHEDULERS["min_writes"] is min_writes
    with opened() as device:
        with device.graph() as graph:
            matmul(graph, integers(16, 4), integers(4, 3))
        assert device.account.writes == 1
