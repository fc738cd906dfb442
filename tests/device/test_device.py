"""The device API: order, futures, acquisition, handles, errors."""

import asyncio
import concurrent.futures
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import raptor.device
from raptor.common.errors import UserError
from raptor.device import (
    AlreadyReleasedError,
    DeviceError,
    DeviceTimeoutError,
    DriverError,
    ExhaustedError,
    NotWrittenError,
    OperandError,
    ShapeError,
    StaleHandleError,
)
from raptor.device.backends.ideal_crossbars import NumpyCrossbars, multiply_in_order
from tests.device.boards import BadCrossbars, SlowCrossbars, info, opened

EYE = np.eye(4, dtype=np.float32)
ONES = np.ones(4, np.float32)


def small(back_end: str = "numpy", **options: object) -> raptor.device.Device:
    return raptor.device.open(back_end, xbar=4, crossbars=2, **options)  # type: ignore[arg-type]


def test_a_product_after_a_write_sees_it():
    with small() as device, device.acquire() as x:
        results = []
        for factor in (1, 2, 3):
            x.write(factor * EYE)
            results.append(x.matvec(ONES))
        assert [r.result()[0] for r in results] == [1, 2, 3]


def test_a_matrix_is_copied_when_it_is_given():
    matrix = 2 * EYE
    with small() as device, device.acquire() as x:
        x.write(matrix)
        matrix[:] = 0
        assert x.matvec(ONES).result().tolist() == [2, 2, 2, 2]


def test_rows_of_a_matrix_are_replaced():
    with small() as device, device.acquire() as x:
        x.write(EYE[:3])
        x.write([[5, 5, 5, 5]], row=1)
        assert x.matvec([1, 1, 1]).result().tolist() == [6, 5, 6, 5]
        with pytest.raises(ShapeError, match="rows 2 to 3 of 4 columns are not part of the matrix of 3 x 4"):
            x.write(EYE[:2], row=2)


def test_a_matrix_that_is_smaller_than_the_last_one():
    with small() as device, device.acquire() as x:
        x.write(9 * np.ones((4, 4)))
        x.write([[1, 2]])
        assert x.shape == (1, 2)
        assert x.matmat([[1], [10]]).result().tolist() == [[1, 2], [10, 20]]


def test_integers_are_exact():
    with small("integer") as device, device.acquire() as x:
        x.write(np.full((4, 1), -128))
        found = x.matvec(np.full(4, 127)).result()
        assert (found.dtype, found.tolist()) == (np.int32, [-128 * 127 * 4])
        with pytest.raises(OperandError, match="leaves the -128 to 127 of 8 bits"):
            x.matvec([128, 0, 0, 0])
        with pytest.raises(OperandError, match="expected integers, got float64"):
            x.matvec([0.5, 0, 0, 0])


@pytest.mark.parametrize("rows", [1, 7, 128])
@pytest.mark.parametrize("cols", [1, 2, 3, 129])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_product_adds_its_rows_in_order(rows: int, cols: int, count: int):
    rng = np.random.default_rng(rows * cols * count)
    vectors, matrix = (rng.standard_normal(s).astype(np.float32) for s in ((count, rows), (rows, cols)))
    vectors[0, 0] = -0.0
    total = np.zeros((count, cols), np.float32)
    for k in range(rows):
        total = total + vectors[:, k, None] * matrix[k]
    assert multiply_in_order(vectors, matrix).tobytes() == total.tobytes()


def test_a_future_is_an_operand():
    board = SlowCrossbars(info())
    with opened(board) as device:
        a, b = device.acquire(), device.acquire()
        a.write(2 * EYE)
        b.write(3 * EYE)
        y = a.matvec(ONES)
        z = b.matvec(y)
        assert len(board.open) == 3  # z waits for y
        board.answer_all()
        assert z.result().tolist() == [6, 6, 6, 6]


def test_a_diamond_computes_each_product_once():
    board = SlowCrossbars(info(3))
    with opened(board) as device:
        a, b, c = (device.acquire() for _ in range(3))
        for x in (a, b, c):
            x.write(2 * EYE)
        top = a.matvec(ONES)
        left, right = b.matvec(top), c.matvec(top)
        board.answer_all()
        assert (left.result() + right.result()).tolist() == [8, 8, 8, 8]
        assert device.account.products == 3


def test_a_computed_matrix_can_be_written():
    with small() as device, device.acquire() as a, device.acquire() as b:
        a.write(2 * EYE)
        b.write(a.matmat(3 * EYE))
        assert b.matvec(ONES).result().tolist() == [6, 6, 6, 6]


def test_a_plain_future_is_an_operand():
    given: concurrent.futures.Future[object] = concurrent.futures.Future()
    with small() as device, device.acquire() as x:
        x.write(EYE)
        y, after = x.matvec(given), x.matvec(ONES)
        assert not after.done()  # first in, first out
        given.set_result(3 * ONES)
        assert (y.result()[0], after.result()[0]) == (3, 1)


