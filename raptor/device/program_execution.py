"""Execution of compiled programs on devices: every `mvmul` is a product of the device.

Everything else (vector instructions, memories, messages) is executed by the reference engine of the validator.
Crossbars are written once; the rounds of a program write them in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from raptor.common.options.arguments import argument_error
from raptor.device.backend_registry import ANALOG, open
from raptor.device.device import Device
from raptor.device.resident_matrices import ResidentMatrices, SharedCrossbars, SharedMatrices, write_program
from raptor.output import files
from raptor.target import arch as architectures
from validator.crossbar.chip_programming import list_group_uses
from validator.program.program import CrossbarWriter, LoadedProgram

_OURS = ("numpy", "integer", "analog")
"""Back ends of this process, which are opened with as many crossbars as the program needs."""


@dataclass(slots=True)
class DeviceWriter(CrossbarWriter):
    """Writes programs to devices, each program to its own crossbars. A context manager that closes the opened devices.

    device: an open device, or the name of a back end as for `raptor.device.open`. `numpy`, `integer` and `analog` are
    opened for each program, in its size, or once for all programs that take turns.
    """

    device: Device | str
    opened: list[Device] = field(default_factory=list[Device])

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device | str):  # pyright: ignore[reportUnnecessaryIsInstance] of any caller
            raise argument_error("device", self.device, "an open device, or the name of a back end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for device in self.opened:
            device.close(discard=True)

    def __call__(self, program: LoadedProgram) -> ResidentMatrices:
        """Writes the crossbars of a program. Raises `CapacityError` if they do not fit, `UserError`, `DeviceError`."""
        return write_program(self._device(program), program)

    def write_in_turns(self, programs: Sequence[LoadedProgram]) -> list[SharedMatrices]:
        """Returns the crossbars of each round. Raises the same errors as for a single program."""
        turns = SharedCrossbars(self._device(*programs))
        return [turns.add_program(program) for program in programs]

    def __iter__(self) -> Iterator[str]:
        """Yields a line of text per device with its numbers of writes and products."""
        used = self.opened if isinstance(self.device, str) else [self.device]
        return map(_described, used)

    def _device(self, *programs: LoadedProgram) -> Device:
        """Returns the device for one program, or for programs that use it in turn."""
        if isinstance(self.device, Device):
            return self.device
        if self.device in _OURS or not self.opened:
            self.opened.append(_fitting(self.device, programs) if self.device in _OURS else open(self.device))
        return self.opened[-1]


def _described(device: Device) -> str:
    a = device.account
    return f"device {device.info.back_end}: {a.writes} writes of crossbars, {a.products} products"


def _fitting(name: str, programs: Sequence[LoadedProgram]) -> Device:
    """Opens a device of this process with crossbars of the size of the chip, as many as the programs use."""
    arch = programs[0].folder / files.ARCH
    chip = architectures.load(arch)
    size = chip.xbar_rows, max(1, chip.outputs_per_xbar)
    used = [
        max(sum(program.config.group_sizes(core)) for program in programs) for core in range(programs[0].core_count)
    ]
    return open(name, xbar=size, crossbars=max(1, sum(used)), arch=arch, **_widths(name, programs))


def _widths(name: str, programs: Sequence[LoadedProgram]) -> dict[str, Any]:
    """Returns the weight and input bits of an integer device for these programs."""
    if name == "integer":
        return {"weight_bits": 16, "input_bits": 32}
    if name != ANALOG:
        return {}
    uses = [use for program in programs for use in list_group_uses(program)]
    return {
        f"{kind}_bits": max((getattr(use, f"{kind}_bits") for use in uses), default=8) for kind in ("weight", "input")
    }
