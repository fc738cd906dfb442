"""Errors of a device. Each message says what is wrong and what to change; `DeviceError` is the base of all."""

from raptor.common.errors import UserError


class DeviceError(UserError):
    """A crossbar was used wrongly, or its driver failed."""


class ExhaustedError(DeviceError):
    """No crossbar is free."""


class OperandError(DeviceError):
    """An operand has a type or a value that the crossbar does not accept."""


class ShapeError(OperandError):
    """The shape of an operand does not match the crossbar or its matrix."""


class NotWrittenError(DeviceError):
    """A product was requested of a crossbar without a matrix."""


class StaleHandleError(DeviceError):
    """A crossbar was used after its release, or after its device was closed."""


class AlreadyReleasedError(StaleHandleError):
    """A crossbar was released a second time."""


class DriverError(DeviceError):
    """The driver refused an operation, or gave an invalid answer."""


class LostError(DeviceError):
    """The device is gone. All pending operations fail with this error."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """The timeout has expired. The operation continues."""


class WornError(DeviceError):
    """The write would exceed the endurance of a cell, and the device was opened with `refuse_worn`."""
