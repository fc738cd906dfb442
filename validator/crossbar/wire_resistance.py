"""Resistance of the wires of a crossbar, which reduces the currents of the cells at the far ends.

A crossbar with resistive wires is a linear network, so its currents are the voltages times another matrix. This module
computes that matrix. Rows are driven at the first column, columns are grounded after the last row, and rows that are
not driven are grounded, too.
"""

# Kernels are untyped for numba's sake.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.jit.decorators import bare_helper, bare_kernel

Floats = npt.NDArray[np.float64]
_MOST_ROUNDS = 500
_NEAR = 1e-9
"""Change of the voltages, for an input of 1, below which the iteration ends."""
_DIVERGED = 1e6


def effective_conductances(cells: Floats, wire_siemens: float) -> Floats:
    """Returns the conductances [rows, cols] that appear at the ends of the wires, in the unit of `cells`.

    `wire_siemens`: conductance of the wire between two cells. Raises `UserError` if the iteration does not converge.
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
    """Computes all column currents for a voltage of 1 on each row alone. Returns False if the iteration diverges."""
    along, down = state[0], state[1]  # voltages at the two ends of each cell
    for driven in range(len(cells)):
        along[:], down[:] = 0.0, 0.0
        along[driven] = 1.0
        change, rounds = 1.0, 0
        while change > _NEAR:
            rounds += 1
            change = max(
                _along_rows(cells, ohm, along, down, driven), _down_columns(cells, ohm, along, down, found[driven])
            )
            if rounds > _MOST_ROUNDS or not change < _DIVERGED:
                return False
    return True


@bare_helper
def _along_rows(cells, ohm, along, down, driven):
    """Updates the voltages along each row from its currents; returns the largest change."""
    change = 0.0
    for r in range(len(cells)):
        current = _current(cells[r], along[r], down[r])
        voltage = 1.0 if r == driven else 0.0
        for c in range(cells.shape[1]):
            voltage -= ohm * current
            current -= cells[r, c] * (along[r, c] - down[r, c])
            change = max(change, abs(voltage - along[r, c]))
            along[r, c] = voltage
    return change


@bare_helper
def _down_columns(cells, ohm, along, down, found):
    """Updates the voltages down each column and writes its current to `found`; returns the largest change."""
    change = 0.0
    for c in range(cells.shape[1]):
        current = _current(cells[:, c], along[:, c], down[:, c])
        found[c], voltage = current, 0.0
        for k in range(len(cells)):
            r = len(cells) - 1 - k
            voltage += ohm * current
            current -= cells[r, c] * (along[r, c] - down[r, c])
            change = max(change, abs(voltage - down[r, c]))
            down[r, c] = voltage
    return change


@bare_helper
def _current(cells, along, down):
    total = 0.0
    for k in range(len(cells)):
        total += cells[k] * (along[k] - down[k])
    return total
