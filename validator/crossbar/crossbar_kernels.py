"""Compiled products of crossbars; `definition` specifies them.

`tables` describe a programmed chip (`tables.make_kernel_tables`), `work` is the scratch space of one run
(`tables.make_work_space`). The sliced chip stores weights in words of 64 rows, so a step is a population count of the
bits set in both inputs and weights. The noisy chip stores float32 cells, which are added row by row."""

# Kernels are untyped for numba's sake.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportMissingTypeStubs=false

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from raptor.common.jit.decorators import bare_helper, bare_kernel
from validator.crossbar.counter_rng import draw_normal, mix_key
from validator.crossbar.input_codings import DigitSource

SLICED, NOISY, WHOLE = 1, 2, 3
"""Kinds of chips, as `tables` encode them."""
ROWS, DRIVEN, COLS, PLANES, SIDES, ONCE, DOUBLED, FIRST_CELL, FIRST_PLANE, FIRST_ENTRY, FIRST_COLUMN = range(11)
"""Columns of the table of arrays."""
SOURCE, SHIFT, MASK, FACTOR = range(4)
"""Columns of the table of steps."""
WORD = 64
_U = np.uint64
_ONE = _U(1)
_BITS, _RAISED, _POSITIVE = int(DigitSource.BITS), int(DigitSource.RAISED), int(DigitSource.POSITIVE)


_intrinsic: Any = intrinsic


