"""Checks that a program fits a chip other than the chip that it was compiled for.

Times on crossbars that cannot hold the program's matrices mean nothing, so such a chip is refused. A chip that differs
but fits is simulated with a warning, because the compiler's decisions depend on the sizes.
"""

import numpy as np
from pydantic import ValidationError

from raptor.common import storage
from raptor.common.errors import UserError
from raptor.output import files
from raptor.target.arch import ARCH_LIMIT_BYTES, ArchFile, MatrixConfig
from raptor.target.isa import OPCODE
from validator.checks.loading import matrix_shapes
from validator.programs import RawProgram
from validator.simulate.simulated_chip import SimulatedChip


def check_geometry(program: RawProgram, target: SimulatedChip) -> tuple[str, ...]:
    """Returns warnings if sizes differ from those of the `arch.json` beside the program; none without such a file.

    Raises `UserError` for more crossbars in a core than the target has, and for matrices that do not fit its crossbars.
    """
    matrix = target.file.chip_config.core_config.matrix_config
    _check_counts(program, target, matrix)
    own = _own_chip(program)
    if own is None:
        return ()
    given, compiled = _sizes(target.file), _sizes(own)
    differing = [name for name in compiled if compiled[name] != given[name]]
    if not differing:
        return ()
    if {"xbar_size", "cell_precision"} & set(differing):
        _check_matrices(program, target, matrix)
    changes = ", ".join(f"{name} {compiled[name]} there, {given[name]} here" for name in differing)
    return (
        f"compiled for a chip of other sizes: {changes}; the streams stay as they are: to use this chip, compile for "
        f"it; to vary one number, edit {program.folder / files.ARCH}",
    )


def _own_chip(program: RawProgram) -> ArchFile | None:
    path = program.folder / files.ARCH
    if not path.is_file():
        return None
    try:
        return ArchFile.model_validate_json(storage.read_bytes(path.parent, path.name, limit_bytes=ARCH_LIMIT_BYTES))
    except ValidationError:
        return None  # `raptor check` says what is wrong with it; nothing can be compared


def _sizes(chip: ArchFile) -> dict[str, str]:
    """Returns the sizes that the streams depend on, as text, by the name of the field."""
    matrix = chip.chip_config.core_config.matrix_config
    return {
        "core_cnt": str(chip.chip_config.core_cnt),
        "xbar_array_count": str(matrix.xbar_array_count),
        "xbar_size": "x".join(map(str, matrix.xbar_size)),
        "cell_precision": str(matrix.cell_precision),
    }


def _check_counts(program: RawProgram, target: SimulatedChip, matrix: MatrixConfig) -> None:
    for core, groups in enumerate(program.groups):
        if sum(groups) > matrix.xbar_array_count:
            raise UserError(
                f"{program.source}: core {core} has {sum(groups)} crossbars, but a core of {target.source} has "
                f"{matrix.xbar_array_count}; compile for that chip"
            )


def _check_matrices(program: RawProgram, target: SimulatedChip, matrix: MatrixConfig) -> None:
    """Raises `UserError` if a matrix does not fit its crossbars.

    The shapes come from RAPTOR's weights, the width of a weight from the products of its group. Without weights
    nothing is checked.
    """
    memory = program.folder / files.MEMORY
    shapes = matrix_shapes(program.folder) if program.source.is_dir() and memory.is_file() else None
    if shapes is None:
        return
    rows, cols = matrix.xbar_size
    widths = _weight_bits(program)
    for core, (groups, found) in enumerate(zip(program.groups, shapes, strict=False)):
        for group, (xbars, shape) in enumerate(zip(groups, found or (), strict=False)):
            outputs = matrix.cell_precision * cols // widths.get((core, group), 1)
            if shape[0] > rows or shape[1] > xbars * outputs:
                raise UserError(
                    f"{program.source}: the matrix of {shape[0]}x{shape[1]} in array group {group} of core {core} does "
                    f"not fit {xbars} crossbars of {rows}x{cols} of {target.source}, which hold {rows}x"
                    f"{xbars * outputs} weights; compile for that chip, or simulate with one of the program's sizes"
                )


def _weight_bits(program: RawProgram) -> dict[tuple[int, int], int]:
    """Returns the bits of a weight by core and array group, of the groups that have products."""
    found: dict[tuple[int, int], int] = {}
    for core, records in enumerate(program.records):
        products = np.unique(records[records["opcode"] == OPCODE["mvmul"]][["c", "a"]])
        found |= {(core, int(group)): max(1, int(bits)) for group, bits in products.tolist()}
    return found
