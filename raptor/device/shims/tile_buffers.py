"""Common parts of the C interfaces: numbered tiles, and results that a barrier copies into buffers of the caller."""

from typing import Any

import numpy as np

from raptor.common.options.arguments import parse_integer
from raptor.device.back_end import Array
from raptor.device.crossbar import Crossbar
from raptor.device.device import Device
from raptor.device.errors import OperandError
from raptor.device.futures import Future


class PendingResults:
    """Crossbars of a device by number, each acquired at its first use, and the results that are not stored yet."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._tiles: dict[int, Crossbar] = {}
        self._results: dict[int, list[tuple[Future[Array], Array]]] = {}

    def get_tile(self, number: int) -> Crossbar:
        """Returns a tile. Raises `UserError` for a number that the device does not have."""
        parse_integer("tile", number, 0, self.device.info.crossbars - 1)
        if number not in self._tiles:
            self._tiles[number] = self.device.acquire()
        return self._tiles[number]

    def store_later(self, number: int, result: Future[Array], into: Array) -> None:
        """Registers the buffer into which `store` copies a result of the tile."""
        self._results.setdefault(number, []).append((result, into))

    def store_results(self, number: int) -> None:
        """Waits for the results of a tile, and copies them into their buffers."""
        for result, into in self._results.pop(number, []):
            copy_result(result.result(), into)


def copy_result(value: Array, into: Array) -> None:
    """Copies a result into a buffer. Raises `OperandError` if the type of the buffer cannot represent it."""
    with np.errstate(all="ignore"):
        typed: Any = value.astype(into.dtype)
    if into.dtype.kind in "iu" and not np.array_equal(typed, value):
        raise OperandError(f"a result of {value.min()} to {value.max()} does not fit a buffer of {into.dtype}")
    into[...] = typed.reshape(into.shape)
