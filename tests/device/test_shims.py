"""Interfaces of other projects: the examples of their documents."""

from typing import Any

import numpy as np
import pytest

import raptor.device
from raptor.common.errors import UserError
from raptor.device import NotWrittenError, OperandError
from raptor.device.graph import ProductGraph, ProductNode
from raptor.device.schedulers import alap, asap, min_writes
from raptor.device.shims import cinnamon
from raptor.device.shims.neuroboard import NeuroBoard
from raptor.device.shims.occ import CimDialect, CimRuntime


def integers(*shape: int, most: int = 5) -> Any:
    return np.random.default_rng(sum(shape)).integers(-most, most, shape)


def test_cinnamons_listing_3_3():
    """A layer of 5 x 3: gemm of 1x5xi16 and 5x3xi16 in the cim dialect."""
    barg0, btw0 = integers(1, 5), integers(5, 3)
    dev = cinnamon.acquire_device("integer", xbar=16, crossbars=1, weight_bits=16, input_bits=16)
    xbar = cinnamon.acquire_crossbar(dev)
    fut0 = cinnamon.op_gemm(xbar, barg0, btw0)
    bm0 = cinnamon.barrier(fut0)
    np.testing.assert_array_equal(bm0, barg0 @ btw0)
    np.testing.assert_array_equal(cinnamon.barrier(cinnamon.op_gemv(xbar, barg0[0], btw0)), bm0[0])
    cinnamon.release_crossbar(xbar)
    cinnamon.release_device(dev)
    assert dev.account.writes == 2


def test_cinnamons_futures_are_operands():
    """The two layers of listing 3.1, without the sums of the bias: the second takes the future of the first."""
    x, w0, w1 = integers(1, 5), integers(5, 3), integers(3, 2)
    with cinnamon.acquire_device("integer", xbar=16, crossbars=2, input_bits=32) as dev:
        a, b = cinnamon.acquire_crossbar(dev), cinnamon.acquire_crossbar(dev)
        found = cinnamon.barrier(cinnamon.op_gemm(b, cinnamon.op_gemm(a, x, w0), w1))
        np.testing.assert_array_equal(found, x @ w0 @ w1)


def test_cinnamons_listing_3_5():
    """The runtime library: the result is in its buffer after the barrier."""
    lhsb, rhsb, resb = integers(1, 5), integers(5, 3), np.zeros((1, 3), np.int16)
    with raptor.device.open("integer", xbar=16, crossbars=2) as device:
        library = cinnamon.MemristorRuntime(device)
        library.memristor_write_to_crossbar(0, rhsb)
        library.memristor_gemm(0, lhsb, resb)
        vector = np.zeros(3, np.int16)
        library.memristor_gevm(0, lhsb[0], vector)
        assert not resb.any()
        library.memristor_barrier(0)
        np.testing.assert_array_equal(resb, lhsb @ rhsb)
        np.testing.assert_array_equal(vector, resb[0])
        for tile in (-1, 2):
            with pytest.raises(UserError, match="expected a whole number, 0 to 1"):
                library.memristor_write_to_crossbar(tile, rhsb)
        with pytest.raises(NotWrittenError):
            library.memristor_gemm(1, lhsb, resb)
        library.memristor_write_to_crossbar(0, np.full((5, 3), 100))
        library.memristor_gemm(0, np.full((1, 5), 100), resb)
        with pytest.raises(OperandError, match="does not fit a buffer of int16"):
            library.memristor_barrier(0)


def diamond(graph: ProductGraph) -> None:
    top = graph.product(np.ones((1, 3)), integers(3, 3))
    graph.product(top, integers(3, 3) + 1)
    graph.product(top, integers(3, 3) + 2)


@pytest.mark.parametrize("strategy", [asap, alap])
def test_cinnamons_hooks(strategy: Any):
    """Listing 3.4: a producer with two consumers is dispatched once, and awaited when they need it."""
    with raptor.device.open("numpy", xbar=4, crossbars=2) as device:
        diamond(graph := ProductGraph(device, strategy, 2))
        hooks = cinnamon.SchedulingHooks(
            reschedule_operation_filter=cinnamon.is_cim_op,
            scheduling_strategy=strategy,
            operation_scheduler=lambda op, crossbar: f"{op.number} on {crossbar}",
            barrier_inserter=lambda op: f"await {op.number}",
        )
        found = cinnamon.apply_scheduling(graph, ["x", "y"], hooks)
        assert found[0].startswith("0 on ")
        assert found[1] == "await 0"
        assert sorted(found[2:4]) in (["1 on x", "2 on y"], ["1 on y", "2 on x"])
        assert found[4:] == ["await 1", "await 2"]


def test_a_filter_leaves_operations_where_they_are():
    with raptor.device.open("numpy", xbar=4, crossbars=2) as device:
        diamond(graph := ProductGraph(device, min_writes, 2))
        hooks = cinnamon.SchedulingHooks(
            lambda op: op.number != 2, min_writes, lambda op, _: op.number, lambda op: -op.number
        )
        assert cinnamon.apply_scheduling(graph, [0, 1], hooks) == [0, 0, 1, -1]
        assert all(isinstance(node, ProductNode) for node in graph.nodes)


