"""Resistance of the wires of a crossbar: what the cells at the far ends lose.

A crossbar with resistive wires is a linear network: its currents are the voltages times another matrix. This module
finds that matrix. Rows are driven at the first column, columns are grounded behind the last row, and rows that are not
driven are grounded, too.
"""

# Kernels are untyped for numba's sake.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.jit import bare_kernel

Floats = npt.NDArray[np.float64]
_MOST_ROUNDS = 500
_NEAR = 1e-9
"""Change of a voltage of 1 below which it counts as found."""


def seen_conductances(cells: Floats, wire_siemens: float) -> Floats:
    """Returns the conductances [rows, cols] that the ends of the wires see, in the unit of `cells`.

    `wire_siemens`: conductance of a piece of wire, in that unit. Raises `UserError` if wires are too poor to compute.
    """
    found = np.empty_like(cells)
    rows, cols = cells.shape
    state = np.empty((2, rows, cols))
    if not _solve(np.ascontiguousarray(cells), 1 / wire_siemens, found, state):
        raise UserError(
            f"wire_ohm: the wires of {rows} x {cols} cells take most of the voltage; no method here can compute that; "
            "take smaller crossbars or better wires"
        )
    return found


@bare_kernel
def _solve(cells: Any, ohm: float, found: Any, state: Any) -> bool:
    """Computes the currents of all columns for a voltage of 1 on each row alone, by repeated substitution."""
    rows, cols = cells.shape
    along, down = state[0], state[1]  # voltages at the two ends of each cell
    for driven in range(rows):
        for r in range(rows):
            for c in range(cols):
                along[r, c], down[r, c] = (1.0 if r == driven else 0.0), 0.0
        change, rounds = 1.0, 0
        while change > _NEAR:
            rounds += 1
            if rounds > _MOST_ROUNDS or change > 1e6:
                return False
            change = 0.0
            for r in range(rows):
                total = 0.0
                for c in range(cols):
                    total += cells[r, c] * (along[r, c] - down[r, c])
                voltage = 1.0 if r == driven else 0.0
                for c in range(cols):
                    voltage -= ohm * total
                    total -= cells[r, c] * (along[r, c] - down[r, c])
                    change = max(change, abs(voltage - along[r, c]))
                    along[r, c] = voltage
            for c in range(cols):
                total = 0.0
                for r in range(rows):
                    total += cells[r, c] * (along[r, c] - down[r, c])
                found[driven, c] = total
                voltage = 0.0
                for k in range(rows):
                    r = rows - 1 - k
                    voltage += ohm * total
                    total -= cells[r, c] * (along[r, c] - down[r, c])
                    change = max(change, abs(voltage - down[r, c]))
                    down[r, c] = voltage
    return True