@_intrinsic
def _count(typingctx: Any, word: Any) -> Any:  # pyright: ignore[reportUnusedParameter] numba calls it so
    """Counts the bits of a word that are 1, by one instruction of the processor."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), code


@bare_helper
def multiply_vector(g, x, bits, tables, work, found):
    """Computes found = x times the matrix of array group `g`, as the crossbars do.

    Returns -1, or the index of the first element of `x` that the encoding cannot drive.
    """
    kind, at = tables[0][0], tables[0][1][g]
    rows, doubled = at[ROWS], at[DOUBLED] == 1
    x64 = work[2]
    lowest, highest = np.int64(0), np.int64(0)
    for r in range(rows):
        lowest, highest = min(lowest, np.int64(x[r])), max(highest, np.int64(x[r]))
        if doubled:
            if x[r] < -1 or x[r] > 1:
                return r
            x64[2 * r], x64[2 * r + 1] = x[r], -x[r]
        else:
            x64[r] = x[r]
    width = np.int64(0) if doubled else bits
    total = work[3]
    _subtract_offset(at, tables, width, total)
    for start in range(0, at[DRIVEN], at[ONCE]):
        n = min(at[ONCE], at[DRIVEN] - start)
        if kind == SLICED:
            _sliced_part(at, start, n, width, tables, work, total)
        elif kind == WHOLE:
            _whole_part(at, start, n, tables, work, total)
        else:
            _noisy_part(g, at, start, n, width, tables, work, total)
    work[0][g] += 1
    _columns = tables[3]
    positive, negative = _columns[2], _columns[3]
    first, least, most = at[FIRST_COLUMN], np.float64(lowest), np.float64(highest)
    for c in range(at[COLS]):
        p, m = positive[first + c], negative[first + c]
        found[c] = np.int64(min(max(np.rint(total[c]), p * least + m * most), p * most + m * least))
    return np.int64(-1)


@bare_helper
def _subtract_offset(at, tables, width, total):
    """Initialises `total`: subtracts the offset of the inputs times the sum of the weights of each column."""
    raised, sums, first = np.float64(tables[0][4][width]), tables[3][1], at[FIRST_COLUMN]
    for c in range(at[COLS]):
        total[c] = -raised * sums[first + c]


@bare_helper
def _whole_part(at, start, n, tables, work, total):
    """Adds the exact products of n rows from `start` on to `total`; levels are whole weights."""
    levels, cols = tables[1][1], at[COLS]
    for i in range(n):
        value, first = np.float64(work[2][start + i]), _U(at[FIRST_CELL] + (start + i) * cols)
        if value != 0.0:
            for c in range(_U(cols)):
                total[c] += value * np.float64(levels[first + c])


@bare_helper
def _extract_digits(x, start, n, step, width, digits, to):
    """Writes the digits of n inputs in a step to `digits`, from entry `to` on; returns their sum."""
    source, shift, mask, total = step[SOURCE], step[SHIFT], step[MASK], np.int64(0)
    half = np.int64(1) << max(width - 1, np.int64(0))
    for i in range(n):
        v = x[start + i]
        if source == _RAISED:
            v += half
        elif source != _BITS:
            v = max(v if source == _POSITIVE else -v, np.int64(0))
        digits[to + i] = (v >> shift) & mask
        total += digits[to + i]
    return total


@bare_helper
def _sliced_part(at, start, n, width, tables, work, total):
    """Adds the products of n rows from `start` on to `total`: each step, plane by plane."""
    steps, count = tables[0][2][width], tables[0][3][width]
    words, plane_bits = tables[1][0], tables[1][3]
    sums, x_words, digits = work[4], work[5], work[6]
    cols, planes, sides = at[COLS], at[PLANES], at[SIDES]
    per_side = tables[1][4][0] * _words(at[ONCE]) * cols
    block = (start // at[ONCE]) * planes
    for t in range(count):
        step = steps[t]
        entered = _extract_digits(work[2], start, n, step, width, digits, 0)
        deep = _pack(digits, n, step[MASK], x_words)
        for j in range(planes):
            for c in range(cols):
                sums[c] = 0
            for side in range(sides):
                first = at[FIRST_CELL] + ((block + j) * sides + side) * per_side
                _add_counts(x_words, deep, n, words, first, plane_bits[at[FIRST_PLANE] + j], cols, at[ONCE], side, sums)
            _convert_integers(at, j, np.float64(step[FACTOR]), sums, tables, work, total)
        _add_digits(at, np.float64(step[FACTOR]) * np.float64(entered), tables, total)


@bare_helper
def _words(rows):
    return (rows + np.int64(WORD - 1)) // np.int64(WORD)


@bare_helper
def _pack(digits, n, mask, x_words):
    """Packs n digits into words, one bit after another; returns the number of bits of a digit."""
    deep, per_bit = np.int64(0), _words(n)
    while mask >> deep:
        for w in range(per_bit):
            word, left = _U(0), min(np.int64(WORD), n - w * WORD)
            for i in range(left):
                word |= _U((digits[w * WORD + i] >> deep) & 1) << _U(i)
            x_words[deep * per_bit + w] = word
        deep += 1
    return deep


@bare_helper
def _add_counts(x_words, deep, n, words, first, bits, cols, once, side, sums):
    """Adds digits times levels to `sums`, bit by bit; subtracts them on side 1."""
    per_bit, stride = _words(n), _words(once) * cols
    for b in range(deep):
        for i in range(bits):
            shift = np.int64(b + i)
            for w in range(per_bit):
                word, at = x_words[b * per_bit + w], _U(first + i * stride + w * cols)
                if word != _U(0):
                    if side == 0:
                        for c in range(_U(cols)):
                            sums[c] += np.int64(_count(word & words[at + c])) << shift
                    else:
                        for c in range(_U(cols)):
                            sums[c] -= np.int64(_count(word & words[at + c])) << shift


@bare_helper
def _convert_integers(at, j, factor, sums, tables, work, total):
    """Converts the sums of a plane of the sliced chip and adds them to `total`."""
    factors, base, width = tables[2]
    low, high, first = tables[4][0], tables[4][1], at[FIRST_ENTRY] + j * at[COLS]
    watched = work[7].size > 0
    for c in range(at[COLS]):
        e = first + c
        value = np.float64(sums[c])
        if watched:
            work[7][e], work[8][e] = min(work[7][e], value), max(work[8][e], value)
        total[c] += factor * factors[e] * _converted(value, base[e], width[e], low, high)


@bare_helper
def _converted(value, base, width, low, high):
    if width == 0.0:
        return value
    return base + width * min(max(np.rint((value - base) / width), low), high)


@bare_helper
def _add_digits(at, entered, tables, total):
    factors, first = tables[3][0], at[FIRST_COLUMN]
    for c in range(at[COLS]):
        total[c] += factors[first + c] * entered


@bare_helper
def _noisy_part(g, at, start, n, width, tables, work, total):
    """Adds the products of n rows from `start` on to `total`: all steps and planes row by row, then the conversions."""
    steps, count = tables[0][2][width], tables[0][3][width]
    levels, variance = tables[1][1], tables[1][2]
    noisy = variance.size > 0
    digits, sums, spread, entered = work[6], work[9], work[10], work[11]
    entries = at[COLS] * at[PLANES]
    for m in range(count * entries):
        sums[m], spread[m] = np.float32(0), np.float32(0)
    for t in range(count):
        entered[t] = _extract_digits(work[2], start, n, steps[t], width, digits, t * n)
    for i in range(n):
        first = _U(at[FIRST_CELL] + (start + i) * entries)
        for t in range(count):
            digit = np.float32(digits[t * n + i])
            if digit != np.float32(0):
                _add_row(digit, levels, first, _U(entries), sums, _U(t * entries))
                if noisy:
                    _add_row(digit * digit, variance, first, _U(entries), spread, _U(t * entries))
    key = mix_key(mix_key(mix_key(tables[5][g], work[1][0]), work[0][g]), start)
    for t in range(count):
        factor = np.float64(steps[t][FACTOR])
        for j in range(at[PLANES]):
            _convert_floats(at, t, j, key, factor, tables, work, total)
        _add_digits(at, factor * np.float64(entered[t]), tables, total)


@bare_helper
def _add_row(digit, cells, first, count, sums, to):
    for m in range(count):
        sums[to + m] += digit * cells[first + m]


@bare_helper
def _convert_floats(at, t, j, key, factor, tables, work, total):
    """Adds read and converter noise to the sums of a step and a plane, converts them and adds them to `total`."""
    factors, base, width = tables[2]
    low, high, of_converter = tables[4][0], tables[4][1], tables[4][2]
    cols, watched = at[COLS], work[7].size > 0
    first, entry = (t * at[PLANES] + j) * cols, at[FIRST_ENTRY] + j * cols
    for c in range(cols):
        e = entry + c
        value, of_step = np.float64(work[9][first + c]), of_converter * width[e]
        std = np.sqrt(np.float64(work[10][first + c]) + of_step * of_step)
        if std > 0.0:
            value += std * draw_normal(key, first + c)
        if watched:
            work[7][e], work[8][e] = min(work[7][e], value), max(work[8][e], value)
        total[c] += factor * factors[e] * _converted(value, base[e], width[e], low, high)


@bare_kernel
def multiply_vectors(g: Any, vectors: Any, bits: Any, tables: Any, work: Any, found: Any) -> Any:
    """Multiplies vectors [n, rows] with the matrix of an array group; returns the same as `multiply_vector`."""
    for k in range(len(vectors)):
        wrong = multiply_vector(g, vectors[k], bits, tables, work, found[k])
        if wrong >= 0:
            return wrong
    return np.int64(-1)