def test_a_failure_of_an_operand_fails_what_depends_on_it():
    given: concurrent.futures.Future[object] = concurrent.futures.Future()
    with small() as device, device.acquire() as a, device.acquire() as b:
        a.write(EYE)
        b.write(EYE)
        y = b.matvec(a.matvec(given))
        given.set_exception(cause := ValueError("no data"))
        assert y.exception() is cause
        assert b.matvec(ONES).result()[0] == 1
        with pytest.raises(ValueError, match="no data"):
            device.barrier()
        device.barrier()


def test_a_long_chain_of_futures_does_not_nest():
    given: concurrent.futures.Future[object] = concurrent.futures.Future()
    with raptor.device.open("numpy", xbar=2, crossbars=2000) as device:
        value = given
        for _ in range(2000):
            x = device.acquire()
            x.write(np.eye(2))
            value = x.matvec(value)
        given.set_result([1, 2])
        assert value.result(0).tolist() == [1, 2]


def test_failures_of_a_driver():
    with opened(BadCrossbars(info())) as device, device.acquire() as x:
        w = x.write(13 * EYE)
        y = x.matvec(ONES)
        assert isinstance(w.exception(), OSError)
        with pytest.raises(NotWrittenError, match="holds no matrix: a fuse blew"):
            y.result()
        with pytest.raises(OSError, match="a fuse blew"):
            device.barrier(x)
        x.write(EYE)
        with pytest.raises(DriverError, match=r"answered float32 \(2, 4\), expected \(4,\)"):
            x.matvec(13 * ONES).result()


def test_a_failed_write_fails_what_reads_it_and_nothing_later():
    board = SlowCrossbars(info())
    with opened(board) as device, device.acquire() as x:
        first = x.write(EYE)
        second, after = x.write(5 * EYE), x.matvec(ONES)
        board.fail()
        board.answer_all()
        assert isinstance(first.exception(), OSError)
        assert (second.result(), after.result()[0]) == (None, 5)
        x.write(EYE)
        board.fail()
        between, rows = x.matvec(ONES), x.write(EYE[:1], row=0)
        x.write(3 * EYE)
        last = x.matvec(ONES)  # sent before the answer to its write
        board.answer_all()
        for failed in (between, rows):
            assert isinstance(failed.exception(), NotWrittenError)
        assert last.result()[0] == 3


def test_crossbars_run_out():
    with small() as device:
        a, _ = device.acquire(), device.acquire()
        with pytest.raises(ExhaustedError, match="all 2 crossbars are held: release one"):
            device.acquire()
        with pytest.raises(DeviceTimeoutError):
            device.acquire(block=True, timeout=0.01)
        a.release()
        assert device.acquire().index == a.index


def test_those_who_wait_are_served_in_order():
    served: list[int] = []
    with raptor.device.open("numpy", xbar=4, crossbars=1) as device:
        held = device.acquire()

        def wait(number: int) -> None:
            with device.acquire(block=True):
                served.append(number)

        threads = [threading.Thread(target=wait, args=(k,)) for k in range(5)]
        for k, thread in enumerate(threads):
            thread.start()
            while len(device._waiting) <= k:  # pyright: ignore[reportPrivateUsage]
                time.sleep(0.001)
        held.release()
        for thread in threads:
            thread.join()
    assert served == [0, 1, 2, 3, 4]


def test_handles_end_with_their_release():
    with small() as device:
        old = device.acquire()
        old.write(EYE)
        old.release()
        with pytest.raises(AlreadyReleasedError, match="crossbar 0 was released already"):
            old.release()
        new = device.acquire()
        assert (new.index, new.generation) == (old.index, old.generation + 1)
        for use in (lambda: old.write(EYE), lambda: old.matvec(ONES), lambda: old.matmat([ONES])):
            with pytest.raises(StaleHandleError):
                use()
        with pytest.raises(NotWrittenError, match="holds no matrix: write one first"):
            new.matvec(ONES)
    with pytest.raises(StaleHandleError, match="closed"):
        device.acquire()
    device.close()


def test_a_release_waits_for_open_work_or_discards_it():
    board = SlowCrossbars(info())
    given: concurrent.futures.Future[object] = concurrent.futures.Future()
    with opened(board) as device:
        x = device.acquire()
        x.write(EYE)
        with pytest.raises(DeviceTimeoutError):
            x.release(timeout=0.01)
        board.answer_all()
        waiting = x.matvec(given)
        x.release(discard=True)
        assert waiting.cancelled()
        given.set_result(ONES)
        assert device.free == 2


def test_a_cancelled_operation_is_left_out():
    given: concurrent.futures.Future[object] = concurrent.futures.Future()
    with small() as device, device.acquire() as x:
        x.write(EYE)
        first, second = x.matvec(given), x.matvec(ONES)
        assert first.cancel()
        assert second.result(1)[0] == 1
        device.barrier()


