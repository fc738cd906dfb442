"""Compiled programs on devices: crossbars are written once, and every `mvmul` is a product of the device.

All else (vectors, memories, messages) stays with the reference engine of the validator.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from raptor.common.arguments import fault
from raptor.common.errors import CapacityError, UserError
from raptor.device.back_end import Array, DeviceInfo
from raptor.device.crossbar import Crossbar
from raptor.device.device import Device
from raptor.device.opening import ANALOG, open
from raptor.output import files
from raptor.target import arch as architectures
from validator.crossbar.programming import uses_of
from validator.program import Program, Writer

_OURS = ("numpy", "integer", "analog")
"""Back ends of this process, which are made as large as the program needs."""


@dataclass(frozen=True, slots=True)
class Written:
    """The matrices of a program in crossbars: those side by side for each core and array group."""

    crossbars: Mapping[tuple[int, int], tuple[Crossbar, ...]]

    def __call__(self, core: int, group: int, vector: Array) -> Array:
        """Returns a vector times the matrix of an array group."""
        parts = [crossbar.matvec(vector) for crossbar in self.crossbars[core, group]]
        return np.concatenate([part.result() for part in parts])


@dataclass(slots=True)
class Chips(Writer):
    """Writes programs to a device, each to crossbars of its own. A context manager that closes what it has opened.

    `device`: an open device, or the name of a back end as for `raptor.device.open`. `numpy`, `integer` and `analog` are
    opened for each program, as large as it is.
    """

    device: Device | str
    opened: list[Device] = field(default_factory=list[Device])

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device | str):  # pyright: ignore[reportUnnecessaryIsInstance] of any caller
            raise fault("device", self.device, "an open device, or the name of a back end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for device in self.opened:
            device.close(discard=True)

    def __call__(self, program: Program) -> Written:
        """Writes the crossbars of a program. Raises `CapacityError` if they do not fit, `UserError`, `DeviceError`."""
        return write_program(self._device(program), program)

    def __iter__(self) -> Iterator[str]:
        """Yields what each device did, as a line."""
        used = self.opened if isinstance(self.device, str) else [self.device]
        return map(_described, used)

    def _device(self, program: Program) -> Device:
        if isinstance(self.device, Device):
            return self.device
        if self.device in _OURS or not self.opened:
            self.opened.append(_fitting(self.device, program) if self.device in _OURS else open(self.device))
        return self.opened[-1]


def _described(device: Device) -> str:
    a = device.account
    return f"device {device.info.back_end}: {a.writes} writes of crossbars, {a.products} products"


def _fitting(name: str, program: Program) -> Device:
    """Opens a device of this process with the crossbars of the program's chip, as many as it needs."""
    arch = program.folder / files.ARCH
    chip = architectures.load(arch)
    rows, cols = chip.xbar_rows, max(1, chip.outputs_per_xbar)
    needed = sum(-(-width // cols) for _, width in _shapes(program).values())
    return open(name, xbar=(rows, cols), crossbars=max(1, needed), arch=arch, **_widths(name, program))


def _widths(name: str, program: Program) -> dict[str, Any]:
    """Returns the widths of a device of integers for a program."""
    if name == "integer":
        return {"weight_bits": 16, "input_bits": 32}
    if name != ANALOG:
        return {}
    uses = uses_of(program)
    return {
        f"{kind}_bits": max((getattr(use, f"{kind}_bits") for use in uses), default=8) for kind in ("weight", "input")
    }


def write_program(device: Device, program: Program) -> Written:
    """Writes the matrices of a program to free crossbars of a device, and waits until they are there.

    Raises `CapacityError` if there are too few crossbars or too few rows, `UserError` for the wrong kind of device.
    """
    info, shapes = device.info, _shapes(program)
    if info.is_float == program.has_integers:
        kind, other = ("integers", "integer") if program.has_integers else ("float32 numbers", "numpy")
        raise UserError(f"device {info.back_end}: has {info.dtype} weights, the program has {kind}; try {other}")
    _check_sizes(info, device.free, shapes)
    written = {place: _write(device, program.weights.matrix(*place)) for place in shapes}
    device.barrier()
    return Written(written)


def _shapes(program: Program) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns the rows and columns of every matrix, by core and array group."""
    w = program.weights
    every = ((c, g) for c in range(program.core_count) for g in range(int(w.first[c + 1] - w.first[c])))
    return {(c, g): (int(w.rows[w.first[c] + g]), int(w.cols[w.first[c] + g])) for c, g in every}


def _check_sizes(info: DeviceInfo, free: int, shapes: Mapping[tuple[int, int], tuple[int, int]]) -> None:
    rows, cols = info.xbar
    where = f"device {info.back_end}"
    if (most := max((height for height, _ in shapes.values()), default=0)) > rows:
        raise CapacityError(
            "rows of a crossbar", most, rows, where=where, levers=[f"compile with --xbar {rows}x{cols}"]
        )
    needed = sum(-(-width // cols) for _, width in shapes.values())
    if needed > free:
        raise CapacityError("crossbars", needed, free, where=where, levers=["a larger device", "a smaller model"])


def _write(device: Device, matrix: Array) -> tuple[Crossbar, ...]:
    step = device.info.xbar[1]
    crossbars = tuple(device.acquire() for _ in range(0, matrix.shape[1], step))
    for k, crossbar in enumerate(crossbars):
        crossbar.write(matrix[:, k * step : (k + 1) * step])
    return crossbars
