"""Writes power over time as CSV: a row for each window, a column of watts for each part of the chip."""

from pathlib import Path

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.option_spelling import spell_option
from validator.simulate.analysis.power import MOST_WINDOWS, PARTS, PowerCurve, count_windows, widen_window

_ROWS_AT_ONCE = 10_000


def check_window_count(time_ns: float, window_ns: float) -> None:
    """Raises `UserError` if a file would have more than `MOST_WINDOWS` rows."""
    count = count_windows(time_ns, window_ns)
    if count > MOST_WINDOWS:
        least = widen_window(time_ns, window_ns, MOST_WINDOWS)
        raise UserError(
            f"{spell_option('window', f'{window_ns:g}ns')}: {count:,} windows in the run, a file takes at most "
            f"{MOST_WINDOWS:,}; try {spell_option('window', f'{least:g}ns')}"
        )


def write_power_file(path: Path, curve: PowerCurve) -> None:
    """Writes a curve by part. Numbers are not rounded, so the rows add up to the energy of the sample.

    Raises `UserError` if the file cannot be written.
    """
    edges, watts = curve.edges_ns, curve.watts
    table = np.column_stack([edges[:-1], edges[1:], watts.T, watts.sum(axis=0)])
    with file_access.open_atomic(spell_option("power_file"), path) as stream:
        stream.write(",".join(["start_ns", "end_ns", *(f"{part}_w" for part in PARTS), "total_w"]).encode() + b"\n")
        for first in range(0, len(table), _ROWS_AT_ONCE):
            rows = table[first : first + _ROWS_AT_ONCE].tolist()
            stream.write("".join(",".join(map(repr, row)) + "\n" for row in rows).encode())
