"""Checks that a program fits a chip other than the chip that it was compiled for.

Times on crossbars that cannot hold the program's matrices mean nothing, so such a chip is refused. A chip that differs
but fits is simulated with a warning, because the compiler's decisions depend on the sizes.
"""

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.target.arch import Target, read_stored_target
from raptor.target.isa import OPCODE
from validator.checks.load_subject import read_matrix_shapes
from validator.program.pimsim_program import RawProgram
from validator.simulate.cycle.simulated_chip import SimulatedChip


def check_chip_fit(program: RawProgram, chip: SimulatedChip) -> tuple[str, ...]:
    """Returns warnings if sizes differ from the `arch.json` beside the program; none without such a file.

    Raises `UserError` for more crossbars in a core than the target has, and for matrices that do not fit its crossbars.
    """
    _check_counts(program, chip)
    own = _own_chip(program)
    if own is None:
        return ()
    given, compiled = _sizes(chip.target), _sizes(own)
    differing = [name for name in compiled if compiled[name] != given[name]]
    if not differing:
        return ()
    if {"xbar_size", "cell_precision"} & set(differing):
        _check_matrices(program, chip)
    changes = ", ".join(f"{name} {compiled[name]} there, {given[name]} here" for name in differing)
    return (
        f"compiled for a chip of other sizes: {changes}; the streams stay as they are: to use this chip, compile for "
        f"it; to vary one number, edit {program.folder / files.ARCH}",
    )


def _own_chip(program: RawProgram) -> Target | None:
    if not (program.folder / files.ARCH).is_file():
        return None
    file_access.check_regular_file(program.folder, files.ARCH)
    try:
        return read_stored_target(program.folder, files.ARCH)
    except UserError:
        return None  # `raptor check` says what is wrong with it; nothing can be compared


def _sizes(target: Target) -> dict[str, str]:
    """Returns the sizes that the streams depend on, as text, by the name of the field."""
    return {
        "core_cnt": str(target.core_count),
        "xbar_array_count": str(target.xbars_per_core),
        "xbar_size": f"{target.xbar_rows}x{target.xbar_cols}",
        "cell_precision": str(target.cell_bits),
    }


def _check_counts(program: RawProgram, chip: SimulatedChip) -> None:
    available = chip.target.xbars_per_core
    for core, groups in enumerate(program.groups):
        if sum(groups) > available:
            raise UserError(
                f"{program.source}: core {core} has {sum(groups)} crossbars, but a core of {chip.source} has "
                f"{available}; compile for that chip"
            )


def _check_matrices(program: RawProgram, chip: SimulatedChip) -> None:
    """Raises `UserError` if a matrix does not fit its crossbars.

    The shapes come from RAPTOR's weights, the width of a weight from the products of its group. Without weights
    nothing is checked.
    """
    memory = program.folder / files.MEMORY
    shapes = read_matrix_shapes(program.folder) if program.source.is_dir() and memory.is_file() else None
    if shapes is None:
        return
    rows, cols = chip.target.xbar_rows, chip.target.xbar_cols
    widths = _weight_bits(program)
    for core, (groups, found) in enumerate(zip(program.groups, shapes, strict=False)):
        for group, (xbars, shape) in enumerate(zip(groups, found or (), strict=False)):
            outputs = chip.target.weight_columns(widths.get((core, group), 1))
            if shape[0] > rows or shape[1] > xbars * outputs:
                raise UserError(
                    f"{program.source}: the matrix of {shape[0]}x{shape[1]} in array group {group} of core {core} does "
                    f"not fit {xbars} crossbars of {rows}x{cols} of {chip.source}, which hold {rows}x"
                    f"{xbars * outputs} weights; compile for that chip, or simulate with one of the program's sizes"
                )


def _weight_bits(program: RawProgram) -> dict[tuple[int, int], int]:
    """Returns the bits of a weight by core and array group, of the groups that have products."""
    found: dict[tuple[int, int], int] = {}
    for core, records in enumerate(program.records):
        products = np.unique(records[records["opcode"] == OPCODE["mvmul"]][["c", "a"]])
        found |= {(core, int(group)): max(1, int(bits)) for group, bits in products.tolist()}
    return found
