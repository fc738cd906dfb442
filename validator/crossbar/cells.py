"""Cells: levels as conductances, with their errors.

Errors apply in this order: programming, drift, stuck cells, wires. Read noise is added in each product. The
contribution of the conductance `off` to a sum is subtracted before the converter, as by a column of cells that are off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.target.cell_models import CellModel, ConductanceSpread
from validator.crossbar import counter_rng
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.wire_resistance import effective_conductances

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_MICRO = 1e6


@dataclass(frozen=True, slots=True, eq=False)
class ProgrammedCells:
    """Cells of an array after programming, in levels of their slice. `variance`: variance of a read.

    `fresh`: the levels just after programming; None unless drift is compensated.
    """

    levels: Floats
    variance: Floats | None
    fresh: Floats | None


def conductance_steps(setup: ChipSetup, cells: CellModel, bits: Sequence[int]) -> Floats:
    """Returns the conductance of a level of each slice, [planes, 1, 1]. `bits`: bits of the slices."""
    return ((cells.on - cells.off) / setup.highest_levels(bits))[:, None, None]


def program_cells(
    levels: npt.NDArray[np.integer],
    bits: Sequence[int],
    setup: ChipSetup,
    cells: CellModel,
    place: tuple[int, int, int],
    idle: Mask | None = None,
    stuck: Mask | None = None,
) -> ProgrammedCells:
    """Returns the cells [planes, rows, cols] after `levels` are written.

    `bits`: bits of each plane. `place`: core, array group, side of a pair. `idle` [rows, cols]: weights whose cells
    were never formed; None if all cells are formed. `stuck` [planes, rows, cols]: cells that hold exactly their level.
    """
    step = conductance_steps(setup, cells, bits)
    target = cells.off + step * levels.astype(np.float64)
    held = _held_conductances(target, setup, cells, place, idle, stuck)
    variance = find_read_variance(held, setup, cells)
    is_compared = setup.compensation != "none"
    fresh = _held_conductances(target, replace(setup, seconds=0.0), cells, place, idle, stuck) if is_compared else None

    def to_levels(conductances: Floats) -> Floats:
        found = (_through_wires(conductances, setup, cells) - cells.off) / step
        return found if idle is None else np.where(idle, 0.0, found)

    return ProgrammedCells(
        levels=to_levels(held),
        variance=None if variance is None else (variance if idle is None else np.where(idle, 0.0, variance)) / step**2,
        fresh=None if fresh is None else to_levels(fresh),
    )


def _held_conductances(
    target: Floats,
    setup: ChipSetup,
    cells: CellModel,
    place: tuple[int, int, int],
    idle: Mask | None,
    stuck: Mask | None,
) -> Floats:
    written = _after_programming(target, setup, cells, place)
    found = _with_stuck_cells(_after_drift(written, target, setup, cells, place), setup, cells, place)
    found = found if stuck is None else np.where(stuck, target, found)
    return found if idle is None else np.where(idle, 0.0, found)


def _after_programming(target: Floats, setup: ChipSetup, cells: CellModel, place: tuple[int, int, int]) -> Floats:
    spread = find_programming_error(cells, setup.seconds)
    if spread is None:
        return target
    key = counter_rng.make_key(setup.seed, counter_rng.PROGRAMMING, *place)
    return np.maximum(target + spread.std(target) * _normals(key, target), 0.0)


def find_programming_error(cells: CellModel, seconds: float) -> ConductanceSpread | None:
    """Returns the programming error that holds after `seconds`: the last that has begun, or else the first."""
    begun = [s for s in cells.programming if s.after_s <= seconds] or cells.programming[:1]
    return max(begun, key=lambda s: s.after_s) if begun else None


def _after_drift(
    held: Floats, target: Floats, setup: ChipSetup, cells: CellModel, place: tuple[int, int, int]
) -> Floats:
    drift = cells.drift
    if drift is None or setup.seconds <= drift.t0_s:
        return held
    share = target / cells.on
    key = counter_rng.make_key(setup.seed, counter_rng.DRIFT, *place)
    nu = np.abs(drift.mean.evaluate(share) + drift.std.evaluate(share) * _normals(key, held))
    return held * (setup.seconds / drift.t0_s) ** -nu


def _with_stuck_cells(held: Floats, setup: ChipSetup, cells: CellModel, place: tuple[int, int, int]) -> Floats:
    if not cells.stuck_off and not cells.stuck_on:
        return held
    drawn = counter_rng.draw_uniforms(counter_rng.make_key(setup.seed, counter_rng.STUCK, *place), held.size).reshape(
        held.shape
    )
    at_off, at_on = drawn < cells.stuck_off, drawn > 1 - cells.stuck_on
    return np.where(at_off, cells.off, np.where(at_on, cells.on, held))


def find_read_variance(held: Floats, setup: ChipSetup, cells: CellModel) -> Floats | None:
    """Returns the variance of a read of each cell, or None if reads have no noise."""
    parts: list[Floats] = []
    if cells.read is not None:
        parts.append(cells.read.std(held))
    if cells.flicker is not None:
        parts.append(cells.flicker.std(held, cells.on, setup.seconds))
    return sum((std**2 for std in parts), np.zeros_like(held)) if parts else None


def _through_wires(held: Floats, setup: ChipSetup, cells: CellModel) -> Floats:
    """Returns the conductances seen through the wires: cells of a weight are neighbours, crossbars cut the columns."""
    if not cells.wire_ohm:
        return held
    planes, rows, cols = held.shape
    beside = held.transpose(1, 2, 0).reshape(rows, cols * planes)
    width, wire_us = setup.xbar[1], _MICRO / cells.wire_ohm
    parts = [effective_conductances(beside[:, k : k + width], wire_us) for k in range(0, beside.shape[1], width)]
    return np.concatenate(parts, axis=1).reshape(rows, cols, planes).transpose(2, 0, 1)


def _normals(key: np.uint64, like: Floats) -> Floats:
    return counter_rng.draw_normals(key, like.size).reshape(like.shape)
