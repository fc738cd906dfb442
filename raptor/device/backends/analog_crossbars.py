"""Back end `analog`: integer crossbars with the imperfections of a device file, by the code of `raptor validate`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from raptor.common.errors import UserError
from raptor.common.options.arguments import argument_error, parse_flag, parse_integer
from raptor.device.back_end import Array, DeviceInfo
from raptor.device.errors import DriverError, OperandError
from raptor.target.arch import Target
from raptor.target.device_file import DeviceFile
from validator.crossbar import crossbar_kernels
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.kernel_tables import make_kernel_tables, make_work_space
from validator.crossbar.programmed_chip import GroupUse, program_chip


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A matrix in a crossbar: its integers, and the tables and buffers of the kernels."""

    matrix: Array
    tables: tuple[Any, ...]
    work: tuple[Any, ...]


class AnalogCrossbars:
    """Integer crossbars with bit slices and converters, and with `noisy` also with cell errors.

    `settings`: as for `raptor accuracy --with`. Each write programs all cells of the crossbar again, with new errors;
    each product has new noise. All randomness follows from the setting `seed`.
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
        """Programs a matrix, or replaces rows of the present matrix; all cells get new errors."""
        old = self._held.get(crossbar)
        if row or (old is not None and len(matrix) < len(old.matrix)):
            assert old is not None  # `Crossbar` has checked it
            whole_matrix = old.matrix.copy()
            whole_matrix[row : row + len(matrix)] = matrix
        else:
            whole_matrix = matrix
        count = self._writes[crossbar] = self._writes.get(crossbar, 0) + 1
        use = GroupUse(count, crossbar, self.info.weight_bits, self.info.input_bits, f"crossbar {crossbar}")
        tables = make_kernel_tables(program_chip([whole_matrix], [use], self._setup))
        self._held[crossbar] = _Held(whole_matrix, tables, make_work_space(tables))

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


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] of any caller
        raise argument_error("settings", settings, "settings by name, such as {'adc_bits': 8}")
    return {str(name): f"{value}" for name, value in settings.items()}
