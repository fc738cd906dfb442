"""Cells: statistics of their errors, drift, wires, and that randomness depends on the seed and the place alone."""

from statistics import NormalDist

import numpy as np
import pytest

from raptor.common.errors import UserError
from raptor.target.cell_models import CellModel, ConductanceSpread
from raptor.target.device_file import load_device
from tests.validator.crossbar.chips import random_case
from validator.crossbar import counter_rng
from validator.crossbar.cells import program_cells
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.programmed_chip import GroupUse, program_chip
from validator.crossbar.wire_resistance import effective_conductances

PLACE = (0, 0, 0)
BITS = (4,)


def setup(**changes: object) -> ChipSetup:
    return random_case(0, kind="noisy", cell_bits=4, xbar=(128, 128), **changes).setup


def test_normal_numbers():
    found = counter_rng.draw_normals(counter_rng.make_key(1, 2), 200_000)
    drawn = counter_rng.draw_uniforms(counter_rng.make_key(1, 2), 200_000)
    wanted = [NormalDist().inv_cdf(p) for p in drawn[:2000]]
    assert found[:2000] == pytest.approx(wanted, rel=1e-7, abs=1e-8)
    assert found.mean() == pytest.approx(0, abs=0.01)
    assert found.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(found) > 3).mean() == pytest.approx(0.0027, abs=0.0006)


def test_keys_differ():
    keys = {int(counter_rng.make_key(seed, a, b)) for seed in range(4) for a in range(4) for b in range(4)}
    assert len(keys) == 64


def test_errors_of_programming_have_the_spread_of_the_device():
    cells = load_device("reram-milo").cells
    assert cells is not None
    for level, conductance in ((0, 50.0), (15, 225.0)):
        found = program_cells(np.full((1, 200, 200), level), BITS, setup(), cells, PLACE).levels[0] * 175 / 15 + 50
        assert found.mean() == pytest.approx(conductance, abs=0.1)
        assert found.std() == pytest.approx(4.782321 - 0.009107 * conductance, rel=0.02)


def test_drift_of_pcm():
    """A fully set cell: mean exponent 0.049, at a day (86400 / 20)^-0.049 = 0.66 of it is left."""
    cells = load_device("pcm-aihwkit").cells
    assert cells is not None
    found = program_cells(np.full((1, 100, 100), 15), BITS, setup(seconds=86400.0), cells, PLACE).levels / 15
    assert found.mean() == pytest.approx((86400 / 20) ** -0.049, rel=0.01)
    fresh = program_cells(np.full((1, 100, 100), 15), BITS, setup(seconds=20.0), cells, PLACE).levels / 15
    assert fresh.mean() == pytest.approx(1, rel=0.01)


def test_later_errors_of_programming_replace_earlier_ones():
    cells = CellModel(
        off=0.0, on=1.0, programming=(ConductanceSpread(), ConductanceSpread(polynomial=(0.1,), after_s=100.0))
    )
    early, late = (
        program_cells(np.full((1, 50, 50), 7), BITS, setup(seconds=s), cells, PLACE).levels.std() for s in (1.0, 100.0)
    )
    assert early == pytest.approx(0, abs=1e-12)
    assert late == pytest.approx(1.5, rel=0.1)


def test_stuck_cells():
    cells = CellModel(off=0.0, on=1.0, stuck_off=0.2, stuck_on=0.1)
    found = program_cells(np.full((1, 100, 100), 7), BITS, setup(), cells, PLACE).levels
    assert (found == 0).mean() == pytest.approx(0.2, abs=0.02)
    assert (found == 15).mean() == pytest.approx(0.1, abs=0.02)


def test_variance_of_reads():
    cells = CellModel(off=0.0, on=15.0, read=ConductanceSpread(polynomial=(0.5, 0.1)))
    variance = program_cells(np.full((1, 2, 2), 5), BITS, setup(), cells, PLACE).variance
    assert variance is not None
    assert variance == pytest.approx(1.0)


def test_compensation_takes_drift_back():
    cells = load_device("pcm-aihwkit").cells
    matrix = np.random.default_rng(0).integers(-128, 128, (64, 8))
    found = {}
    for kind in ("none", "chip", "layer", "column"):
        made = setup(seconds=1e6, cells=cells, compensation=kind, encoding="offset")
        array = program_chip([matrix], [GroupUse(0, 0, 8, 8, "layer")], made).arrays[0]
        assert array.held_levels is not None
        found[kind] = array.held_levels.sum(axis=1) * array.factor / array.planes.factor
        if kind == "column":
            fresh, now = array.read_outs or (0, 0)
    assert found["none"].sum() / fresh.sum() < 0.7
    assert found["none"] == pytest.approx(now, rel=1e-4)
    assert found["chip"].sum() == pytest.approx(fresh.sum(), rel=1e-4)
    assert found["layer"] == pytest.approx(found["chip"])
    assert found["column"] == pytest.approx(fresh, rel=1e-4)


def test_wires_by_hand():
    """One cell of 1 S behind two pieces of wire of 1 S: 1 / 3 S. Two cells in a column share the last piece."""
    assert effective_conductances(np.array([[0.1]]), 10.0) == pytest.approx(1 / (10 + 2 * 0.1))
    # Nodal analysis of two rows, one column, cells a and b, wires of 1 ohm.
    a, b = 0.1, 0.05
    nodes = np.array([[1 + a, 0, -a, 0], [0, 1 + b, 0, -b], [-a, 0, a + 1, -1], [0, -b, -1, b + 2]])
    out = np.linalg.solve(nodes, np.array([[1, 0], [0, 1], [0, 0], [0, 0]]))[3]
    assert effective_conductances(np.array([[a], [b]]), 1.0)[:, 0] == pytest.approx(out)


def test_wires_against_nodal_analysis():
    rng = np.random.default_rng(0)
    cells = rng.uniform(1e-6, 50e-6, (8, 6))
    assert effective_conductances(cells, 1 / 20.0) == pytest.approx(nodal(cells, 1 / 20.0), rel=1e-6)


def nodal(cells: np.ndarray, wire: float) -> np.ndarray:
    """Currents of the columns for a voltage of 1 on each row, by the equations of all nodes at once."""
    rows, cols = cells.shape
    matrix = np.zeros((2 * rows * cols, 2 * rows * cols))
    along, down = (np.arange(rows * cols).reshape(rows, cols) + k * rows * cols for k in (0, 1))

    def join(p: int, q: int, g: float) -> None:
        matrix[[p, q], [p, q]] += g
        matrix[[p, q], [q, p]] -= g

    for r in range(rows):
        for c in range(cols):
            join(along[r, c], down[r, c], cells[r, c])
            if c:
                join(along[r, c - 1], along[r, c], wire)
            if r:
                join(down[r - 1, c], down[r, c], wire)
    drive = np.zeros((2 * rows * cols, rows))
    for r in range(rows):
        matrix[along[r, 0], along[r, 0]] += wire
        drive[along[r, 0], r] = wire
    for c in range(cols):
        matrix[down[-1, c], down[-1, c]] += wire
    return (np.linalg.solve(matrix, drive)[down[-1]] * wire).T


def test_wires_that_are_too_poor():
    with pytest.raises(UserError, match="take smaller crossbars or better wires"):
        effective_conductances(np.full((64, 64), 1.0), 1.0)
