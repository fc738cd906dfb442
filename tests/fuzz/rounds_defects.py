"""Planted defects of rounds and of several chips, as in `tests.fuzz.defects`."""
# ruff: noqa: E501 one defect a line

from tests.fuzz.defect import Defect

COMPILING, WRITES = (f"raptor/rounds/{n}.py" for n in ("compiling", "writes"))
SLICING, UNITS = (f"raptor/frontend/segments/{n}.py" for n in ("slicing", "units"))
CHIPS, NUMBERS = (f"raptor/mapping/{n}.py" for n in ("chips", "chip_numbers"))

ROUNDS_DEFECTS: tuple[Defect, ...] = (
    # Writes
    Defect(WRITES, "if any(held.get(xbar) != content for", "if any(held.get(xbar, content) != content for"),
    Defect(WRITES, "return found[len(rounds) :]", "return found[len(rounds) :][::-1]"),
    Defect(COMPILING, "for k, (a, b) in enumerate(zip((0, *plan.cuts), ends", "for k, (b, a) in enumerate(zip((0, *plan.cuts), ends"),
    Defect(COMPILING, "programs[a, b, way.cores] for a, b, way in", "programs[min(programs)] for a, b, way in"),
    # Slices of large layers
    Defect(SLICING, "if rows is None or rows[0] == 0:", "if rows is None or rows[0] >= 0:"),
    Defect(SLICING, "return name if values.ndim == 0 or values.shape[-1] == 1 else self._sliced(name, -1, cols)", "return name if values.ndim == 0 or values.shape[-1] == 1 else self._sliced(name, -1, (0, cols[1] - cols[0]))"),
    Defect(SLICING, "(size * k // parts, size * (k + 1) // parts)", "(size * (parts - 1 - k) // parts, size * (parts - k) // parts)"),
    # Stages on chips
    Defect(CHIPS, "loaders={name: pairs for flow in flows", "loaders={name: tuple((cols, core + self.arch.core_count) for cols, core in pairs) for flow in flows"),
    Defect(NUMBERS, "chip * arch.cores_per_chip + np.arange(last - first)", "np.arange(last - first)"),
)  # fmt: skip
