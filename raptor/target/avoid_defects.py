"""The target that the defects of a chip leave: the cores and the crossbars of each that a program may use."""

from dataclasses import replace

import numpy as np

from raptor.common.errors import UserError
from raptor.target.arch.target import Target, intern_target
from raptor.target.avoid_links import list_clear_places
from raptor.target.chip_file import Chip


def check_chip_fits(chip: Chip, target: Target, where: str) -> None:
    """Raises `UserError` unless a chip has the cores, crossbars, rows, columns and cells of a target."""
    wanted = (target.core_count, target.core.xbar_count, target.xbar_rows, target.xbar_cols)
    size = chip.size
    found = (size.cores, size.crossbars, size.rows, size.columns)
    if found != wanted:
        raise UserError(
            f"{where}: chip {chip.file.name!r} has {_describe(found)}, the architecture {_describe(wanted)}; take "
            "the file of a chip of this architecture"
        )
    if size.cell_bits is not None and size.cell_bits != target.cell_bits:
        raise UserError(
            f"{where}: chip {chip.file.name!r} has cells of {size.cell_bits} bits, the architecture of "
            f"{target.cell_bits}; take the file of a chip of this architecture"
        )

    if chip.file.dead_links:
        _check_mesh(chip, target, where)


def _check_mesh(chip: Chip, target: Target, where: str) -> None:
    """Raises `UserError` unless messages take the routes of a mesh with as many columns as the chip's."""
    if target.table is not None or target.chips > 1:
        found = "several chips" if target.chips > 1 else "a network table of its own"
        raise UserError(
            f"{where}: chip {chip.file.name!r} has dead links, but the architecture has {found}, which does not tell "
            "the routes of messages; take the built-in mesh, or a chip file without dead links"
        )
    if chip.size.mesh_columns != target.mesh_cols:
        raise UserError(
            f"{where}: chip {chip.file.name!r} has a mesh with rows of {chip.size.mesh_columns} cores, the "
            f"architecture rows of {target.mesh_cols}; take the file of a chip of this architecture"
        )


def _describe(size: tuple[int, ...]) -> str:
    cores, crossbars, rows, columns = size
    return f"{cores} cores with {crossbars} crossbars of {rows}x{columns}"


def avoid_defects(target: Target, chip: Chip, where: str) -> Target:
    """Returns the target for a program that uses no dead core, and no crossbar with dead lines that it cannot replace.

    All cores of a program have the same room. It is the number of crossbars with which the cores that have as many
    hold the most in all; other cores are not used. Raises `UserError` if the chip is of another kind, or all is dead.
    """
    check_chip_fits(chip, target, where)
    rooms = np.array([chip.count_whole_crossbars(core) for core in range(target.core_count)])
    room = max(sorted({*rooms.tolist()}), key=lambda count: count * int((rooms >= count).sum()))
    if not room:
        raise UserError(f"{where}: chip {chip.file.name!r} has no core with a crossbar that works")
    places = np.flatnonzero(rooms >= room).tolist()
    return intern_target(
        replace(
            target,
            places=None if len(places) == target.core_count else tuple(places),
            room=None if room == target.core.xbar_count else room,
            defects=chip,
        )
    )


def describe_loss(target: Target) -> str:
    """Returns what the defects of a chip leave of a target; empty for one without a chip file."""
    if target.defects is None:
        return ""
    chip, hardware, used = target.defects, target.core.xbar_count, target.xbars_per_core
    links, clear = f" and {len(chip.file.dead_links)} links" if chip.file.dead_links else "", ""
    if chip.cut_routes is not None:
        found = len(list_clear_cores(target))
        clear = f"; between any two of {found} of these, messages cross no dead link"
    return (
        f"chip {chip.file.name!r}: {len(chip.dead_cores)} of {target.core_count} cores{links} are dead; the program "
        f"may use {used} of {hardware} crossbars of a core, in the {target.usable_cores} cores that have as many "
        f"without dead rows and columns{clear}"
    )


def list_usable_cores(target: Target) -> list[int]:
    """Returns the cores that a program may use, in ascending order."""
    return list(range(target.core_count) if target.places is None else target.places)


def list_clear_cores(target: Target) -> list[int]:
    """Returns cores that a program may use, such that no message between two of them crosses a dead link."""
    usable = list_usable_cores(target)
    if target.cut_routes is None:
        return usable
    cut = target.cut_routes.cut_pairs(np.array(usable, np.int64))
    return sorted(usable[place] for place in list_clear_places(cut))
