"""Random programs on a device whose answers come in random order, against a model that does one thing after another."""

from concurrent.futures import Future
from random import Random
from typing import Any

import numpy as np
import pytest

from raptor.device import Crossbar
from tests.device.boards import SlowCrossbars, info, opened

SIZE, CROSSBARS, LENGTH = 3, 3, 12


class Model:
    """Matrices and results, in the order of the program."""

    def __init__(self) -> None:
        self.matrices: list[Any] = [None] * CROSSBARS
        self.results: list[Any] = []


def operand(random: Random, model: Model, futures: list[Any]) -> tuple[Any, Any]:
    """Draws an operand: for the device, and for the model. An earlier result is given as a future."""
    if futures and random.random() < 0.5:
        k = random.randrange(len(futures))
        return futures[k], model.results[k]
    vector = np.array([random.randint(-2, 2) for _ in range(SIZE)], np.float32)
    return vector, vector


def step(random: Random, model: Model, handles: list[Crossbar], futures: list[Any]) -> None:
    k = random.randrange(CROSSBARS)
    if model.matrices[k] is None or random.random() < 0.3:
        matrix = np.array([[random.randint(-1, 1) for _ in range(SIZE)] for _ in range(SIZE)], np.float32)
        handles[k].write(matrix)
        model.matrices[k] = matrix
        return
    given, known = operand(random, model, futures)
    futures.append(handles[k].matvec(given))
    model.results.append(known @ model.matrices[k])


def run(seed: int) -> None:
    random, model = Random(seed), Model()
    board = SlowCrossbars(info(CROSSBARS, SIZE))
    futures: list[Any] = []
    with opened(board) as device:
        handles = [device.acquire() for _ in range(CROSSBARS)]
        late: Future[Any] = Future()
        start = np.ones(SIZE, np.float32)
        for x in handles[: random.randrange(2)]:
            x.write(np.eye(SIZE))
            model.matrices[x.index] = np.eye(SIZE)
            futures.append(x.matvec(late))
            model.results.append(start)
        for _ in range(LENGTH):
            step(random, model, handles, futures)
            while board.open and random.random() < 0.4:
                board.answer(random.randrange(len(board.open)))
        late.set_result(start)
        while board.open:
            board.answer(random.randrange(len(board.open)))
        device.barrier(timeout=1)
        for got, want in zip(futures, model.results, strict=True):
            np.testing.assert_array_equal(got.result(0), want)


def test_random_interleavings():
    for seed in range(150):
        run(seed)


@pytest.mark.slow
def test_many_random_interleavings():
    for seed in range(10_000):
        run(seed)
