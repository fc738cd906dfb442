"""A programmed chip: each matrix as an array of cells, with the constants that its products need."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.chip_file import CellState
from validator.crossbar.cells import ProgrammedCells, program_cells
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.converters import (
    CodeRange,
    ConverterRanges,
    make_calibrated_ranges,
    make_code_range,
    make_fixed_ranges,
)
from validator.crossbar.input_codings import SIGN_STEPS, InputStep, make_input_steps
from validator.crossbar.repaired_cells import CellRepair, RepairedGroup
from validator.crossbar.weight_encodings import CellPlanes, encode_weights

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
_MOST_BITS = 52
"""Most bits of a sum of products for which float64 arithmetic is exact."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """Use of an array group by a program: the bits of its weights and inputs, and the layer that it belongs to."""

    core: int
    group: int
    weight_bits: int
    input_bits: int
    layer: str


@dataclass(frozen=True, slots=True, eq=False)
class CellArray:
    """A matrix in cells.

    `factor` [planes, cols]: factors of converted sums. `sums`, `positive`, `negative` [cols]: sums of all, positive,
    negative weights. `held` [planes, driven rows, cols]: levels that the cells hold, for pairs their difference;
    `variance`: of a read; both None in a sliced chip. `read_outs` [planes, cols]: sums of the levels of each column,
    both sides of pairs added, just after programming and now; None unless drift is compensated.
    """

    use: GroupUse
    planes: CellPlanes
    rows_at_once: int
    ranges: ConverterRanges
    factor: Floats
    sums: Floats
    positive: Floats
    negative: Floats
    held_levels: Singles | None = None
    variance: Singles | None = None
    read_outs: tuple[Floats, Floats] | None = None

    @property
    def rows(self) -> int:
        return self.driven_rows // 2 if self.planes.doubled else self.driven_rows

    @property
    def driven_rows(self) -> int:
        return self.planes.plus.shape[1]

    @property
    def cols(self) -> int:
        return self.planes.plus.shape[2]

    @property
    def row_parts(self) -> int:
        """Number of groups of rows that are driven one after another."""
        return -(-self.driven_rows // self.rows_at_once)

    def product_bounds(self, x: Ints) -> tuple[Floats, Floats]:
        """Returns the range [cols] of exact products if each input is between min(x, 0) and max(x, 0).

        The compiler's proofs hold for all inputs of their width, which include these. So a result in this range is also
        in the range that was proved for the exact product.
        """
        low, high = float(min(x.min(), 0)), float(max(x.max(), 0))
        return self.positive * low + self.negative * high, self.positive * high + self.negative * low

    def count_conversions(self, setup: ChipSetup) -> int:
        """Returns the number of conversions for one product."""
        return self.row_parts * len(self.input_steps(setup, self.use.input_bits)) * len(self.planes.bits) * self.cols

    def input_steps(self, setup: ChipSetup, bits: int) -> tuple[InputStep, ...]:
        """Returns the steps of an input of `bits` bits."""
        return SIGN_STEPS if self.planes.doubled else make_input_steps(setup.inputs, bits, setup.dac_bits)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ProgrammedChip:
    """All arrays of a chip, in the order of its array groups."""

    setup: ChipSetup
    codes: CodeRange
    arrays: tuple[CellArray, ...]

    def with_rows(self, layer: str, rows: int) -> "ProgrammedChip":
        """Returns the chip with `rows` rows driven at once in a layer."""
        found = [_with_rows(a, rows, self.setup, self.codes) if a.use.layer == layer else a for a in self.arrays]
        return ProgrammedChip(self.setup, self.codes, tuple(found))

    def with_ideal_converters(self) -> "ProgrammedChip":
        """Returns the chip with converters that pass on each sum unchanged."""
        found = [
            replace(a, ranges=make_fixed_ranges(None, self.codes, np.zeros(1), a.factor.shape)) for a in self.arrays
        ]
        return ProgrammedChip(self.setup, self.codes, tuple(found))

    def with_ranges(self, lowest: Sequence[Floats], highest: Sequence[Floats]) -> "ProgrammedChip":
        """Returns the chip with converter ranges that cover the sums seen, joined where converters share a range."""
        assert self.setup.adc is not None  # only converters are calibrated
        scope = self.setup.adc.scope
        pairs = (
            _join_sums(self.arrays, self.setup, scope, s, join) for s, join in ((lowest, np.min), (highest, np.max))
        )
        found = [
            replace(array, ranges=make_calibrated_ranges(self.codes, low, high))
            for array, low, high in zip(self.arrays, *pairs, strict=True)
        ]
        return ProgrammedChip(self.setup, self.codes, tuple(found))


def program_chip(
    matrices: Sequence[npt.NDArray[np.integer]],
    uses: Sequence[GroupUse],
    setup: ChipSetup,
    repair: CellRepair | None = None,
) -> ProgrammedChip:
    """Programs a chip. Raises `UserError` for weights that the encoding cannot hold, or sums that are too large.

    `repair`: the cells of the chip that the program is repaired for; then they hold these levels.
    """
    codes = make_code_range(setup.adc, signed=setup.is_signed)
    if repair is not None:
        _check_setup(setup, repair)
        pairs = zip(matrices, uses, repair.groups, strict=True)
        arrays = [_repaired_array(m, use, group, repair, setup, codes) for m, use, group in pairs]
    else:
        arrays = [_array(m, use, setup, codes) for m, use in zip(matrices, uses, strict=True)]
    if setup.compensation != "none" and setup.kind == "noisy" and setup.cells is not None:
        arrays = _with_compensation(arrays, setup)
    return ProgrammedChip(setup, codes, tuple(arrays))


def _array(matrix: npt.NDArray[np.integer], use: GroupUse, setup: ChipSetup, codes: CodeRange) -> CellArray:
    _check_width(matrix, use)
    weights = _clip_weights(matrix.astype(np.int64), setup.cut)
    try:
        planes = encode_weights(setup.encoding, weights, use.weight_bits, setup.cell_bits)
    except UserError as e:
        raise UserError(f"{use.layer}: {e}") from None
    once = min(setup.rows_at_once, setup.xbar[0])
    made = CellArray(
        use=use,
        planes=replace(planes, plus=_uint8(planes.plus), minus=None if planes.minus is None else _uint8(planes.minus)),
        rows_at_once=min(once, planes.plus.shape[1]),
        ranges=make_fixed_ranges(setup.adc, codes, bound_column_sums(setup, planes, once), planes.factor.shape),
        factor=planes.factor.astype(np.float64),
        sums=weights.sum(axis=0).astype(np.float64),
        positive=np.maximum(weights, 0).sum(axis=0).astype(np.float64),
        negative=np.minimum(weights, 0).sum(axis=0).astype(np.float64),
    )
    return made if setup.kind == "sliced" else _with_held_levels(made, setup)


def _check_setup(setup: ChipSetup, repair: CellRepair) -> None:
    table = repair.table
    wanted = {"encoding": table.encoding, "levels": table.levels, "cell_bits": table.cell_bits}
    odd = [name for name, value in wanted.items() if getattr(setup, name) != value]
    if odd:
        given = " ".join(f"--with {name}={wanted[name]}" for name in odd)
        raise UserError(f"the program is repaired for cells that hold weights in another way; say {given}")
    if setup.cut != 1:
        raise UserError(f"cut_weights={setup.cut:g}: the cells of a repaired program are written already")


def _repaired_array(
    matrix: npt.NDArray[np.integer],
    use: GroupUse,
    group: RepairedGroup,
    repair: CellRepair,
    setup: ChipSetup,
    codes: CodeRange,
) -> CellArray:
    """Returns the array of a group whose cells hold what the chip lets them. Results keep the range of `matrix`."""
    _check_width(matrix, use)
    states = group.read_states(repair.chip)
    planes = group.layout.make_planes(group.held_levels(states), group.signs)
    once, is_whole = min(setup.rows_at_once, setup.xbar[0]), setup.kind == "whole"
    made = CellArray(
        use=use,
        planes=_whole_planes(matrix) if is_whole else planes,
        rows_at_once=len(matrix) if is_whole else min(once, len(matrix)),
        ranges=make_fixed_ranges(setup.adc, codes, bound_column_sums(setup, planes, once), planes.factor.shape),
        factor=planes.factor.astype(np.float64),
        sums=(np.zeros(matrix.shape[1]) if is_whole else group.weights.sum(axis=0)).astype(np.float64),
        positive=np.maximum(matrix, 0).sum(axis=0, dtype=np.float64),
        negative=np.minimum(matrix, 0).sum(axis=0, dtype=np.float64),
    )
    if is_whole:
        return replace(made, held_levels=group.weights.astype(np.float32)[None])
    if setup.kind == "sliced":
        return made
    stuck: list[npt.NDArray[np.bool_]] = [np.moveaxis(side, 2, 0) != CellState.FREE for side in states]
    return _with_held_levels(made, setup, [np.concatenate(stuck)] if group.layout.encoding == "differential" else stuck)


def _whole_planes(matrix: npt.NDArray[np.integer]) -> CellPlanes:
    """Returns the plane of an array whose cells hold whole weights: its levels are elsewhere."""
    levels = np.zeros((1, *matrix.shape), np.int64)
    return CellPlanes(levels, None, (1,), np.ones_like(levels[:, 0]), np.zeros_like(levels[0, 0]))


def _with_rows(array: CellArray, rows: int, setup: ChipSetup, codes: CodeRange) -> CellArray:
    ranges = make_fixed_ranges(setup.adc, codes, bound_column_sums(setup, array.planes, rows), array.factor.shape)
    return replace(array, rows_at_once=min(rows, array.driven_rows), ranges=ranges)


def _check_width(matrix: npt.NDArray[np.integer], use: GroupUse) -> None:
    bits = use.weight_bits + use.input_bits + len(matrix).bit_length()
    if bits > _MOST_BITS:
        raise UserError(
            f"{use.layer}: products of {use.weight_bits} and {use.input_bits} bits on {len(matrix)} rows need {bits} "
            f"bits; sliced crossbars add at most {_MOST_BITS}; quantise the model to fewer bits"
        )


def _clip_weights(weights: Ints, share: float) -> Ints:
    most = int(np.abs(weights).max() * share)
    return weights if share == 1 else np.clip(weights, -most, most)


def _uint8(levels: Ints) -> Any:
    return levels.astype(np.uint8)


def bound_column_sums(setup: ChipSetup, planes: CellPlanes, rows: int) -> Floats:
    """Returns the largest sum [planes] for which a converter is built if `rows` rows are driven at once."""
    whole = rows * ((1 << setup.dac_bits) - 1) * setup.highest_levels(planes.bits)
    is_half = setup.encoding == "flipped" and planes.plus.shape[1] <= rows
    return (-(-whole // 2) if is_half else whole).astype(np.float64)


def _with_held_levels(array: CellArray, setup: ChipSetup, stuck: Sequence[npt.NDArray[np.bool_]] = ()) -> CellArray:
    """Returns the array with the levels that its cells hold after programming, drift and wire losses.

    `stuck`: for each side, [planes, rows, cols], cells whose level is exact.
    """
    planes, cells = array.planes, setup.cells
    sides = [planes.plus] if planes.minus is None else [planes.plus, planes.minus]
    if cells is None:
        exact = [s.astype(np.float32) for s in sides]
        return replace(array, held_levels=exact[0] if len(exact) == 1 else exact[0] - exact[1])
    places = [(array.use.core, array.use.group, side) for side in range(len(sides))]
    idle = planes.empty if cells.idle == "unformed" else None
    made = [
        program_cells(s.astype(np.int64), planes.bits, setup, cells, place, idle, stuck[k] if stuck else None)
        for k, (s, place) in enumerate(zip(sides, places, strict=True))
    ]
    held = made[0].levels if len(made) == 1 else made[0].levels - made[1].levels
    variances = [m.variance for m in made if m.variance is not None]
    variance = sum(variances[1:], variances[0]).astype(np.float32) if variances else None
    return replace(array, held_levels=held.astype(np.float32), variance=variance, read_outs=_read_outs(made))


def _read_outs(made: Sequence[ProgrammedCells]) -> tuple[Floats, Floats] | None:
    """Returns the read-out of all rows, fresh and now. Sides of pairs are added: their difference may be nearly 0."""
    fresh = [m.fresh.sum(axis=1) for m in made if m.fresh is not None]
    now = [m.levels.sum(axis=1) for m in made]
    return (np.sum(fresh, axis=0), np.sum(now, axis=0)) if fresh else None


def _with_compensation(arrays: Sequence[CellArray], setup: ChipSetup) -> list[CellArray]:
    """Compensates drift: scales conversions by the read-out just after programming divided by the read-out now."""
    fresh, now = (
        _join_sums(arrays, setup, setup.compensation, [a.read_outs[k] for a in arrays if a.read_outs], np.sum)
        for k in (0, 1)
    )
    return [
        replace(array, factor=array.factor * np.where((was > 0) & (has > 0), was / np.maximum(has, 1e-30), 1.0))
        for array, was, has in zip(arrays, fresh, now, strict=True)
    ]


def _join_sums(
    arrays: Sequence[CellArray], setup: ChipSetup, scope: str, seen: Sequence[Floats], join: Callable[..., Any]
) -> list[Floats]:
    """Joins all sums [planes, cols] of a scope, which share a range or a factor, and returns the result for each.

    Converters see currents: a level of a slice of few bits may be a larger one (`ChipSetup.highest_levels`).
    """
    if scope == "column":
        return list(seen)
    highest = [setup.highest_levels(a.planes.bits)[:, None] for a in arrays]
    most = max(int(h.max()) for h in highest) if highest else 1
    labels = [a.use.layer if scope == "layer" else "" for a in arrays]
    currents = [s * (most / h) for s, h in zip(seen, highest, strict=True)]
    joined = {label: join([join(s) for s, of in zip(currents, labels, strict=True) if of == label]) for label in labels}
    return [np.full_like(s, joined[label]) / (most / h) for s, label, h in zip(seen, labels, highest, strict=True)]
