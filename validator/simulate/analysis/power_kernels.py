"""Spreads the energy of each instruction over the windows of time in which its unit works."""

# Kernels are untyped for numba's sake; `power` passes the arrays that it declares.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

import numpy as np

from raptor.common.jit.decorators import bare_helper, bare_kernel, interpret_first
from validator.simulate.analysis.count_kernels import count_instruction


@bare_kernel
@interpret_first(us=lambda args: 30 * len(args[1].words), until_us=5e5)
def add_energy(
    chip, program, first, flit_pj, prices, part, weights, end, busy, repeat_ps, window_ps, rows, use, widths, slope, out
) -> None:
    """Adds the energy (pJ) of all instructions to the windows of `out`.

    `prices`: pJ of one use, by column of `Count`; `part`: the part of the chip that the column belongs to. `weights`:
    runs of each core's stream. The energy is spread evenly over the `busy` ps of the unit before `end`. Times are
    folded modulo `repeat_ps`, the end of the last window. `rows[core, part]`: the row of `out` that takes the energy.
    `use`, `widths`, `slope`: room for the uses of an instruction, for three numbers, and for changes of power.
    """
    for c in range(first.size - 1):
        widths[:] = 0
        last = 0.0
        for pc in range(first[c], first[c + 1]):
            use[:] = 0.0
            count_instruction(chip, program, c, first.size - 1, pc, widths, flit_pj, use)
            if end[pc] > 0:
                last = np.float64(end[pc])
            # An instruction without a unit has no times of its own: its fetch is placed after the last one that has.
            begin = last - busy[pc] if end[pc] > 0 else last
            row, pj = rows[c, 0], 0.0
            for k in range(prices.size):
                if rows[c, part[k]] != row:
                    if pj != 0.0:
                        _spread(begin, last, pj, repeat_ps, window_ps, out, slope, row)
                    row, pj = rows[c, part[k]], 0.0
                pj += use[k] * prices[k] * weights[c]
            if pj != 0.0:
                _spread(begin, last, pj, repeat_ps, window_ps, out, slope, row)
    for row in range(out.shape[0]):
        rate = 0.0
        for k in range(out.shape[1]):
            rate += slope[row, k]
            # What is left of a sum of rates that cancel is no energy.
            out[row, k] += max(rate, 0.0)


@bare_helper
def _spread(begin, end, pj, repeat_ps, window_ps, out, slope, row):
    """Adds `pj` to the windows of a row between `begin` and `end` (ps), each modulo `repeat_ps`."""
    length = end - begin
    start = begin % repeat_ps
    if length <= 0.0:
        out[row, min(np.int64(start / window_ps), out.shape[1] - 1)] += pj
        return
    rate = pj / length
    while start + length > repeat_ps:
        _add_span(start, repeat_ps, rate, window_ps, out, slope, row)
        length -= repeat_ps - start
        start = 0.0
    _add_span(start, start + length, rate, window_ps, out, slope, row)


@bare_helper
def _add_span(start, end, rate, window_ps, out, slope, row):
    """Adds `rate` pJ a ps from `start` to `end`. Windows in the middle of the span are noted in `slope`, as changes."""
    first = min(np.int64(start / window_ps), out.shape[1] - 1)
    last = min(np.int64(end / window_ps), out.shape[1] - 1)
    if first == last:
        out[row, first] += rate * (end - start)
        return
    out[row, first] += rate * ((first + 1) * window_ps - start)
    out[row, last] += rate * (end - last * window_ps)
    slope[row, first + 1] += rate * window_ps
    slope[row, last] -= rate * window_ps
