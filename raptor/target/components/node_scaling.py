"""Area and energy of digital circuits at another process node.

Stillmaker and Baas, "Scaling equations for the accurate prediction of CMOS device performance from 180 nm to 7 nm",
Integration 58, 2017: factors of the area, and energy as a polynomial of the supply voltage. They are for logic: analog
parts do not shrink like that.
"""

import numpy as np
import numpy.typing as npt

NODES_NM = (7.0, 10.0, 14.0, 16.0, 20.0, 32.0, 45.0, 65.0, 90.0, 130.0)
SUPPLY_V = 0.8
_AREA: npt.NDArray[np.float64] = np.array(
    [
        [1, 1.7, 2.9, 3.2, 3.6, 7.8, 17, 25, 48, 110],
        [0.58, 1, 1.7, 1.9, 2.1, 4.5, 9.8, 15, 28, 63],
        [0.34, 0.59, 1, 1.1, 1.2, 2.7, 5.8, 8.7, 16, 37],
        [0.31, 0.54, 0.91, 1, 1.1, 2.4, 5.3, 7.9, 15, 34],
        [0.28, 0.48, 0.82, 0.89, 1, 2.2, 4.7, 7.1, 13, 30],
        [0.13, 0.22, 0.38, 0.41, 0.46, 1, 2.2, 3.3, 6.1, 14],
        [0.059, 0.1, 0.17, 0.19, 0.21, 0.46, 1, 1.5, 2.8, 6.4],
        [0.039, 0.068, 0.12, 0.13, 0.14, 0.31, 0.66, 1, 1.9, 4.3],
        [0.021, 0.036, 0.061, 0.067, 0.075, 0.16, 0.35, 0.53, 1, 2.3],
        [0.0092, 0.016, 0.027, 0.03, 0.033, 0.072, 0.16, 0.23, 0.44, 1],
    ]
)
"""Factor of the area from the node of the row to the node of the column (table of the paper)."""
_ENERGY: npt.NDArray[np.float64] = np.array(
    [
        [0.1776, -0.09097, 0.02447],
        [0.2068, -0.09311, 0.02375],
        [0.2363, -0.09675, 0.02239],
        [0.2958, -0.1241, 0.03024],
        [0.373, -0.1582, 0.04104],
        [0.9559, -0.7823, 0.471],
        [1.103, -0.362, 0.2767],
        [3.755, -4.398, 1.975],
        [4.762, -4.781, 2.092],
        [7.171, -6.709, 2.904],
    ]
)
"""Energy at each node: coefficients of the square of the supply voltage, of the voltage, and of 1."""


def area_factor(from_nm: float, to_nm: float) -> float:
    """Returns the factor by which the area of logic changes. Raises `ValueError` for a node outside 7 to 130 nm."""
    _check_nodes(from_nm, to_nm)
    targets = np.array([np.interp(to_nm, NODES_NM, _AREA[k]) for k in range(len(NODES_NM))], np.float64)
    return float(np.interp(from_nm, NODES_NM, targets))


def energy_factor(from_nm: float, to_nm: float) -> float:
    """Returns the factor by which the energy of logic changes at 0.8 V, which is the factor of its leakage, too.

    Raises `ValueError` for a node outside 7 to 130 nm.
    """
    _check_nodes(from_nm, to_nm)
    energies = _ENERGY @ np.array([SUPPLY_V**2, SUPPLY_V, 1.0])
    return float(np.interp(to_nm, NODES_NM, energies) / np.interp(from_nm, NODES_NM, energies))


def _check_nodes(*nodes: float) -> None:
    for node in nodes:
        if not NODES_NM[0] <= node <= NODES_NM[-1]:
            raise ValueError(f"nodes are scaled between {NODES_NM[0]:g} and {NODES_NM[-1]:g} nm, not to {node:g} nm")