def test_a_write_while_a_product_is_open():
    board = SlowCrossbars(info())
    with opened(board) as device, device.acquire() as x:
        x.write(EYE)
        before = x.matvec(ONES)
        x.write(5 * EYE)
        after = x.matvec(ONES)
        for _ in range(4):
            board.answer(-1)  # the last one first
        assert (before.result()[0], after.result()[0]) == (1, 5)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((5, 4), "does not fit the 4 rows and 4 columns"), ((4,), "does not fit"), ((0, 4), "does not fit")],
)
def test_matrices_that_do_not_fit(shape: tuple[int, ...], message: str):
    with small() as device, device.acquire() as x, pytest.raises(ShapeError, match=message):
        x.write(np.zeros(shape))


def test_vectors_that_do_not_fit():
    with small() as device, device.acquire() as x:
        x.write(EYE[:3])
        with pytest.raises(ShapeError, match=r"expected shape \(3,\), as the matrix has 3 rows; got \(4,\)"):
            x.matvec(ONES)
        y = x.matvec(ONES[:3])  # of 4 elements, whatever they will be
        with pytest.raises(ShapeError, match=r"got \(4,\)"):
            x.matvec(y)
        with pytest.raises(ShapeError, match="a matrix must have 2 dimensions"):
            x.write(y)
        with pytest.raises(OperandError, match="not numbers"):
            x.matvec(["a", "b", "c"])
        with pytest.raises(ShapeError, match="a future without a shape"):
            x.matmat(concurrent.futures.Future())


def test_arguments_of_open():
    for options in ({"xbar": "0"}, {"crossbars": 0}, {"device": "nosuch"}, {"nosuch": 1}, {"refuse_worn": "no"}):
        with pytest.raises(UserError):
            raptor.device.open("numpy", **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected one of: numpy, integer, analog, socket"):
        raptor.device.open("nosuch")


def test_a_back_end_and_a_scheduler_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    installed = tmp_path / "my_board-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-board\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "[raptor.devices]\nboard = my_board:Board\nbroken = my_board:nothing\n"
        "[raptor.schedulers]\nfirst = my_board:first\nbroken = my_board:nothing\n"
    )
    (tmp_path / "my_board.py").write_text(
        "from raptor.device.backends.ideal_crossbars import NumpyCrossbars\n"
        "from raptor.device.schedulers import asap\n"
        "class Board(NumpyCrossbars):\n    pass\n"
        "def first(graph, crossbars):\n    return asap(graph, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with raptor.device.open("board", xbar=4) as device:
        assert type(device.back_end).__module__ == "my_board"
        with device.graph("first") as graph:
            assert graph.product([ONES], EYE).shape == (1, 4)
        assert graph.products[0].result().tolist() == [[1, 1, 1, 1]]
    with pytest.raises(DeviceError, match="back end 'broken': my_board:nothing cannot be loaded"):
        raptor.device.open("broken")
    message = "scheduler 'broken': my_board:nothing cannot be loaded"
    with small() as device, pytest.raises(DeviceError, match=message):
        device.graph("broken")


def test_a_failed_future_fails_what_reads_it():
    given: concurrent.futures.Future[object] = concurrent.futures.Future()
    given.set_exception(ValueError("no data"))
    with small() as device, device.acquire() as x:
        x.write(EYE)
        assert isinstance(x.matvec(given).exception(), ValueError)


def test_an_interrupt_is_not_swallowed():
    class Board(NumpyCrossbars):
        def multiply(self, crossbar: int, vectors: np.ndarray, columns: int) -> np.ndarray:
            if vectors[0, 0] == 7:
                raise KeyboardInterrupt
            return super().multiply(crossbar, vectors, columns)

    with opened(Board(info())) as device, device.acquire() as x:
        x.write(EYE)
        with pytest.raises(KeyboardInterrupt):
            x.matvec(7 * ONES)
        assert x.matvec(ONES).result(1)[0] == 1


def test_asyncio_can_await():
    async def work(device: raptor.device.Device) -> float:
        with device.acquire() as x:
            await x.write(2 * EYE)
            first, second = await asyncio.gather(x.matvec(ONES), x.matvec(3 * ONES))
            return float(first[0] + second[0])

    with small() as device:
        assert asyncio.run(work(device)) == 8


def test_eight_threads():
    rng = np.random.default_rng(1)
    matrices = rng.integers(-9, 9, (8, 4, 4)).astype(np.float32)
    wrong: list[int] = []

    def work(device: raptor.device.Device, k: int) -> None:
        for _ in range(20):
            with device.acquire(block=True) as x:
                x.write(matrices[k])
                results = [x.matvec(j * ONES) for j in range(5)]
                if any((r.result() != j * matrices[k].sum(0)).any() for j, r in enumerate(results)):
                    wrong.append(k)

    with raptor.device.open("numpy", xbar=4, crossbars=3) as device:
        threads = [threading.Thread(target=work, args=(device, k)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (device.account.writes, device.account.products, device.free) == (160, 800, 3)
    assert wrong == []
