"""Back end `analog`: integer crossbars with the imperfections of a device file, by the code of `raptor validate`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.options.arguments import argument_error, parse_flag, parse_integer
from raptor.device.back_end import Array, DeviceInfo
from raptor.device.errors import DriverError, OperandError
from raptor.target.arch import Target
from raptor.target.device_file import DeviceFile
from validator.crossbar import crossbar_kernels
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.kernel_tables import make_kernel_tables, make_work_space
from validator.crossbar.programmed_chip import CellArray, GroupUse, ProgrammedChip, program_chip


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A matrix in a crossbar: its integers, its cells, and the tables and buffers of the kernels."""

    matrix: Array
    chip: ProgrammedChip
    tables: tuple[Any, ...]
    work: tuple[Any, ...]


class AnalogCrossbars:
    """Integer crossbars with bit slices and converters, and with `noisy` also with cell errors.

    `settings`: as for `raptor accuracy --with`. Cells that are written take new errors, others stay as they are; each
    product has new noise. All randomness follows from the setting `seed`. If drift is compensated, each write programs
    the whole crossbar: its factors are those of one time.
    """

    def __init__(
        self,
        info: DeviceInfo,
        *,
        device_file: DeviceFile,
        arch: Target,
        noisy: bool = True,
        settings: Mapping[str, object] | None = None,
        weight_bits: int = 8,
        input_bits: int = 8,
    ) -> None:
        kind: Literal["noisy", "sliced"] = "noisy" if parse_flag("noisy", noisy) else "sliced"
        setup = make_setup(kind, arch, device_file, _texts(settings or {}))
        if setup.adc is not None and setup.adc.range == "calibrated":
            raise UserError(
                "back end analog: there are no samples from which a range could be calibrated; say "
                "settings={'adc_range': 'full'}, or 'unit'"
            )
        bits = parse_integer("weight_bits", weight_bits, 1, 16), parse_integer("input_bits", input_bits, 1, 32)
        self._setup = replace(setup, xbar=info.xbar, rows_at_once=min(setup.rows_at_once, info.xbar[0]))
        self.info = replace(
            info,
            dtype="int8" if bits[0] <= 8 else "int16",
            weight_bits=bits[0],
            input_bits=bits[1],
            cell_bits=setup.cell_bits,
        )
        self._held: dict[int, _Held] = {}
        self._writes: dict[int, int] = {}

    def write(self, crossbar: int, row: int, matrix: Array) -> None:
        """Programs a matrix, or replaces rows of the present matrix; the cells that are written get new errors."""
        old = self._held.get(crossbar)
        if row or (old is not None and len(matrix) < len(old.matrix)):
            self.write_cells(crossbar, row, matrix, np.ones(matrix.shape, bool))
        else:
            self._program(crossbar, matrix, None)

    def write_cells(self, crossbar: int, row: int, matrix: Array, mask: npt.NDArray[np.bool_]) -> None:
        """Programs the weights of `mask` in the rows from `row` on. Their cells get new errors, others stay."""
        old = self._held[crossbar]
        whole_matrix, chosen = old.matrix.copy(), np.zeros(old.matrix.shape, bool)
        chosen[row : row + len(matrix)] = mask
        whole_matrix[chosen] = matrix[mask]
        self._program(crossbar, whole_matrix, chosen)

    def _program(self, crossbar: int, whole_matrix: Array, mask: npt.NDArray[np.bool_] | None) -> None:
        count = self._writes[crossbar] = self._writes.get(crossbar, 0) + 1
        use = GroupUse(count, crossbar, self.info.weight_bits, self.info.input_bits, f"crossbar {crossbar}")
        chip = program_chip([whole_matrix], [use], self._setup)
        if mask is not None and self._setup.compensation == "none":
            chip = replace(chip, arrays=(keep_cells(chip.arrays[0], self._held[crossbar].chip.arrays[0], mask),))
        tables = make_kernel_tables(chip)
        self._held[crossbar] = _Held(whole_matrix, chip, tables, make_work_space(tables))

    def multiply(self, crossbar: int, vectors: Array, columns: int) -> Array:
        """Multiplies vectors one after another."""
        held = self._held.get(crossbar)
        if held is None:
            raise DriverError(f"crossbar {crossbar} was never written")
        products = np.zeros((len(vectors), held.matrix.shape[1]), np.int64)
        x = np.ascontiguousarray(vectors, np.int32)
        if crossbar_kernels.multiply_vectors(0, x, self.info.input_bits, held.tables, held.work, products) >= 0:
            raise OperandError(f"crossbar {crossbar}: encoding xnor has inputs of -1, 0 and 1 only")
        half = 2 ** (self.info.output_bits - 1)
        return np.clip(products[:, :columns], -half, half - 1).astype(self.info.result_dtype)

    def close(self) -> None:
        self._held.clear()


def keep_cells(made: CellArray, old: CellArray, mask: npt.NDArray[np.bool_]) -> CellArray:
    """Returns an array with new cells where `mask` [rows, cols] is True, and the cells of an old array elsewhere."""
    if made.held_levels is None or old.held_levels is None:
        return made
    driven = np.repeat(mask, 2, axis=0) if made.planes.doubled else mask
    levels = np.where(driven, made.held_levels, old.held_levels)
    if made.variance is None or old.variance is None:
        return replace(made, held_levels=levels)
    return replace(made, held_levels=levels, variance=np.where(driven, made.variance, old.variance))


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] of any caller
        raise argument_error("settings", settings, "settings by name, such as {'adc_bits': 8}")
    return {str(name): f"{value}" for name, value in settings.items()}