def tiled_gemm(cim: CimDialect, a: Any, b: Any, *, interchanged: bool) -> Any:
    """Listings 2 and 3 of OCC: the tiled loops, and those with the inner dimension outside."""
    c = np.zeros((a.shape[0], b.shape[1]), np.int32)
    rows, inner, cols = (-(-size // cim.size) for size in (a.shape[0], *b.shape))
    if not interchanged:
        order = [(i, j, k) for i in range(rows) for j in range(cols) for k in range(inner)]
    else:
        order = [(i, j, k) for k in range(inner) for j in range(cols) for i in range(rows)]
    held = None
    for i, j, k in order:
        tile_c = cim.copy_tile(c, i, j)
        temp = cim.alloc_duplicate(tile_c)
        if not interchanged or held != (k, j):
            cim.write(0, cim.copy_tile(b, k, j))
            held = (k, j)
        cim.matmul(0, cim.copy_tile(a, i, k), temp)
        cim.barrier(0)
        cim.accumulate(tile_c, temp)
        cim.store_tile(tile_c, c, i, j)
    return c


@pytest.mark.parametrize(("interchanged", "writes"), [(False, 3 * 2 * 3), (True, 2 * 3)])
def test_occs_loops(interchanged: bool, writes: int):
    a, b = integers(10, 7), integers(7, 9)
    with raptor.device.open("integer", xbar=4, crossbars=1, device="pcm-occ") as device:
        np.testing.assert_array_equal(tiled_gemm(CimDialect(device), a, b, interchanged=interchanged), a @ b)
        assert device.account.writes == writes


def test_occs_library():
    """A and C are parts of larger buffers: rows of 8 and of 6 elements."""
    a, b, c = integers(3, 8), integers(4, 5), np.zeros((3, 6), np.int32)
    with raptor.device.open("integer", xbar=8, crossbars=4) as device:
        cim = CimRuntime(device)
        cim.cim_configure_crossbar(3, b.ravel(), None, 5, 4)
        cim.cim_gemm(3, a.ravel(), 3, 5, 4, 8, 0, 0, c.ravel(), 6)
        cim.cim_await(3)
        np.testing.assert_array_equal(c[:, :5], a[:, :4] @ b)
        assert not c[:, 5].any()
        row = np.zeros(5, np.int32)
        cim.cim_gevm(3, a[0], 4, 5, 0, 0, row)
        cim.cim_await(3)
        np.testing.assert_array_equal(row, c[0, :5])
        with pytest.raises(UserError, match="leave a buffer of shape"):
            cim.cim_gemm(3, a.ravel(), 4, 5, 4, 8, 0, 0, c.ravel(), 6)
        with pytest.raises(UserError, match="expected 0, as OCC passes"):
            cim.cim_gevm(3, a[0], 4, 5, 1, 0, row)


def test_the_neuroboards_matmul():
    """The slides' tiling: crossbars of 4 x 16, each matrix written once, then a product for each row of the input."""
    inputs, weights = integers(3, 32).astype(np.float32), integers(32, 8).astype(np.float32)
    out = np.zeros((3, 8), np.float32)
    with raptor.device.open("numpy", xbar=(16, 4), crossbars=4) as device:
        board = NeuroBoard(device)
        base = board.alloc(weights.size)
        for j in range(0, 8, 4):
            for k in range(0, 32, 16):
                offset = j * 32 + k * 4
                board.write_matrix(base, offset, weights[k : k + 16, j : j + 4].T)
                for i in range(3):
                    board.matvec(base, offset, inputs[i : i + 1, k : k + 16], out[i : i + 1, j : j + 4])
        np.testing.assert_array_equal(out, inputs @ weights)
        assert (device.account.writes, device.account.products) == (4, 12)
        with pytest.raises(UserError, match="outside of allocation"):
            board.write_matrix(base, 32 * 8 - 8, np.ones((4, 16)))
        with pytest.raises(UserError, match="has no matrix at 5"):
            board.matvec(base, 5, inputs[0], out[0])


def test_the_slides_simulation_is_the_same():
    """The slides' own NumPy function beside the shim."""
    weight_dict = {0: integers(64).astype(np.float32)}
    vector, want, got = integers(16).astype(np.float32), np.ones((1, 4), np.float32), np.ones((1, 4), np.float32)
    want[:] += np.dot(weight_dict[0][0 : vector.size * want.size].reshape((-1, vector.size)), vector.flatten())
    with raptor.device.open("numpy", xbar=(16, 4), crossbars=1) as device:
        board = NeuroBoard(device)
        board.write_matrix(board.alloc(64), 0, weight_dict[0].reshape(4, 16))
        board.matvec(0, 0, vector, got)
    np.testing.assert_array_equal(got, want)
