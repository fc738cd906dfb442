"""Usage statistics of a device: writes, products, wear, and their modelled time and energy."""

from dataclasses import dataclass
from heapq import heapify, heapreplace
from threading import Lock

import numpy as np
import numpy.typing as npt

from raptor.device.back_end import DeviceInfo
from raptor.device.errors import WornError
from raptor.target.arch import Target
from raptor.target.device_file import DeviceFile
from raptor.target.timing import mvmul_ns


@dataclass(frozen=True, slots=True)
class Account:
    """Usage of all crossbars since the device was opened. Operations are counted when they are requested.

    worst_cell: writes of the cell that was written most. products: vectors that were multiplied. busy_ns: sum of the
    busy times of all crossbars. time_ns: modelled time from the first operation to the end of the last. Energies are
    None if the device file does not have them. years: lifetime of the worst cell if use continues at this rate.
    years_spread: lifetime if writes were spread evenly over all cells (as in OCC). Both are None without an endurance.
    """

    writes: int
    cells_written: int
    worst_cell: int
    products: int
    busy_ns: float
    time_ns: float
    pj_write: float | None
    pj_product: float | None
    years: float | None
    years_spread: float | None


@dataclass(frozen=True, slots=True)
class OperationCosts:
    """Modelled costs of operations, from the device file; without a time of a product there, from `target`."""

    device: DeviceFile
    target: Target
    cells_per_weight: int

    def write_ns(self, rows: int, weights: int) -> float:
        return self.device.write.time_ns(rows, weights * self.cells_per_weight)

    @property
    def product_ns(self) -> float:
        """Time of a product in ns, from the device file; by default, the time of an `mvmul` on one crossbar."""
        product = self.device.product
        return product.ns if product else mvmul_ns(self.target, 1)

    def product_pj(self, weights: int) -> float | None:
        """Returns the energy of products that use `weights` weights in total; None if the device file has none."""
        product = self.device.product
        return product.pj_per_cell * weights * self.cells_per_weight if product else None


class UsageLedger:
    """Records operations, and computes the modelled time at which each is done. Thread-safe."""

    def __init__(self, info: DeviceInfo, costs: OperationCosts, *, refuse_worn: bool) -> None:
        self._info, self._costs, self._refuse_worn = info, costs, refuse_worn
        self._lock = Lock()
        self._product_ns = costs.product_ns
        self._free_ns = [0.0] * info.crossbars
        self._wear: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        # a heap with an entry per writer: the time from which it is free
        self._writers = [0.0] * min(costs.device.write.at_once or 0, info.crossbars)
        heapify(self._writers)
        self._writes = self._cells = self._worst = self._products = 0
        self._weights_read = 0  # NOTE: an integer, because a float sum would depend on the order
        self._busy_ns = 0.0

    def idle_from_ns(self, crossbar: int | None) -> float:
        """Returns the time from which a crossbar, or for None every crossbar, is idle."""
        with self._lock:
            return max(self._free_ns) if crossbar is None else self._free_ns[crossbar]

    def record_write(
        self,
        crossbar: int,
        row: int,
        shape: tuple[int, ...],
        ready_ns: float,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> float:
        """Records a write of `shape` weights from row `row` on, and returns the time at which it is done.

        `mask` [rows, columns]: the weights that are written. Wear is counted by row.

        Raises `WornError` if a cell would exceed its endurance and `refuse_worn` is set.
        """
        rows, cols = shape
        chosen = np.arange(rows) if mask is None else np.flatnonzero(mask.any(axis=1))
        weights = rows * cols if mask is None else int(mask.sum())
        with self._lock:
            worst = self._wear_out(crossbar, row + chosen)
            self._worst = max(self._worst, worst)
            self._writes += 1
            self._cells += self._touched(len(chosen), weights) * self._info.cells_per_weight
            ns = self._costs.write_ns(len(chosen), weights)
            start = max(ready_ns, self._free_ns[crossbar], self._writers[0] if self._writers else 0.0)
            if self._writers:
                heapreplace(self._writers, start + ns)
            return self._until(crossbar, start, ns)

    def record_product(self, crossbar: int, shape: tuple[int, int], vectors: int, ready_ns: float) -> float:
        """Records products of `vectors` vectors with a matrix of `shape`; returns the time at which they are done."""
        with self._lock:
            self._products += vectors
            self._weights_read += shape[0] * shape[1] * vectors
            start = max(ready_ns, self._free_ns[crossbar])
            return self._until(crossbar, start, self._product_ns * vectors)

    def read_account(self) -> Account:
        """Returns the statistics so far."""
        with self._lock:
            time_ns = max(self._free_ns)
            pj = self._costs.device.write.pj_per_cell
            cells = self._info.crossbars * self._info.xbar[0] * self._info.xbar[1] * self._info.cells_per_weight
            return Account(
                self._writes,
                self._cells,
                self._worst,
                self._products,
                self._busy_ns,
                time_ns,
                None if pj is None else pj * self._cells,
                self._costs.product_pj(self._weights_read),
                self._years(self._worst, time_ns),
                self._years(self._cells / cells, time_ns),
            )

    def _years(self, writes: float, time_ns: float) -> float | None:
        return self._costs.device.years(writes / (time_ns * 1e-9) if time_ns else 0.0)

    def _until(self, crossbar: int, start: float, ns: float) -> float:
        self._busy_ns += ns
        self._free_ns[crossbar] = end = start + ns
        return end

    def _touched(self, rows: int, weights: int) -> int:
        """Returns the number of weights whose cells a write sets: whole rows or the crossbar, if these are the unit."""
        unit = self._costs.device.write.unit
        return {
            "cell": weights,
            "row": rows * self._info.xbar[1],
            "crossbar": self._info.xbar[0] * self._info.xbar[1],
        }[unit]

    def _wear_out(self, crossbar: int, rows: npt.NDArray[np.int64]) -> int:
        """Counts a write of rows; returns the largest count of a row."""
        if crossbar not in self._wear:
            self._wear[crossbar] = np.zeros(self._info.xbar[0], np.int64)
        whole = self._costs.device.write.unit == "crossbar"
        rows = np.arange(self._info.xbar[0]) if whole else rows
        worst = int(self._wear[crossbar][rows].max(initial=-1)) + 1
        endurance = self._costs.device.endurance_cycles
        if self._refuse_worn and endurance is not None and worst > endurance:
            raise WornError(
                f"crossbar {crossbar}: a cell was written {worst - 1} times, and {self._costs.device.name} endures "
                f"{endurance} writes; acquire another crossbar, or write less often"
            )
        self._wear[crossbar][rows] += 1
        return worst
