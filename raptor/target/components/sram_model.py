"""Area, energy and time of a static memory: interpolation between results of CACTI that are stored in `sram.csv`."""

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

_FILE = "sram.csv"
_VALUES = ("um2", "read_pj", "write_pj", "access_ns", "cycle_ns", "leakage_mw")


@dataclass(frozen=True, slots=True)
class SramCost:
    """Cost of a static memory with one port; energies are of one access of its width."""

    um2: float
    read_pj: float
    write_pj: float
    ns: float
    static_mw: float


@dataclass(frozen=True, slots=True)
class _SramGrid:
    """Logarithms of the stored values `[nodes, sizes, widths, values]`, and of the axes."""

    axes: tuple[npt.NDArray[np.float64], ...]
    values: npt.NDArray[np.float64]


@cache
def _load_grid() -> _SramGrid:
    text = (resources.files("raptor.target.components") / _FILE).read_text()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    axes = [sorted({float(row[name]) for row in rows}) for name in ("node_nm", "bytes", "width")]
    table = np.full((*map(len, axes), len(_VALUES)), np.nan)
    for row in rows:
        place = tuple(
            axis.index(float(row[name])) for axis, name in zip(axes, ("node_nm", "bytes", "width"), strict=True)
        )
        table[place] = [float(row[name]) for name in _VALUES]
    return _SramGrid(tuple(np.log(axis) for axis in axes), np.log(table))


def estimate_sram(size_bytes: float, width_bytes: float, node_nm: float) -> SramCost:
    """Estimates a memory of `size_bytes` that reads or writes `width_bytes` at a time.

    Values between those of the grid are interpolated by their logarithms. The time is that of an access, or the least
    time between two if that is longer. Raises `ValueError` outside of the grid.
    """
    grid = _load_grid()
    values = grid.values
    for axis, value, name in zip(
        grid.axes, (node_nm, size_bytes, width_bytes), ("nm", "bytes", "bytes wide"), strict=True
    ):
        place = math.log(value)
        if not axis[0] - 1e-9 <= place <= axis[-1] + 1e-9:
            least, most = round(math.exp(axis[0])), round(math.exp(axis[-1]))
            raise ValueError(f"the model of memories is for {least} to {most} {name}, not for {value:g}")
        k = min(int(np.searchsorted(axis, place, side="right")) - 1, len(axis) - 2)
        weight = (place - axis[k]) / (axis[k + 1] - axis[k])
        values = (1 - weight) * values[k] + weight * values[k + 1]
    um2, read_pj, write_pj, access_ns, cycle_ns, leakage = (float(value) for value in np.exp(values))
    return SramCost(um2, read_pj, write_pj, max(access_ns, cycle_ns), leakage)
