"""Writes chip files, with defects that a tester found or that are drawn for a study."""

from pathlib import Path

from raptor.common.files import file_access
from raptor.target.arch import Target
from raptor.target.chip_file import ChipFile, ChipSize, chip_to_json
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.tester_csv import read_tester_csv


def make_size(target: Target, arrays: int, spare_crossbars: int = 0, spare_columns: int = 0) -> ChipSize:
    """Returns the size of a chip of an architecture. `arrays`: 2 if pairs of cells are subtracted."""
    converters = target.core.xbar.converters.adcs
    return ChipSize(
        cores=target.core_count,
        crossbars=target.xbars_per_core,
        rows=target.xbar_rows,
        columns=target.xbar_cols,
        arrays=arrays,
        cell_bits=target.cell_bits,
        converters=converters if target.xbar_cols % converters == 0 else 0,
        spare_crossbars=spare_crossbars,
        spare_columns=spare_columns,
        mesh_columns=target.mesh_cols if target.chips == 1 and target.table is None else 0,
    )


def write_chip_file(
    output: Path, size: ChipSize, rates: DefectRates, seed: int, csv: Path | None, *, force: bool
) -> ChipFile:
    """Writes a chip file with the defects of a tester's CSV, or drawn ones. Returns its content.

    Raises `UserError` for a CSV with mistakes, rates that the chip cannot have, and a file that may not be replaced.
    """
    file_access.refuse_stdout("-o", output)
    file_access.check_file_replaceable("chip file", output, force=force)
    file = draw_chip(size, rates, seed) if csv is None else read_tester_csv(csv, size, output.stem)
    file_access.write_atomic("-o", output, chip_to_json(file))
    return file


def count_defects(file: ChipFile) -> str:
    """Returns the numbers of defects of a chip as text."""
    lists = {
        "stuck cells": [*(len(a.off) for a in file.arrays), *(len(a.on) for a in file.arrays)],
        "dead rows": [len(a.rows) for a in file.arrays],
        "dead columns": [len(a.columns) for a in file.arrays],
        "dead converters": [len(a.converters) for a in file.arrays],
        "dead crossbars": [len(file.dead_crossbars)],
        "dead cores": [len(file.dead_cores)],
        "dead links": [len(file.dead_links)],
    }
    found = [f"{sum(counts)} {name}" for name, counts in lists.items() if sum(counts)]
    size = file.size
    chip = f"{size.cores} cores with {size.all_crossbars} crossbars of {size.rows}x{size.all_columns}"
    return f"{chip}: {', '.join(found) or 'no defects'}"
