"""Tables and scratch space of the kernels. Their types are the same in every program, so kernels compile once."""

from functools import lru_cache
from typing import Any

import numpy as np

from validator.crossbar import counter_rng, crossbar_kernels
from validator.crossbar.crossbar_kernels import WORD
from validator.crossbar.input_codings import MOST_INPUT_BITS, SIGN_STEPS, input_offset, make_input_steps
from validator.crossbar.programmed_chip import CellArray, ProgrammedChip

_MOST_STEPS = 2 * MOST_INPUT_BITS
_WIDE = 8
"""Most bits of a cell, or of a step of the input."""


@lru_cache(maxsize=2)
def make_kernel_tables(chip: ProgrammedChip) -> tuple[Any, ...]:
    """Returns the description of a chip that the kernels read."""
    arrays, setup = chip.arrays, chip.setup
    is_sliced = setup.kind == "sliced"
    kind = {"sliced": crossbar_kernels.SLICED, "noisy": crossbar_kernels.NOISY, "whole": crossbar_kernels.WHOLE}
    cells = [_pack_levels(a, setup.cell_bits) if is_sliced else _by_row(a.held_levels) for a in arrays]
    variance = [_by_row(a.variance) for a in arrays if a.variance is not None]
    noise = setup.adc.noise_lsb if setup.adc is not None and not is_sliced else 0.0
    return (
        (
            np.int64(kind[setup.kind]),
            _shapes(arrays, cells),
            *_steps(chip),
        ),
        (
            _flat(cells if is_sliced else [], np.uint64),
            _flat([] if is_sliced else cells, np.float32),
            _flat(variance, np.float32),
            _flat([np.array(a.planes.bits) for a in arrays], np.int64),
            np.array([setup.cell_bits]),
        ),
        (
            _flat([a.factor for a in arrays], np.float64),
            _flat([a.ranges.base for a in arrays], np.float64),
            _flat([a.ranges.step for a in arrays], np.float64),
        ),
        (
            _flat([a.planes.digit_factor for a in arrays], np.float64),
            _flat([a.sums for a in arrays], np.float64),
            _flat([a.positive for a in arrays], np.float64),
            _flat([a.negative for a in arrays], np.float64),
        ),
        np.array([chip.codes.low, chip.codes.high, noise]),
        np.array([make_reading_key(setup.seed, a) for a in arrays], np.uint64),
    )


def make_reading_key(seed: int, array: CellArray) -> np.uint64:
    """Returns the key of the read noise of an array."""
    return counter_rng.make_key(seed, counter_rng.READING, array.use.core, array.use.group)


def make_work_space(tables: tuple[Any, ...], *, sample: int = 0, watch: bool = False) -> tuple[Any, ...]:
    """Returns the scratch space of a run. `watch`: keep the lowest and the highest sum at each converter, too."""
    shapes = tables[0][1]
    driven, cols, planes = (
        int(shapes[:, k].max(initial=1))
        for k in (crossbar_kernels.DRIVEN, crossbar_kernels.COLS, crossbar_kernels.PLANES)
    )
    most_steps = int(tables[0][3].max(initial=1))
    entries = most_steps * cols * planes if tables[0][0] == crossbar_kernels.NOISY else 0
    watched = tables[2][0].size if watch else 0
    return (
        np.zeros(len(shapes), np.int64),
        np.array([sample]),
        np.zeros(driven, np.int64),
        np.zeros(cols),
        np.zeros(cols, np.int64),
        np.zeros(_WIDE * -(-driven // WORD), np.uint64),
        np.zeros(most_steps * driven, np.int64),
        np.full(watched, np.inf),
        np.full(watched, -np.inf),
        np.zeros(entries, np.float32),
        np.zeros(entries, np.float32),
        np.zeros(most_steps, np.int64),
    )


def _shapes(arrays: tuple[CellArray, ...], cells: list[Any]) -> Any:
    rows: list[tuple[int, ...]] = []
    firsts = [0, 0, 0, 0]
    for a, held in zip(arrays, cells, strict=True):
        planes, sides = len(a.planes.bits), 1 if a.planes.minus is None else 2
        rows.append((a.rows, a.driven_rows, a.cols, planes, sides, a.rows_at_once, int(a.planes.doubled), *firsts))
        firsts = [f + more for f, more in zip(firsts, (held.size, planes, planes * a.cols, a.cols), strict=True)]
    return np.array(rows, np.int64).reshape(len(rows), 11)


def _steps(chip: ProgrammedChip) -> tuple[Any, Any, Any]:
    """Returns steps, number of steps and offset of inputs, indexed by the bits of inputs (0: doubled rows)."""
    setup = chip.setup
    table = np.zeros((MOST_INPUT_BITS + 1, _MOST_STEPS, 4), np.int64)
    counts = np.zeros(MOST_INPUT_BITS + 1, np.int64)
    raised = np.zeros(MOST_INPUT_BITS + 1, np.int64)
    for bits in range(MOST_INPUT_BITS + 1):
        found = make_input_steps(setup.inputs, bits, setup.dac_bits) if bits else SIGN_STEPS
        counts[bits], raised[bits] = len(found), input_offset(setup.inputs, bits) if bits else 0
        for t, step in enumerate(found):
            table[bits, t] = step.source, step.shift, step.mask, step.factor
    return table, counts, raised


def _pack_levels(array: CellArray, cell_bits: int) -> Any:
    """Packs levels into words of 64 rows: [parts, planes, sides, bits of a cell, words, cols]."""
    planes = array.planes
    sides = [planes.plus] if planes.minus is None else [planes.plus, planes.minus]
    levels = np.stack(sides, axis=1).astype(np.uint8)  # [planes, sides, driven, cols]
    per_part = -(-array.rows_at_once // WORD) * WORD
    parts: list[Any] = []
    for start in range(0, array.driven_rows, array.rows_at_once):
        part = levels[:, :, start : start + array.rows_at_once]
        full = np.zeros((*levels.shape[:2], per_part, array.cols), np.uint8)
        full[:, :, : part.shape[2]] = part
        bits = np.stack([(full >> b) & 1 for b in range(cell_bits)], axis=2)
        packed = np.packbits(bits, axis=3, bitorder="little")  # bytes of 8 rows
        shape = (*packed.shape[:3], per_part // WORD, 8, array.cols)
        parts.append(np.moveaxis(packed.reshape(shape), 4, 5).copy().view("<u8")[..., 0])
    return np.stack(parts)


def _by_row(held: Any) -> Any:
    """Returns levels [planes, rows, cols] as [rows, planes, cols]."""
    return np.ascontiguousarray(np.moveaxis(held, 0, 1))


def _flat(parts: list[Any], kind: type[np.generic]) -> Any:
    return np.concatenate([np.zeros(0, kind), *(p.ravel().astype(kind, copy=False) for p in parts)])
