"""Back ends for tests: one whose results come when the test says so."""

from concurrent.futures import Future
from typing import Any

import numpy as np

from raptor.device import Device, DeviceInfo
from raptor.device.back_end import Array
from raptor.device.backends.ideal_crossbars import NumpyCrossbars
from raptor.device.usage_statistics import OperationCosts
from raptor.target.arch import load
from raptor.target.device_file import DeviceFile, load_device


class SlowCrossbars(NumpyCrossbars):
    """Takes effect at once, and answers when `answer` is called."""

    def __init__(self, info: DeviceInfo) -> None:
        super().__init__(info)
        self.open: list[tuple[Future[Any], Any]] = []

    def write(self, crossbar: int, row: int, matrix: Array) -> Any:
        super().write(crossbar, row, matrix)
        return self._later(None)

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> Any:
        return self._later(super().multiply(crossbar, vectors, columns))

    def answer(self, index: int = 0) -> None:
        future, result = self.open.pop(index)
        future.set_result(result)

    def fail(self, index: int = 0) -> None:
        future, _ = self.open.pop(index)
        future.set_exception(OSError("a fuse blew"))

    def answer_all(self) -> None:
        while self.open:
            self.answer()

    def _later(self, result: Any) -> "Future[Any]":
        self.open.append((future := Future(), result))
        return future


class BadCrossbars(NumpyCrossbars):
    """Fails to write a matrix that starts with 13, and answers a vector that starts with 13 with too much."""

    def write(self, crossbar: int, row: int, matrix: Array) -> None:
        if matrix[0, 0] == 13:
            raise OSError("a fuse blew")
        super().write(crossbar, row, matrix)

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> Array:
        found = super().multiply(crossbar, vectors, columns)
        return np.concatenate([found, found]) if vectors[0, 0] == 13 else found


def info(crossbars: int = 2, size: int = 4, **fields: Any) -> DeviceInfo:
    return DeviceInfo("test", "1", (size, size), crossbars, **fields)


def opened(back_end: Any, device: str | DeviceFile = "reram-puma", **options: Any) -> Device:
    file = load_device(device) if isinstance(device, str) else device
    return Device(back_end, OperationCosts(file, load(), back_end.info.cells_per_weight), **options)
