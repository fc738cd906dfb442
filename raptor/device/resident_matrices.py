"""Matrices of compiled programs in the crossbars of a device: resident, or replaced in turn by rounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raptor.common.errors import CapacityError, UserError
from raptor.device.back_end import Array, DeviceInfo
from raptor.device.crossbar import Crossbar
from raptor.device.device import Device
from raptor.output.files import GroupWrite
from validator.program.program import ExternalCrossbars, LoadedProgram
from validator.program.rounds import iterate_groups

HeldCrossbars = Mapping[tuple[int, int], tuple[Crossbar, ...]]
"""The adjacent crossbars that hold a matrix, for each (core, array group)."""


@dataclass(frozen=True, slots=True)
class ResidentMatrices(ExternalCrossbars):
    """The resident matrices of a program."""

    held: HeldCrossbars

    def write_matrices(self) -> None:
        """Does nothing, because all matrices are resident."""

    def __call__(self, core: int, group: int, vector: Array) -> Array:
        """Returns a vector times the matrix of an array group."""
        return _product(self.held[core, group], vector)


@dataclass(slots=True)
class SharedCrossbars:
    """The crossbars of a chip that programs use in turn.

    A matrix stays until another matrix needs the same crossbars of the chip (as `rounds.json` counts writes), or until
    the device, if it has fewer crossbars than the chip, has no free ones.
    """

    device: Device
    _held: dict[tuple[int, int], tuple[GroupWrite, tuple[Crossbar, ...]]] = field(
        default_factory=dict[tuple[int, int], tuple[GroupWrite, tuple[Crossbar, ...]]]
    )

    def add_program(self, program: LoadedProgram) -> "SharedMatrices":
        """Returns the matrices of a program. Raises `CapacityError` and `UserError` as `write_program` does."""
        check_device_fits(self.device, program)
        return SharedMatrices(self, program, tuple(iterate_groups(program)))

    def write_missing(self, program: LoadedProgram, wanted: Sequence[GroupWrite]) -> HeldCrossbars:
        """Writes the matrices of a program that are not present, and waits until they are written."""
        missing = [group for group in wanted if not self._holds(group)]
        replaced = {xbar for group in missing for xbar in _places(group)}
        self._drop([held for held, _ in self._held.values() if not replaced.isdisjoint(_places(held))])
        if _crossbars(missing, self.device.info) > self.device.free:
            needed = {(group.core, group.first) for group in wanted}
            self._drop([held for place, (held, _) in self._held.items() if place not in needed])
        for group in missing:
            matrix = program.weights.matrix(group.core, group.group)
            self._held[group.core, group.first] = group, write_matrix(self.device, matrix)
        self.device.barrier()
        return {(group.core, group.group): self._held[group.core, group.first][1] for group in wanted}

    def _holds(self, group: GroupWrite) -> bool:
        held = self._held.get((group.core, group.first))
        return held is not None and (held[0].sha256, held[0].xbars) == (group.sha256, group.xbars)

    def _drop(self, groups: Sequence[GroupWrite]) -> None:
        for group in groups:
            for crossbar in self._held.pop((group.core, group.first))[1]:
                crossbar.release()


@dataclass(slots=True)
class SharedMatrices(ExternalCrossbars):
    """The matrices of a program that shares crossbars with other programs in turn."""

    turns: SharedCrossbars
    program: LoadedProgram
    groups: tuple[GroupWrite, ...]
    held: HeldCrossbars = field(default_factory=dict[tuple[int, int], tuple[Crossbar, ...]])

    def write_matrices(self) -> None:
        """Writes the matrices of this program that are not present, before it runs."""
        self.held = self.turns.write_missing(self.program, self.groups)

    def __call__(self, core: int, group: int, vector: Array) -> Array:
        """Returns a vector times the matrix of an array group."""
        return _product(self.held[core, group], vector)


def write_program(device: Device, program: LoadedProgram) -> ResidentMatrices:
    """Writes the matrices of a program to free crossbars of a device, and waits until they are written.

    Raises `CapacityError` for too few crossbars or rows, `UserError` for the wrong kind of device.
    """
    check_device_fits(device, program)
    matrices = {(g.core, g.group): program.weights.matrix(g.core, g.group) for g in iterate_groups(program)}
    held = {place: write_matrix(device, matrix) for place, matrix in matrices.items()}
    device.barrier()
    return ResidentMatrices(held)


def write_matrix(device: Device, matrix: Array) -> tuple[Crossbar, ...]:
    """Starts writing a matrix to free crossbars, split by columns, and returns them."""
    step = device.info.xbar[1]
    crossbars = tuple(device.acquire() for _ in range(0, matrix.shape[1], step))
    for k, crossbar in enumerate(crossbars):
        crossbar.write(matrix[:, k * step : (k + 1) * step])
    return crossbars


def check_device_fits(device: Device, program: LoadedProgram) -> None:
    """Raises `CapacityError` or `UserError` if the free crossbars of a device cannot hold a program."""
    info, groups = device.info, list(iterate_groups(program))
    where = f"device {info.back_end}"
    if info.is_float == program.has_integers:
        kind, other = ("integers", "integer") if program.has_integers else ("float32 numbers", "numpy")
        raise UserError(f"{where}: has {info.dtype} weights, the program has {kind}; try {other}")
    rows, cols = info.xbar
    if (most := max((group.rows for group in groups), default=0)) > rows:
        levers = [f"compile with --xbar {rows}x{cols}"]
        raise CapacityError("rows of a crossbar", most, rows, where=where, levers=levers)
    if (needed := _crossbars(groups, info)) > device.free:
        raise CapacityError(
            "crossbars", needed, device.free, where=where, levers=["a larger device", "a smaller model"]
        )


def _crossbars(groups: Sequence[GroupWrite], info: DeviceInfo) -> int:
    return sum(-(-group.cols // info.xbar[1]) for group in groups)


def _places(group: GroupWrite) -> Iterator[tuple[int, int]]:
    """Yields (core, crossbar number on the chip) of a group."""
    return ((group.core, number) for number in range(group.first, group.first + group.xbars))


def _product(crossbars: Sequence[Crossbar], vector: Array) -> Array:
    parts = [crossbar.matvec(vector) for crossbar in crossbars]
    return np.concatenate([part.result() for part in parts])
