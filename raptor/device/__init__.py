"""Crossbars as a device: acquire, write, multiply, wait, release.

    import raptor

    with raptor.device.open("numpy", xbar=(128, 128), crossbars=64) as device, device.acquire() as crossbar:
        crossbar.write(matrix)
        result = crossbar.matvec(vector)  # a future; it may be the operand of another product
        print(result.result(), device.account)

The same program runs in this process, on a driver in another one, and on a board.
"""

from raptor.device.back_end import BackEnd, DeviceInfo
from raptor.device.backend_registry import back_ends, open
from raptor.device.crossbar import Crossbar
from raptor.device.device import Device
from raptor.device.errors import (
    AlreadyReleasedError,
    DeviceError,
    DeviceTimeoutError,
    DriverError,
    ExhaustedError,
    LostError,
    NotWrittenError,
    OperandError,
    ShapeError,
    StaleHandleError,
    WornError,
)
from raptor.device.futures import Future
from raptor.device.usage_statistics import Account

__all__ = [
    "Account",
    "AlreadyReleasedError",
    "BackEnd",
    "Crossbar",
    "Device",
    "DeviceError",
    "DeviceInfo",
    "DeviceTimeoutError",
    "DriverError",
    "ExhaustedError",
    "Future",
    "LostError",
    "NotWrittenError",
    "OperandError",
    "ShapeError",
    "StaleHandleError",
    "WornError",
    "back_ends",
    "open",
]
