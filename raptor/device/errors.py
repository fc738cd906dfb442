"""Errors of a device. Each says what is wrong and what to change; `DeviceError` is the base of all."""

from raptor.common.errors import UserError


class DeviceError(UserError):
    """A crossbar was not used as it can be, or its driver failed."""


class ExhaustedError(DeviceError):
    """No crossbar is free."""


class OperandError(DeviceError):
    """An operand has a type or a value that the crossbar does not take."""


class ShapeError(OperandError):
    """An operand has another shape than the crossbar or its matrix."""


class NotWrittenError(DeviceError):
    """A product was asked of a crossbar that holds no matrix."""


class StaleHandleError(DeviceError):
    """A crossbar was used after its release, or after its device was closed."""


class AlreadyReleasedError(StaleHandleError):
    """A crossbar was released a second time."""


class DriverError(DeviceError):
    """The driver refused an operation, or answered what cannot be."""


class LostError(DeviceError):
    """The device is gone. All open operations end with this error."""


class DeviceTimeoutError(DeviceError, TimeoutError):
    """The time to wait is over. The work goes on."""


class WornError(DeviceError):
    """The write would exceed the endurance of a cell, and the device was opened with `refuse_worn`."""
